"""Run one agent of a multi-agent policy on a machine of its own.

`act` computes the agent's action from its own sensors and the messages that it received. If all messages arrive in
every round, the actions of all agents together equal the actions of the joint policy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jaxtyping import Array, Float, Int

from neorl_core.graph.communication import decode, encode, own_weights, receive, rounds_of, send
from neorl_core.graph.layout import Layout
from neorl_core.networks import Policy, normalise, to_physical
from neorl_core.types import AgentView

Weights = dict[str, Any]


class Member(NamedTuple):
    """Network weights of one agent, and indices into the plant's observation and action."""

    policy: Policy
    """Weights of the agent's kind, and the scale of its observation and action."""
    places: Int[np.ndarray, " F"]
    """Index of each feature in the agent's own observation; -1 if only other agents have the feature."""
    constants: Float[Array, " C"]
    slots: Int[np.ndarray, " A"]
    """Index of each action of the agent in the network's output."""


def extract_member(policy: Policy, agents: Sequence[AgentView], name: str) -> Member:
    """Return the part of a multi-agent policy that one agent needs.

    Args:
        agents: agents of the plant in the order of the policy's layout.

    Raises:
        ValueError: if the agent is unknown, or the policy was not trained for agents.
    """
    network = policy.params.get("graph", {})
    if "agents" not in network:
        raise ValueError(
            f"{name} needs a policy of agents, got weights {sorted(policy.params)}: train on a plant with kinds in its "
            "layout"
        )
    names = [agent.name for agent in agents]
    if name not in names:
        raise ValueError(f"the agent must be one of {', '.join(names)}, got '{name}': correct the name")
    layout: Layout = network["layout"]
    index, own = names.index(name), agents[names.index(name)]
    observed, actuated, n = list(own.observation), list(own.action), policy.normaliser
    sensors, actuators = np.asarray(observed), np.asarray(actuated)
    features = [row[index] for row in layout.node_observation]
    actions = [row[index] for row in layout.node_action]
    scale = n._replace(
        mean=n.mean[sensors],
        scale=n.scale[sensors],
        action_centre=n.action_centre[actuators],
        action_half_range=n.action_half_range[actuators],
    )
    return Member(
        Policy(own_weights(network["agents"], layout.kinds[index]), scale),
        np.asarray([observed.index(place) if place >= 0 else -1 for place in features]),
        jnp.asarray([row[index] for row in layout.node_constants], n.mean.dtype),
        np.asarray([actions.index(place) for place in actuated]),
    )


def act(
    member: Member, observation: Float[npt.ArrayLike, " O"], received: Sequence[Sequence[Float[Array, " H"]]] = ()
) -> tuple[Float[Array, " A"], Float[Array, " H"] | None]:
    """Return the agent's action and next message.

    In a round without messages, the sum of the messages is 0, so an action is available at any time.

    Args:
        observation: (O,) own observation in the plant's units.
        received: messages received in each round so far.

    Returns:
        Actions (A,) in the plant's units, and the message of the next round to all linked agents, or None after the
        last round.
    """
    weights, scale = member.policy
    own = normalise(scale, jnp.asarray(observation, scale.mean.dtype))
    features = jnp.append(own, jnp.zeros((), own.dtype))[member.places]
    hidden, outgoing = encode(weights, jnp.concatenate([member.constants, features])), None
    for turn in range(rounds_of(weights)):
        message = send(weights, hidden, turn)
        outgoing = message if turn == len(received) else outgoing
        messages = received[turn] if turn < len(received) else ()
        hidden = receive(weights, hidden, sum(messages, jnp.zeros_like(message)), turn)
    return to_physical(scale, jnp.tanh(decode(weights, hidden)[member.slots])), outgoing
