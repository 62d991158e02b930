"""Every radial topology of a small feeder, solved: the exact optimum of its switching for any load.

A feeder has as many radial topologies as its graph has spanning trees, which Kirchhoff's theorem counts: 50,751 of 33
buses. They are the switch positions, one line of each loop, that leave a tree, each tree once.
"""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from neorl_core.plants.power_grid import feeder33
from neorl_core.plants.power_grid.power_flow import is_radial, magnitude, open_lines, path_matrix, solve

BLOCK = 512
"""Topologies that are solved together."""


def positions() -> Int[np.ndarray, "K 5"]:
    """(50751, 5) switch positions of the 33 buses, one for each radial topology, in the order of their lines."""
    sizes = map(range, map(len, feeder33.LOOP_LINES))
    every = np.array(list(itertools.product(*sizes)), np.int32)
    found = every[np.asarray(jax.jit(jax.vmap(is_radial))(every))]
    lines = np.sort(np.asarray(jax.jit(jax.vmap(open_lines))(found)), axis=1)
    first = np.unique(lines, axis=0, return_index=True)[1]
    distinct: Int[np.ndarray, "K 5"] = found[first]
    return distinct


def opened_by(of: Int[np.ndarray, "K 5"]) -> Bool[np.ndarray, "K 37"]:
    """Which lines each of these positions leaves open."""
    opened = np.zeros((len(of), feeder33.LINES), bool)
    np.put_along_axis(opened, np.asarray(jax.jit(jax.vmap(open_lines))(of)), True, axis=1)
    return opened


@jax.jit
def losses(
    of: Array,
    active: Float[Array, "C 32"],
    reactive: Float[Array, "C 32"],
    impedance: Float[Array, "C 37 2"],
    source: Float[Array, ""],
) -> tuple[Float[Array, "K C"], Float[Array, "K C"]]:
    """Losses [MW] and lowest voltages [pu] of each topology under each load; infinite where voltages are below 0.6 pu,
    where eight iterations do not suffice.

    Args:
        of: (K, 5) switch positions.
        active: drawn at the buses [MW], a row for each load.
        reactive: drawn at the buses [Mvar].
        impedance: of the lines under each load, per unit.
        source: voltage of the substation [pu].
    """

    def one(at: Array) -> tuple[Float[Array, " C"], Float[Array, " C"]]:
        path = path_matrix(at, active.dtype)
        flow = jax.vmap(lambda p, q, z: solve(path, p, q, z, 8, source))(active, reactive, impedance)
        lowest = jnp.min(jax.vmap(magnitude)(flow.voltage), axis=1)
        return jnp.where(lowest > 0.6, flow.loss, jnp.inf), lowest

    found: tuple[Float[Array, "K C"], Float[Array, "K C"]] = jax.lax.map(one, of, batch_size=BLOCK)
    return found
