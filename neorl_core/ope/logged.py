"""Logged steps as estimators take them, and what policies would do there."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int


class LoggedSteps(NamedTuple):
    """Logged episodes in order, one after the other; observations normalised, actions in [-1, 1]."""

    observation: Float[Array, "N O"]
    action: Float[Array, "N A"]
    reward: Float[Array, " N"]
    cost: Float[Array, " N"]
    next_observation: Float[Array, "N O"]
    terminated: Float[Array, " N"]
    followed: Bool[Array, " N"]
    """Whether the next row is the next step of the same episode."""
    episode: Int[Array, " N"]
    """Episode of each row, from 0 to E - 1."""
    starts: Int[Array, " E"]
    """First row of each episode."""


class Decisions(NamedTuple):
    """What a policy does on the logs, in [-1, 1]."""

    next_action: Float[Array, "*p N A"]
    """Actions at each next observation."""
    initial_action: Float[Array, "*p E A"]
    """Actions at the first observation of each episode."""


def known_rows(logs: LoggedSteps) -> Bool[Array, " N"]:
    """Rows that say what came next: those that terminate, and those whose next observation is finite.

    A row cut by time is one of them: the target policy's action there needs no log.
    """
    return (logs.terminated > 0) | jnp.all(jnp.isfinite(logs.next_observation), axis=-1)


@jax.jit
def logged_decisions(logs: LoggedSteps) -> Decisions:
    """The logged controller's own actions, whose evaluation is the value to beat.

    After the last row of an episode none was logged: there it is what a linear regression on observations says,
    within the range of the logged actions.
    """
    one = jnp.ones_like(logs.reward)[:, None]
    now = jnp.concatenate([one, logs.observation], axis=-1)
    law = jnp.linalg.lstsq(now, logs.action)[0]
    after = jnp.concatenate([one, jnp.where(known_rows(logs)[:, None], logs.next_observation, 0.0)], axis=-1) @ law
    low, high = jnp.min(logs.action, axis=0), jnp.max(logs.action, axis=0)
    following = jnp.where(logs.followed[:, None], jnp.roll(logs.action, -1, axis=0), jnp.clip(after, low, high))
    return Decisions(following, logs.action[logs.starts])
