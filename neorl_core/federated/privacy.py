"""Differential privacy: clip changes and add normal noise to their mean.

Site level: the change of a site is clipped to norm C. The mean over k sites gets noise of standard deviation `z C / k`
per coordinate, with z the noise multiplier. All sites have equal weight, because different weights would reveal the
numbers of rows. Row level: the step of each row is clipped and the batch mean gets noise at the site. `accountant`
computes the privacy spent.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from neorl_core.training.parameters import Parameters, difference, parameters_of, with_parameters
from neorl_core.training.population import Algorithm, Metrics, Update, wrap_updates
from neorl_core.types import Transition
from neorl_core.world_model.dynamics import Model


class Privacy(NamedTuple):
    """Clip norm and noise of differential privacy."""

    clip: float
    """C, the largest norm of one change."""
    noise: float
    """z, the standard deviation of the noise on a sum of changes, in units of C."""


def norm(tree: Any) -> Float[Array, ""]:
    """Return the Euclidean norm of all numbers of a tree."""
    return jnp.sqrt(sum((jnp.sum(x**2) for x in jax.tree.leaves(tree)), jnp.zeros(())))


def clip_change(tree: Any, clip: float | Float[Array, ""]) -> Any:
    """Return `x min(1, C / |x|)`, or zeros if x has a non-finite number.

    Abadi et al. 2016 (arXiv 1607.00133), algorithm 1.

    Args:
        clip: C.
    """
    length = norm(tree)
    factor = jnp.where(length > clip, clip / jnp.where(length > clip, length, 1.0), 1.0)
    finite = jnp.isfinite(length)
    return jax.tree.map(lambda x: jnp.where(finite, factor.astype(x.dtype) * x, jnp.zeros_like(x)), tree)


def add_noise(mean: Any, privacy: Privacy, count: int, key: PRNGKeyArray) -> Any:
    """Add normal noise of standard deviation `z C / count` to every coordinate of a mean of `count` clipped changes."""
    leaves, structure = jax.tree.flatten(mean)
    deviation = privacy.noise * privacy.clip / count
    keys = jax.random.split(key, len(leaves))
    noisy = [x + deviation * jax.random.normal(k, x.shape, x.dtype) for x, k in zip(leaves, keys, strict=True)]
    return jax.tree.unflatten(structure, noisy)


def noise_ratio(privacy: Privacy, numbers: int, count: int) -> float:
    """Return the expected noise norm on a mean of k changes of d numbers, in clip norms: `z sqrt(d) / k`."""
    return privacy.noise * math.sqrt(numbers) / count


def check(privacy: Privacy, numbers: int, count: int, insist: bool = False) -> None:
    """Raise an error if the expected norm of the noise exceeds the clip norm, which is the largest possible change.

    Args:
        privacy: C and z.
        numbers: numbers d of a change.
        count: changes k in a mean.
        insist: accept larger noise.

    Raises:
        ValueError: if the noise is too large, or C or z are invalid.
    """
    if not (privacy.clip > 0.0 and privacy.noise >= 0.0 and math.isfinite(privacy.clip + privacy.noise)):
        raise ValueError(
            f"clip must be positive and noise at least 0, both finite, got clip {privacy.clip:g} and noise "
            f"{privacy.noise:g}: correct them"
        )
    times = noise_ratio(privacy, numbers, count)
    if times > 1.0 and not insist:
        raise ValueError(
            f"the noise is {times:.3g} times the clip norm and would hide all changes (mean of {count} changes with "
            f"{numbers:,} numbers, noise {privacy.noise:g}): use more sites, fewer weights or less noise, or set insist"
        )


@lru_cache(maxsize=16)
def private_rows(algorithm: Algorithm, privacy: Privacy) -> Algorithm:
    """Return a private version of an algorithm: each update is the mean of clipped single-row updates, plus noise.

    With `{method: sgd}` this is DP-SGD (Abadi et al. 2016, arXiv 1607.00133, algorithm 1), with C in units of a step.
    The optimiser's state is discarded, because the state would contain rows without noise. Metrics must stay at the
    site.

    Args:
        privacy: C, the largest norm of one row's step, and z.

    Raises:
        ValueError: at the first update of an algorithm with a learned model, which stores the range of its rows.
    """

    def wrap(update: Update) -> Update:
        def private(state: Any, batches: Transition, key: PRNGKeyArray) -> tuple[Any, Metrics]:
            _check_no_model(algorithm, state)
            update_key, noise_key = jax.random.split(key)
            start = parameters_of(state)
            alone: Transition = jax.tree.map(lambda x: jnp.moveaxis(x, 1, 0)[:, :, None], batches)
            rows = alone.reward.shape[0]

            def change_of(row: Transition, key: PRNGKeyArray) -> tuple[Parameters, Metrics]:
                after, metrics = update(state, row, key)
                return clip_change(difference(parameters_of(after), start), privacy.clip), metrics

            changes, metrics = jax.vmap(change_of)(alone, jax.random.split(update_key, rows))
            mean, metrics = jax.tree.map(lambda x: jnp.mean(x, axis=0), (changes, metrics))
            after_noise: Parameters = jax.tree.map(jnp.add, start, add_noise(mean, privacy, rows, noise_key))
            return with_parameters(state, after_noise), metrics

        return private

    return wrap_updates(algorithm, wrap)


def _check_no_model(algorithm: Algorithm, state: Any) -> None:
    if any(isinstance(x, Model) for x in jax.tree.leaves(state, is_leaf=lambda x: isinstance(x, Model))):
        raise ValueError(
            f"row-level privacy needs an algorithm without a learned model, got {algorithm.name}, which stores the "
            "range of its rows: choose another algorithm, or site-level privacy"
        )
