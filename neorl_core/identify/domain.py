"""Operating domains that draw a plant's constants from a posterior, so that claims cover the remaining uncertainty."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from neorl_core.identify.unknowns import Unknown, constant_of, extended, with_constants, with_nominal
from neorl_core.types import Params, Plant

if TYPE_CHECKING:
    # Only for annotations: drawing from a posterior does not need the estimator.
    from neorl_core.identify.estimate import Posterior


def identified_plant(plant: Plant, unknowns: Sequence[Unknown], posterior: Posterior) -> Plant:
    """Return a plant with estimates as nominal constants, and an operating domain that draws from the posterior.

    The domain has all fields of the plant's own domain, plus `posterior_fields`; spreads of the unknowns have no
    effect.

    Example:
        >>> known = identified_plant(plant, unknowns, identify(plant, unknowns, episodes))  # doctest: +SKIP
        >>> rollouts(known, controller, params, keys, known.domain)  # doctest: +SKIP
    """
    return drawing_plant(plant, unknowns, posterior_fields(unknowns, posterior))


def drawing_plant(plant: Plant, unknowns: Sequence[Unknown], fields: Mapping[str, float]) -> Plant:
    """Return the plant of `identified_plant`, given the additional domain fields that a certificate lists.

    Args:
        unknowns: the estimated constants, in order; only name, entry and law are used.
        fields: the exact numbers of `posterior_fields`.

    Raises:
        ValueError: if a field is missing or belongs to no unknown.
    """
    # Priors do not affect the draws; equal unknowns share one compiled function.
    unknowns = tuple(Unknown(u.name, 1.0, u.law, entry=u.entry) for u in unknowns)
    names = tuple(name for i, unknown in enumerate(unknowns) for name in _fields(unknown, i))
    if set(names) != set(fields):
        odd = min(set(names) ^ set(fields))
        raise ValueError(
            f"field '{odd}' must be in both the domain and the posterior of {', '.join(map(str, unknowns))}: pass the "
            "fields of posterior_fields unchanged"
        )
    domain = extended("Identified", plant.domain, {name: fields[name] for name in names})
    params = with_nominal(plant.params, {unknown: fields[_fields(unknown, 0)[0]] for unknown in unknowns})
    return plant._replace(params=params, domain=domain, sample_params=_sampler(plant.sample_params, unknowns))


def posterior_fields(unknowns: Sequence[Unknown], posterior: Posterior) -> dict[str, float]:
    """Return the domain fields of a posterior, as a flat dictionary of floats.

    `identified_NAME` is the estimate of a constant. `identified_NAME_1`, `_2`, ... are row i of L, the lower triangular
    factor of the posterior covariance. With a standard normal e, a constant is drawn as estimate + (L e)_i for a normal
    prior, or estimate exp((L e)_i) for a log-normal prior. The covariance is n / (n - 2) times the sandwich covariance
    with n degrees of freedom, because the intervals use the t distribution.

    Raises:
        ValueError: if fewer than four episodes are informative about a constant, so that the variance is infinite.
    """
    least = int(np.argmin(posterior.degrees))
    degrees = float(np.asarray(posterior.degrees)[least])
    if degrees <= 2.0:
        raise ValueError(
            f"{unknowns[least]} needs at least four informative episodes, got {degrees + 1:g}: the variance of the "
            "posterior is infinite; add logs in which the constant affects the signals"
        )
    scale = np.asarray(posterior.prior.scale, np.float64)
    covariance = np.asarray(posterior.covariance, np.float64) * np.outer(scale, scale) * degrees / (degrees - 2.0)
    factor = np.linalg.cholesky(covariance)
    fields: dict[str, float] = {}
    for i, (unknown, value) in enumerate(zip(unknowns, np.asarray(posterior.estimate, np.float64), strict=True)):
        row = (float(value), *map(float, factor[i, : i + 1]))
        fields |= dict(zip(_fields(unknown, i), row, strict=True))
    return fields


def replaced_fields(plant: Plant, unknowns: Sequence[Unknown]) -> tuple[str, ...]:
    """Return the fields of the plant's domain that affect only the unknowns; the posterior replaces these fields.

    To find them, the function changes each field, draws a few plants and compares all other constants.
    """
    keys = jax.random.split(jax.random.key(0), 8)
    nominal = jnp.stack([jnp.asarray(constant_of(plant.params, unknown), float) for unknown in unknowns])
    draw = jax.jit(jax.vmap(plant.sample_params, (0, None)))

    def rest(params: Params) -> Params:
        return jax.vmap(lambda one: with_constants(one, unknowns, nominal))(params)

    def same(one: Params, other: Params) -> bool:
        pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
        return all(np.array_equal(a, b) for a, b in pairs)

    domain: Any = plant.domain
    drawn, fields = draw(keys, domain), []
    for name, value in zip(domain._fields, domain, strict=True):
        moved = draw(keys, domain._replace(**{name: 0.9 * value + 0.01}))
        if not same(drawn, moved) and same(rest(drawn), rest(moved)):
            fields.append(name)
    return tuple(fields)


def _fields(unknown: Unknown, i: int) -> tuple[str, ...]:
    """Names of the fields of unknown number i."""
    name = f"identified_{unknown.field}"
    return (name, *(f"{name}_{j + 1}" for j in range(i + 1)))


@cache
def _sampler(
    sample_params: Callable[[PRNGKeyArray, Params], Params], unknowns: tuple[Unknown, ...]
) -> Callable[[PRNGKeyArray, Params], Params]:
    """Return `sample_params` with the unknowns drawn from the posterior; equal arguments return the same function."""

    def sample(key: PRNGKeyArray, domain: Params) -> Params:
        key_posterior, key_rest = jax.random.split(key)
        drawn = jax.random.normal(key_posterior, (len(unknowns),))
        values = [_draw(domain, unknown, i, drawn) for i, unknown in enumerate(unknowns)]
        return with_constants(sample_params(key_rest, domain), unknowns, jnp.stack(values))

    return sample


def _draw(domain: Params, unknown: Unknown, i: int, drawn: Float[Array, " P"]) -> Float[Array, ""]:
    name, *factors = _fields(unknown, i)
    away = sum(getattr(domain, factor) * drawn[j] for j, factor in enumerate(factors))
    estimate = jnp.asarray(getattr(domain, name), drawn.dtype)
    return estimate * jnp.exp(away) if unknown.law == "log-normal" else estimate + away
