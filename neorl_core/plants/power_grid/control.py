"""Controllers of the power grid: the volt-var curve of a standard, and where an optimal power flow begins."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from neorl_core.plants.power_grid import units
from neorl_core.types import Controller


class VoltVarParams(NamedTuple):
    """A droop for reactive power and a timetable for batteries."""

    voltages: tuple[float, ...] | Float[Array, " 4"] = (0.96, 1.0, 1.0, 1.04)
    """Corners of the curve [pu]: IEEE 1547-2018, table 8, category B, without its dead band and half as steep
    again, as the table's ranges of settings allow."""
    reactive: tuple[float, ...] | Float[Array, " 4"] = (0.44, 0.0, 0.0, -0.44)
    """Reactive power fed in at the corners, of the inverter's rating [1]."""
    response: float | Float[Array, ""] = 0.5
    """Part of the way to the curve that is gone in a step [1]: at 1, neighbours take turns."""
    charge_power: float | Float[Array, ""] = 0.2
    """MW that each battery takes by night."""
    discharge_power: float | Float[Array, ""] = 0.4
    """MW that each battery gives in the evening."""


def _volt_var(
    params: VoltVarParams, state: tuple[()], observation: Float[Array, " 19"], applied: Float[Array, " 17"]
) -> tuple[tuple[()], Float[Array, " 17"]]:
    corners, values = (jnp.asarray(x, observation.dtype) for x in params[:2])
    before = applied[len(units.UNITS) : 2 * len(units.UNITS)]
    curve = jnp.asarray(units.RATING, observation.dtype) * jnp.interp(observation[10:16], corners, values)
    ahead = units.price(observation[0] + units.DT)
    power = jnp.where(ahead == units.NIGHT_PRICE, -params.charge_power, 0.0)
    power = jnp.broadcast_to(jnp.where(ahead == units.EVENING_PRICE, params.discharge_power, power), (units.BATTERIES,))
    withheld, reactive = jnp.zeros((units.SOLAR,), observation.dtype), before + params.response * (curve - before)
    return state, jnp.concatenate([withheld, power, reactive, observation[5:10]])


volt_var = Controller(lambda params, observation: (), _volt_var)
"""Each inverter's reactive power follows its own voltage, batteries a timetable, and switches stay as they are."""


def _dispatch(
    params: tuple[()], state: tuple[()], observation: Float[Array, " 19"], applied: Float[Array, " 17"]
) -> tuple[tuple[()], Float[Array, " 17"]]:
    hour, energy, efficiency = observation[0], observation[3:5], units.EFFICIENCY
    ahead = units.price(hour + units.DT)
    # What is missing, or left, spread evenly over the cheap, or dear, hours that remain.
    take = (units.BATTERY_MWH - energy) / (efficiency * jnp.maximum((7.0 - hour) % 24.0, units.DT))
    give = energy * efficiency / jnp.maximum(21.0 - hour, units.DT)
    power = jnp.where(ahead == units.NIGHT_PRICE, -jnp.where(hour >= 23.0, units.BATTERY_MW, take), 0.0)
    power = jnp.where(ahead == units.EVENING_PRICE, give, power)
    best = jnp.asarray(units.STARTS[units.BEST_START], observation.dtype)
    reactive = applied[len(units.UNITS) : 2 * len(units.UNITS)]
    return state, jnp.concatenate([jnp.zeros((units.SOLAR,), observation.dtype), power, reactive, best])


dispatch = Controller(lambda params, observation: (), _dispatch)
"""The topology of least losses, batteries by the tariff, reactive power as it is: where the optimal flow begins."""
