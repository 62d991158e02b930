"""Differential privacy: changes are clipped, and normal noise is added to their mean.

Of sites: a site's whole change is clipped to a norm C, and the mean over k sites gets noise of deviation `z C / k` in
every coordinate, with z the noise multiplier; sites count equally, for a weight would tell of their rows. Of rows: the
step of each row is clipped and the batch's mean gets noise, at the site. `accountant` says what either spends.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from neorl_core.training.parameters import Parameters, difference, parameters_of, with_parameters
from neorl_core.training.population import Algorithm, Metrics, Update, wrapped
from neorl_core.types import Transition
from neorl_core.world_model.dynamics import Model


class Privacy(NamedTuple):
    """How much of a change is kept, and how much noise it gets."""

    clip: float
    """C, the largest norm of one change."""
    noise: float
    """z, the deviation of the noise on a sum of changes, in units of C."""


def norm(tree: Any) -> Float[Array, ""]:
    """Euclidean norm of all numbers of a tree."""
    return jnp.sqrt(sum((jnp.sum(x**2) for x in jax.tree.leaves(tree)), jnp.zeros(())))


def clipped(tree: Any, clip: float | Float[Array, ""]) -> Any:
    """`x min(1, C / |x|)`; nothing where a number of x is none, for nothing else bounds what that would move.

    Abadi et al. 2016 (arXiv 1607.00133), algorithm 1.

    Args:
        tree: arrays.
        clip: C.
    """
    length = norm(tree)
    factor = jnp.where(length > clip, clip / jnp.where(length > clip, length, 1.0), 1.0)
    known = jnp.isfinite(length)
    return jax.tree.map(lambda x: jnp.where(known, factor.astype(x.dtype) * x, jnp.zeros_like(x)), tree)


def noised(mean: Any, privacy: Privacy, count: int, key: PRNGKeyArray) -> Any:
    """A mean of `count` clipped changes with normal noise of deviation `z C / count` in every coordinate.

    Args:
        mean: arrays.
        privacy: C and z.
        count: how many changes the mean is of.
        key: randomness of the noise.
    """
    leaves, structure = jax.tree.flatten(mean)
    deviation = privacy.noise * privacy.clip / count
    keys = jax.random.split(key, len(leaves))
    moved = [x + deviation * jax.random.normal(k, x.shape, x.dtype) for x, k in zip(leaves, keys, strict=True)]
    return jax.tree.unflatten(structure, moved)


def drowning(privacy: Privacy, numbers: int, count: int) -> float:
    """Expected norm of the noise on a mean, in clip norms, which no mean exceeds: `z sqrt(d) / k`.

    Args:
        privacy: C and z.
        numbers: d, how many numbers a change has.
        count: k, how many changes the mean is of.
    """
    return privacy.noise * math.sqrt(numbers) / count


def check(privacy: Privacy, numbers: int, count: int, insist: bool = False) -> None:
    """Refuse noise that drowns what it is added to.

    Args:
        privacy: C and z.
        numbers: how many numbers a change has.
        count: how many changes a mean is of.
        insist: whether noise that is larger than every signal is wanted all the same.

    Raises:
        ValueError: saying how much larger it is; or on numbers that make no sense.
    """
    if not (privacy.clip > 0.0 and privacy.noise >= 0.0 and math.isfinite(privacy.clip + privacy.noise)):
        raise ValueError(f"expected a clip norm above 0 and noise from 0, both finite, got {privacy}.")
    times = drowning(privacy, numbers, count)
    if times > 1.0 and not insist:
        raise ValueError(
            f"expected noise below the clip norm, got {times:.3g} times as much ({numbers:,} numbers, a mean of "
            f"{count}, noise multiplier {privacy.noise:g}): take more sites, a smaller network or less "
            "noise, or insist on it."
        )


@lru_cache(maxsize=16)
def private_rows(algorithm: Algorithm, privacy: Privacy) -> Algorithm:
    """The algorithm whose every update is a clipped and noised mean of the updates of single rows.

    With gradient steps (`{method: sgd}`) it is DP-SGD (Abadi et al. 2016, arXiv 1607.00133, algorithm 1), with C in
    units of a step. Optimisers keep no memory, which would hold rows without noise: with Adam each row's step is its
    first. The metrics are not private; they stay at the site.

    Args:
        algorithm: what to train.
        privacy: C, the largest norm of one row's step, and z.

    Raises:
        ValueError: at the first update of an algorithm with a learned model, which keeps the range of its rows.
    """

    def wrap(update: Update) -> Update:
        def private(state: Any, batches: Transition, key: PRNGKeyArray) -> tuple[Any, Metrics]:
            _check_no_model(algorithm, state)
            update_key, noise_key = jax.random.split(key)
            start = parameters_of(state)
            alone: Transition = jax.tree.map(lambda x: jnp.moveaxis(x, 1, 0)[:, :, None], batches)
            rows = alone.reward.shape[0]

            def of_row(row: Transition, key: PRNGKeyArray) -> tuple[Parameters, Metrics]:
                after, metrics = update(state, row, key)
                return clipped(difference(parameters_of(after), start), privacy.clip), metrics

            changes, metrics = jax.vmap(of_row)(alone, jax.random.split(update_key, rows))
            mean, metrics = jax.tree.map(lambda x: jnp.mean(x, axis=0), (changes, metrics))
            moved: Parameters = jax.tree.map(jnp.add, start, noised(mean, privacy, rows, noise_key))
            return with_parameters(state, moved), metrics

        return private

    return wrapped(algorithm, wrap)


def _check_no_model(algorithm: Algorithm, state: Any) -> None:
    if any(isinstance(x, Model) for x in jax.tree.leaves(state, is_leaf=lambda x: isinstance(x, Model))):
        raise ValueError(
            f"expected an algorithm without a learned model where single rows are private, got {algorithm.name}, which "
            "keeps the range of what it has seen: take one that has none, or make whole sites private."
        )
