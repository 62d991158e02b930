"""Who sees what on the feeder, and who talks to whom.

An inverter has a clock, its own voltage and a sensor of the sun; a battery a clock, its own voltage and what it holds.
The dispatcher at the substation has the feeder's meters: load level, lowest and highest voltage, losses and what is
supplied, and where the switches stand, which are its own. Nobody else knows these, and the dispatcher knows neither the
voltage of a unit nor what a battery holds nor the sun: that takes messages.

Links run along the lines, from the substation outwards, and along the ties that end near two units, so that no single
lost link parts anybody from the others.
"""

from __future__ import annotations

from neorl_core.graph.agents import Links
from neorl_core.plants.power_grid import units
from neorl_core.plants.power_grid.spec import SPEC
from neorl_core.types import AgentView

_AT = {name: place for place, name in enumerate(SPEC.observation.names)}
_DOES = {name: place for place, name in enumerate(SPEC.action.names)}


def _inverter(unit: str) -> AgentView:
    seen = ("hour", "clearness", f"voltage_{unit}")
    return AgentView(unit, tuple(_AT[name] for name in seen), (_DOES[f"withheld_{unit}"], _DOES[f"reactive_{unit}"]))


def _battery(unit: str) -> AgentView:
    seen = ("hour", f"energy_{unit.rpartition('_')[2]}", f"voltage_{unit}")
    return AgentView(unit, tuple(_AT[name] for name in seen), (_DOES[f"power_{unit}"], _DOES[f"reactive_{unit}"]))


_SWITCHES = tuple(name for name in SPEC.action.names if name.startswith("open_line"))
_METERS = ("hour", "load_level", *_SWITCHES, "lowest_voltage", "highest_voltage", "loss")
AGENTS = (
    *(_inverter(unit) for unit in units.UNITS[: units.SOLAR]),
    *(_battery(unit) for unit in units.UNITS[units.SOLAR :]),
    AgentView(
        "dispatcher",
        tuple(_AT[name] for name in (*_METERS, "supplied_active", "supplied_reactive")),
        tuple(_DOES[name] for name in _SWITCHES),
    ),
)
LINKS: Links = (
    ("dispatcher", "solar_22"),
    ("dispatcher", "solar_25"),
    ("dispatcher", "battery_14"),
    ("dispatcher", "battery_31"),
    ("battery_14", "solar_18"),
    ("battery_31", "solar_33"),
    # Ties 12-22, 18-33 and 25-29.
    ("solar_22", "battery_14"),
    ("solar_18", "solar_33"),
    ("solar_25", "battery_31"),
)
"""Pairs of agents that talk to each other."""
