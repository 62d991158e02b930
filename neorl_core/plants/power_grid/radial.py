"""Choose the lines to open so that a feeder stays radial, by the greedy algorithm for a matroid.

The feeder stays a tree if the loop matrix's columns of the open lines are independent (bases of the cographic matroid).
The greedy algorithm takes lines in the order of preference and skips each line that depends on the lines taken before.
This gives the largest sum (Edmonds: Matroids and the greedy algorithm, Mathematical Programming 1, 1971). Every vector
of preferences gives a tree, and every tree has such a vector.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Shaped

from neorl_core.plants.power_grid.feeder import Feeder


class Topology(NamedTuple):
    opened: Bool[Array, " L"]
    path: Float[Array, "L N"]
    """Γ for `power_flow.solve`: ±1 if a line is on the path from the substation to a bus, else 0."""


def radial(preference: Float[Array, " L"], feeder: Feeder) -> Topology:
    """Return the radial topology with the largest sum of preferences of the open lines D, so that `|det B_D| = 1`.

    The loop matrix B is totally unimodular, so columns are independent exactly if they are independent modulo 2 (Tutte:
    Introduction to the Theory of Matroids, 1971). Each column is stored as bits. Gaussian elimination modulo 2 with one
    step per loop selects D: of all lines with a bit in a free row it opens the most preferred line, and removes this
    bit from all other columns.

    Args:
        preference: (L,), preference of each line to be open. Of equal values the first line opens; NaN ranks highest.

    Example:
        >>> from neorl_core.plants.power_grid.feeder33 import FEEDER
        >>> ties = jnp.arange(37) >= 32
        >>> bool((radial(ties.astype(float), FEEDER).opened == ties).all())
        True
    """
    loops, base = (jnp.asarray(x, preference.dtype) for x in (feeder.loops, feeder.base_path))
    if feeder.ties == 0:
        return Topology(jnp.zeros(preference.shape, bool), base)
    order = _ordered(preference)

    def take(left: Shaped[Array, "W L"], _: None) -> tuple[Shaped[Array, "W L"], Int[Array, ""]]:
        independent = jnp.any(left != 0, 0)
        line = jnp.argmax(jnp.where(independent, order, np.iinfo(order.dtype).min))
        column = left[:, line]
        sharing = jnp.any(left & _one_bit(column)[:, None] != 0, 0)
        return jnp.where(sharing, left ^ column[:, None], left), line

    taken: Int[Array, " T"] = jax.lax.scan(take, jnp.asarray(_bits(feeder)), None, length=feeder.ties)[1]
    opened = jnp.any(jnp.arange(preference.shape[0])[:, None] == taken, 1)
    # The inverse of a totally unimodular matrix has entries −1, 0 and 1; round to them on any device.
    return Topology(opened, base - (jnp.round(jnp.linalg.inv(loops[:, taken])) @ loops).T @ base[taken])


def _bits(feeder: Feeder) -> Shaped[np.ndarray, "W L"]:
    """Return the loop matrix modulo 2 with 32 loops per word of a line."""
    on, width = feeder.loops != 0, -(-feeder.ties // 32) * 32
    rows = np.zeros((width, on.shape[1]), np.uint32)
    rows[: feeder.ties] = on
    shifted = rows.reshape(-1, 32, on.shape[1]) << np.arange(32, dtype=np.uint32)[:, None]
    words: Shaped[np.ndarray, "W L"] = np.bitwise_or.reduce(shifted, 1)
    return words


def _one_bit(words: Shaped[Array, " W"]) -> Shaped[Array, " W"]:
    """Return the lowest set bit of the first non-zero word."""
    lowest = words & (~words + 1)
    if words.shape[0] == 1:
        return lowest
    return jnp.where(jnp.arange(words.shape[0]) == jnp.argmax(words != 0), lowest, 0)


def _ordered(preference: Float[Array, " L"]) -> Int[Array, " L"]:
    """Return integers with the order of the preferences, because argmax of integers is several times as fast.

    IEEE 754 numbers have the order of their bits, negative numbers the reverse. The least integer is not used.
    """
    # Positive and negative zero are equal.
    plain = jnp.where(preference == 0, 0.0, preference)
    bits = jax.lax.bitcast_convert_type(plain, jnp.int32 if plain.dtype.itemsize == 4 else jnp.int64)
    return jnp.where(
        jnp.isnan(plain), np.iinfo(bits.dtype).max, jnp.where(bits < 0, bits ^ np.iinfo(bits.dtype).max, bits)
    )


def leaving(feeder: Feeder) -> tuple[int, ...]:
    """Return the numbers of the lines that start at the substation, for `power_flow.solve`."""
    return tuple(int(line) for line in np.flatnonzero(feeder.ends[:, 0] == 0))


class Meshed(NamedTuple):
    """Matrices for `meshed_current`. With all lines closed, the currents of least loss are linear in the load."""

    current: Float[np.ndarray, "L N"]
    """Γ₀ − Bᵀ (B R Bᵀ)⁻¹ B R Γ₀ [1]."""
    loops: Float[np.ndarray, "L L"]
    """Bᵀ (B R Bᵀ)⁻¹ B [1/pu]: loop currents per voltage in each line."""


def meshed_of(feeder: Feeder) -> Meshed:
    """Return the matrices of `Meshed` for a feeder, in float64."""
    b, weighted = feeder.loops, feeder.loops * feeder.resistance
    around = np.linalg.solve(weighted @ b.T, b) if feeder.ties else b
    return Meshed(feeder.base_path - around.T @ weighted @ feeder.base_path, b.T @ around)


def meshed_current(
    meshed: Meshed, active: Float[Array, " N"], reactive: Float[Array, " N"], outage: Int[Array, ""]
) -> Float[Array, " L"]:
    """Return the magnitude of each line's current [pu] if all lines in service were closed, at nominal voltage.

    With line o out of service, the currents J become `J − P[:, o] J_o / P[o, o]`, with `P = Meshed.loops`. The rule of
    Shirmohammadi and Hong (IEEE Trans. Power Delivery 4(2), 1989) opens the lines with the least current.

    Args:
        meshed: matrices of the feeder.
        active: (N,), active load at the buses [pu].
        reactive: (N,), reactive load at the buses [pu].
        outage: number of the line out of service; the line must be on a loop. Below 0, all lines are in service.
    """
    matrix, loops = (jnp.asarray(x, active.dtype) for x in meshed)
    currents = jnp.stack([matrix @ active, matrix @ reactive])
    out = jnp.maximum(outage, 0)
    without = currents - currents[:, out, None] * loops[out] / jnp.where(outage < 0, 1.0, loops[out, out])
    return jnp.sqrt(jnp.sum(jnp.where(outage < 0, currents, without) ** 2, 0))
