"""A site of a fleet: a plant of which there are several, with constants and limits of its own, under its own name."""

from __future__ import annotations

import math
from collections import namedtuple
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from neorl_core.identify.unknowns import Unknown, constant_of, with_constants
from neorl_core.plants.base import AnyArray, LoggedSignals
from neorl_core.types import Constraint, Params, Plant, PlantSpec

Bounds = tuple[float | None, float | None]
"""A limit's low and high; None where it is the plant's."""
EQUAL = 1e-6
"""Share of a limit's width by which both of its sides may move differently and still count as moved alike."""


def site_spec(spec: PlantSpec, name: str, limits: Mapping[str, Bounds]) -> PlantSpec:
    """A plant's spec under the site's name, with the site's limits.

    A simulator's margin is the distance to the nearer side of a limit, min(x - low, high - x), and a site's is that
    less what its limit lies inside the plant's. So both sides move inwards by the same amount.

    Args:
        spec: the plant's.
        name: the site's, as a plant.
        limits: by the constraint's name, in its unit; the others stay.

    Raises:
        ValueError: when there is no such limit, or it lies outside the plant's, or its sides move by different amounts.

    Example:
        >>> from neorl_core.plants import PLANTS
        >>> spec = site_spec(PLANTS["chemical_reactor"].spec, "east", {"reactor temperature": (317.0, 331.0)})
        >>> spec.name, spec.constraints[0].low
        ('east', 317.0)
    """
    known = [limit.name for limit in spec.constraints]
    if unknown := sorted(set(limits) - set(known)):
        raise ValueError(f"expected limits of {', '.join(known) or 'nothing'}, got '{unknown[0]}': correct the name")
    return spec._replace(name=name, constraints=tuple(_moved(limit, limits) for limit in spec.constraints))


def site_plant(plant: Plant, name: str, constants: Mapping[str, float], limits: Mapping[str, Bounds]) -> Plant:
    """A plant whose nominal constants and limits are those of a site.

    What the operating domain draws keeps its share of the nominal value: c = value (drawn / nominal). The site's values
    are fields of its domain, so that a claim names them, and the programs of all sites are the same.

    Args:
        plant: the one of which there are several.
        name: the site's, as a plant.
        constants: values by the name of the constant, `pump[1]` for an entry; the others are the plant's.
        limits: as for `site_spec`.

    Raises:
        ValueError: when a constant is none of the plant's, or zero there, or a limit cannot be meant.

    Example:
        >>> from neorl_core.plants import PLANTS
        >>> east = site_plant(PLANTS["chemical_reactor"], "east", {"cooling_rate": 2.2}, {})
        >>> east.params.cooling_rate, east.domain.site_cooling_rate
        (2.2, 2.2)
    """
    found = plant._replace(spec=site_spec(plant.spec, name, limits))
    reserves = _reserves(plant.spec, found.spec)
    if any(reserves):
        found = found._replace(step=_step(plant.step, reserves), predict=_predict(plant.predict, reserves))
    if not constants:
        return found
    unknowns = tuple(_unknown(label) for label in sorted(constants))
    nominal = tuple(_nominal(plant.params, unknown) for unknown in unknowns)
    values = {str(unknown): float(constants[str(unknown)]) for unknown in unknowns}
    params = plant.params
    for unknown in unknowns:
        params = _with_value(params, unknown, values[str(unknown)])
    own_domain: Any = type(plant.domain)
    kind = _extended(own_domain, tuple(map(_field, unknowns)))

    def own(value: Any) -> Any:
        # A planner's constants are the plant's: those of a site plan with the site's.
        return params if value is plant.params else value

    return found._replace(
        params=params,
        domain=kind(*plant.domain, *(values[str(unknown)] for unknown in unknowns)),
        sample_params=_sampler(plant.sample_params, unknowns, nominal),
        fallback_params=jax.tree.map(own, plant.fallback_params, is_leaf=lambda x: x is plant.params),
        reference_params=jax.tree.map(own, plant.reference_params, is_leaf=lambda x: x is plant.params),
    )


def site_signals(logged: LoggedSignals, spec: PlantSpec, site: PlantSpec) -> LoggedSignals:
    """What a site's logs are scored with: its margins are held against its own limits.

    Args:
        logged: the plant's.
        spec: the plant's.
        site: the site's, as `site_spec` made it.
    """
    reserves = _reserves(spec, site)
    if not any(reserves):
        return logged

    def margins(after: Float[AnyArray, "*n O"]) -> Float[Array, "*n K"]:
        return logged.margins(after) - jnp.asarray(reserves)

    return logged._replace(margins=margins)


def varied_constants(plant: Plant) -> tuple[str, ...]:
    """Constants that a plant's operating domain draws, and that are not zero in its file: those that sites differ in.

    Example:
        >>> from neorl_core.plants import PLANTS
        >>> varied_constants(PLANTS["chemical_reactor"])
        ('reaction_rate', 'cooling_rate')
    """
    one, other = (plant.sample_params(jax.random.key(seed), plant.domain) for seed in (0, 1))
    values = [(name, value, getattr(one, name), getattr(other, name)) for name, value in plant.params._asdict().items()]
    scalars = [found for found in values if all(_shape(value) == () for value in found[1:])]
    return tuple(name for name, nominal, a, b in scalars if nominal != 0 and float(a) != float(b))


