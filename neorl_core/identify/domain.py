"""The operating domain that draws from a posterior: what is certified is then the plant as far as the logs tell it."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from neorl_core.identify.estimate import Posterior
from neorl_core.identify.unknowns import Unknown, with_constants
from neorl_core.types import Params, Plant


def identified_plant(plant: Plant, unknowns: Sequence[Unknown], posterior: Posterior) -> Plant:
    """A plant whose nominal constants are the estimate, and whose operating domain draws them from the posterior.

    Its domain has the fields of the plant's own, which keep their meaning (noise, disturbances, starts, spreads of
    other constants), and those of `domain_from`. A spread of an unknown has no effect any more.

    Args:
        plant: the plant that was identified.
        unknowns: what was estimated.
        posterior: of this one plant.

    Example:
        >>> known = identified_plant(plant, unknowns, identify(plant, unknowns, episodes))  # doctest: +SKIP
        >>> rollouts(known, controller, params, keys, known.domain)  # doctest: +SKIP
    """
    unknowns = tuple(unknowns)
    domain = domain_from(plant, unknowns, posterior)
    kind: Any = type(domain)
    values = np.asarray(posterior.estimate, np.float64)
    params = plant.params
    for unknown, value in zip(unknowns, values, strict=True):
        new: Any = float(value)
        if unknown.entry is not None:
            new = tuple(new if i == unknown.entry else float(x) for i, x in enumerate(getattr(params, unknown.name)))
        params = params._replace(**{unknown.name: new})
    return plant._replace(params=params, domain=domain, sample_params=sampler(plant.sample_params, kind, unknowns))


def domain_from(plant: Plant, unknowns: Sequence[Unknown], posterior: Posterior) -> Params:
    """The plant's domain with the posterior in it: a flat NamedTuple of floats, as every domain is.

    `identified_NAME` is a constant's estimate, and `identified_NAME_1`, `_2`, ... are a row of the lower triangular
    factor L of the posterior's covariance, in the constant's own unit, or of its logarithm where the prior was
    log-normal: constant = estimate exp((L e)_i) or estimate + (L e)_i, e standard normal. The covariance is that of
    the t distribution of the intervals, n / (n - 2) times the sandwich's at n degrees of freedom.

    Args:
        plant: whose own domain is extended.
        unknowns: what was estimated.
        posterior: of one plant.

    Raises:
        ValueError: for fewer than three episodes, from which no covariance follows.
    """
    unknowns = tuple(unknowns)
    degrees = float(posterior.degrees)
    if degrees <= 2.0:
        raise ValueError(
            f"expected a posterior of three episodes or more, got {degrees:g}: the covariance of its t distribution is "
            "infinite; give more logs."
        )
    scale = np.asarray(posterior.prior.scale, np.float64)
    covariance = np.asarray(posterior.covariance, np.float64) * np.outer(scale, scale) * degrees / (degrees - 2.0)
    factor = np.linalg.cholesky(covariance)
    extra: dict[str, float] = {}
    for i, (unknown, value) in enumerate(zip(unknowns, np.asarray(posterior.estimate, np.float64), strict=True)):
        extra[_field(unknown)] = float(value)
        extra |= {f"{_field(unknown)}_{j + 1}": float(factor[i, j]) for j in range(i + 1)}
    kind: Any = type(plant.domain)
    return _extended(kind, tuple(extra))(*plant.domain, *extra.values())


def _field(unknown: Unknown) -> str:
    return f"identified_{unknown.name}" + ("" if unknown.entry is None else f"_of_{unknown.entry + 1}")


@cache
def _extended(domain: Any, names: tuple[str, ...]) -> Callable[..., Params]:
    """One type for each set of fields: two types would be two trees to JAX, and compile everything twice."""
    return namedtuple(f"Identified{domain.__name__}", (*domain._fields, *names))


@cache
def sampler(
    sample_params: Callable[[PRNGKeyArray, Params], Params], domain: Any, unknowns: tuple[Unknown, ...]
) -> Callable[[PRNGKeyArray, Params], Params]:
    """`sample_params` with the unknowns drawn from the posterior; the same arguments give the same function.

    Args:
        sample_params: the plant's own.
        domain: type of the domain that `domain_from` made.
        unknowns: what was estimated.
    """

    def sample(key: PRNGKeyArray, domain: Params) -> Params:
        key_posterior, key_rest = jax.random.split(key)
        drawn = jax.random.normal(key_posterior, (len(unknowns),))
        values = [_draw(domain, unknown, i, drawn) for i, unknown in enumerate(unknowns)]
        return with_constants(sample_params(key_rest, domain), unknowns, jnp.stack(values))

    return sample


def _draw(domain: Params, unknown: Unknown, i: int, drawn: Float[Array, " P"]) -> Float[Array, ""]:
    name = _field(unknown)
    away = sum(getattr(domain, f"{name}_{j + 1}") * drawn[j] for j in range(i + 1))
    estimate = jnp.asarray(getattr(domain, name), drawn.dtype)
    return estimate * jnp.exp(away) if unknown.law == "log-normal" else estimate + away
