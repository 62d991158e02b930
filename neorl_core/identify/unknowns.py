"""The unknown constants of a plant, each with its prior, in coordinates in which every prior is standard normal."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from neorl_core.types import Params


class Unknown(NamedTuple):
    """A constant of the plant that is to be estimated: a field of its `Params` by name."""

    name: str
    spread: float
    """Prior standard deviation: relative to the centre if log-normal, in the constant's own unit if normal."""
    law: Literal["log-normal", "normal"] = "log-normal"
    centre: float | None = None
    """Prior median; the plant's nominal value where there is none."""
    entry: int | None = None
    """Which entry, where the field is a vector."""

    def __str__(self) -> str:
        return self.name if self.entry is None else f"{self.name}[{self.entry}]"


class Prior(NamedTuple):
    """Medians and scales of the unknowns: a constant is `centre exp(scale x)` or `centre + scale x`, x ~ N(0, 1)."""

    centre: Float[Array, " P"]
    scale: Float[Array, " P"]


def prior_of(params: Params, unknowns: Sequence[Unknown]) -> Prior:
    """The prior of some unknowns. A log-normal with relative deviation s has `log` deviation `sqrt(log(1 + s^2))`.

    Args:
        params: the plant's nominal constants, a NamedTuple; the centre of an unknown that names none.
        unknowns: P of them.

    Raises:
        ValueError: on a name that is no field or comes twice, an unknown law, a spread that is not positive, a centre
            that is not finite, or a log-normal one that is not positive.
    """
    named = [str(unknown) for unknown in unknowns]
    if not named or len(set(named)) < len(named):
        raise ValueError(f"expected different unknowns, at least one, got {named}: name each constant once.")
    centres = [_value(params, unknown) if unknown.centre is None else unknown.centre for unknown in unknowns]
    scales = []
    for unknown, centre in zip(unknowns, centres, strict=True):
        _value(params, unknown)
        if unknown.law not in ("log-normal", "normal"):
            raise ValueError(f"expected law 'log-normal' or 'normal' of {unknown}, got '{unknown.law}': correct it.")
        if not 0 < unknown.spread < math.inf:
            raise ValueError(f"expected a positive spread of {unknown}, got {unknown.spread}: say how unsure it is.")
        least = 0.0 if unknown.law == "log-normal" else -math.inf
        # That of traced constants is not known yet.
        if not isinstance(centre, jax.Array) and not least < centre < math.inf:
            kind = "positive" if least == 0.0 else "finite"
            cure = "a constant that may be zero has law 'normal'" if least == 0.0 else "correct it"
            raise ValueError(f"expected a {kind} centre of {unknown}, got {centre}: {cure}.")
        scales.append(math.sqrt(math.log1p(unknown.spread**2)) if unknown.law == "log-normal" else unknown.spread)
    return Prior(jnp.stack([jnp.asarray(centre, float) for centre in centres]), jnp.asarray(scales))


def constant_of(params: Params, unknown: Unknown) -> Any:
    """What a plant's constants give for an unknown that is one of them."""
    value = getattr(params, unknown.name)
    return value if unknown.entry is None else value[unknown.entry]


def _value(params: Params, unknown: Unknown) -> float | Float[Array, ""]:
    fields = getattr(params, "_fields", ())
    if unknown.name not in fields:
        raise ValueError(f"expected a constant among {', '.join(fields)}, got '{unknown.name}': correct the name.")
    value = getattr(params, unknown.name)
    size = (len(value),) if isinstance(value, tuple) else jnp.shape(value)
    if (unknown.entry is None) is not (size == ()) or (size and not 0 <= (unknown.entry or 0) < size[0]):
        cure = f"give an entry below {size[0]}" if size else "leave the entry out"
        raise ValueError(f"expected {unknown.name} of shape {size}, got entry {unknown.entry}: {cure}.")
    found = constant_of(params, unknown)
    return found if isinstance(found, jax.Array) else float(found)


def constants(prior: Prior, unknowns: Sequence[Unknown], x: Float[Array, " P"]) -> Float[Array, " P"]:
    """The constants, in their own units, at standardised coordinates x (P,)."""
    logarithmic = jnp.asarray([unknown.law == "log-normal" for unknown in unknowns])
    moved = prior.scale * x
    return jnp.where(logarithmic, prior.centre * jnp.exp(jnp.where(logarithmic, moved, 0.0)), prior.centre + moved)


def with_constants(params: Params, unknowns: Sequence[Unknown], values: Float[Array, " P"]) -> Params:
    """`params` with the unknowns at given values.

    Args:
        params: a NamedTuple of constants.
        unknowns: P of them.
        values: (P,), in the constants' own units.
    """
    for unknown, value in zip(unknowns, values, strict=True):
        if unknown.entry is not None:
            value = jnp.asarray(getattr(params, unknown.name), value.dtype).at[unknown.entry].set(value)
        params = params._replace(**{unknown.name: value})
    return params
