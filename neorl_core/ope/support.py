"""What lies inside the logs: a quantile of what is logged, and ranges that a replay must not leave."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from neorl_core.ope.ridge import FOLDS

INSIDE = 0.99
"""Discounted share of the logged steps that count as inside the data's support; the worst and the best logged rewards
leave out as large a share of the steps as they are many."""
WIDENED = 0.2
"""Share of the range of the logged observations by which a replay may go beyond it. A limit that trips, a stop or an
edge may lie there of which no log tells: on robot_assembly no logged episode trips, and up to every third does of
policies whose replays go that far."""


class Ranges(NamedTuple):
    """Least and most of each observation that a replay may come to."""

    low: Float[Array, " O"]
    high: Float[Array, " O"]


def ranges(
    observation: Float[Array, "N O"],
    following: Float[Array, "N O"],
    episode: Int[Array, " N"],
    episodes: int,
    weight: Float[Array, " N"],
) -> Ranges:
    """The range of the logs, widened by a share of itself: `WIDENED`, or by what it takes to hold other episodes.

    Of few episodes, and of many observations, the next episode leaves the range of the others as a matter of course:
    the share is at least the one by which `INSIDE` of the steps, weighted, stay within the range of the other folds'.
    It is one share for all observations, and of single steps, where a replay that has left is outside for good.
    An observation that hardly moves counts as if its range were a deviation of the data that the policies were trained
    on; one that never does has no range, for no model knows what moves it.

    Args:
        observation: (N, O), normalised.
        following: (N, O), the next ones; where they are not known they are no numbers.
        episode: (N,) from 0; its remainder by the number of folds is its fold.
        episodes: E; of a single one nothing can be left out.
        weight: (N,) of the steps.
    """
    folds = min(FOLDS, episodes)
    of_row = episode % folds

    def of(kept: Bool[Array, " N"]) -> Ranges:
        both = jnp.where(kept[:, None], jnp.stack([observation, following]), jnp.nan)
        return Ranges(jnp.nanmin(both, axis=(0, 1)), jnp.nanmax(both, axis=(0, 1)))

    low, high = of(jnp.full(of_row.shape, True))
    moves = high > low

    def beyond(fold: Int[Array, ""]) -> Float[Array, " N"]:
        others = of((of_row != fold) | (folds == 1))
        each = jnp.maximum(following - others.high, others.low - following) / jnp.maximum(others.high - others.low, 1.0)
        return jnp.max(jnp.where(jnp.isfinite(each), each, 0.0), axis=1)

    every = jnp.take_along_axis(jax.lax.map(beyond, jnp.arange(folds)), of_row[None], axis=0)[0]
    margin = jnp.maximum(WIDENED, weighted_quantile(every, weight, INSIDE)) * jnp.maximum(high - low, 1.0)
    return Ranges(jnp.where(moves, low - margin, -jnp.inf), jnp.where(moves, high + margin, jnp.inf))


def weighted_quantile(values: Float[Array, " N"], weights: Float[Array, " N"], share: float) -> Float[Array, ""]:
    """The least of the values that, with all below it, have the share of the weights.

    Args:
        values: (N,).
        weights: (N,) at least 0.
        share: of the sum of the weights, between 0 and 1.
    """
    order = jnp.argsort(values)
    reached = jnp.cumsum(weights[order])
    # A share of 1 may by rounding lie above the last of the sums.
    at = jnp.minimum(jnp.searchsorted(reached, share * reached[-1]), values.shape[0] - 1)
    found: Float[Array, ""] = values[order][at]
    return found
