"""Inputs of the estimators: logged steps, and the actions of policies at these steps."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int


class LoggedSteps(NamedTuple):
    """Consecutive logged episodes; observations normalised, actions in [-1, 1]."""

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
    """Actions of a policy at logged observations, in [-1, 1]."""

    next_action: Float[Array, "*p N A"]
    """Actions at each next observation."""
    initial_action: Float[Array, "*p E A"]
    """Actions at the first observation of each episode."""


class Guesses(NamedTuple):
    """G guesses of a policy's action values, in any unit."""

    logged: Float[Array, "*p N G"]
    """At the logged actions and observations."""
    following: Float[Array, "*p N G"]
    """At the policy's actions at each next observation."""
    initial: Float[Array, "*p E G"]
    """At the policy's actions at the first observation of each episode."""


def uncut_share(lasts: Int[Array, " E"], cut: Bool[Array, " E"], horizon: int) -> Float[Array, " H+1"]:
    """Return the Kaplan-Meier estimate `G(n)` of the share of windows that are not cut in their first n - 1 steps.

    A window is cut if the log stops before the horizon without termination. After step t, c_t windows are cut and r_t
    windows continue: `G(n) = prod_{t<n} r_t / (c_t + r_t)` (Kaplan & Meier 1958).

    Args:
        lasts: (E,) steps of each window, at most the horizon.
        cut: (E,) whether the window neither lasts the horizon nor terminates.
        horizon: steps H of an episode.

    Returns:
        (H + 1,) `G(0)` to `G(H)`.
    """
    ends = jax.ops.segment_sum(jnp.stack([jnp.ones_like(cut), cut], -1).astype(float), lasts, horizon + 1)
    cuts, remaining = ends[:, 1], lasts.shape[0] - jnp.cumsum(ends[:, 0])
    kept = jnp.where(cuts > 0, remaining / jnp.maximum(cuts + remaining, 1.0), 1.0)
    return jnp.concatenate([jnp.ones(1), jnp.cumprod(kept)[:-1]])


def window_counts(lasts: Int[Array, " E"], ended: Bool[Array, " E"], horizon: int) -> Float[Array, " E"]:
    """Return the weight of each window in a mean of returns: `1 / G(n)` if complete with n steps, 0 if cut.

    A window is complete if it lasts the horizon or terminates; the return of a cut window misses steps. A terminated
    window had less time to be cut, so complete windows contain too many terminations. Dividing by G, the `uncut_share`,
    corrects this if cuts do not depend on later steps (inverse probability of censoring, Robins & Rotnitzky 1992). If
    no window is complete, all weights are 1.

    Args:
        lasts: (E,) steps of each window, at most the horizon.
        ended: (E,) whether the window terminated.
        horizon: steps H of an episode.
    """
    complete = ended | (lasts >= horizon)
    share = uncut_share(lasts, ~complete, horizon)[lasts]
    counts = jnp.where(complete, 1.0 / jnp.where(complete, share, 1.0), 0.0)
    return jnp.where(jnp.any(complete), counts, 1.0)


def counts_of(logs: LoggedSteps, horizon: int) -> Float[Array, " E"]:
    """Return `window_counts` of E logged windows."""
    windows = logs.starts.shape[0]
    lasts = jax.ops.segment_sum(jnp.ones_like(logs.episode), logs.episode, windows)
    ended = jax.ops.segment_max((logs.terminated > 0).astype(jnp.int32), logs.episode, windows) > 0
    return window_counts(jnp.minimum(lasts, horizon), ended, horizon)


def known_rows(logs: LoggedSteps) -> Bool[Array, " N"]:
    """Return whether each row terminates or has a finite next observation; FQE can use only these rows.

    A truncated row can be used, because FQE does not need the logged next action.
    """
    return (logs.terminated > 0) | jnp.all(jnp.isfinite(logs.next_observation), axis=-1)
