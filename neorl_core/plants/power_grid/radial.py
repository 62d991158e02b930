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
from jaxtyping import Array, Bool, Float, Int

from neorl_core.plants.power_grid.feeder import Feeder


class Topology(NamedTuple):
    """A radial topology of a feeder."""

    opened: Bool[Array, " L"]
    path: Float[Array, "L N"]
    """±1 where a line is on the path from the substation to a bus, 0 elsewhere: Γ, as `power_flow.solve` takes it."""


def radial(preference: Float[Array, " L"], feeder: Feeder) -> Topology:
    """The radial topology whose open lines are preferred the most.

    `argmax Σ preference[D]` over all D with `|det B_D| = 1`. Each of T rounds takes the line preferred the most among
    those with an entry in a row that no line was taken for, and makes its column a unit vector. The loop matrix is
    totally unimodular and stays it, so that all entries are -1, 0 or 1 and every step is exact. What is left are the
    loops that the open lines would close, `B_D⁻¹ B`, and with them `Γ = Γ₀ − (B_D⁻¹ B)ᵀ Γ₀[D]`.

    Args:
        preference: how much each line is to be open; the first of equal ones is opened.
        feeder: of L lines, T of them ties.

    Example:
        >>> from neorl_core.plants.power_grid.feeder33 import FEEDER
        >>> ties = jnp.arange(37) >= 32
        >>> bool((radial(ties.astype(float), FEEDER).opened == ties).all())
        True
    """
    dtype = preference.dtype
    loops, base = (jnp.asarray(x, dtype) for x in (feeder.loops, feeder.base_path))
    if feeder.ties == 0:
        return Topology(jnp.zeros(preference.shape, bool), base)
    lines, places = jnp.arange(preference.shape[0]), jnp.arange(feeder.ties)

    def take(
        carry: tuple[Float[Array, "T L"], Float[Array, " T"]], _: None
    ) -> tuple[tuple[Float[Array, "T L"], Float[Array, " T"]], tuple[Float[Array, " L"], Float[Array, " T"]]]:
        # Rows and columns are picked by products: on a processor they take a fraction of what indexing does.
        rows, free = carry
        independent = free @ jnp.abs(rows) > 0
        line = (lines == jnp.argmax(jnp.where(independent, preference, -jnp.inf))).astype(dtype)
        column = rows @ line
        row = (places == jnp.argmax(jnp.abs(column) * free)).astype(dtype)
        pivot = (row @ rows) * (row @ column)
        return (
            rows - jnp.outer(column - row * (row @ column), pivot) - jnp.outer(row, row @ rows - pivot),
            free - row,
        ), (line, row)

    (rows, _), (taken, where) = jax.lax.scan(take, (loops, jnp.ones((feeder.ties,), dtype)), None, length=feeder.ties)
    return Topology(jnp.sum(taken, 0) > 0, base - rows.T @ (where.T @ (taken @ base)))


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
