"""A continuous furnace: sections of plate move through fired zones, absorb heat and conduct heat across the thickness.

ρ ∂H/∂t = ∂/∂y (k ∂T/∂y),  k ∂T/∂y = ε σ (Tz⁴ − Ts⁴) + h (Tz − Ts) at the surface,  ∂T/∂y = 0 at the middle,
C dTz/dt = η P − U (Tz − Ta) − heat into the steel; the burners' powers P are the actions.

H and T are enthalpy and temperature at depth y, Ts at the surface, Tz in the zone. The model follows sections of plate
through the furnace (Lagrangian), with finite volumes across half the thickness. The time integrator is ROS2, of order 2
for any approximate Jacobian (Verwer, Spee, Blom, Hundsdorfer, SIAM J. Scientific Computing 20(4), 1999). The Jacobian
here has conduction only, so Heun's rule integrates surfaces and zones, and heat is conserved.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from neorl_core.plants.base import Scalar
from neorl_core.plants.steel_annealing.steel import CELSIUS, conductivity, enthalpy, temperature

ZONES = 4
PER_ZONE = 4
SECTIONS = ZONES * PER_ZONE
SECTION = 2.0
"""Length of a section [m]."""
CELLS = 8
"""Volumes across half the thickness."""
SECONDS = 60.0
"""Length of a control step [s]."""
STEFAN_BOLTZMANN = 5.670374419e-8
GAMMA = 0.2928932188134524
"""1 − 1/√2, which makes ROS2 L-stable."""
LEAST_CAPACITY = 650.0
"""Specific heat above 900 °C [J/(kg K)], the lowest specific heat above 450 °C."""


class Params(NamedTuple):
    """Physical constants, disturbances and the schedule's ranges."""

    conductivity: Scalar = 1.0
    """Conductivity relative to the standard's [1]."""
    density: Scalar = 7850.0
    """ρ [kg/m³]."""
    heat_capacity: Scalar = 1.0
    """Heat capacity relative to the standard's [1]."""
    emissivity: Scalar = 0.7
    """ε: emissivity of the exchange between zone and plate."""
    convection: Scalar = 20.0
    """h [W/(m² K)]."""
    width: Scalar = 2.0
    """Width of the plate [m]."""
    zone_capacity: Scalar = 6.0
    """C [MJ/K]."""
    zone_loss: Scalar = 0.4
    """U [kW/K]."""
    efficiency: Scalar = 0.55
    """η: share of the heat that does not leave with the flue gas."""
    ambient: Scalar = 20.0
    """Ta, ambient temperature and temperature of entering steel [°C]."""
    speed: Scalar = 1.2
    """Speed of the line at a mean thickness of 30 mm [m/min]; see `line_speed`."""
    speed_sd: Scalar = 0.0
    """Standard deviation of the speed, relative to `line_speed` [1]."""
    speed_time_constant: Scalar = 10.0
    """Time constant of the speed deviation [min]."""
    noise_sd: Scalar = 0.0
    """Standard deviation of the noise of thermocouples and pyrometers [K]."""
    thickness_low: Scalar = 20.0
    """Least thickness of products [mm]."""
    thickness_high: Scalar = 40.0
    target_low: Scalar = 850.0
    """Least target temperature of products at the exit [°C]."""
    target_high: Scalar = 890.0


class Furnace(NamedTuple):
    heat: Float[Array, "S M"]
    """Specific enthalpies of the volumes of each section [J/kg], from the surface to the middle."""
    zones: Float[Array, " Z"]
    """Temperatures of the zones [K]."""


def overlap(offset: Float[Array, ""]) -> Float[Array, "S Z"]:
    """Return the share (S, Z) of each section's length in each zone. Section i starts at (i − 1) · 2 m + offset [m]."""
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
    """Return the temperature [K] of the surfaces and the heat flux [W/m²] into them.

    Four Newton steps solve 2 k (Ts − T1) / Δy = Σ_z share_z (ε σ (Tz⁴ − Ts⁴) + h (Tz − Ts)) for Ts, with k at T1.

    Args:
        outer: (S,), temperature T1 of the outermost volume [K].
        cell: (S,), width Δy of a volume [m].
    """
    inside = jnp.sum(share, axis=1)
    radiation = p.emissivity * STEFAN_BOLTZMANN
    gained = share @ (radiation * zones**4 + p.convection * zones)
    into = 2 * p.conductivity * conductivity(outer) / cell

    def newton(_: Any, solution: Float[Array, " S"]) -> Float[Array, " S"]:
        excess = into * (solution - outer) - gained + inside * (radiation * solution**4 + p.convection * solution)
        return solution - excess / (into + inside * (4 * radiation * solution**3 + p.convection))

    solution = jax.lax.fori_loop(0, 4, newton, outer)
    return solution, into * (solution - outer)


def _conducting(links: Float[Array, "S L"], capacity: Float[Array, "S M"]) -> Any:
    """Return a solver of (I − J) x = b, with J the conduction over links [J/(kg K)] between volumes.

    With z = x / capacity, (capacity + links) z − (links times z of the neighbours) = b is a symmetric tridiagonal
    system.
    """
    volumes = capacity.shape[1]
    links = jnp.pad(links, ((0, 0), (1, 1)))
    pivots = [capacity[:, 0] + links[:, 1]]
    for i in range(1, volumes):
        pivots.append(capacity[:, i] + links[:, i] + links[:, i + 1] - links[:, i] ** 2 / pivots[-1])

    def solve(b: Float[Array, "S M"]) -> Float[Array, "S M"]:
        z = [b[:, 0]]
        for i in range(1, volumes):
            z.append(b[:, i] + links[:, i] / pivots[i - 1] * z[-1])
        z[-1] = z[-1] / pivots[-1]
        for i in reversed(range(volumes - 1)):
            z[i] = (z[i] + links[:, i + 1] * z[i + 1]) / pivots[i]
        return jnp.stack(z, axis=1) * capacity

    return solve


