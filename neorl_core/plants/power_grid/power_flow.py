"""AC power flow on a radial feeder with switches, by a differentiable fixed-point iteration that is fast in batches.

A radial feeder is a meshed feeder with one line of each loop open. A bus with power S has the current I = conj(S / V).
The line currents are J = Γ I, and the bus voltages V = V₀ − Γᵀ (z ∘ J) for impedances z and substation voltage V₀. The
iteration repeats these equations (backward/forward sweep, Shirmohammadi et al., IEEE Trans. Power Systems 3(2), 1988).
The path matrix Γ of any topology follows from the matrix of one tree by inverting a matrix with one row per loop.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from neorl_core.plants.base import Scalar
from neorl_core.plants.power_grid import feeder33 as feeder

LOWEST, HIGHEST = 0.5, 1.2
"""Voltages [pu]. Below LOWEST, loads draw constant current, so that values stay finite if no solution exists. Above
HIGHEST, inverters trip within 0.16 s (IEEE 1547-2018, table 11)."""
TOLERANCE = 1e-4
"""Largest residual [pu] of a solved power flow."""

Parts = tuple[Float[Array, " N"], Float[Array, " N"]]


class Flow(NamedTuple):
    """Result of a power flow, in per unit of 1 MVA and the feeder's voltage, at buses 1 to N and all L lines."""

    voltage: Float[Array, "N 2"]
    """Real and imaginary parts; the substation's voltage is real."""
    current: Float[Array, "L 2"]
    """Current of each line, from the first bus to the second."""
    loss: Float[Array, ""]
    """Active losses, Σ r |J|²."""
    supplied: Float[Array, " 2"]
    """Active and reactive power from the substation."""
    residual: Float[Array, ""]
    """max |V − (V₀ − Γᵀ (z ∘ J(V)))|: the change by one more sweep. It is large if no solution exists."""


def open_lines(positions: Int[Array, " 5"]) -> Int[Array, " 5"]:
    """Return the five lines (counted from zero) that are open at these switch positions, one per loop."""
    longest = max(map(len, feeder.LOOP_LINES))
    table = jnp.asarray([loop + loop[-1:] * (longest - len(loop)) for loop in feeder.LOOP_LINES])
    return table[jnp.arange(feeder.TIES), positions]


def _restricted(positions: Int[Array, " 5"], dtype: jnp.dtype) -> tuple[Int[Array, " 5"], Float[Array, "5 5"]]:
    lines = open_lines(positions)
    return lines, jnp.asarray(feeder.LOOPS, dtype)[:, lines]


def is_radial(positions: Int[Array, " 5"]) -> Bool[Array, ""]:
    """Return whether the feeder is radial at these switch positions: exactly one path leads to each bus.

    A radial feeder has |det B_D| = 1, any other feeder 0. B_D has the columns of the loop matrix for the open lines;
    the loop matrix is totally unimodular (Tutte: Introduction to the Theory of Matroids, 1971).
    """
    return jnp.abs(jnp.linalg.det(_restricted(positions, jnp.dtype(jnp.float32))[1])) > 0.5


def path_matrix(positions: Int[Array, " 5"], dtype: jnp.dtype) -> Float[Array, "37 32"]:
    """Return Γ of a radial topology: ±1 if a line is on the path to a bus, else 0.

    Γ = Γ₀ − (B_D⁻¹ B)ᵀ Γ₀[D]: loop currents cancel the currents in the open lines D. Γ₀ and B are `BASE_PATH`, `LOOPS`.
    """
    lines, restricted = _restricted(positions, dtype)
    base, loops = jnp.asarray(feeder.BASE_PATH, dtype), jnp.asarray(feeder.LOOPS, dtype)
    # All entries are whole numbers; rounding removes the error of the inverse.
    return jnp.round(base - (jnp.linalg.inv(restricted) @ loops).T @ base[lines])


def solve(
    path: Float[Array, "L N"],
    active: Float[Array, " N"],
    reactive: Float[Array, " N"],
    impedance: Float[Array, "L 2"],
    iterations: int,
    source: Scalar = 1.0,
    leaving: tuple[int, ...] = (0,),
) -> Flow:
    """Return voltages, currents and losses of a radial feeder for the power drawn at the buses.

    Args:
        path: (L, N), Γ of the topology, from `path_matrix`.
        active: (N,), net active power drawn at buses 1 to N [MW = pu]; negative for generation.
        reactive: (N,), net reactive power drawn [Mvar = pu].
        impedance: (L, 2), resistance and reactance of all lines [pu].
        iterations: number of fixed-point iterations; each reduces the error about tenfold at voltages above 0.9 pu, and
            by half at 0.6 pu.
        source: voltage of the substation [pu].
        leaving: lines that begin at the substation.

    Returns:
        The flow after the iterations. Check with `holds` whether the flow is a solution.
    """
    r, x = impedance[:, 0], impedance[:, 1]
    # Separate real and imaginary parts: real matrix-vector products are faster than complex ones.

    def line_currents(e: Float[Array, " N"], f: Float[Array, " N"]) -> tuple[Float[Array, " L"], Float[Array, " L"]]:
        square = jnp.maximum(e**2 + f**2, LOWEST**2)
        return path @ ((active * e + reactive * f) / square), path @ ((active * f - reactive * e) / square)

    def sweep(voltage: Parts, _: None) -> tuple[Parts, None]:
        a, b = line_currents(*voltage)
        return (source - path.T @ (r * a - x * b), -(path.T @ (r * b + x * a))), None

    flat = (source * jnp.ones_like(active), jnp.zeros_like(active))
    voltage, _ = jax.lax.scan(sweep, flat, None, length=iterations)
    a, b = line_currents(*voltage)
    (e, f), _ = sweep(voltage, None)
    return Flow(
        voltage=jnp.stack(voltage, -1),
        current=jnp.stack([a, b], -1),
        loss=jnp.sum(r * (a**2 + b**2)),
        # S = V₀ conj(J) of the lines at the substation.
        supplied=source
        * jnp.stack(
            [sum((a[k] for k in leaving[1:]), a[leaving[0]]), -sum((b[k] for k in leaving[1:]), b[leaving[0]])]
        ),
        residual=jnp.sqrt(jnp.max((e - voltage[0]) ** 2 + (f - voltage[1]) ** 2)),
    )


def holds(flow: Flow) -> Bool[Array, ""]:
    """Return whether the flow is a solution with all voltages within 0.5 to 1.2 pu, so that units do not trip."""
    square = jnp.sum(flow.voltage**2, -1)
    return (flow.residual < TOLERANCE) & (jnp.min(square) > LOWEST**2) & (jnp.max(square) < HIGHEST**2)


def magnitude(phasor: Float[Array, "n 2"]) -> Float[Array, " n"]:
    """Return the magnitudes (n,) of phasors (n, 2), given as real and imaginary part."""
    return jnp.sqrt(jnp.sum(phasor**2, -1))
