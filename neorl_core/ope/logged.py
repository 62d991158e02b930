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


class Guesses(NamedTuple):
    """What others take a policy's action values for; G of them, in any unit."""

    logged: Float[Array, "*p N G"]
    """Of the logged actions at the logged observations."""
    following: Float[Array, "*p N G"]
    """Of the policy's actions at each next observation."""
    initial: Float[Array, "*p E G"]
    """Of the policy's actions at the first observation of each episode."""


def whole(logs: LoggedSteps, horizon: int) -> Bool[Array, " E"]:
    """Which windows last the horizon or terminate: the return of the others is that of fewer steps.

    Where there is none of them, all count.

    Args:
        logs: in E windows.
        horizon: steps of an episode.
    """
    at = jnp.arange(logs.reward.shape[0]) - logs.starts[logs.episode]
    lasts = jnp.where(logs.terminated > 0, horizon, at + 1)
    found = jax.ops.segment_max(lasts, logs.episode, logs.starts.shape[0]) >= horizon
    return found | ~jnp.any(found)


def known_rows(logs: LoggedSteps) -> Bool[Array, " N"]:
    """Rows that say what came next: those that terminate, and those whose next observation is finite.

    A row cut by time is one of them: the target policy's action there needs no log.
    """
    return (logs.terminated > 0) | jnp.all(jnp.isfinite(logs.next_observation), axis=-1)
