"""One agent's share of a policy, for a machine of its own: its own sensors and the messages it gets, and nothing else.

The policy of all agents is one function of the whole observation. This is the same function taken apart: `act` of every
agent, where what each says is carried to its neighbours as often as there are rounds, gives the same actions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jaxtyping import Array, Float, Int

from neorl_core.graph.layout import Layout
from neorl_core.graph.messages import acted, heard, own_weights, rounds_of, said, seen
from neorl_core.networks import Policy, normalise, to_physical
from neorl_core.types import AgentView

Weights = dict[str, Any]


class Member(NamedTuple):
    """All that an agent needs of a policy."""

    policy: Policy
    """The weights of its kind, and the scale of what it observes and does."""
    places: Int[np.ndarray, " F"]
    """Where in its observation each of its features is, -1 of those that are others'."""
    constants: Float[Array, " C"]
    slots: Int[np.ndarray, " A"]
    """Which of the numbers that its weights say each of its actions is."""


def member_of(policy: Policy, agents: Sequence[AgentView], name: str) -> Member:
    """The share of one agent.

    Args:
        policy: of all agents.
        agents: of its plant, in the order of the policy's layout.
        name: the agent's.

    Raises:
        ValueError: when there is no such agent, or the policy is none of agents.
    """
    network = policy.params.get("graph", {})
    if "agents" not in network:
        raise ValueError("expected a policy of agents, got another: train one on a plant whose layout has kinds.")
    names = [agent.name for agent in agents]
    if name not in names:
        raise ValueError(f"expected an agent among {', '.join(names)}, got '{name}': correct the name.")
    layout: Layout = network["layout"]
    index, own = names.index(name), agents[names.index(name)]
    observed, moved, n = list(own.observation), list(own.action), policy.normaliser
    at, does = np.asarray(observed), np.asarray(moved)
    features = [row[index] for row in layout.node_observation]
    actions = [row[index] for row in layout.node_action]
    scale = n._replace(
        mean=n.mean[at],
        scale=n.scale[at],
        action_centre=n.action_centre[does],
        action_half_range=n.action_half_range[does],
    )
    return Member(
        Policy(own_weights(network["agents"], layout.kinds[index]), scale),
        np.asarray([observed.index(place) if place >= 0 else -1 for place in features]),
        jnp.asarray([row[index] for row in layout.node_constants], n.mean.dtype),
        np.asarray([actions.index(place) for place in moved]),
    )


def act(
    member: Member, observation: Float[npt.ArrayLike, " O"], received: Sequence[Sequence[Float[Array, " H"]]] = ()
) -> tuple[Float[Array, " A"], Float[Array, " H"] | None]:
    """What an agent does, and what it says next, after what it has heard so far.

    Rounds in which nothing has come yet count as silent, so that there is an action at any time.

    Args:
        member: the agent's share of the policy.
        observation: (O,) its own, in the plant's units.
        received: the messages that reached it in each round until now.

    Returns:
        Its own actions in the plant's units, and the message of the next round to everyone that it has a link to; None
        after the last round.
    """
    weights, scale = member.policy
    own = normalise(scale, jnp.asarray(observation, scale.mean.dtype))
    features = jnp.append(own, jnp.zeros((), own.dtype))[member.places]
    knows, says = seen(weights, jnp.concatenate([member.constants, features])), None
    for turn in range(rounds_of(weights)):
        told = said(weights, knows, turn)
        says = told if turn == len(received) else says
        messages = received[turn] if turn < len(received) else ()
        knows = heard(weights, knows, sum(messages, jnp.zeros_like(told)), turn)
    return to_physical(scale, jnp.tanh(acted(weights, knows)[member.slots])), says
