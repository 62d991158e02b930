"""Search spaces of the plants' controllers, with the parameters and their ranges."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from neorl_core.control.lqr import LinearParams
from neorl_core.control.pid import PIDParams
from neorl_core.control.search import Space
from neorl_core.plants import double_mass, supply_chain
from neorl_core.plants.hvac_control.plant import ThermostatParams
from neorl_core.plants.industrial_benchmark.plant import HELD
from neorl_core.plants.power_grid import units
from neorl_core.plants.power_grid.plant import VoltVarParams
from neorl_core.plants.pumping_station import Hysteresis
from neorl_core.plants.robot_assembly.plant import InsertionParams
from neorl_core.plants.steel_annealing.plant import ZONES, ZoneParams
from neorl_core.types import Controller, Params, Plant

Numbers = Float[Array, " n"]


class Range(NamedTuple):
    """Range of one parameter, or of several similar parameters."""

    name: str
    low: float
    high: float
    count: int = 1


def _space(ranges: tuple[Range, ...], params: Callable[[Numbers], Params]) -> Space:
    each = [(f"{r.name} {k + 1}" if r.count > 1 else r.name, r.low, r.high) for r in ranges for k in range(r.count)]
    names, low, high = zip(*each, strict=True)
    return Space(names, low, high, params)


def _reactor(z: Numbers) -> PIDParams:
    return PIDParams(kp=z[0], ki=z[1], kd=z[2], low=295.0, high=302.0)


def _masses(z: Numbers) -> LinearParams:
    """Return the parameters of a controller with the same gains for both masses, which are identical."""
    own, other = z[0::2], z[1::2]
    rows = [[own[i], other[i]] for i in range(3)], [[other[i], own[i]] for i in range(3)]
    gain = jnp.stack([jnp.stack([x for pair in row for x in pair]) for row in rows])
    return LinearParams(gain, (0.0, 0.0), *double_mass.SPEC.action[2:4])


def _chain(z: Numbers) -> supply_chain.BaseStockParams:
    return supply_chain.BaseStockParams(jnp.round(z[:3]), 1.0, jnp.round(z[3:]))


def _benchmark(z: Numbers) -> Params:
    return HELD._replace(steerings=z[:20].reshape(2, 10).T, radii=z[20:])


def _tanks(z: Numbers) -> tuple[PIDParams, ...]:
    return tuple(PIDParams(*z[3 * k : 3 * k + 3], 0.0, 10.0) for k in range(2))


def _grid(z: Numbers) -> VoltVarParams:
    """Return the parameters of a volt-var curve that falls on both sides of a dead band."""
    voltages = jnp.stack([z[0] - z[1] - z[2], z[0] - z[1], z[0] + z[1], z[0] + z[1] + z[2]])
    reactive = jnp.stack([z[3], jnp.zeros_like(z[3]), jnp.zeros_like(z[3]), -z[3]])
    return VoltVarParams(voltages, reactive, *z[4:])


def _furnace(z: Numbers) -> ZoneParams:
    return ZoneParams(*(z[ZONES * k : ZONES * (k + 1)] for k in range(5)))


INSERTION = {
    **{"approach": (0.05, 0.8), "press": (1.0, 15.0), "sweep": (0.02, 0.5), "reach": (0.2, 2.0)},
    **{"found": (0.2, 2.0), "push": (3.0, 30.0), "yielding": (0.0, 0.8), "landing": (20.0, 29.5), "gentle": (0.3, 4.0)},
}
"""Ranges of the insertion controller's parameters."""

SPACES = {
    "chemical_reactor": _space(
        (Range("kp", -2_000.0, -5.0), Range("ki", -2_000.0, -2.0), Range("kd", -400.0, 50.0)), _reactor
    ),
    "double_mass": _space(
        (
            *(Range("own position", -20.0, -0.2), Range("other position", -1.0, 1.0)),
            *(Range("own velocity", -20.0, -0.2), Range("other velocity", -1.0, 1.0)),
            *(Range("own target", 0.2, 20.0), Range("other target", -1.0, 1.0)),
        ),
        _masses,
    ),
    "hvac_control": _space(
        (Range("kp", 0.05, 20.0), Range("ki", 0.02, 20.0), Range("below", -1.0, 2.0), Range("ahead", 0.25, 6.0)),
        lambda z: ThermostatParams(*z),
    ),
    "industrial_benchmark": _space(
        (Range("velocity", 20.0, 60.0, 10), Range("gain", 20.0, 100.0, 10), Range("radius", -0.3, 1.2, 12)), _benchmark
    ),
    "power_grid": _space(
        (
            *(Range("middle", 0.98, 1.04), Range("half dead band", 0.0, 0.02), Range("slope's width", 0.01, 0.08)),
            *(Range("most reactive", 0.05, 1.0), Range("response", 0.1, 1.0)),
            *(Range("charging", 0.0, 0.5), Range("discharging", 0.0, 0.5)),
            Range("topology", 0.0, len(units.TOPOLOGIES) - 0.001),
        ),
        _grid,
    ),
    "pumping_station": _space(
        (Range("dear", 1.2, 3.5), Range("cheap", 3.0, 5.0), Range("stage", 0.2, 1.5), Range("gap", 0.1, 1.0)),
        lambda z: Hysteresis(*z),
    ),
    "robot_assembly": _space(
        tuple(Range(name, *INSERTION[name]) for name in InsertionParams._fields), lambda z: InsertionParams(*z)
    ),
    "steel_annealing": _space(
        (
            *(Range("kp", 0.005, 0.3, ZONES), Range("ki", 0.001, 0.06, ZONES), Range("feedforward", -0.1, 0.15, ZONES)),
            *(Range("trim", -0.5, 2.0, ZONES), Range("lift", -30.0, 30.0, ZONES)),
        ),
        _furnace,
    ),
    "supply_chain": _space(
        (
            *(Range("retailer", 40.0, 160.0), Range("distributor", 120.0, 320.0), Range("producer", 250.0, 550.0)),
            Range("last period", 5.0, 30.0, 3),
        ),
        _chain,
    ),
    "water_treatment": _space(
        tuple(
            Range(f"{gain} of pump {pump}", low, high)
            for pump in (1, 2)
            for gain, low, high in (("kp", 0.1, 20.0), ("ki", 0.002, 1.0), ("kd", -5.0, 20.0))
        ),
        _tanks,
    ),
}
"""Search space of each plant's tuned controller."""


def constant_of(plant: Plant) -> Space:
    """Return the search space of constant actions; the best constant action is the idle controller."""
    action = plant.spec.action
    return Space(action.names, action.low, action.high, lambda z: z)


constant = Controller(lambda params, observation: (), lambda params, state, observation, applied: (state, params))
"""Controller with a constant action."""