class Passage(NamedTuple):
    """Values in each of n substeps of `advance`."""

    surface: Float[Array, "n S"]
    """Temperature of the surface [K]."""
    middle: Float[Array, "n S"]
    """Temperature of the innermost volume [K]."""
    zones: Float[Array, "n Z"]
    """Temperatures of the zones [K]."""
    absorbed: Float[Array, " n"]
    """Heat into the steel [MJ]."""
    supplied: Float[Array, " n"]
    """Heat into the zones minus their losses [MJ]."""


def advance(
    furnace: Furnace,
    thickness: Float[Array, " S"],
    power: Float[Array, " Z"],
    share: Float[Array, "S Z"],
    seconds: Scalar,
    substeps: int,
    p: Params,
) -> tuple[Furnace, Passage]:
    """Return the furnace after `seconds` with constant powers and without motion, and the values in all substeps.

    Args:
        thickness: (S,), thickness of the sections [mm].
        power: (Z,), powers of the zones' burners [MW].
    """
    cells = furnace.heat.shape[1]
    cell = thickness / 2000 / cells
    # Vectors run over all sections, one per volume.
    per_volume = 1.0 / (p.density * p.heat_capacity * cell)
    area = 2 * p.width * SECTION
    h = seconds / substeps

    def slopes(heat: Any, zones: Any) -> tuple[Any, ...]:
        """Return dH/dt, dT/dt of the zones, heat conductances between volumes, and intermediate results."""
        kelvin, per_joule = temperature(heat)
        skin, flux = surface(kelvin[:, 0], cell, zones, share, p)
        between = p.conductivity * conductivity((kelvin[:, 1:] + kelvin[:, :-1]) / 2) / cell[:, None]
        through = between * (kelvin[:, :-1] - kelvin[:, 1:])
        through = jnp.concatenate([flux[:, None], through, jnp.zeros_like(flux)[:, None]], axis=1)
        rise = per_volume[:, None] * (through[:, :-1] - through[:, 1:])
        radiation = p.emissivity * STEFAN_BOLTZMANN * (zones[None] ** 4 - skin[:, None] ** 4)
        lost = jnp.sum(share * (radiation + p.convection * (zones[None] - skin[:, None])), axis=0) * area / 1e6
        supplied = p.efficiency * power - p.zone_loss * (zones - p.ambient - CELSIUS) / 1e3
        return rise, (supplied - lost) / p.zone_capacity, per_volume[:, None] * between, per_joule, skin, flux, supplied

    def substep(carry: Any, _: None) -> tuple[Any, Passage]:
        heat, zones, (rise, warming, links, per_joule, _, flux, supplied) = carry
        # Steel may pass the peak of the heat capacity within a step, so the Jacobian uses a bounded capacity.
        solve = _conducting(GAMMA * h * links, jnp.minimum(1.0 / per_joule, LEAST_CAPACITY))
        first = solve(rise)
        again = slopes(heat + h * first, zones + h * warming)
        second = solve(again[0] - 2.0 * first)
        heat = heat + 1.5 * h * first + 0.5 * h * second
        zones = zones + h / 2 * (warming + again[1])
        now = slopes(heat, zones)
        passed = Passage(
            surface=now[4],
            middle=temperature(heat[:, -1])[0],
            zones=zones,
            absorbed=jnp.sum(flux + again[5]) / 2 * area * h / 1e6,
            supplied=jnp.sum(supplied + again[6]) / 2 * h,
        )
        return (heat, zones, now), passed

    start = (furnace.heat, furnace.zones, slopes(furnace.heat, furnace.zones))
    (heat, zones, _), passage = jax.lax.scan(substep, start, None, substeps)
    return Furnace(heat, zones), passage


def line_speed(thickness: Float[Array, " S"], deviation: Scalar, p: Params) -> Float[Array, ""]:
    """Return p.speed · 30 / mean thickness [mm] · (1 + deviation) [m/min], clipped to 0.6 to 1.9 m/min."""
    return jnp.clip(p.speed * 30.0 / jnp.mean(thickness) * (1 + deviation), 0.6, 1.9)


def steady(
    thickness: Float[Array, ""], zones: Float[Array, " Z"], p: Params
) -> tuple[Float[Array, "S M"], Float[Array, " Z"]]:
    """Return steady enthalpies (S, M) [J/kg] and powers (Z,) [MW] for one thickness [mm] at zone temperatures [K]."""
    dwell = SECTION / line_speed(thickness[None], 0.0, p) * SECONDS
    # With this capacity the zone temperatures are constant.
    held = p._replace(zone_capacity=1e12)
    cold = enthalpy(jnp.full((1, CELLS), p.ambient + CELSIUS, zones.dtype))
    share = overlap(jnp.zeros((), zones.dtype))

    def halfway(heat: Any, here: Any) -> tuple[Any, Any]:
        furnace, passage = advance(
            Furnace(heat, zones), thickness[None], jnp.zeros_like(zones), here[None], dwell / 2, 4, held
        )
        return furnace.heat, jnp.sum(passage.absorbed)

    def onwards(heat: Any, here: Any) -> tuple[Any, Any]:
        middle, first = halfway(heat, here)
        following, second = halfway(middle, here)
        return following, (middle[0], first + second)

    _, (heats, absorbed) = jax.lax.scan(onwards, cold, share)
    losses = p.zone_loss * (zones - p.ambient - CELSIUS) / 1e3
    return heats, (losses + share.T @ absorbed / dwell) / p.efficiency
