"""A furnace's own control: a PI loop for each zone on a table of set points, trimmed by the error at the exit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from neorl_core.plants.base import clip_to
from neorl_core.types import Controller, Space


class ZoneParams(NamedTuple):
    """Gains of the zones' PI controllers; nested tuples (hashable) or arrays."""

    kp: Any
    """(Z,) MW/K"""
    ki: Any
    """(Z,) MW/(K min)"""
    feedforward: Any
    """(Z,) share of a change of set point that moves the table at once, MW/K."""
    trim: Any
    """(Z,) K of set point per K of error at the exit."""
    lift: Any
    """(Z,) K added to the table's set points."""


class ZoneState(NamedTuple):
    error: Float[Array, " Z"]
    """One step ago [K]."""
    setpoint: Float[Array, " Z"]
    """One step ago [°C]."""


def zone_loops(
    table: Callable[[Float[Array, " O"]], Float[Array, " Z"]], exit: int, target: int, dt: float, powers: Space
) -> Controller:
    """P ← clip(applied + kp (e − e') + ki dt e + f (r − r')), r = table + lift + trim (target − exit).

    Args:
        table: observation -> set points [°C] of the zones, whose temperatures [°C] are the first of the observation.
        exit: which component is the temperature [°C] at the exit.
        target: which component is the one that is wanted there [°C].
        dt: control period [min].
        powers: what the loops move [MW].

    Returns:
        A controller with `ZoneParams` for parameters.
    """
    zones = powers.size

    def wanted(params: ZoneParams, observation: Float[Array, " O"]) -> Float[Array, " Z"]:
        trim, lift = (jnp.asarray(x, observation.dtype) for x in (params.trim, params.lift))
        return table(observation) + lift + trim * (observation[target] - observation[exit])

    def init(params: ZoneParams, observation: Float[Array, " O"]) -> ZoneState:
        setpoint = wanted(params, observation)
        return ZoneState(setpoint - observation[:zones], setpoint)

    def act(
        params: ZoneParams, state: ZoneState, observation: Float[Array, " O"], applied: Float[Array, " Z"]
    ) -> tuple[ZoneState, Float[Array, " Z"]]:
        kp, ki, feedforward = (jnp.asarray(x, observation.dtype) for x in params[:3])
        setpoint = wanted(params, observation)
        error = setpoint - observation[:zones]
        move = kp * (error - state.error) + ki * dt * error + feedforward * (setpoint - state.setpoint)
        return ZoneState(error, setpoint), clip_to(powers, applied + move)

    return Controller(init, act)
