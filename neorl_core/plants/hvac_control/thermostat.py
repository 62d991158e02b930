"""What a house's thermostats do: a set point by the clock, and a PI controller in each zone."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from neorl_core.plants.base import AnyArray
from neorl_core.types import Controller

DT = 0.25
"""Length of a control step [h]."""
AIR = slice(4, 7)
"""Zones' temperatures in the observation."""
COMFORT_LOW, COMFORT_HIGH, AWAY_HIGH = 21.0, 25.0, 27.0
"""°C; the last while most people are out."""
LEAVE, RETURN = 9.0, 16.0
"""h; the record's occupants fall to half between these."""


def comfort_band(hour: Float[AnyArray, "*n"]) -> tuple[Float[Array, "*n"], Float[Array, "*n"]]:
    """Lowest and highest comfortable temperature [°C] in the interval that ends at this hour."""
    hour = jnp.asarray(hour)
    high = jnp.where((hour > LEAVE) & (hour <= RETURN), AWAY_HIGH, COMFORT_HIGH).astype(hour.dtype)
    return jnp.full_like(hour, COMFORT_LOW), high


class ThermostatParams(NamedTuple):
    """Gains of each zone's PI controller, and its timetable."""

    kp: float | Float[Array, ""] = 1.5
    """Proportional gain [kW/K]."""
    ki: float | Float[Array, ""] = 1.0
    """kW/(K h)"""
    below: float | Float[Array, ""] = 0.4
    """How far the set point lies below the comfort band's upper end [K]."""
    ahead: float | Float[Array, ""] = 1.0
    """How long before people return the set point falls [h]."""


class ThermostatState(NamedTuple):
    """What the thermostats remember of the step before."""

    error: Float[Array, " 3"]
    """Control error of each zone in the step before [K]."""


def setpoint(hour: Float[Array, ""], params: ThermostatParams) -> Float[Array, ""]:
    """°C at this hour: the upper end of the band that holds now and of the one that will, whichever is lower."""
    now, then = comfort_band(hour + DT)[1], comfort_band(hour + params.ahead)[1]
    return jnp.minimum(now, then) - params.below


def _init(params: ThermostatParams, observation: Float[Array, " 13"]) -> ThermostatState:
    return ThermostatState(observation[AIR] - setpoint(observation[0], params))


def _act(
    params: ThermostatParams, state: ThermostatState, observation: Float[Array, " 13"], applied: Float[Array, " 3"]
) -> tuple[ThermostatState, Float[Array, " 3"]]:
    error = observation[AIR] - setpoint(observation[0], params)
    move = params.kp * (error - state.error) + params.ki * DT * error
    # The plant clips what an actuator cannot do; `applied` then tells, so that the integral does not wind up.
    return ThermostatState(error), jnp.maximum(applied + move, 0.0)


thermostat = Controller(_init, _act)
"""PI control of each zone in velocity form, with a set-back while people are out."""
