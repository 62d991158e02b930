"""A continuous furnace: sections of plate move through fired zones, take heat from them and conduct it across.

ρ c ∂T/∂t = k ∂²T/∂y²,  k ∂T/∂y = ε σ (Tz⁴ − Ts⁴) + h (Tz − Ts) at the surface,  ∂T/∂y = 0 at the middle,
C dTz/dt = η P − U (Tz − Ta) − heat into the steel; the burners' powers P are the actions.

Sections of the charge are followed on their way (Lagrange), half a section's thickness in finite volumes. Conduction is
exact in the volumes' own modes, the exponential midpoint rule (Hochbruck and Ostermann, Acta Numerica 2010, section
2.3) takes the surface's heat with order 2. Steel as EN 1993-1-2, 3.4.1 has it above 800 °C (k = 27.3 W/(m K), c = 650
J/(kg K), ρ = 7850 kg/m³, ε = 0.7), taken as constant. Conduction: Carslaw and Jaeger, 1959; Incropera and DeWitt, 5.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

ZONES = 4
PER_ZONE = 4
SECTIONS = ZONES * PER_ZONE
SECTION = 2.0
"""Length of a section [m]."""
CELLS = 8
"""Volumes across half the thickness."""
SECONDS = 60.0
"""Seconds of a control step, which is a minute."""
STEFAN_BOLTZMANN = 5.670374419e-8
CELSIUS = 273.15


class Params(NamedTuple):
    """Physical constants, disturbances and the schedule's ranges."""

    conductivity: float | Float[Array, ""] = 27.3
    """k [W/(m K)]."""
    density: float | Float[Array, ""] = 7850.0
    """ρ [kg/m³]."""
    heat_capacity: float | Float[Array, ""] = 650.0
    """c [J/(kg K)]."""
    emissivity: float | Float[Array, ""] = 0.7
    """ε: emissivity of the exchange between zone and plate."""
    convection: float | Float[Array, ""] = 20.0
    """h [W/(m² K)]."""
    width: float | Float[Array, ""] = 2.0
    """Width of the plate [m]."""
    zone_capacity: float | Float[Array, ""] = 6.0
    """C [MJ/K]."""
    zone_loss: float | Float[Array, ""] = 0.4
    """U [kW/K]."""
    efficiency: float | Float[Array, ""] = 0.55
    """η: what the flue gas does not carry away."""
    ambient: float | Float[Array, ""] = 20.0
    """Ta, and the temperature of entering steel [°C]."""
    speed: float | Float[Array, ""] = 1.2
    """Speed of the line at a thickness of 30 mm [m/min]; it is inverse to the mean thickness in the furnace."""
    speed_sd: float | Float[Array, ""] = 0.0
    """Standard deviation of the speed's relative deviation."""
    speed_time_constant: float | Float[Array, ""] = 10.0
    """Time constant of the speed's deviation [min]."""
    noise_sd: float | Float[Array, ""] = 0.0
    """Standard deviation of the noise of thermocouples and pyrometers [K]."""
    thickness_low: float | Float[Array, ""] = 20.0
    """Least thickness of products [mm]."""
    thickness_high: float | Float[Array, ""] = 40.0
    target_low: float | Float[Array, ""] = 850.0
    """Least exit temperature wanted of products [°C]."""
    target_high: float | Float[Array, ""] = 890.0


class Furnace(NamedTuple):
    """Temperatures of steel and zones."""

    steel: Float[Array, "S M"]
    """Temperatures of the volumes of each section [K], from the surface to the middle."""
    zones: Float[Array, " Z"]
    """Temperatures of the zones [K]."""


@cache
def modes(cells: int) -> tuple[Float[np.ndarray, "M M"], Float[np.ndarray, " M"]]:
    """Modes (columns) and eigenvalues of −Δy² ∂²/∂y² in M volumes between insulated ends.

    V_ij ∝ cos(π j (i + ½) / M),  λ_j = 4 sin²(π j / (2 M))  (Strang, SIAM Review 41, 1999: DCT-2.)
    """
    i, j = np.arange(cells)[:, None], np.arange(cells)
    vectors = np.cos(np.pi * j * (i + 0.5) / cells)
    return vectors / np.linalg.norm(vectors, axis=0), 4 * np.sin(np.pi * j / (2 * cells)) ** 2


