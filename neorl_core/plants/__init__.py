"""The table of plants, and what a plant's log can be scored with."""

from __future__ import annotations

from neorl_core.plants import (
    chemical_reactor,
    double_mass,
    hvac_control,
    industrial_benchmark,
    power_grid,
    robot_assembly,
    steel_annealing,
    supply_chain,
    water_treatment,
)
from neorl_core.plants.base import LoggedSignals
from neorl_core.types import Plant

MODULES = (
    chemical_reactor,
    double_mass,
    hvac_control,
    industrial_benchmark,
    power_grid,
    robot_assembly,
    steel_annealing,
    supply_chain,
    water_treatment,
)

PLANTS: dict[str, Plant] = {module.SPEC.name: module.PLANT for module in MODULES}

LOGGED: dict[str, LoggedSignals] = {
    module.SPEC.name: LoggedSignals(module.logged_reward, module.logged_margins) for module in MODULES
}
