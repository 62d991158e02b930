"""The furnace's controller: a PI loop per zone on a table of set points, trimmed by the error at the exit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from neorl_core.plants.base import clip_to
from neorl_core.plants.steel_annealing.furnace import ZONES
from neorl_core.types import Controller, Space

BOOST = (1.0, 0.8, 0.4, 0.1)
"""Excess of each zone over the target, relative to the first zone."""
LOAD = (94.5, 196.0, -82.0)
"""Excess of the first zone over the target [K], by powers of the relative deviation of the load from 36 mm m/min."""


class ZoneParams(NamedTuple):
    """Gains of the zones' PI controllers; nested tuples (hashable) or arrays."""

    kp: Any
    """(Z,), proportional gains [MW/K]."""
    ki: Any
    """(Z,), integral gains [MW/(K min)]."""
    feedforward: Any
    """(Z,), feedforward of changes of the set point [MW/K]."""
    trim: Any
    """(Z,), change of set point per error at the exit [K/K]."""
    lift: Any
    """(Z,), offset of the set points [K]."""


class ZoneState(NamedTuple):
    """State of the loops."""

    error: Float[Array, " Z"]
    """Control error of the previous step [K]."""
    setpoint: Float[Array, " Z"]
    """Set point of the previous step [°C]."""


def setpoints(
    thickness: Float[Array, "*n"], target: Float[Array, "*n"], speed: Float[Array, "*n"], zone: int
) -> Float[Array, "*n"]:
    """Return the table's set point [°C] of a zone.

    Each zone exceeds the target by `BOOST` times a polynomial of the heat load, fitted to the steady states of the
    nominal furnace in which the core leaves at the target.

    Args:
        thickness: (...), thickness of the product [mm].
        target: (...), exit temperature of the product [°C].
        speed: (...), speed of the line [m/min].
        zone: number of the zone, from 0.
    """
    load = thickness * speed / 36.0 - 1.0
    return target + BOOST[zone] * (LOAD[0] + LOAD[1] * load + LOAD[2] * load**2)


def setpoints_of(
    thickness: Float[Array, " 5"], target: Float[Array, " 5"], speed: Float[Array, ""]
) -> Float[Array, " Z"]:
    """Return the table's set points [°C] for the products at the stations, averaged over the ends of each zone."""
    thickness, target = (thickness[1:] + thickness[:-1]) / 2, (target[1:] + target[:-1]) / 2
    return jnp.stack([setpoints(thickness[z], target[z], speed, z) for z in range(ZONES)])


def zone_loops(
    table: Callable[[Float[Array, " O"]], Float[Array, " Z"]], exit: int, target: int, dt: float, powers: Space
) -> Controller:
    """P ← clip(applied + kp (e − e') + ki dt e + f (r − r')), r = table + lift + trim (target − exit).

    Args:
        table: observation -> set points [°C] of the zones; the observation must begin with the zone temperatures [°C].
        exit: index of the exit temperature [°C] in the observation.
        target: index of the target temperature [°C] in the observation.
        dt: control period [min].
        powers: range of the burner powers [MW].

    Returns:
        A controller with parameters `ZoneParams`.
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
