"""What is measured, moved and limited on the feeder."""

from __future__ import annotations

from neorl_core.plants.power_grid import feeder33 as feeder
from neorl_core.plants.power_grid import units
from neorl_core.types import Constraint, PlantSpec, Space

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
    # 0: nothing is done and the switches stay as they are; 100: the tuned controller (1,000 and 5,317 days).
    score_range=(-685.5, 297.7),
)
