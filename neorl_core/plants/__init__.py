"""The table of plants, and what a plant's log can be scored with."""

from __future__ import annotations

from neorl_core.plants import chemical_reactor, double_mass, industrial_benchmark, supply_chain, water_treatment
from neorl_core.plants.base import LoggedSignals
from neorl_core.types import Plant

PLANTS: dict[str, Plant] = {
    "chemical_reactor": chemical_reactor.PLANT,
    "double_mass": double_mass.PLANT,
    "industrial_benchmark": industrial_benchmark.PLANT,
    "supply_chain": supply_chain.PLANT,
    "water_treatment": water_treatment.PLANT,
}

LOGGED: dict[str, LoggedSignals] = {
    "chemical_reactor": LoggedSignals(chemical_reactor.logged_reward, chemical_reactor.logged_margins),
    "double_mass": LoggedSignals(double_mass.logged_reward, double_mass.logged_margins),
    "industrial_benchmark": LoggedSignals(industrial_benchmark.logged_reward, industrial_benchmark.logged_margins),
    "supply_chain": LoggedSignals(supply_chain.logged_reward, supply_chain.logged_margins),
    "water_treatment": LoggedSignals(water_treatment.logged_reward, water_treatment.logged_margins),
}
