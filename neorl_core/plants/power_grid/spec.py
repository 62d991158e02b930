"""Signals, actions and limits of the feeder, the views of its agents, and the links between them.

An inverter observes the clock, its own voltage and a sun sensor; a battery observes the clock, its own voltage and its
stored energy. The dispatcher at the substation observes the feeder's meters (load level, lowest and highest voltage,
losses, supplied power) and moves the switches. All other information has to be communicated.

Links run along the lines from the substation outwards, and along the ties near two units, so that the agents stay
connected when any single link is lost.
"""

from __future__ import annotations

from neorl_core.graph.agents import Links
from neorl_core.plants.power_grid import feeder33 as feeder
from neorl_core.plants.power_grid import units
from neorl_core.types import AgentView, Constraint, PlantSpec, Space

_TOPS = tuple(float(len(loop) - 1) for loop in feeder.LOOP_LINES)
_TIES = tuple(f"open_line_of_loop_{loop + 1}" for loop in range(units.SWITCHES))
_VOLTAGES = len(units.UNITS) + 2
SPEC = PlantSpec(
    name="power_grid",
    observation=Space(
        names=(
            *("hour", "load_level", "clearness"),
            *(f"energy_{bus}" for bus in units.BATTERY_BUSES),
            *_TIES,
            *(f"voltage_{unit}" for unit in units.UNITS),
            *("lowest_voltage", "highest_voltage", "loss", "supplied_active", "supplied_reactive"),
        ),
        units=(
            "h",
            "1",
            "1",
            *("MWh",) * units.BATTERIES,
            *("1",) * units.SWITCHES,
            *("pu",) * _VOLTAGES,
            *("MW", "MW", "Mvar"),
        ),
        low=(*(0.0,) * (3 + units.BATTERIES + units.SWITCHES + _VOLTAGES), 0.0, -10.0, -10.0),
        high=(24.0, 2.0, 1.0, *(units.BATTERY_MWH,) * units.BATTERIES, *_TOPS, *(1.5,) * _VOLTAGES, 10.0, 10.0, 10.0),
    ),
    action=Space(
        names=(
            *(f"withheld_{unit}" for unit in units.UNITS[: units.SOLAR]),
            *(f"power_{unit}" for unit in units.UNITS[units.SOLAR :]),
            *(f"reactive_{unit}" for unit in units.UNITS),
            *_TIES,
        ),
        units=(*("MW",) * len(units.UNITS), *("Mvar",) * len(units.UNITS), *("1",) * units.SWITCHES),
        low=(
            *(0.0,) * units.SOLAR,
            *(-units.BATTERY_MW,) * units.BATTERIES,
            *(-mvar for mvar in units.REACTIVE),
            *(0.0,) * units.SWITCHES,
        ),
        high=(*(units.SOLAR_MW,) * units.SOLAR, *(units.BATTERY_MW,) * units.BATTERIES, *units.REACTIVE, *_TOPS),
    ),
    constraints=(Constraint("bus voltage", "pu", 0.95, 1.05),),
    dt=units.DT,
    time_unit="h",
    horizon=units.HORIZON,
    # 0: no action and no switching; 100: the tuned controller (1,000 and 5,317 days).
    score_range=(-685.5, 297.7),
)

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
"""Pairs of agents that communicate."""
