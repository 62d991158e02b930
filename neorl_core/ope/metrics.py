"""How well an off-policy estimate orders policies and covers their true values."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float


def ranks(x: Float[Array, " P"]) -> Float[Array, " P"]:
    """Ranks from 1 to P; ties share the mean of their ranks."""
    below = jnp.sum(x[:, None] > x[None, :], axis=1)
    equal = jnp.sum(x[:, None] == x[None, :], axis=1)
    return below + (equal + 1) / 2


def rank_correlation(estimate: Float[Array, " P"], truth: Float[Array, " P"]) -> Float[Array, ""]:
    """Spearman's rank correlation: Pearson's of the ranks; NaN when all of one side are equal.

    Args:
        estimate: (P,) estimated values of P policies.
        truth: (P,) their true values.
    """
    a, b = ranks(estimate), ranks(truth)
    a, b = a - a.mean(), b - b.mean()
    return jnp.sum(a * b) / jnp.sqrt(jnp.sum(a**2) * jnp.sum(b**2))


def regret_at_k(estimate: Float[Array, " P"], truth: Float[Array, " P"], k: int) -> Float[Array, ""]:
    """What is lost by trying only the k policies that look best: `max truth - max over the top k of truth`.

    Source: Paine et al. 2020, hyper-parameter selection for offline RL (arXiv 2007.09055), section 4.2.

    Args:
        estimate: (P,), estimated value of each policy.
        truth: (P,), true value of each policy.
        k: how many policies are tried.
    """
    top = jnp.argsort(-estimate, stable=True)[:k]
    return jnp.max(truth) - jnp.max(truth[top])


def coverage(lower: Float[Array, " P"], upper: Float[Array, " P"], truth: Float[Array, " P"]) -> Float[Array, ""]:
    """Share of intervals that hold the true value.

    Args:
        lower: (P,), lower ends of the intervals.
        upper: (P,), upper ends.
        truth: (P,), true values.
    """
    return jnp.mean(((lower <= truth) & (truth <= upper)).astype(truth.dtype))
