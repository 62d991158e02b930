"""Measurements of the charge at the entry and at the end of each zone, and temperatures reconstructed from them."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from neorl_core.plants.steel_annealing.furnace import (
    CELLS,
    PER_ZONE,
    SECTION,
    SECTIONS,
    STEFAN_BOLTZMANN,
    ZONES,
    Furnace,
    Params,
    heated_to,
    overlap,
)
from neorl_core.plants.steel_annealing.steel import CELSIUS, conductivity

STATIONS = tuple(range(0, SECTIONS + 1, PER_ZONE))
"""Sections with pyrometers: at the entry and at the end of each zone."""


def at_stations(x: Float[Array, " S"], offset: Float[Array, ""]) -> Float[Array, " 5"]:
    """Interpolate values of the sections to the entry and to half a section before the end of each zone."""
    here = np.array(STATIONS)
    behind = jnp.minimum(offset / SECTION, jnp.asarray(here, x.dtype))
    return x[here] + behind * (x[np.maximum(here - 1, 0)] - x[here])


def along(seen: Float[Array, " 5"]) -> Float[Array, " S"]:
    """Interpolate values of the stations to all sections."""
    stations = jnp.asarray([0.0, *(x - 0.5 for x in STATIONS[1:])], seen.dtype)
    return jnp.interp(jnp.arange(SECTIONS + 1, dtype=seen.dtype), stations, seen)


def reconstructed(observation: Float[Array, " 25"], params: Params) -> tuple[Furnace, Float[Array, " S"]]:
    """Reconstruct temperatures [K] and thickness [mm] of the charge from the stations.

    Between stations, temperatures are linear along the furnace. Across the steel they follow the parabola of a steady
    heat flux q, T = Ts − q L / (2 k) (1 − η²), with L half the thickness.
    """
    zones = observation[:ZONES] + CELSIUS
    skin = jnp.concatenate([jnp.full_like(zones[:1], params.ambient), observation[2 * ZONES : 3 * ZONES]]) + CELSIUS
    skin = along(skin)
    thickness = along(observation[3 * ZONES : 3 * ZONES + 5])
    share = overlap(jnp.full((), SECTION / 2, zones.dtype))
    radiation = params.emissivity * STEFAN_BOLTZMANN
    gained = share @ (radiation * zones**4 + params.convection * zones)
    flux = gained - jnp.sum(share, axis=1) * (radiation * skin**4 + params.convection * skin)
    depth = 1 - (jnp.arange(CELLS, dtype=zones.dtype) + 0.5) / CELLS
    drop = (flux * thickness / 4000 / (params.conductivity * conductivity(skin)))[:, None] * (1 - depth**2)[None]
    return heated_to(skin[:, None] - drop, zones), thickness
