"""Sites of a fleet: copies of one plant with different constants and limits."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from neorl_core.identify.unknowns import (
    Unknown,
    constant_of,
    extended,
    nominal_value,
    with_constants,
    with_nominal,
)
from neorl_core.plants.base import AnyArray, LoggedSignals
from neorl_core.types import Constraint, Params, Plant, PlantSpec, Timestep

Bounds = tuple[float | None, float | None]
"""New lower and upper value of a limit; None keeps the plant's value."""
EQUAL = 1e-6
"""Allowed difference between the moves of a limit's two sides, as a share of the limit's width."""


def site_spec(spec: PlantSpec, name: str, limits: Mapping[str, Bounds]) -> PlantSpec:
    """Return the plant's spec with the site's name and limits.

    A simulator only returns the distance to the nearer side of a limit, min(x - low, high - x). A site's margin is this
    distance minus a constant, so both sides of a limit must move inwards by the same amount.

    Args:
        limits: (low, high) by constraint name, in the constraint's unit; other constraints are kept.

    Raises:
        ValueError: if a constraint is unknown, a new limit lies outside the plant's limit, or sides move unequally.

    Example:
        >>> from neorl_core.plants import PLANTS
        >>> spec = site_spec(PLANTS["chemical_reactor"].spec, "east", {"reactor temperature": (317.0, 331.0)})
        >>> spec.name, spec.constraints[0].low
        ('east', 317.0)
    """
    names = [limit.name for limit in spec.constraints]
    if unknown := sorted(set(limits) - set(names)):
        raise ValueError(
            f"site {name} limits the unknown constraint '{unknown[0]}': use {', '.join(names) or 'no limits'}"
        )
    return spec._replace(name=name, constraints=tuple(_moved(limit, limits) for limit in spec.constraints))


def site_plant(plant: Plant, name: str, constants: Mapping[str, float], limits: Mapping[str, Bounds]) -> Plant:
    """Return the plant with a site's nominal constants and limits.

    A site's constant is the plant's drawn constant times (site's value / plant's nominal value).

    Args:
        constants: the site's values by constant, for example `pump`, or `pump[1]` for one entry; others are kept.
        limits: as for `site_spec`.

    Raises:
        ValueError: if the plant has no such constant, the constant is zero in the plant, or a limit is invalid.

    Example:
        >>> from neorl_core.plants import PLANTS
        >>> east = site_plant(PLANTS["chemical_reactor"], "east", {"cooling_rate": 2.2}, {})
        >>> east.params.cooling_rate, east.domain.site_cooling_rate
        (2.2, 2.2)
    """
    tightened = plant._replace(spec=site_spec(plant.spec, name, limits))
    reserves = _reserves(plant.spec, tightened.spec)

    def step(key: PRNGKeyArray, state: Params, action: Float[Array, " A"], params: Params) -> tuple[Params, Timestep]:
        next_state, timestep = plant.step(key, state, action, params)
        return next_state, timestep._replace(margins=timestep.margins - jnp.asarray(reserves, timestep.margins.dtype))

    def predict(observation: Float[Array, " O"], action: Float[Array, " A"], params: Params) -> Any:
        next_observation, margins = plant.predict(observation, action, params)
        return next_observation, margins - jnp.asarray(reserves, margins.dtype)

    if any(reserves):
        tightened = tightened._replace(step=step, predict=predict)
    if not constants:
        return tightened
    unknowns = tuple(_unknown(label) for label in sorted(constants))
    nominal = tuple(_nominal(plant.params, unknown) for unknown in unknowns)
    values = {unknown: float(constants[str(unknown)]) for unknown in unknowns}
    params = with_nominal(plant.params, values)

    def own(value: Any) -> Any:
        # A planner's model has the site's constants.
        return params if value is plant.params else value

    return tightened._replace(
        params=params,
        domain=extended("Site", plant.domain, {f"site_{unknown.field}": value for unknown, value in values.items()}),
        sample_params=_sampler(plant.sample_params, unknowns, nominal),
        fallback_params=jax.tree.map(own, plant.fallback_params, is_leaf=lambda x: x is plant.params),
        reference_params=jax.tree.map(own, plant.reference_params, is_leaf=lambda x: x is plant.params),
    )


