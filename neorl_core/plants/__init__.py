"""The built-in plants by name, and their reward and margin functions for logs. Modules are imported at first use."""

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
    # Imported here so that callers that only need NAMES, such as the signer, start without JAX.
    from neorl_core.plants.base import LoggedSignals

    return LoggedSignals(module.logged_reward, module.logged_margins)


LOGGED: Table[LoggedSignals] = Table(__name__, NAMES, _logged)

__all__ = ["LOGGED", "NAMES", "PLANTS"]
