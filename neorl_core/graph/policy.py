"""Graph networks behind the flat contract of actors and critics.

`neorl_core.networks` applies whatever its weights say. Those of a graph network are `{"graph": {"layout", "actor" or
"critic"}}`; its width and rounds are read off the arrays, and its layout says how observation and action lie on the
graph. With another layout the same arrays are a policy for another graph. Where nodes are agents, the actor is theirs
(`{"graph": {"layout", "agents"}}`), and its critics, which only training has, are dense and see the whole plant.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from neorl_core.graph.graphs import Graph
from neorl_core.graph.layout import Layout, action_of, checked, graph_of
from neorl_core.graph.messages import Talk, agents_apply, agents_init
from neorl_core.graph.passing import Actor, Critic
from neorl_core.types import PlantSpec

Weights = dict[str, Any]


class Passing(NamedTuple):
    """What a graph network is made for, and its size."""

    layout: Layout
    rounds: int
    width: int


def passing_of(spec: PlantSpec, rounds: int, hidden: tuple[int, ...]) -> Passing | Talk | None:
    """The graph network of a policy for a plant, or that of its agents; None of one without rounds.

    Args:
        spec: as the policy sees the plant.
        rounds: of message passing.
        hidden: widths of hidden layers; the first is that of every node and edge.

    Raises:
        ValueError: when the plant does not lie on a graph, or is seen with a history.
    """
    if not rounds:
        return None
    if spec.layout is None:
        raise ValueError(
            f"expected a plant with a layout for a graph policy of {rounds} rounds, got {spec.name}, whose spec has "
            "none: describe its graph in `layout`, or leave out 'graph'."
        )
    if spec.history is not None:
        raise ValueError("expected a graph policy without a history, got one: leave out 'history' or 'graph'.")
    kind = Talk if spec.layout.kinds else Passing
    return kind(checked(spec.layout, spec.observation.size, spec.acting), rounds, hidden[0])


def graph_actor_init(key: PRNGKeyArray, passing: Passing | Talk) -> Weights:
    """Fresh weights of an actor: numbers for each action before the tanh."""
    layout = passing.layout
    if isinstance(passing, Talk):
        return {"graph": {"layout": layout, "agents": agents_init(key, passing)}}
    module = Actor(passing.width, passing.rounds, len(layout.node_action), len(layout.edge_action))
    return {"graph": {"layout": layout, "actor": module.init(key, _like(layout, acting=False))["params"]}}


def graph_critic_init(key: PRNGKeyArray, passing: Passing, acting: bool = True) -> Weights:
    """Fresh weights of a critic of observation and action, or of the observation alone."""
    module = Critic(passing.width, passing.rounds)
    return {"graph": {"layout": passing.layout, "critic": module.init(key, _like(passing.layout, acting))["params"]}}


def graph_apply(params: Weights, x: Float[Array, "*n I"]) -> Float[Array, "*n F"]:
    """Numbers for each action, or a critic's one number.

    Args:
        params: weights, and the layout that they are for.
        x: (..., O) normalised observations, or (..., O + A) with unit actions behind them.
    """
    layout: Layout = params["layout"]
    if "agents" in params:
        return agents_apply(params["agents"], layout, x)
    if "actor" in params:
        return action_of(layout, *act_on(params["actor"], graph_of(layout, x)))
    critic = params["critic"]
    acting = x.shape[-1] - _actions(layout) if _sees_actions(critic, layout) else x.shape[-1]
    graph = graph_of(layout, x[..., :acting], x[..., acting:] if acting < x.shape[-1] else None)
    output: Any = Critic(*_size(critic)).apply({"params": critic}, graph)
    result: Float[Array, "*n F"] = output
    return result


def act_on(weights: Weights, graph: Graph) -> tuple[Float[Array, "*b N K"], Float[Array, "*b E J"]]:
    """What an actor's weights say at each node and edge of any graph with the features that they were made for.

    Args:
        weights: `params["graph"]["actor"]`.
        graph: padded or not.
    """
    outputs = [weights[name]["bias"].shape[-1] if name in weights else 0 for name in ("per_node", "per_edge")]
    output: Any = Actor(*_size(weights), *outputs).apply({"params": weights}, graph)
    of_nodes, of_edges = output
    return of_nodes, of_edges


def moved_to(params: Weights, layout: Layout) -> Weights:
    """The same weights as a policy for another graph, to be tuned there.

    Args:
        params: of a graph network.
        layout: with as many features and kinds of actions as the one that they were trained on.
    """
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
    read = tuple(critic["body"][name]["kernel"].shape[-2] for name in ("nodes", "edges"))
    return read != (nodes, edges)


def _like(layout: Layout, acting: bool) -> Graph:
    """A graph of this layout, of zeros."""
    columns = (*layout.node_observation, *layout.edge_observation, layout.context, layout.flags)
    observed = max((place for row in columns for place in row), default=-1) + 1
    return graph_of(layout, jnp.zeros((observed,)), jnp.zeros((_actions(layout),)) if acting else None)
