"""The table of plants, and what a plant's log can be scored with. A plant's module is imported when it is asked for."""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING

from neorl_core.table import Table

if TYPE_CHECKING:
    from neorl_core.plants.base import LoggedSignals
    from neorl_core.types import Plant

NAMES = (
    "chemical_reactor",
    "double_mass",
    "hvac_control",
    "industrial_benchmark",
    "power_grid",
    "pumping_station",
    "robot_assembly",
    "steel_annealing",
    "supply_chain",
    "water_treatment",
)

PLANTS: Table[Plant] = Table(__name__, NAMES, lambda module: module.PLANT)


def _logged(module: ModuleType) -> LoggedSignals:
    # Who asks for the names alone, such as a signer, starts without JAX.
    from neorl_core.plants.base import LoggedSignals

    return LoggedSignals(module.logged_reward, module.logged_margins)


LOGGED: Table[LoggedSignals] = Table(__name__, NAMES, _logged)

__all__ = ["LOGGED", "NAMES", "PLANTS"]
