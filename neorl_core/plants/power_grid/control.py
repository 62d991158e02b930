"""The feeder's own controller: a standard volt-var curve, a timetable for batteries, and a fixed topology.

Shapley values of the three over 1,000 days of the tuned controller (`python -m benchmarks.tuning.levers`): batteries
418 $ a day (42 %), reactive power 486 $ (49 %), switching 81 $ (8 %). Without switching 673 of the days violate a
limit, with switching none.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from neorl_core.plants.power_grid import units
from neorl_core.types import Controller


class VoltVarParams(NamedTuple):
    """Volt-var curve, timetable for batteries, and topology."""

    voltages: tuple[float, ...] | Float[Array, " 4"] = (0.96, 1.0, 1.0, 1.04)
    """Corners of the curve [pu]: IEEE 1547-2018, table 8, category B, without dead band and half as steep again, within
    the table's ranges of settings."""
    reactive: tuple[float, ...] | Float[Array, " 4"] = (0.44, 0.0, 0.0, -0.44)
    """Reactive power at the corners, relative to the inverter's rating [1]; 0.44 is the maximum."""
    response: float | Float[Array, ""] = 0.5
    """Share of the distance to the curve covered per step [1]; at 1, neighbours oscillate."""
    charge_power: float | Float[Array, ""] = 0.2
    """Charging power of each battery at night [MW]."""
    discharge_power: float | Float[Array, ""] = 0.4
    """Discharging power of each battery in the evening [MW]."""
    topology: float | Float[Array, ""] = 1.0
    """Index into `units.TOPOLOGIES`, rounded down; below 0 the switches do not move. The default is the paper's best
    topology, without sun."""


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
"""By the search (`python -m benchmarks.tuning power_grid`): all reactive power that inverters can supply, slowly
reduced where the voltage approaches the upper limit."""

volt_var = Controller(lambda params, observation: (), _volt_var)
"""Reactive power follows each inverter's voltage, batteries follow a timetable, and the topology is fixed."""
