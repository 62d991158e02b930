"""A model of the dynamics of another family than the ensembles that policies are trained in: ridge regression.

The change of the observation is regressed on the step itself and on random hinges of it (Rahimi & Recht 2009, Weighted
sums of random kitchen sinks): no gradient step, no local optimum, squared errors, and beyond the data it goes on as a
straight line, so that a long replay does not run away with it as with powers. Its members differ in the episodes that
they were given, and its leverage says how far a step lies from all logged ones.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

HINGES = 256
"""Random hinges."""
RIDGE = 1e-4
"""Penalty of the linear part, beside mean squares of one."""
HINGE_RIDGE = 3e-2
"""Penalty of the hinges: where the logs do not say otherwise the dynamics are linear, and long replays stay tame."""

FOLDS = 5
"""Parts of the episodes, each of which is held against the others."""


class Ridge(NamedTuple):
    """M regressions on one set of random features."""

    directions: Float[Array, "I F"]
    offsets: Float[Array, " F"]
    coefficients: Float[Array, "M D O"]
    root: Float[Array, "D D"]
    """Inverse of a Cholesky factor of the features' second moments: the leverage is a square length behind it."""


def features(ridge: Ridge, x: Float[Array, "*n I"]) -> Float[Array, "*n D"]:
    """1, x, and `max(0, x W + b)`.

    Args:
        ridge: the random hinges.
        x: (..., I), normalised observation and unit action.
    """
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

    `min sum_n w_n |change_n - phi_n^T theta|^2 / N + |theta|^2_R`, w how often the row's episode was drawn and R the
    penalties of the linear part and of the hinges.

    Args:
        key: randomness of hinges and resamples.
        x: (N, I), normalised observations and unit actions.
        change: (N, O), next observation less the observation, normalised.
        known: (N,) whether a row's change is one; the others count for the leverage alone.
        episode: (N,) from 0.
        episodes: E.
        members: M.
    """
    of_hinges, of_episodes = jax.random.split(key)
    of_directions, of_offsets = jax.random.split(of_hinges)
    directions = jax.random.normal(of_directions, (x.shape[1], HINGES), x.dtype) / jnp.sqrt(x.shape[1])
    offsets = jax.random.normal(of_offsets, (HINGES,), x.dtype)
    phi = _features(directions, offsets, x)
    penalty = _penalty(x.shape[1], phi.shape[1], x.dtype)

    def one(key: PRNGKeyArray) -> Float[Array, "D O"]:
        drawn = jax.random.randint(key, (episodes,), 0, episodes)
        weight = known * jnp.bincount(drawn, length=episodes)[episode].astype(x.dtype) / x.shape[0]
        weighted = phi * weight[:, None]
        return jax.scipy.linalg.solve(weighted.T @ phi + penalty, weighted.T @ change, assume_a="pos")

    coefficients = jax.lax.map(one, jax.random.split(of_episodes, members))
    factor = jnp.linalg.cholesky(phi.T @ phi / x.shape[0] + penalty)
    root = jax.scipy.linalg.solve_triangular(factor, jnp.eye(phi.shape[1], dtype=x.dtype), lower=True)
    return Ridge(directions, offsets, coefficients, root)


def leverage(ridge: Ridge, x: Float[Array, "*n I"]) -> Float[Array, "*n"]:
    """How far a step is from the logs, as the regression sees it: `phi^T (Phi^T Phi / N + R)^-1 phi`."""
    return jnp.sum((features(ridge, x) @ ridge.root.T) ** 2, axis=-1)


def held_out_leverage(
    ridge: Ridge, x: Float[Array, "N I"], episode: Int[Array, " N"], episodes: int
) -> Float[Array, " N"]:
    """How far each logged step is from the logs of other episodes: its leverage without its own fold's rows.

    A step has less leverage in a regression that was fitted to it and its neighbours in time than the same step of an
    episode yet to come, the more so as episodes are few.

    Args:
        ridge: the random hinges.
        x: (N, I), normalised observations and unit actions.
        episode: (N,) from 0; its remainder by `FOLDS` is its fold.
        episodes: E; of a single one nothing can be left out.
    """
    folds = min(FOLDS, episodes)
    phi = features(ridge, x)
    penalty = _penalty(x.shape[1], phi.shape[1], x.dtype)
    of_row = episode % folds

    def one(fold: Int[Array, ""]) -> Float[Array, " N"]:
        kept = ((of_row != fold) | (folds == 1)).astype(x.dtype)
        moments = (phi * (kept / kept.sum())[:, None]).T @ phi
        factor = jnp.linalg.cholesky(moments + penalty)
        return jnp.sum(jax.scipy.linalg.solve_triangular(factor, phi.T, lower=True) ** 2, axis=0)

    every = jax.lax.map(one, jnp.arange(folds))
    return jnp.take_along_axis(every, of_row[None], axis=0)[0]


def _penalty(inputs: int, features: int, dtype: jnp.dtype) -> Float[Array, "D D"]:
    return jnp.diag(jnp.where(jnp.arange(features) <= inputs, RIDGE, HINGE_RIDGE)).astype(dtype)
