"""Quality of off-policy estimates: rank correlation, regret and coverage."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float


def ranks(x: Float[Array, " P"]) -> Float[Array, " P"]:
    """Return ranks from 1 to P; ties share their mean rank."""
    below = jnp.sum(x[:, None] > x[None, :], axis=1)
    equal = jnp.sum(x[:, None] == x[None, :], axis=1)
    return below + (equal + 1) / 2


def rank_correlation(estimate: Float[Array, " P"], truth: Float[Array, " P"]) -> Float[Array, ""]:
    """Return Spearman's rank correlation of estimates and true values; NaN if estimates or true values are constant."""
    a, b = ranks(estimate), ranks(truth)
    a, b = a - a.mean(), b - b.mean()
    return jnp.sum(a * b) / jnp.sqrt(jnp.sum(a**2) * jnp.sum(b**2))


def regret_at_k(estimate: Float[Array, " P"], truth: Float[Array, " P"], k: int) -> Float[Array, ""]:
    """Return the regret of trying only the k best-ranked policies: `max truth - max over the top k of truth`.

    Reference: Paine et al. 2020, hyper-parameter selection for offline RL (arXiv 2007.09055), section 4.2.

    Args:
        k: number of policies tried.
    """
    top = jnp.argsort(-estimate, stable=True)[:k]
    return jnp.max(truth) - jnp.max(truth[top])


def coverage(lower: Float[Array, " P"], upper: Float[Array, " P"], truth: Float[Array, " P"]) -> Float[Array, ""]:
    """Return the share of intervals [lower, upper] that contain the true value."""
    return jnp.mean(((lower <= truth) & (truth <= upper)).astype(truth.dtype))