def _moved(limit: Constraint, limits: Mapping[str, Bounds]) -> Constraint:
    low, high = limits.get(limit.name, (None, None))
    low, high = limit.low if low is None else low, limit.high if high is None else high
    own = f"{limit.low:g} to {limit.high:g} {limit.unit}"
    if not limit.low <= low < high <= limit.high:
        raise ValueError(
            f"expected a limit of {limit.name} inside the plant's {own}, got {low:g} to {high:g}: nothing is simulated "
            "beyond the plant's own"
        )
    if any(old != new and math.isinf(old) for old, new in ((limit.low, low), (limit.high, high))):
        raise ValueError(
            f"expected no bound on a side on which {limit.name} has none in the plant's own {own}, got {low:g} to "
            f"{high:g}: the simulator tells no distance to it, so leave that side null"
        )
    width = limit.high - limit.low
    if math.isfinite(width) and abs((low - limit.low) - (limit.high - high)) > EQUAL * width:
        raise ValueError(
            f"expected both sides of {limit.name} as far inside the plant's {own}, got {low:g} to {high:g}: the "
            "simulator tells the distance to the nearer side alone, so move both by the same amount"
        )
    return limit._replace(low=low, high=high)


def _reserves(spec: PlantSpec, site: PlantSpec) -> tuple[float, ...]:
    """How far each limit of a site lies inside the plant's, in the limit's unit."""
    return tuple(
        new.low - old.low if math.isfinite(old.low) else old.high - new.high if math.isfinite(old.high) else 0.0
        for old, new in zip(spec.constraints, site.constraints, strict=True)
    )


def _step(step: Callable[..., Any], reserves: tuple[float, ...]) -> Callable[..., Any]:
    def call(key: PRNGKeyArray, state: Params, action: Float[Array, " A"], params: Params) -> Any:
        following, timestep = step(key, state, action, params)
        return following, timestep._replace(margins=timestep.margins - jnp.asarray(reserves, timestep.margins.dtype))

    return call


def _predict(predict: Callable[..., Any], reserves: tuple[float, ...]) -> Callable[..., Any]:
    def call(observation: Float[Array, " O"], action: Float[Array, " A"], params: Params) -> Any:
        following, margins = predict(observation, action, params)
        return following, margins - jnp.asarray(reserves, margins.dtype)

    return call


def _unknown(label: str) -> Unknown:
    name, _, rest = label.partition("[")
    return Unknown(name, 1.0, "normal", entry=int(rest.removesuffix("]")) if rest else None)


def _field(unknown: Unknown) -> str:
    return f"site_{unknown.name}" + ("" if unknown.entry is None else f"_of_{unknown.entry + 1}")


def _nominal(params: Params, unknown: Unknown) -> float:
    """A constant's value in the plant's file."""
    if unknown.name not in params._fields:
        raise ValueError(f"expected constants among {', '.join(params._fields)}, got '{unknown}': correct the name")
    shape = _shape(getattr(params, unknown.name))
    whole, entry = shape == (), unknown.entry
    known = whole if entry is None else shape is not None and len(shape) == 1 and entry < shape[0]
    if not known:
        raise ValueError(f"expected one number of {unknown.name}, which has the shape {shape}, got '{unknown}'")
    value = float(constant_of(params, unknown))
    if value == 0.0:
        raise ValueError(
            f"expected a constant that is not zero in the plant's file, got '{unknown}': where the operating domain "
            "gives its value, write it under certify.domain"
        )
    return value


def _shape(value: Any) -> tuple[int, ...] | None:
    """Of a field of a plant's constants; None of a group of them."""
    return None if hasattr(value, "_fields") else np.shape(value)


def _with_value(params: Params, unknown: Unknown, value: float) -> Params:
    new: Any = value
    if unknown.entry is not None:
        new = tuple(value if i == unknown.entry else float(x) for i, x in enumerate(getattr(params, unknown.name)))
    return params._replace(**{unknown.name: new})


@cache
def _extended(domain: Any, names: tuple[str, ...]) -> Callable[..., Params]:
    """One type for each set of fields, as `neorl_core.identify.domain` has it."""
    return namedtuple(f"Site{domain.__name__}", (*domain._fields, *names))


@cache
def _sampler(
    sample_params: Callable[[PRNGKeyArray, Params], Params], unknowns: tuple[Unknown, ...], nominal: tuple[float, ...]
) -> Callable[[PRNGKeyArray, Params], Params]:
    """The plant's own draw, scaled to the site's constants; the same arguments give the same function."""

    def sample(key: PRNGKeyArray, domain: Params) -> Params:
        drawn = sample_params(key, domain)
        scaled = [
            constant_of(drawn, unknown) * (jnp.asarray(getattr(domain, _field(unknown)), float) / value)
            for unknown, value in zip(unknowns, nominal, strict=True)
        ]
        return with_constants(drawn, unknowns, jnp.stack(scaled))

    return sample
