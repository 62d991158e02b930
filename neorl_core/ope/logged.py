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


def window_counts(lasts: Int[Array, " E"], ended: Bool[Array, " E"], horizon: int) -> Float[Array, " E"]:
    """What each window counts for in a mean of returns: `1 / G(n)` if it is whole with n steps, and 0 if it was cut.

    Whole are windows that last the horizon or terminate; the return of the others is that of fewer steps. One that
    terminated had less time to be cut, so that among the whole ones too many are such: `G(n)` is the share of windows
    that no cut meets in their first n - 1 steps, `prod_{t<n} 1 - c_t / (c_t + r_t)` with `c_t` windows cut after step t
    and `r_t` that go on (Kaplan & Meier 1958, of being cut), and dividing by it makes up for those that it took
    (inverse probability of censoring, Robins & Rotnitzky 1992). Cuts must not depend on what would have come.

    Where no window is whole, all count alike.

    Args:
        lasts: steps of each window, at most the horizon.
        ended: which terminated.
        horizon: steps H of an episode.
    """
    whole = ended | (lasts >= horizon)
    last = jax.ops.segment_sum(jnp.stack([jnp.ones_like(whole), ~whole], -1).astype(float), lasts, horizon + 1)
    cut = last[:, 1]
    going_on = lasts.shape[0] - jnp.cumsum(last[:, 0])
    kept = jnp.where(cut > 0, going_on / jnp.maximum(cut + going_on, 1.0), 1.0)
    uncut = jnp.concatenate([jnp.ones(1), jnp.cumprod(kept)])[lasts]
    counts = jnp.where(whole, 1.0 / jnp.where(whole, uncut, 1.0), 0.0)
    return jnp.where(jnp.any(whole), counts, 1.0)


def counts_of(logs: LoggedSteps, horizon: int) -> Float[Array, " E"]:
    """`window_counts` of logged windows.

    Args:
        logs: in E windows.
        horizon: steps of an episode.
    """
    windows = logs.starts.shape[0]
    lasts = jax.ops.segment_sum(jnp.ones_like(logs.episode), logs.episode, windows)
    ended = jax.ops.segment_max((logs.terminated > 0).astype(jnp.int32), logs.episode, windows) > 0
    return window_counts(jnp.minimum(lasts, horizon), ended, horizon)


def known_rows(logs: LoggedSteps) -> Bool[Array, " N"]:
    """Rows that say what came next: those that terminate, and those whose next observation is finite.

    A row cut by time is one of them: the target policy's action there needs no log.
    """
    return (logs.terminated > 0) | jnp.all(jnp.isfinite(logs.next_observation), axis=-1)
