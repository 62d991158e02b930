"""Ridge regression of the dynamics on random features, a model family that no policy is trained in.

The change of the observation is regressed on the step and on random hinges of it (Rahimi & Recht 2009, Weighted sums of
random kitchen sinks). The fit is in closed form, and it extrapolates linearly, so long replays stay bounded better than
with polynomials. Each member has its own resample of episodes. The leverage of a step measures its distance from all
logged steps.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

HINGES = 256
"""Number of random hinges."""
RIDGE = 1e-4
"""Penalty of the linear part, for features with mean squares of one."""
HINGE_RIDGE = 3e-2
"""Penalty of the hinges. It keeps the dynamics linear unless data show otherwise, so that replays stay bounded."""

FOLDS = 5
"""Folds of episodes for `held_out_leverage`."""


class Ridge(NamedTuple):
    """M regressions on one set of random features."""

    directions: Float[Array, "I F"]
    offsets: Float[Array, " F"]
    coefficients: Float[Array, "M D O"]
    root: Float[Array, "D D"]
    """Inverse Cholesky factor of the features' second moments; the leverage is `|root phi|^2`."""


def features(ridge: Ridge, x: Float[Array, "*n I"]) -> Float[Array, "*n D"]:
    """Return 1, x and `max(0, x W + b)` for normalised observation and unit action x (..., I)."""
    return _features(ridge.directions, ridge.offsets, x)


def _features(
    directions: Float[Array, "I F"], offsets: Float[Array, " F"], x: Float[Array, "*n I"]
) -> Float[Array, "*n D"]:
    return jnp.concatenate([jnp.ones_like(x[..., :1]), x, jax.nn.relu(x @ directions + offsets)], axis=-1)


@partial(jax.jit, static_argnames=("episodes", "members"))
def fit(
    key: PRNGKeyArray,
    x: Float[Array, "N I"],
    change: Float[Array, "N O"],
    known: Bool[Array, " N"],
    episode: Int[Array, " N"],
    episodes: int,
    members: int,
) -> Ridge:
    """Regress changes on steps, each member on a resample of whole episodes.

    `min sum_n w_n |change_n - phi_n^T theta|^2 / N + |theta|^2_R`, with features phi_n, penalties R and w_n the number
    of times that the row's episode is in the resample.

    Args:
        x: (N, I) normalised observations and unit actions.
        change: (N, O) next observation minus observation, normalised.
        known: (N,) whether the row's change is known; other rows count for the leverage only.
    """
    hinge_key, episode_key = jax.random.split(key)
    direction_key, offset_key = jax.random.split(hinge_key)
    directions = jax.random.normal(direction_key, (x.shape[1], HINGES), x.dtype) / jnp.sqrt(x.shape[1])
    offsets = jax.random.normal(offset_key, (HINGES,), x.dtype)
    phi = _features(directions, offsets, x)
    penalty = _penalty(x.shape[1], phi.shape[1], x.dtype)

    def one(key: PRNGKeyArray) -> Float[Array, "D O"]:
        indices = jax.random.randint(key, (episodes,), 0, episodes)
        weight = known * jnp.bincount(indices, length=episodes)[episode].astype(x.dtype) / x.shape[0]
        weighted = phi * weight[:, None]
        return jax.scipy.linalg.solve(weighted.T @ phi + penalty, weighted.T @ change, assume_a="pos")

    coefficients = jax.lax.map(one, jax.random.split(episode_key, members))
    factor = jnp.linalg.cholesky(phi.T @ phi / x.shape[0] + penalty)
    root = jax.scipy.linalg.solve_triangular(factor, jnp.eye(phi.shape[1], dtype=x.dtype), lower=True)
    return Ridge(directions, offsets, coefficients, root)


def leverage(ridge: Ridge, x: Float[Array, "*n I"]) -> Float[Array, "*n"]:
    """Return the leverage `phi^T (Phi^T Phi / N + R)^-1 phi`: a squared distance of features phi from the logs Phi."""
    return jnp.sum((features(ridge, x) @ ridge.root.T) ** 2, axis=-1)


def held_out_leverage(
    ridge: Ridge, x: Float[Array, "N I"], episode: Int[Array, " N"], episodes: int
) -> Float[Array, " N"]:
    """Return the leverage of each logged step without the rows of its own fold.

    Args:
        x: (N, I) normalised observations and unit actions.
        episode: (N,) episode index from 0; its fold is the remainder by `FOLDS`.
        episodes: number of episodes E; with one episode nothing is held out.
    """
    folds = min(FOLDS, episodes)
    phi = features(ridge, x)
    penalty = _penalty(x.shape[1], phi.shape[1], x.dtype)
    row_fold = episode % folds

    def one(fold: Int[Array, ""]) -> Float[Array, " N"]:
        kept = ((row_fold != fold) | (folds == 1)).astype(x.dtype)
        moments = (phi * (kept / kept.sum())[:, None]).T @ phi
        factor = jnp.linalg.cholesky(moments + penalty)
        return jnp.sum(jax.scipy.linalg.solve_triangular(factor, phi.T, lower=True) ** 2, axis=0)

    leverages = jax.lax.map(one, jnp.arange(folds))
    return jnp.take_along_axis(leverages, row_fold[None], axis=0)[0]


def _penalty(inputs: int, features: int, dtype: jnp.dtype) -> Float[Array, "D D"]:
    return jnp.diag(jnp.where(jnp.arange(features) <= inputs, RIDGE, HINGE_RIDGE)).astype(dtype)
