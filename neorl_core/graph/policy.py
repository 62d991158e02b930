"""Graph networks with the interface of `neorl_core.networks`: vectors in, vectors out.

The weights are `{"graph": {"layout", "actor" or "critic"}}`. Width and rounds follow from the arrays, and the layout
maps observation and action to the graph. With another layout, the same arrays control another graph. If nodes are
agents, the weights are `{"graph": {"layout", "agents"}}`. Their critics are dense and see the whole plant.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from neorl_core.graph.communication import AgentNetwork, agents_apply, agents_init
from neorl_core.graph.graphs import Graph
from neorl_core.graph.layout import Layout, build_graph, check_layout, flat_action
from neorl_core.graph.message_passing import Actor, Critic
from neorl_core.types import PlantSpec

Weights = dict[str, Any]


class GraphNetwork(NamedTuple):
    """Layout and size of a graph network."""

    layout: Layout
    rounds: int
    width: int


def make_graph_network(spec: PlantSpec, rounds: int, hidden: tuple[int, ...]) -> GraphNetwork | AgentNetwork | None:
    """Return the graph network of a policy for a plant or its agents, or None for zero rounds.

    Args:
        spec: spec of the plant, with history if the policy uses a history.
        hidden: widths of hidden layers; the first is used for every node and edge.

    Raises:
        ValueError: if the plant has no layout, or has a history.
    """
    if not rounds:
        return None
    if spec.layout is None:
        raise ValueError(
            f"graph: {rounds} needs a plant with a layout, got {spec.name} without one: describe its graph in "
            "`layout`, or leave out 'graph'"
        )
    if spec.history is not None:
        raise ValueError(
            f"graph: {rounds} cannot be combined with a history, got {spec.history}: leave out 'history' or 'graph'"
        )
    kind = AgentNetwork if spec.layout.kinds else GraphNetwork
    return kind(check_layout(spec.layout, spec.observation.size, spec.acting), rounds, hidden[0])


def graph_actor_init(key: PRNGKeyArray, passing: GraphNetwork | AgentNetwork) -> Weights:
    """Return fresh weights of an actor with one output per action, before the tanh."""
    layout = passing.layout
    if isinstance(passing, AgentNetwork):
        return {"graph": {"layout": layout, "agents": agents_init(key, passing)}}
    module = Actor(passing.width, passing.rounds, len(layout.node_action), len(layout.edge_action))
    return {"graph": {"layout": layout, "actor": module.init(key, _like(layout, acting=False))["params"]}}


def graph_critic_init(key: PRNGKeyArray, passing: GraphNetwork, acting: bool = True) -> Weights:
    """Return fresh weights of a critic of observation and action, or of the observation alone."""
    module = Critic(passing.width, passing.rounds)
    return {"graph": {"layout": passing.layout, "critic": module.init(key, _like(passing.layout, acting))["params"]}}


def graph_apply(params: Weights, x: Float[Array, "*n I"]) -> Float[Array, "*n F"]:
    """Return the outputs of a graph network: (..., A) before the tanh of an actor, or (..., 1) of a critic.

    Args:
        x: (..., O) normalised observations; (..., O + A) with unit actions appended for a critic of actions.
    """
    layout: Layout = params["layout"]
    if "agents" in params:
        return agents_apply(params["agents"], layout, x)
    if "actor" in params:
        return flat_action(layout, *act_on(params["actor"], build_graph(layout, x)))
    critic = params["critic"]
    acting = x.shape[-1] - _actions(layout) if _sees_actions(critic, layout) else x.shape[-1]
    graph = build_graph(layout, x[..., :acting], x[..., acting:] if acting < x.shape[-1] else None)
    output: Any = Critic(*_size(critic)).apply({"params": critic}, graph)
    result: Float[Array, "*n F"] = output
    return result


def act_on(weights: Weights, graph: Graph) -> tuple[Float[Array, "*b N K"], Float[Array, "*b E J"]]:
    """Return node and edge outputs of an actor (`params['graph']['actor']`) for a graph with equal features."""
    outputs = [weights[name]["bias"].shape[-1] if name in weights else 0 for name in ("per_node", "per_edge")]
    output: Any = Actor(*_size(weights), *outputs).apply({"params": weights}, graph)
    node_output, edge_output = output
    return node_output, edge_output


def with_layout(params: Weights, layout: Layout) -> Weights:
    """Return the weights with another layout that has the same features and kinds of actions, for fine-tuning."""
    return {"graph": params["graph"] | {"layout": layout}}


def _size(weights: Weights) -> tuple[int, int]:
    body = weights["body"]
    return body["nodes"]["bias"].shape[-1], sum(name.startswith("round_") for name in body)


@cache
def _actions(layout: Layout) -> int:
    return sum(place >= 0 for row in (*layout.node_action, *layout.edge_action) for place in row)


def _sees_actions(critic: Weights, layout: Layout) -> bool:
    nodes = len(layout.node_constants) + len(layout.node_observation)
    edges = len(layout.edge_constants) + len(layout.edge_observation)
    inputs = tuple(critic["body"][name]["kernel"].shape[-2] for name in ("nodes", "edges"))
    return inputs != (nodes, edges)


def _like(layout: Layout, acting: bool) -> Graph:
    """Return a graph of zeros with this layout."""
    columns = (*layout.node_observation, *layout.edge_observation, layout.context, layout.flags)
    observed = max((place for row in columns for place in row), default=-1) + 1
    return build_graph(layout, jnp.zeros((observed,)), jnp.zeros((_actions(layout),)) if acting else None)
