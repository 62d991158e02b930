"""Thermostats: a set point by the clock, and a PI controller in each zone."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from neorl_core.plants.base import AnyArray
from neorl_core.types import Controller

DT = 0.25
"""Length of a control step [h]."""
AIR = slice(4, 7)
"""Zone temperatures in the observation."""
COMFORT_LOW, COMFORT_HIGH, AWAY_HIGH = 21.0, 25.0, 27.0
"""Comfort limits [°C]; the last while most people are out."""
LEAVE, RETURN = 9.0, 16.0
"""Hours between which the record's occupancy falls to half [h]."""


def comfort_band(hour: Float[AnyArray, "*n"]) -> tuple[Float[Array, "*n"], Float[Array, "*n"]]:
    """Lowest and highest comfortable temperature [°C] of the interval that ends at this hour."""
    hour = jnp.asarray(hour)
    high = jnp.where((hour > LEAVE) & (hour <= RETURN), AWAY_HIGH, COMFORT_HIGH).astype(hour.dtype)
    return jnp.full_like(hour, COMFORT_LOW), high


class ThermostatParams(NamedTuple):
    """Gains of each zone's PI controller, and timetable of the set point."""

    kp: float | Float[Array, ""] = 1.5
    """Proportional gain [kW/K]."""
    ki: float | Float[Array, ""] = 1.0
    """Integral gain [kW/(K h)]."""
    below: float | Float[Array, ""] = 0.4
    """Distance of the set point below the upper comfort limit [K]."""
    ahead: float | Float[Array, ""] = 1.0
    """Time before people return at which the set point falls [h]."""


class ThermostatState(NamedTuple):
    """State of the PI controllers."""

    error: Float[Array, " 3"]
    """Control error of each zone in the previous step [K]."""


def setpoint(hour: Float[Array, ""], params: ThermostatParams) -> Float[Array, ""]:
    """Set point [°C]: the lower of the present upper comfort limit and the one `ahead` hours later, minus `below`."""
    now, then = comfort_band(hour + DT)[1], comfort_band(hour + params.ahead)[1]
    return jnp.minimum(now, then) - params.below


def _init(params: ThermostatParams, observation: Float[Array, " 13"]) -> ThermostatState:
    return ThermostatState(observation[AIR] - setpoint(observation[0], params))


def _act(
    params: ThermostatParams, state: ThermostatState, observation: Float[Array, " 13"], applied: Float[Array, " 3"]
) -> tuple[ThermostatState, Float[Array, " 3"]]:
    error = observation[AIR] - setpoint(observation[0], params)
    move = params.kp * (error - state.error) + params.ki * DT * error
    # `applied` is the command after clipping by the plant, so the integral does not wind up.
    return ThermostatState(error), jnp.maximum(applied + move, 0.0)


thermostat = Controller(_init, _act)
"""PI control of each zone in velocity form, with a set-back while people are out."""
