"""The table of plants, and what a plant's log can be scored with."""

from __future__ import annotations

from neorl_core.plants import chemical_reactor, double_mass, robot_assembly, steel_annealing
from neorl_core.plants.base import LoggedSignals
from neorl_core.types import Plant

PLANTS: dict[str, Plant] = {
    "chemical_reactor": chemical_reactor.PLANT,
    "double_mass": double_mass.PLANT,
    "robot_assembly": robot_assembly.PLANT,
    "steel_annealing": steel_annealing.PLANT,
}

LOGGED: dict[str, LoggedSignals] = {
    "chemical_reactor": LoggedSignals(chemical_reactor.logged_reward, chemical_reactor.logged_margins),
    "double_mass": LoggedSignals(double_mass.logged_reward, double_mass.logged_margins),
    "robot_assembly": LoggedSignals(robot_assembly.logged_reward, robot_assembly.logged_margins),
    "steel_annealing": LoggedSignals(steel_annealing.logged_reward, steel_annealing.logged_margins),
}
