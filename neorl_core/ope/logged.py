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


def uncut(lasts: Int[Array, " E"], cut: Bool[Array, " E"], horizon: int) -> Float[Array, " H+1"]:
    """`G(n)`: share of windows that nothing cuts in their first n - 1 steps, had none of them terminated.

    `G(n) = prod_{t<n} r_t / (c_t + r_t)` with `c_t` windows cut after step t and `r_t` that go on: Kaplan & Meier's
    estimate (1958), where being cut is what is waited for, and who terminates is no longer watched.

    Args:
        lasts: steps of each window, at most the horizon.
        cut: which neither last the horizon nor terminate.
        horizon: steps H of an episode.

    Returns:
        `G(0)` to `G(H)`.
    """
    ends = jax.ops.segment_sum(jnp.stack([jnp.ones_like(cut), cut], -1).astype(float), lasts, horizon + 1)
    cuts, going_on = ends[:, 1], lasts.shape[0] - jnp.cumsum(ends[:, 0])
    kept = jnp.where(cuts > 0, going_on / jnp.maximum(cuts + going_on, 1.0), 1.0)
    return jnp.concatenate([jnp.ones(1), jnp.cumprod(kept)[:-1]])


def window_counts(lasts: Int[Array, " E"], ended: Bool[Array, " E"], horizon: int) -> Float[Array, " E"]:
    """What each window counts for in a mean of returns: `1 / G(n)` if it is whole with n steps, and 0 if it was cut.

    Whole are windows that last the horizon or terminate; the return of the others is that of fewer steps. One that
    terminated had less time to be cut, so that among the whole ones too many are such. Dividing by the share that is
    `uncut` makes up for those that cuts took (inverse probability of censoring, Robins & Rotnitzky 1992). Cuts must not
    depend on what would have come.

    Where no window is whole, all count alike.

    Args:
        lasts: steps of each window, at most the horizon.
        ended: which terminated.
        horizon: steps H of an episode.
    """
    whole = ended | (lasts >= horizon)
    share = uncut(lasts, ~whole, horizon)[lasts]
    counts = jnp.where(whole, 1.0 / jnp.where(whole, share, 1.0), 0.0)
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
