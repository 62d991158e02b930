"""Losses of all radial topologies of the 33-bus feeder; the smallest loss is the exact optimum of switching.

The feeder has 50,751 spanning trees (Kirchhoff's theorem). Each tree is a radial topology, given by one open
line per loop.
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
"""Number of topologies that are solved in one batch."""


def positions() -> Int[np.ndarray, "K 5"]:
    """Return the switch positions (50751, 5) of all radial topologies, in the order of their open lines."""
    sizes = map(range, map(len, feeder33.LOOP_LINES))
    every = np.array(list(itertools.product(*sizes)), np.int32)
    radial = every[np.asarray(jax.jit(jax.vmap(is_radial))(every))]
    lines = np.sort(np.asarray(jax.jit(jax.vmap(open_lines))(radial)), axis=1)
    first = np.unique(lines, axis=0, return_index=True)[1]
    distinct: Int[np.ndarray, "K 5"] = radial[first]
    return distinct


def opened_by(of: Int[np.ndarray, "K 5"]) -> Bool[np.ndarray, "K 37"]:
    """Return whether each of the 37 lines is open, for K rows of switch positions."""
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
    """Return losses [MW] and lowest voltages [pu] of K topologies for C loads.

    If a voltage is below 0.6 pu, the loss is infinite, because the eight iterations do not converge.

    Args:
        of: (K, 5), switch positions.
        active: (C, 32), active load at the buses [MW].
        reactive: (C, 32), reactive load at the buses [Mvar].
        impedance: (C, 37, 2), impedance of the lines under each load [pu].
        source: voltage of the substation [pu].
    """

    def one(at: Array) -> tuple[Float[Array, " C"], Float[Array, " C"]]:
        path = path_matrix(at, active.dtype)
        flow = jax.vmap(lambda p, q, z: solve(path, p, q, z, 8, source))(active, reactive, impedance)
        lowest = jnp.min(jax.vmap(magnitude)(flow.voltage), axis=1)
        return jnp.where(lowest > 0.6, flow.loss, jnp.inf), lowest

    results: tuple[Float[Array, "K C"], Float[Array, "K C"]] = jax.lax.map(one, of, batch_size=BLOCK)
    return results
