"""Support of the logs: weighted quantiles of logged steps, and ranges that a replay must not leave."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from neorl_core.ope.ridge import FOLDS

INSIDE = 0.99
"""Discounted share of the logged steps that counts as inside the support. The worst and best logged rewards are the
quantiles 1 - `INSIDE` and `INSIDE` of the rewards."""
WIDENED = 0.2
"""Smallest share of the logged range by which a replay may exceed the range. Beyond the range, limits or trips may
exist that no log shows."""


class Ranges(NamedTuple):
    """Lowest and highest value of each observation in a replay."""

    low: Float[Array, " O"]
    high: Float[Array, " O"]


def ranges(
    observation: Float[Array, "N O"],
    following: Float[Array, "N O"],
    episode: Int[Array, " N"],
    episodes: int,
    weight: Float[Array, " N"],
) -> Ranges:
    """Return the range of the logs, widened by `WIDENED` or by the share that held-out episodes need.

    With few episodes or many observations, a new episode usually leaves the range of the other episodes. So the range
    is widened until a share `INSIDE` of the weighted steps lies in the range of the other folds. A range below one
    standard deviation counts as one standard deviation. A constant observation gets an infinite range, because no model
    knows its dynamics.

    Args:
        observation: (N, O) normalised.
        following: (N, O) next observations; NaN if unknown.
        episode: (N,) episode index from 0; its fold is the remainder by the number of folds.
        episodes: number of episodes E; with one episode nothing is held out.
        weight: (N,) weight of each step.
    """
    folds = min(FOLDS, episodes)
    row_fold = episode % folds

    def of(kept: Bool[Array, " N"]) -> Ranges:
        both = jnp.where(kept[:, None], jnp.stack([observation, following]), jnp.nan)
        return Ranges(jnp.nanmin(both, axis=(0, 1)), jnp.nanmax(both, axis=(0, 1)))

    low, high = of(jnp.full(row_fold.shape, True))
    moves = high > low

    def beyond(fold: Int[Array, ""]) -> Float[Array, " N"]:
        others = of((row_fold != fold) | (folds == 1))
        each = jnp.maximum(following - others.high, others.low - following) / jnp.maximum(others.high - others.low, 1.0)
        return jnp.max(jnp.where(jnp.isfinite(each), each, 0.0), axis=1)

    excess = jnp.take_along_axis(jax.lax.map(beyond, jnp.arange(folds)), row_fold[None], axis=0)[0]
    margin = jnp.maximum(WIDENED, weighted_quantile(excess, weight, INSIDE)) * jnp.maximum(high - low, 1.0)
    return Ranges(jnp.where(moves, low - margin, -jnp.inf), jnp.where(moves, high + margin, jnp.inf))


def weighted_quantile(values: Float[Array, " N"], weights: Float[Array, " N"], share: float) -> Float[Array, ""]:
    """Return the smallest value such that it and all smaller values have the given share of the weights.

    Args:
        values: (N,).
        weights: (N,) non-negative.
        share: share of the total weight, 0 to 1.
    """
    order = jnp.argsort(values)
    reached = jnp.cumsum(weights[order])
    # Rounding may put a share of 1 above the last sum.
    at = jnp.minimum(jnp.searchsorted(reached, share * reached[-1]), values.shape[0] - 1)
    quantile: Float[Array, ""] = values[order][at]
    return quantile
