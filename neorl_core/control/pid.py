"""PID control in velocity form, relative to the action that was applied."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from neorl_core.types import Controller


class PIDParams(NamedTuple):
    """Gains, and bounds of the action."""

    kp: float | Float[Array, ""]
    """Proportional gain [action unit per measurement unit]."""
    ki: float | Float[Array, ""]
    """Integral gain [action unit per measurement unit and unit of time]."""
    kd: float | Float[Array, ""]
    """Derivative gain [action unit × unit of time per measurement unit]; acts on the measurement only, so that a change
    of set point causes no kick."""
    low: float | Float[Array, ""]
    high: float | Float[Array, ""]


class PIDState(NamedTuple):
    """Memory of the loop."""

    error: Float[Array, ""]
    """Previous error, in measurement units."""
    measured: Float[Array, ""]
    """Previous measurement."""
    measured_before: Float[Array, ""]
    """Measurement two steps ago."""


def pid(measurement: int | Int[Array, ""], setpoint: int | Int[Array, ""], dt: float | Float[Array, ""]) -> Controller:
    """Build a single-loop PID controller between two components of the observation.

    u_t = clip(applied + kp (e_t − e_{t−1}) + ki dt e_t − kd (y_t − 2 y_{t−1} + y_{t−2}) / dt),  e = setpoint − y

    The action in force, `applied`, contains the integral. So saturation causes no wind-up, and a hand-over causes no
    jump. (Åström and Hägglund: PID Controllers, 2nd edition, 1995, sections 3.3 and 3.5.)

    Args:
        measurement: index of the controlled variable in the observation.
        setpoint: index of the set point in the observation.
        dt: control period, in the unit of time of `ki` and `kd`.

    Returns:
        A controller with parameters `PIDParams` and one action.
    """

    def init(params: PIDParams, observation: Float[Array, " O"]) -> PIDState:
        y = observation[measurement]
        return PIDState(observation[setpoint] - y, y, y)

    def act(
        params: PIDParams, state: PIDState, observation: Float[Array, " O"], applied: Float[Array, " A"]
    ) -> tuple[PIDState, Float[Array, " A"]]:
        y = observation[measurement]
        error = observation[setpoint] - y
        bend = (y - 2 * state.measured + state.measured_before) / dt
        move = params.kp * (error - state.error) + params.ki * dt * error - params.kd * bend
        return PIDState(error, y, state.measured), jnp.clip(applied + move, params.low, params.high)

    return Controller(init, act)


def loops(controllers: tuple[Controller, ...]) -> Controller:
    """Combine single-loop controllers: controller i receives and sets only component i of the action.

    Returns:
        A controller with a tuple of parameters and a tuple of states, one entry per loop.
    """

    def init(params: tuple[Any, ...], observation: Float[Array, " O"]) -> tuple[Any, ...]:
        return tuple(c.init(p, observation) for c, p in zip(controllers, params, strict=True))

    def act(
        params: tuple[Any, ...], state: tuple[Any, ...], observation: Float[Array, " O"], applied: Float[Array, " A"]
    ) -> tuple[tuple[Any, ...], Float[Array, " A"]]:
        acted = [
            c.act(p, s, observation, applied[i : i + 1])
            for i, (c, p, s) in enumerate(zip(controllers, params, state, strict=True))
        ]
        return tuple(memory for memory, _ in acted), jnp.concatenate([action for _, action in acted])

    return Controller(init, act)
