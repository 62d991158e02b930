"""Aggregates combine the updates of S sites, stacked on a leading axis, with one weight per site."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

Aggregate = Callable[[Any, Float[Array, " S"]], Any]
"""(tree of (S, ...), weights (S,) that sum to 1) -> tree of (...)."""


def weighted_mean(stacked: Any, weights: Float[Array, " S"]) -> Any:
    """Return `sum_i w_i x_i` over arrays (S, ...), with weights that sum to 1.

    McMahan et al. 2017 (arXiv 1602.05629), algorithm 1. One hostile site can move this mean arbitrarily far.
    """
    return jax.tree.map(lambda x: jnp.tensordot(weights.astype(x.dtype), x, axes=1, precision="highest"), stacked)


def median(stacked: Any, weights: Float[Array, " S"]) -> Any:
    """Return the median of every number over the sites. It ignores NaN, and weights, which a hostile site could choose.

    Yin et al. 2018 (arXiv 1803.01498), definition 1.
    """
    return jax.tree.map(lambda x: jnp.nanmedian(x, axis=0), stacked)


@cache
def trimmed_mean(share: float) -> Aggregate:
    """Build the mean of every number without the `floor(share S)` smallest and largest values; ignores weights.

    Yin et al. 2018 (arXiv 1803.01498), definition 2.

    Args:
        share: share of sites removed at each end, in [0, 1/2).

    Raises:
        ValueError: if the share is out of range.
    """
    if not 0.0 <= share < 0.5:
        raise ValueError(f"the trimmed share must be in [0, 0.5), got {share}: this share is removed at each end")

    def aggregate(stacked: Any, weights: Float[Array, " S"]) -> Any:
        cut = int(share * weights.shape[0])
        return jax.tree.map(lambda x: jnp.mean(jnp.sort(x, axis=0)[cut : x.shape[0] - cut], axis=0), stacked)

    return aggregate


@cache
def krum(hostile: int, keep: int = 1) -> Aggregate:
    """Build the mean of the `keep` sites that have the smallest squared distances to their `S - f - 2` nearest sites.

    Blanchard et al. 2017 (NeurIPS 30, Machine learning with adversaries), section 4; multi-Krum if `keep` exceeds one.

    Args:
        hostile: f, the number of hostile sites; the guarantee needs S > 2 f + 2.
        keep: number of sites in the mean; these sites count equally if the sum of their weights is not positive.

    Raises:
        ValueError: if there are too few sites; raised when the aggregate is used.
    """

    def aggregate(stacked: Any, weights: Float[Array, " S"]) -> Any:
        sites = weights.shape[0]
        if sites <= 2 * hostile + 2 or not 1 <= keep <= sites:
            raise ValueError(
                f"krum with hostile {hostile} needs more than {2 * hostile + 2} sites, and keep from 1 to {sites}, got "
                f"{sites} sites and keep {keep}: lower hostile or keep, or use the median"
            )
        distances = [_squared_distances(x.reshape(sites, -1)) for x in jax.tree.leaves(stacked)]
        distance = jnp.where(jnp.eye(sites, dtype=bool), jnp.inf, jnp.sum(jnp.stack(distances), axis=0))
        score = jnp.sum(jnp.sort(distance, axis=1)[:, : sites - hostile - 2], axis=1)
        kept = jnp.argsort(score, stable=True)[:keep]
        chosen = jax.tree.map(lambda x: x[kept], stacked)
        # If a hostile site sends a huge weight, all other weights round to 0 in float32.
        total = jnp.sum(weights[kept])
        valid = jnp.isfinite(total) & (total > 0.0)
        return weighted_mean(chosen, jnp.where(valid, weights[kept] / jnp.where(valid, total, 1.0), 1.0 / keep))

    return aggregate


def _squared_distances(x: Float[Array, "S D"]) -> Float[Array, "S S"]:
    return jax.vmap(lambda one: jnp.sum((x - one) ** 2, axis=1))(x)
