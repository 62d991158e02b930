"""Which lines to open so that a feeder stays radial: the best basis of a matroid, found greedily.

The sets of lines whose opening leaves a tree are the bases of the feeder's cographic matroid: those columns of its loop
matrix that are independent. So the set that is preferred most, by a number for each line, is found by taking lines in
the order of preference where they are independent of those taken before (Edmonds: Matroids and the greedy algorithm,
Mathematical Programming 1, 1971), and no preference leads to anything but a tree: a policy that names preferences is
masked to radial topologies, and can name each of them.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Shaped

from neorl_core.plants.power_grid.feeder import Feeder


class Topology(NamedTuple):
    """A radial topology of a feeder."""

    opened: Bool[Array, " L"]
    path: Float[Array, "L N"]
    """±1 where a line is on the path from the substation to a bus, 0 elsewhere: Γ, as `power_flow.solve` takes it."""


def radial(preference: Float[Array, " L"], feeder: Feeder) -> Topology:
    """The radial topology whose open lines are preferred the most.

    `argmax Σ preference[D]` over all D with `|det B_D| = 1`. Which columns of the loop matrix are independent is the
    same with two numbers as with all, for it is totally unimodular (Tutte: Introduction to the Theory of Matroids,
    1971): a column is a few words of bits. Each of T rounds takes the line preferred the most among those with a bit in
    a row that no line was taken for, and adds its column to all that share one such bit of it, modulo 2. The paths
    follow from the lines that are open, `Γ = Γ₀ − (B_D⁻¹ B)ᵀ Γ₀[D]`.

    Args:
        preference: how much each line is to be open; the first of equal ones is opened, NaN before all.
        feeder: of L lines, T of them ties.

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
    # Of a totally unimodular matrix the inverse has entries -1, 0 and 1, and rounding makes them so on any device.
    return Topology(opened, base - (jnp.round(jnp.linalg.inv(loops[:, taken])) @ loops).T @ base[taken])


def _bits(feeder: Feeder) -> Shaped[np.ndarray, "W L"]:
    """The loop matrix modulo 2, a bit for each loop: 32 of them in each word of a line."""
    on, width = feeder.loops != 0, -(-feeder.ties // 32) * 32
    rows = np.zeros((width, on.shape[1]), np.uint32)
    rows[: feeder.ties] = on
    shifted = rows.reshape(-1, 32, on.shape[1]) << np.arange(32, dtype=np.uint32)[:, None]
    words: Shaped[np.ndarray, "W L"] = np.bitwise_or.reduce(shifted, 1)
    return words


def _one_bit(words: Shaped[Array, " W"]) -> Shaped[Array, " W"]:
    """The lowest bit of the first word that has one."""
    lowest = words & (~words + 1)
    if words.shape[0] == 1:
        return lowest
    return jnp.where(jnp.arange(words.shape[0]) == jnp.argmax(words != 0), lowest, 0)


def _ordered(preference: Float[Array, " L"]) -> Int[Array, " L"]:
    """Whole numbers in the order of the preferences, whose greatest is found several times as fast: IEEE 754 numbers
    lie in the order of their bits, negative ones in the opposite one. The least whole number is none of them."""
    # Zeros of both signs are equal.
    plain = jnp.where(preference == 0, 0.0, preference)
    bits = jax.lax.bitcast_convert_type(plain, jnp.int32 if plain.dtype.itemsize == 4 else jnp.int64)
    return jnp.where(
        jnp.isnan(plain), np.iinfo(bits.dtype).max, jnp.where(bits < 0, bits ^ np.iinfo(bits.dtype).max, bits)
    )


def leaving(feeder: Feeder) -> tuple[int, ...]:
    """The lines that begin at the substation, as `power_flow.solve` takes them."""
    return tuple(int(line) for line in np.flatnonzero(feeder.ends[:, 0] == 0))


class Meshed(NamedTuple):
    """Currents of least loss, were all lines closed, as linear functions of what is drawn at the buses."""

    current: Float[np.ndarray, "L N"]
    """Γ₀ − Bᵀ (B R Bᵀ)⁻¹ B R Γ₀ [1]."""
    loops: Float[np.ndarray, "L L"]
    """Bᵀ (B R Bᵀ)⁻¹ B [1/pu]: what a unit of voltage in each line drives around the loops."""


def meshed_of(feeder: Feeder) -> Meshed:
    """The matrices of a feeder, in float64."""
    b, weighted = feeder.loops, feeder.loops * feeder.resistance
    around = np.linalg.solve(weighted @ b.T, b) if feeder.ties else b
    return Meshed(feeder.base_path - around.T @ weighted @ feeder.base_path, b.T @ around)


def meshed_current(
    meshed: Meshed, active: Float[Array, " N"], reactive: Float[Array, " N"], outage: Int[Array, ""]
) -> Float[Array, " L"]:
    """How much each line would carry if all that are in service were closed [pu at nominal voltage].

    `J − P[:, o] J_o / P[o, o]` for line o out of service, `P` of `Meshed.loops`: the loop currents of least loss under
    which it carries nothing. Opening the lines that carry the least is the rule of Shirmohammadi and Hong (IEEE Trans.
    Power Delivery 4(2), 1989), here with all of them taken from one flow.

    Args:
        meshed: of the feeder.
        active: drawn at the buses [pu].
        reactive: drawn at the buses [pu].
        outage: number of the line that is out of service, on a loop; below 0 for none.
    """
    matrix, loops = (jnp.asarray(x, active.dtype) for x in meshed)
    currents = jnp.stack([matrix @ active, matrix @ reactive])
    out = jnp.maximum(outage, 0)
    without = currents - currents[:, out, None] * loops[out] / jnp.where(outage < 0, 1.0, loops[out, out])
    return jnp.sqrt(jnp.sum(jnp.where(outage < 0, currents, without) ** 2, 0))
