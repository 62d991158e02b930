"""Explicit Runge–Kutta methods as coefficient tables (Hairer, Nørsett, Wanner: Solving ODEs I, chapter II.1)."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
from jaxtyping import Array, Float

from neorl_core.plants.base import Scalar


class Tableau(NamedTuple):
    """Butcher tableau of an explicit method for autonomous right-hand sides."""

    a: tuple[tuple[float, ...], ...]
    """Strictly lower triangle, one row per stage after the first."""
    b: tuple[float, ...]
    """Weights of the stages."""
    order: int


EULER = Tableau(a=(), b=(1.0,), order=1)
RK4 = Tableau(a=((0.5,), (0.0, 0.5), (0.0, 0.0, 1.0)), b=(1 / 6, 1 / 3, 1 / 3, 1 / 6), order=4)

RightHandSide = Callable[[Float[Array, " n"]], Float[Array, " n"]]


def explicit_step(method: Tableau, f: RightHandSide, y: Float[Array, " n"], h: Scalar) -> Float[Array, " n"]:
    """Return the state after one step of size h: y + h Σ b_i k_i, with slopes k_i = f(y + h Σ_j a_ij k_j)."""
    slopes = [f(y)]
    for row in method.a:
        slopes.append(f(y + h * sum(a * k for a, k in zip(row, slopes, strict=True) if a != 0.0)))
    return y + h * sum(b * k for b, k in zip(method.b, slopes, strict=True) if b != 0.0)


def integrate(
    method: Tableau, f: RightHandSide, y: Float[Array, " n"], duration: Scalar, substeps: int
) -> Float[Array, "substeps n"]:
    """Return the states (substeps, n) after each of `substeps` equal steps over `duration`, in the time unit of `f`."""

    def advance(y: Float[Array, " n"], _: None) -> tuple[Float[Array, " n"], Float[Array, " n"]]:
        y = explicit_step(method, f, y, duration / substeps)
        return y, y

    return jax.lax.scan(advance, y, None, length=substeps)[1]
