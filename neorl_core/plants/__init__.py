"""The table of plants, and what a plant's log can be scored with."""

from __future__ import annotations

from neorl_core.plants import chemical_reactor, double_mass, hvac_control, power_grid
from neorl_core.plants.base import LoggedSignals
from neorl_core.types import Plant

PLANTS: dict[str, Plant] = {
    "chemical_reactor": chemical_reactor.PLANT,
    "double_mass": double_mass.PLANT,
    "hvac_control": hvac_control.PLANT,
    "power_grid": power_grid.PLANT,
}

LOGGED: dict[str, LoggedSignals] = {
    "chemical_reactor": LoggedSignals(chemical_reactor.logged_reward, chemical_reactor.logged_margins),
    "double_mass": LoggedSignals(double_mass.logged_reward, double_mass.logged_margins),
    "hvac_control": LoggedSignals(hvac_control.logged_reward, hvac_control.logged_margins),
    "power_grid": LoggedSignals(power_grid.logged_reward, power_grid.logged_margins),
}