def overlap(offset: Float[Array, ""]) -> Float[Array, "S Z"]:
    """Share of each section's length that lies in each zone."""
    start = (jnp.arange(SECTIONS + 1, dtype=offset.dtype)[:, None] - 1) * SECTION + offset
    zone = jnp.arange(ZONES, dtype=offset.dtype)[None] * PER_ZONE * SECTION
    inside = jnp.minimum(start + SECTION, zone + PER_ZONE * SECTION) - jnp.maximum(start, zone)
    return jnp.clip(inside / SECTION, 0.0, 1.0)


def surface(
    outer: Float[Array, " S"],
    cell: Float[Array, " S"],
    zones: Float[Array, " Z"],
    share: Float[Array, "S Z"],
    p: Params,
) -> tuple[Float[Array, " S"], Float[Array, " S"]]:
    """Temperature [K] of the surfaces and the heat flux [W/m²] into them, from their outermost volumes.

    Ts solves 2 k (Ts − T1) / Δy = Σ_z share_z (ε σ (Tz⁴ − Ts⁴) + h (Tz − Ts)), by four steps of Newton's method, whose
    left over is far below rounding.

    Args:
        outer: temperature of the outermost volume [K].
        cell: its width Δy [m].
        zones: zone temperatures [K].
        share: overlap with the zones.
        p: constants.
    """
    inside = jnp.sum(share, axis=1)
    radiation = p.emissivity * STEFAN_BOLTZMANN
    gained = share @ (radiation * zones**4 + p.convection * zones)
    into = 2 * p.conductivity / cell

    def newton(_: Any, found: Float[Array, " S"]) -> Float[Array, " S"]:
        excess = into * (found - outer) - gained + inside * (radiation * found**4 + p.convection * found)
        return found - excess / (into + inside * (4 * radiation * found**3 + p.convection))

    found = jax.lax.fori_loop(0, 4, newton, outer)
    return found, into * (found - outer)


class Passage(NamedTuple):
    """What happened in the substeps of an advance, along axis 0."""

    surface: Float[Array, "n S"]
    """Temperature of the surface [K]."""
    middle: Float[Array, "n S"]
    """Temperature of the innermost volume [K]."""
    zones: Float[Array, "n Z"]
    """Temperatures of the zones [K]."""
    absorbed: Float[Array, " n"]
    """Heat into the steel [MJ]."""
    supplied: Float[Array, " n"]
    """Heat into the zones less their losses [MJ]."""


def advance(
    furnace: Furnace,
    thickness: Float[Array, " S"],
    power: Float[Array, " Z"],
    share: Float[Array, "S Z"],
    seconds: float | Float[Array, ""],
    substeps: int,
    p: Params,
) -> tuple[Furnace, Passage]:
    """Temperatures after some time at rest, powers and places held.

    Args:
        furnace: temperatures [K].
        thickness: thickness of the sections [mm].
        power: powers of the zones' burners [MW].
        share: overlap of sections and zones.
        seconds: how long.
        substeps: midpoint steps.
        p: constants.
    """
    cells = furnace.steel.shape[1]
    vectors, eigenvalues = (jnp.asarray(x, furnace.steel.dtype) for x in modes(cells))
    cell = thickness / 2000 / cells
    capacity = p.density * p.heat_capacity
    decay = p.conductivity / capacity / cell[:, None] ** 2 * eigenvalues[None]
    source = vectors[:1] / (capacity * cell)[:, None]
    area = 2 * p.width * SECTION
    h = seconds / substeps

    def exchange(skin: Any, zones: Any) -> tuple[Any, Any]:
        """Heat [MW] from each zone into the steel, and what burners and losses leave of the power."""
        radiation = p.emissivity * STEFAN_BOLTZMANN * (zones[None] ** 4 - skin[:, None] ** 4)
        lost = jnp.sum(share * (radiation + p.convection * (zones[None] - skin[:, None])), axis=0) * area / 1e6
        return lost, p.efficiency * power - p.zone_loss * (zones - p.ambient - CELSIUS) / 1e3

    def facing(amplitudes: Any, zones: Any) -> tuple[Any, Any]:
        return surface(amplitudes @ vectors[0], cell, zones, share, p)

    def moved(amplitudes: Any, flux: Any, time: Any) -> Any:
        x = decay * time
        # φ1(x) = (1 − e^−x) / x, which is 1 at the mode of no decay.
        phi = jnp.where(x > 0, -jnp.expm1(-x) / jnp.where(x > 0, x, 1.0), 1.0)
        return jnp.exp(-x) * amplitudes + time * phi * source * flux[:, None]

    def substep(carry: Any, _: None) -> tuple[Any, Passage]:
        amplitudes, zones, skin, flux = carry
        lost, supplied = exchange(skin, zones)
        middle = zones + h / 2 * (supplied - lost) / p.zone_capacity
        skin, flux = facing(moved(amplitudes, flux, h / 2), middle)
        lost, supplied = exchange(skin, middle)
        amplitudes, zones = moved(amplitudes, flux, h), zones + h * (supplied - lost) / p.zone_capacity
        absorbed = jnp.sum(flux) * area * h / 1e6
        skin, flux = facing(amplitudes, zones)
        passed = Passage(skin, amplitudes @ vectors[-1], zones, absorbed, jnp.sum(supplied) * h)
        return (amplitudes, zones, skin, flux), passed

    amplitudes = furnace.steel @ vectors
    start = (amplitudes, furnace.zones, *facing(amplitudes, furnace.zones))
    (amplitudes, zones, *_), passage = jax.lax.scan(substep, start, None, substeps)
    return Furnace(amplitudes @ vectors.T, zones), passage


