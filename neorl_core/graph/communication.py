"""Multi-agent policies with learned communication: each agent acts on its own observation and on messages.

An agent first encodes its observation. In each of R rounds, it sends a message to linked agents, and processes the sum
of the messages that arrive over links that are up. So an action depends only on agents at most R links away, and
without links only on the agent's own observation.

Foerster et al. 2016, Learning to communicate with deep multi-agent reinforcement learning (arXiv 1605.06676) learn
messages; Sukhbaatar et al. 2016 (arXiv 1605.07736) sum them. `encode`, `send`, `receive` and `decode` compute one
agent; `agents_apply` computes all agents.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from neorl_core.graph.layout import Layout, build_graph, flat_action
from neorl_core.graph.message_passing import sum_messages

Weights = dict[str, Any]


class AgentNetwork(NamedTuple):
    """Layout and size of a policy of agents."""

    layout: Layout
    rounds: int
    width: int


def encode(own: Weights, features: Float[Array, "*b F"]) -> Float[Array, "*b H"]:
    """Return an agent's initial hidden state `h = relu(B relu(A x + a) + b)` for features x, constants included."""
    return jax.nn.relu(_dense(own["sees_1"], jax.nn.relu(_dense(own["sees_0"], features))))


def send(own: Weights, hidden: Float[Array, "*b H"], turn: int) -> Float[Array, "*b H"]:
    """Return the message of a round to all linked agents: `m = relu(C h + c)`."""
    return jax.nn.relu(_dense(own[f"says_{turn}"], hidden))


def receive(
    own: Weights, hidden: Float[Array, "*b H"], arrived: Float[Array, "*b H"], turn: int
) -> Float[Array, "*b H"]:
    """Return the hidden state after a round: `h + relu(D (h, Σ m) + d)`, with the sum Σ m of received messages."""
    return hidden + jax.nn.relu(_dense(own[f"hears_{turn}"], jnp.concatenate([hidden, arrived], -1)))


def decode(own: Weights, hidden: Float[Array, "*b H"]) -> Float[Array, "*b K"]:
    """Return the outputs for the actions before the tanh: `F relu(E h + e) + f`."""
    return _dense(own["acts_1"], jax.nn.relu(_dense(own["acts_0"], hidden)))


def agents_init(key: PRNGKeyArray, talk: AgentNetwork) -> Weights:
    """Return fresh weights of every kind of agents: LeCun normal kernels, zero biases."""
    layout, width = talk.layout, talk.width
    sizes = {"sees_0": (_features(layout), width), "sees_1": (width, width)}
    for turn in range(talk.rounds):
        sizes |= {f"says_{turn}": (width, width), f"hears_{turn}": (2 * width, width)}
    sizes |= {"acts_0": (width, width), "acts_1": (width, len(layout.node_action))}
    kinds, normal = max(layout.kinds) + 1, jax.nn.initializers.lecun_normal(batch_axis=0)
    keys = dict(zip(sizes, jax.random.split(key, len(sizes)), strict=True))
    return {
        name: {"kernel": normal(keys[name], (kinds, *size)), "bias": jnp.zeros((kinds, size[1]))}
        for name, size in sizes.items()
    }


def agents_apply(weights: Weights, layout: Layout, observation: Float[Array, "*b O"]) -> Float[Array, "*b A"]:
    """Return the outputs of all agents in the order of the action vector, for normalised observations (..., O)."""
    graph = build_graph(layout, observation)
    own, up = own_weights(weights, np.asarray(layout.kinds)), graph.edge_mask[..., None]
    hidden = _each(encode, own, graph.nodes)
    for turn in range(rounds_of(weights)):
        messages = _each(partial(send, turn=turn), own, hidden)
        forth, back = messages[..., graph.senders, :] * up, messages[..., graph.receivers, :] * up
        arrived = sum_messages(forth, graph.receivers, layout.nodes) + sum_messages(back, graph.senders, layout.nodes)
        hidden = _each(partial(receive, turn=turn), own, hidden, arrived)
    outputs = _each(decode, own, hidden)
    return flat_action(layout, outputs, outputs[..., :0, :0])


def own_weights(weights: Weights, kind: Any) -> Weights:
    """Return the weights of one kind of agents, or stacked weights of N agents for kinds (N,)."""
    own: Weights = jax.tree.map(lambda x: x[kind], weights)
    return own


def rounds_of(weights: Weights) -> int:
    """Return the number of communication rounds."""
    return sum(name.startswith("says_") for name in weights)


def _features(layout: Layout) -> int:
    return len(layout.node_constants) + len(layout.node_observation)


def _dense(layer: Weights, x: Float[Array, "*b I"]) -> Float[Array, "*b J"]:
    product: Float[Array, "*b J"] = x @ layer["kernel"]
    return product + jnp.broadcast_to(layer["bias"], product.shape)


def _each(function: Callable[..., Array], own: Weights, *inputs: Array) -> Float[Array, "*b N J"]:
    """Apply a function of one agent to all agents: weights on the first axis, numbers on the second-last."""
    along = (0, *(-2,) * len(inputs))
    output: Float[Array, "*b N J"] = jax.vmap(function, in_axes=along, out_axes=-2)(own, *inputs)
    return output
