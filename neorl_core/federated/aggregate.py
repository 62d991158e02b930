"""Aggregates of what sites send: each a function of a pytree whose arrays have a leading site axis, and of weights."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

Aggregate = Callable[[Any, Float[Array, " S"]], Any]
"""(tree of (S, ...), weights (S,) of sum 1) -> tree of (...)."""


def weighted_mean(stacked: Any, weights: Float[Array, " S"]) -> Any:
    """`sum_i w_i x_i`.

    McMahan et al. 2017 (arXiv 1602.05629), algorithm 1. One hostile site moves it as far as it likes.

    Args:
        stacked: arrays (S, ...).
        weights: (S,), of sum 1.
    """
    return jax.tree.map(lambda x: jnp.tensordot(weights.astype(x.dtype), x, axes=1, precision="highest"), stacked)


def median(stacked: Any, weights: Float[Array, " S"]) -> Any:
    """The median of every coordinate by itself; weights do not count, for a site chooses its own.

    A number that is none is left out: one hostile site would make all of the median so.

    Yin et al. 2018 (arXiv 1803.01498), definition 1.

    Args:
        stacked: arrays (S, ...).
        weights: (S,), not looked at.
    """
    return jax.tree.map(lambda x: jnp.nanmedian(x, axis=0), stacked)


@cache
def trimmed_mean(share: float) -> Aggregate:
    """The mean of every coordinate without its `floor(share S)` least and greatest; weights do not count.

    Yin et al. 2018 (arXiv 1803.01498), definition 2.

    Args:
        share: of sites that are left out at each end, in [0, 1/2).

    Raises:
        ValueError: when it lies outside.
    """
    if not 0.0 <= share < 0.5:
        raise ValueError(f"expected a share from 0 to below one half, got {share}: it is left out at both ends.")

    def aggregate(stacked: Any, weights: Float[Array, " S"]) -> Any:
        cut = int(share * weights.shape[0])
        return jax.tree.map(lambda x: jnp.mean(jnp.sort(x, axis=0)[cut : x.shape[0] - cut], axis=0), stacked)

    return aggregate


@cache
def krum(hostile: int, keep: int = 1) -> Aggregate:
    """A mean of the `keep` sites with the least sum of squared distances to their `S - f - 2` nearest.

    Blanchard et al. 2017 (NeurIPS 30, Machine learning with adversaries), section 4; with `keep` above one multi-Krum.

    Args:
        hostile: f, how many sites may lie; the paper's guarantee needs S > 2 f + 2.
        keep: how many are kept, averaged by their weights, or equally where these have no sum above 0.

    Raises:
        ValueError: at the first use, when there are too few sites.
    """

    def aggregate(stacked: Any, weights: Float[Array, " S"]) -> Any:
        sites = weights.shape[0]
        if sites <= 2 * hostile + 2 or not 1 <= keep <= sites:
            raise ValueError(
                f"expected more than {2 * hostile + 2} sites against {hostile} hostile ones, and to keep 1 to all of "
                f"them, got {sites} and {keep}: name fewer hostile sites, or use the median."
            )
        apart = jnp.sum(jnp.stack([_squared_distances(x.reshape(sites, -1)) for x in jax.tree.leaves(stacked)]), axis=0)
        apart = jnp.where(jnp.eye(sites, dtype=bool), jnp.inf, apart)
        score = jnp.sum(jnp.sort(apart, axis=1)[:, : sites - hostile - 2], axis=1)
        kept = jnp.argsort(score, stable=True)[:keep]
        chosen = jax.tree.map(lambda x: x[kept], stacked)
        # Beside the huge weight that a hostile site may tell, those of all others are 0 in float32.
        total = jnp.sum(weights[kept])
        known = jnp.isfinite(total) & (total > 0.0)
        return weighted_mean(chosen, jnp.where(known, weights[kept] / jnp.where(known, total, 1.0), 1.0 / keep))

    return aggregate


def _squared_distances(x: Float[Array, "S D"]) -> Float[Array, "S S"]:
    return jax.vmap(lambda one: jnp.sum((x - one) ** 2, axis=1))(x)
