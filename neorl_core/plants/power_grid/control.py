"""The feeder's own controller: the volt-var curve of a standard, a timetable for batteries, and a switching state.

What its three levers are worth, as Shapley values over 1,000 days of the tuned controller (`python -m
benchmarks.tuning.levers`): batteries 418 $ a day (42 %), reactive power 486 $ (49 %), switching 81 $ (8 %), without
which 673 of the days cross a limit, and with it none.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from neorl_core.plants.power_grid import units
from neorl_core.types import Controller


class VoltVarParams(NamedTuple):
    """A droop for reactive power, a timetable for batteries, and which lines are open."""

    voltages: tuple[float, ...] | Float[Array, " 4"] = (0.96, 1.0, 1.0, 1.04)
    """Corners of the curve [pu]: IEEE 1547-2018, table 8, category B, without its dead band and half as steep
    again, as the table's ranges of settings allow."""
    reactive: tuple[float, ...] | Float[Array, " 4"] = (0.44, 0.0, 0.0, -0.44)
    """Reactive power fed in at the corners, of the inverter's rating [1]; 0.44 is all it gives."""
    response: float | Float[Array, ""] = 0.5
    """Part of the way to the curve that is gone in a step [1]: at 1, neighbours take turns."""
    charge_power: float | Float[Array, ""] = 0.2
    """MW that each battery takes by night."""
    discharge_power: float | Float[Array, ""] = 0.4
    """MW that each battery gives in the evening."""
    topology: float | Float[Array, ""] = 1.0
    """Place in `units.TOPOLOGIES`, rounded down, of the switching state that it keeps, here the paper's best, which
    knows of no sun; below 0 switches stay as they are."""


def _volt_var(
    params: VoltVarParams, state: tuple[()], observation: Float[Array, " 21"], applied: Float[Array, " 17"]
) -> tuple[tuple[()], Float[Array, " 17"]]:
    corners, values = (jnp.asarray(x, observation.dtype) for x in params[:2])
    before = applied[len(units.UNITS) : 2 * len(units.UNITS)]
    curve = jnp.asarray(units.RATING, observation.dtype) * jnp.interp(observation[10:16], corners, values)
    ahead = units.price(observation[0] + units.DT)
    power = jnp.where(ahead == units.NIGHT_PRICE, -params.charge_power, 0.0)
    power = jnp.broadcast_to(jnp.where(ahead == units.EVENING_PRICE, params.discharge_power, power), (units.BATTERIES,))
    withheld, reactive = jnp.zeros((units.SOLAR,), observation.dtype), before + params.response * (curve - before)
    kept = jnp.clip(jnp.floor(jnp.asarray(params.topology)), 0, len(units.TOPOLOGIES) - 1).astype(jnp.int32)
    switches = jnp.asarray(units.TOPOLOGIES, observation.dtype)[kept]
    switches = jnp.where(jnp.asarray(params.topology) < 0, observation[5:10], switches)
    return state, jnp.concatenate([withheld, power, reactive, switches])


TUNED = VoltVarParams(
    voltages=(1.0265, 1.0382, 1.0406, 1.0523),
    reactive=(0.866, 0.0, 0.0, -0.866),
    response=0.193,
    charge_power=0.427,
    discharge_power=0.482,
    topology=float(units.SUNNY),
)
"""By the search (`python -m benchmarks.tuning power_grid`): all the reactive power that inverters may give, and slowly
less where the voltage comes near its upper limit."""

volt_var = Controller(lambda params, observation: (), _volt_var)
"""Each inverter's reactive power follows its own voltage, batteries a timetable, switches stand as they are set."""
