"""Hidden plants of the study, and the facts about each plant that the study needs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from neorl_core.plants.hidden import Difference


class Edge(NamedTuple):
    """A constant that differs, and its range in the operating domain."""

    name: str
    low: float
    """Low end of the range, relative to the nominal value."""
    high: float


class Known(NamedTuple):
    """Facts about a plant for this study."""

    edges: tuple[Edge, Edge]
    """Two constants A and B that differ in hidden plants."""
    lagging: tuple[str, ...]
    """Signals with lagging sensors."""
    inputs: tuple[str, ...]
    """Signals that act on the plant from outside; the identification uses their measurements."""
    spreads: tuple[str, ...]
    """Half ranges of constants in the operating domain, relative to the nominal value."""
    ranges: tuple[tuple[str, str], ...] = ()
    """Fields of the operating domain that are the low and the high end of a constant's range."""


KNOWN: Mapping[str, Known] = {
    "chemical_reactor": Known(
        (Edge("reaction_rate", 0.99, 1.01), Edge("cooling_rate", 0.99, 1.01)),
        ("concentration", "temperature"),
        ("concentration_setpoint",),
        ("reaction_spread", "cooling_spread"),
    ),
    "double_mass": Known(
        (Edge("stiffness", 1.0, 1.0), Edge("mass", 1.0, 1.0)),
        ("position_1", "position_2", "velocity_1", "velocity_2"),
        ("target_1", "target_2"),
        ("stiffness_spread", "damping_spread", "mass_spread"),
    ),
    "hvac_control": Known(
        (Edge("gain_scale", 0.8, 1.2), Edge("air_capacity", 0.9, 1.1)),
        ("air_east", "air_core", "air_west", "mass_east", "mass_core", "mass_west"),
        ("hour", "outdoor_temperature", "irradiance", "clearness"),
        ("capacity_spread", "loss_spread", "gain_spread"),
    ),
    "power_grid": Known(
        (Edge("impedance_scale", 0.97, 1.03), Edge("load_scale", 0.8 / 0.9, 1.0 / 0.9)),
        (
            *("voltage_solar_18", "voltage_solar_22", "voltage_solar_25", "voltage_solar_33"),
            *("voltage_battery_14", "voltage_battery_31", "lowest_voltage", "highest_voltage"),
            *("loss", "supplied_active", "supplied_reactive"),
        ),
        ("hour", "load_level", "clearness"),
        ("impedance_spread",),
        (("load_scale_low", "load_scale_high"),),
    ),
    "water_treatment": Known(
        (Edge("pump", 0.98, 1.02), Edge("outlet", 1.0, 1.0)),
        ("level_1", "level_2", "level_3", "level_4"),
        ("level_1_setpoint", "level_2_setpoint"),
        ("pump_spread",),
    ),
}
"""The plants of this study."""
BEYOND = 0.1
"""How far constants lie beyond the edge of the operating domain, relative to the edge."""
CONSTANTS = ("edge A+ B-", "edge A- B+", "beyond A+", "beyond B-", "beyond A- B+")
"""Hidden plants in which only constants differ."""
STRUCTURE: Mapping[str, Mapping[str, float]] = {
    "lag": {"lag": 1.0},
    "dead band": {"dead_band": 0.02},
    "delay": {"delay": 1.0},
    "lag, dead band": {"lag": 1.0, "dead_band": 0.02},
    "long lag": {"lag": 3.0},
}
"""Hidden plants with structure that the simulator lacks; both constants have their nominal value."""
HIDDEN = (*CONSTANTS, *STRUCTURE)


def unhidden(known: Known) -> Difference:
    """Return no difference: all constants are drawn from the operating domain."""
    return Difference({edge.name: jnp.float32(jnp.nan) for edge in known.edges}, *map(jnp.float32, (0, 0, 0)))


def difference_of(known: Known, hidden: str) -> Difference:
    """Return the difference of the hidden plant with a name from `HIDDEN`."""
    factors = {edge.name: 1.0 for edge in known.edges}
    for letter, edge in zip("AB", known.edges, strict=True):
        for sign, end, further in (("+", edge.high, 1 + BEYOND), ("-", edge.low, 1 - BEYOND)):
            if hidden in CONSTANTS and f"{letter}{sign}" in hidden:
                factors[edge.name] = end * (further if hidden.startswith("beyond") else 1.0)
    found = Difference(factors, **STRUCTURE.get(hidden, {}))
    single: Difference = jax.tree.map(jnp.float32, found)
    return single


def nominal(known: Known, domain: Any) -> Any:
    """Return an operating domain with nominal constants; disturbances, noise and starts stay."""
    narrow = dict.fromkeys(known.spreads, 0.0)
    for low, high in known.ranges:
        narrow |= dict.fromkeys((low, high), (getattr(domain, low) + getattr(domain, high)) / 2)
    return domain._replace(**narrow)