def stored_heat(
    furnace: Furnace, thickness: Float[Array, " S"], p: Params
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Heat [MJ] in the steel and in the zones, above 0 K.

    Args:
        furnace: temperatures [K].
        thickness: (S,), thickness of the sections [mm].
        p: constants of the furnace.
    """
    volume = thickness / 1000 * SECTION * p.width
    steel = jnp.sum(p.density * p.heat_capacity * volume * jnp.mean(furnace.steel, axis=1)) / 1e6
    return steel, p.zone_capacity * jnp.sum(furnace.zones)


def line_speed(thickness: Float[Array, " S"], deviation: Float[Array, ""] | float, p: Params) -> Float[Array, ""]:
    """[m/min]: as much steel per minute whatever its thickness [mm], within what the rollers do.

    Args:
        thickness: (S,), thickness of the sections [mm].
        deviation: relative deviation of the speed [1].
        p: constants of the furnace.
    """
    return jnp.clip(p.speed * 30.0 / jnp.mean(thickness) * (1 + deviation), 0.6, 1.9)


def steady(
    thickness: Float[Array, ""], zones: Float[Array, " Z"], p: Params
) -> tuple[Float[Array, "S M"], Float[Array, " Z"]]:
    """Temperatures [K] along a furnace full of one thickness [mm] with zones held [K], and the powers [MW] it takes.

    One section is followed through, from place to place; in each it is seen halfway.

    Args:
        thickness: thickness of the sections [mm].
        zones: (Z,), zone temperatures [K].
        p: constants of the furnace.
    """
    dwell = SECTION / line_speed(thickness[None], 0.0, p) * SECONDS
    # Zones of such a capacity feel neither burners nor steel.
    held = p._replace(zone_capacity=1e12)
    cold = jnp.full((1, CELLS), p.ambient + CELSIUS, zones.dtype)
    share = overlap(jnp.zeros((), zones.dtype))

    def halfway(steel: Any, here: Any) -> tuple[Any, Any]:
        furnace, passage = advance(
            Furnace(steel, zones), thickness[None], jnp.zeros_like(zones), here[None], dwell / 2, 2, held
        )
        return furnace.steel, jnp.sum(passage.absorbed)

    def onwards(steel: Any, here: Any) -> tuple[Any, Any]:
        middle, first = halfway(steel, here)
        following, second = halfway(middle, here)
        return following, (middle[0], first + second)

    _, (found, heat) = jax.lax.scan(onwards, cold, share)
    losses = p.zone_loss * (zones - p.ambient - CELSIUS) / 1e3
    return found, (losses + share.T @ heat / dwell) / p.efficiency
