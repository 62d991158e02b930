"""Agents that share a plant: each knows its own part of the observation and what others tell it, and acts upon that.

An agent makes numbers of what it sees, tells them to those that it has links to, takes in the sum of what arrives over
links that are up, and so on for some rounds. Nothing is pooled: after R rounds an action depends on agents within R
links that are up, and with all links cut on the agent's own observation alone.

Foerster et al. 2016, Learning to communicate with deep multi-agent reinforcement learning (arXiv 1605.06676), have
messages learned through the links, Sukhbaatar et al. 2016 (arXiv 1605.07736) sum them. Every function is of one agent;
the policy of all is its vmap over agents and the sums over links.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from neorl_core.graph.layout import Layout, action_of, graph_of
from neorl_core.graph.passing import summed

Weights = dict[str, Any]


class Talk(NamedTuple):
    """What a policy of agents is made for, and its size."""

    layout: Layout
    rounds: int
    width: int


def seen(own: Weights, features: Float[Array, "*b F"]) -> Float[Array, "*b H"]:
    """What an agent knows before it hears anything: `h = relu(B relu(A x + a) + b)`.

    Args:
        own: weights of the agent's kind.
        features: the agent's own, normalised, its constants before them.
    """
    return jax.nn.relu(_dense(own["sees_1"], jax.nn.relu(_dense(own["sees_0"], features))))


def said(own: Weights, knows: Float[Array, "*b H"], turn: int) -> Float[Array, "*b H"]:
    """What it tells everyone that it has a link to: `m = relu(C h + c)`.

    Args:
        own: weights of the agent's kind.
        knows: the agent's h.
        turn: number of the round.
    """
    return jax.nn.relu(_dense(own[f"says_{turn}"], knows))


def heard(own: Weights, knows: Float[Array, "*b H"], arrived: Float[Array, "*b H"], turn: int) -> Float[Array, "*b H"]:
    """What it knows after a round: `h + relu(D (h, Σ m) + d)`; of an agent that hears nothing the sum is 0.

    Args:
        own: weights of the agent's kind.
        knows: the agent's h.
        arrived: the sum of the messages that reached it.
        turn: number of the round.
    """
    return knows + jax.nn.relu(_dense(own[f"hears_{turn}"], jnp.concatenate([knows, arrived], -1)))


def acted(own: Weights, knows: Float[Array, "*b H"]) -> Float[Array, "*b K"]:
    """Numbers for each of its actions before the tanh: `F relu(E h + e) + f`."""
    return _dense(own["acts_1"], jax.nn.relu(_dense(own["acts_0"], knows)))


def agents_init(key: PRNGKeyArray, talk: Talk) -> Weights:
    """Fresh weights, LeCun's normal ones and biases of 0, of every kind of agents.

    Args:
        key: their randomness.
        talk: layout, rounds and width.
    """
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
    """Numbers for each action of all agents, from normalised observations.

    Args:
        weights: of every kind of agents.
        layout: whose nodes are agents and whose edges are their links.
        observation: (..., O), normalised.
    """
    graph = graph_of(layout, observation)
    own, up = own_weights(weights, np.asarray(layout.kinds)), graph.edge_mask[..., None]
    knows = _each(seen, own, graph.nodes)
    for turn in range(rounds_of(weights)):
        told = _each(partial(said, turn=turn), own, knows)
        forth, back = told[..., graph.senders, :] * up, told[..., graph.receivers, :] * up
        arrived = summed(forth, graph.receivers, layout.nodes) + summed(back, graph.senders, layout.nodes)
        knows = _each(partial(heard, turn=turn), own, knows, arrived)
    acts = _each(acted, own, knows)
    return action_of(layout, acts, acts[..., :0, :0])


def own_weights(weights: Weights, kind: Any) -> Weights:
    """The weights of one kind of agents, or of several side by side.

    Args:
        weights: of every kind.
        kind: its number, or (N,) numbers.
    """
    found: Weights = jax.tree.map(lambda x: x[kind], weights)
    return found


def rounds_of(weights: Weights) -> int:
    """How often agents talk before they act."""
    return sum(name.startswith("says_") for name in weights)


def _features(layout: Layout) -> int:
    return len(layout.node_constants) + len(layout.node_observation)


def _dense(layer: Weights, x: Float[Array, "*b I"]) -> Float[Array, "*b J"]:
    product: Float[Array, "*b J"] = x @ layer["kernel"]
    return product + jnp.broadcast_to(layer["bias"], product.shape)


def _each(function: Callable[..., Array], own: Weights, *of_agents: Array) -> Float[Array, "*b N J"]:
    """A function of one agent for all of them: weights have them on the first axis, numbers on the last but one."""
    along = (0, *(-2,) * len(of_agents))
    found: Float[Array, "*b N J"] = jax.vmap(function, in_axes=along, out_axes=-2)(own, *of_agents)
    return found