def site_signals(logged: LoggedSignals, spec: PlantSpec, site: PlantSpec) -> LoggedSignals:
    """Return the reward and margin functions for a site's logs, with margins to the site's limits."""
    reserves = _reserves(spec, site)
    if not any(reserves):
        return logged

    def margins(after: Float[AnyArray, "*n O"]) -> Float[Array, "*n K"]:
        return logged.margins(after) - jnp.asarray(reserves)

    return logged._replace(margins=margins)


def varied_constants(plant: Plant) -> tuple[str, ...]:
    """Return the names of the scalar constants that the operating domain draws and that are not zero."""
    one, other = (plant.sample_params(jax.random.key(seed), plant.domain) for seed in (0, 1))
    values = [(name, value, getattr(one, name), getattr(other, name)) for name, value in plant.params._asdict().items()]
    scalars = [row for row in values if all(_shape(value) == () for value in row[1:])]
    return tuple(name for name, nominal, a, b in scalars if nominal != 0 and float(a) != float(b))


def _moved(limit: Constraint, limits: Mapping[str, Bounds]) -> Constraint:
    low, high = limits.get(limit.name, (None, None))
    low, high = limit.low if low is None else low, limit.high if high is None else high
    own = f"{limit.low:g} to {limit.high:g} {limit.unit}"
    if not limit.low <= low < high <= limit.high:
        raise ValueError(
            f"limit of {limit.name} must lie inside the plant's limit of {own}, got {low:g} to {high:g}: use a "
            "narrower limit, because the simulator is not valid outside the plant's limit"
        )
    if any(old != new and math.isinf(old) for old, new in ((limit.low, low), (limit.high, high))):
        raise ValueError(
            f"limit of {limit.name} must stay open where the plant's limit of {own} is open, got {low:g} to {high:g}: "
            "set the open side to null, because the simulator computes no distance to this side"
        )
    width = limit.high - limit.low
    if math.isfinite(width) and abs((low - limit.low) - (limit.high - high)) > EQUAL * width:
        raise ValueError(
            f"both sides of the limit of {limit.name} must move inwards by the same amount from {own}, got {low:g} to "
            f"{high:g} (by {low - limit.low:g} and {limit.high - high:g}): make the two amounts equal"
        )
    return limit._replace(low=low, high=high)


def _reserves(spec: PlantSpec, site: PlantSpec) -> tuple[float, ...]:
    """Return the distance between each limit of a site and the plant's limit, in the limit's unit."""
    return tuple(
        new.low - old.low if math.isfinite(old.low) else old.high - new.high if math.isfinite(old.high) else 0.0
        for old, new in zip(spec.constraints, site.constraints, strict=True)
    )


def _unknown(label: str) -> Unknown:
    name, _, rest = label.partition("[")
    return Unknown(name, 1.0, "normal", entry=int(rest.removesuffix("]")) if rest else None)


def _nominal(params: Params, unknown: Unknown) -> float:
    value = float(nominal_value(params, unknown))
    if value == 0.0:
        raise ValueError(
            f"a site scales constants, so it cannot change '{unknown}', because it is 0 in the plant: set it under "
            "certify.domain if the operating domain has this field"
        )
    return value


def _shape(value: Any) -> tuple[int, ...] | None:
    """Shape of a constant; None for a nested group of constants."""
    return None if hasattr(value, "_fields") else np.shape(value)


@cache
def _sampler(
    sample_params: Callable[[PRNGKeyArray, Params], Params], unknowns: tuple[Unknown, ...], nominal: tuple[float, ...]
) -> Callable[[PRNGKeyArray, Params], Params]:
    """Return a function that draws a site's constants. Caching returns one object for equal arguments, for `jit`."""

    def sample(key: PRNGKeyArray, domain: Params) -> Params:
        drawn = sample_params(key, domain)
        scaled = [
            constant_of(drawn, unknown) * (jnp.asarray(getattr(domain, f"site_{unknown.field}"), float) / value)
            for unknown, value in zip(unknowns, nominal, strict=True)
        ]
        return with_constants(drawn, unknowns, jnp.stack(scaled))

    return sample
