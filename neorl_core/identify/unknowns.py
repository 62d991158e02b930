"""The unknown constants of a plant, and coordinates in which the prior of every constant is standard normal."""

from __future__ import annotations

import math
from collections import namedtuple
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from neorl_core.types import Params


class Unknown(NamedTuple):
    """A constant of the plant to estimate: a field of the plant's `Params`."""

    name: str
    spread: float
    """Prior standard deviation: relative to the centre if log-normal, in the constant's unit if normal."""
    law: Literal["log-normal", "normal"] = "log-normal"
    centre: float | None = None
    """Prior median; None for the plant's nominal value."""
    entry: int | None = None
    """Index of the entry, if the field is a vector."""

    def __str__(self) -> str:
        return self.name if self.entry is None else f"{self.name}[{self.entry}]"

    @property
    def field(self) -> str:
        """Name of the constant in fields of an operating domain, such as `pump_of_2` for `pump[1]`."""
        return self.name if self.entry is None else f"{self.name}_of_{self.entry + 1}"


class Prior(NamedTuple):
    """Medians and scales of the unknowns: a constant is `centre exp(scale x)` or `centre + scale x`, x ~ N(0, 1)."""

    centre: Float[Array, " P"]
    scale: Float[Array, " P"]


def prior_of(params: Params, unknowns: Sequence[Unknown]) -> Prior:
    """Return the prior of unknowns. The scale is the spread s if normal, or `sqrt(log(1 + s^2))` if log-normal.

    Args:
        params: the plant's nominal constants, which are the default centres.

    Raises:
        ValueError: on an unknown or repeated name, an unknown law, a spread that is not positive and finite, or a
            centre that is not finite (normal) or not positive (log-normal).
    """
    named = [str(unknown) for unknown in unknowns]
    if not named or len(set(named)) < len(named):
        raise ValueError(f"unknowns must be at least one and different, got {named}: name each constant once")
    values = [nominal_value(params, unknown) for unknown in unknowns]
    centres = [value if u.centre is None else u.centre for u, value in zip(unknowns, values, strict=True)]
    scales = []
    for unknown, centre in zip(unknowns, centres, strict=True):
        if unknown.law not in ("log-normal", "normal"):
            raise ValueError(f"law of {unknown} must be 'log-normal' or 'normal', got '{unknown.law}'")
        if not 0 < unknown.spread < math.inf:
            raise ValueError(
                f"spread of {unknown} must be positive and finite, got {unknown.spread}: set it to the prior standard "
                "deviation"
            )
        least = 0.0 if unknown.law == "log-normal" else -math.inf
        # The value of a traced constant is unknown here.
        if not isinstance(centre, jax.Array) and not least < centre < math.inf:
            kind = "positive" if least == 0.0 else "finite"
            cure = "use law 'normal' for a constant that may be zero" if least == 0.0 else "correct it"
            raise ValueError(f"centre of {unknown} must be {kind}, got {centre}: {cure}")
        scales.append(math.sqrt(math.log1p(unknown.spread**2)) if unknown.law == "log-normal" else unknown.spread)
    return Prior(jnp.stack([jnp.asarray(centre, float) for centre in centres]), jnp.asarray(scales))


def constant_of(params: Params, unknown: Unknown) -> Any:
    """Return the value of an unknown in a plant's constants."""
    value = getattr(params, unknown.name)
    return value if unknown.entry is None else value[unknown.entry]


def nominal_value(params: Params, unknown: Unknown) -> float | Float[Array, ""]:
    """Return the value of an unknown in a plant's constants as a number.

    Raises:
        ValueError: if the plant has no such constant, or the unknown is not a single number.
    """
    fields = getattr(params, "_fields", ())
    if unknown.name not in fields:
        raise ValueError(f"'{unknown.name}' is not a constant of the plant: use one of {', '.join(fields)}")
    value, entry = getattr(params, unknown.name), unknown.entry
    shape = None if hasattr(value, "_fields") else (len(value),) if isinstance(value, tuple) else jnp.shape(value)
    if not (shape == () if entry is None else shape is not None and len(shape) == 1 and 0 <= entry < shape[0]):
        cures: dict[Any, str] = {None: "name a single constant", (): "leave the entry out"}
        cure = cures.get(shape, f"name an entry, such as {unknown.name}[0]")
        raise ValueError(f"'{unknown}' is not a single number: {unknown.name} has the shape {shape}: {cure}")
    found = constant_of(params, unknown)
    return found if isinstance(found, jax.Array) else float(found)


def constants(prior: Prior, unknowns: Sequence[Unknown], x: Float[Array, " P"]) -> Float[Array, " P"]:
    """Return the constants in their own units at standardised coordinates x (P,)."""
    logarithmic = jnp.asarray([unknown.law == "log-normal" for unknown in unknowns])
    moved = prior.scale * x
    return jnp.where(logarithmic, prior.centre * jnp.exp(jnp.where(logarithmic, moved, 0.0)), prior.centre + moved)


def with_nominal(params: Params, values: Mapping[Unknown, float]) -> Params:
    """Replace constants in `params` by Python numbers; vectors become tuples, which are hashable."""
    for unknown, value in values.items():
        new: Any = value
        if unknown.entry is not None:
            new = tuple(value if i == unknown.entry else float(x) for i, x in enumerate(getattr(params, unknown.name)))
        params = params._replace(**{unknown.name: new})
    return params


@cache
def _record(name: str, fields: tuple[str, ...]) -> Callable[..., Params]:
    """Return a NamedTuple type; cached, because JAX compiles again for another type."""
    return namedtuple(name, fields)


def extended(prefix: str, plain: Params, fields: Mapping[str, Any]) -> Params:
    """Return constants or a domain with additional fields, as a new NamedTuple type."""
    return _record(f"{prefix}{type(plain).__name__}", (*plain._fields, *fields))(*plain, *fields.values())


def with_constants(params: Params, unknowns: Sequence[Unknown], values: Float[Array, " P"]) -> Params:
    """Replace the unknowns in `params` by values (P,) in their own units."""
    for unknown, value in zip(unknowns, values, strict=True):
        if unknown.entry is not None:
            value = jnp.asarray(getattr(params, unknown.name), value.dtype).at[unknown.entry].set(value)
        params = params._replace(**{unknown.name: value})
    return params
