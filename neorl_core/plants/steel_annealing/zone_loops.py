"""A furnace's own control: a PI loop for each zone on a table of set points, trimmed by the error at the exit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from neorl_core.plants.base import clip_to
from neorl_core.plants.steel_annealing.furnace import ZONES
from neorl_core.types import Controller, Space

BOOST = (1.0, 0.8, 0.4, 0.1)
"""How much hotter than the target each zone is, relative to the first."""
LOAD = (94.5, 196.0, -82.0)
"""Excess of the first zone over the target [K], by powers of the load's relative deviation from 36 mm m/min."""


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
    """What the loops remember of the step before."""

    error: Float[Array, " Z"]
    """Control error of the step before [K]."""
    setpoint: Float[Array, " Z"]
    """Set point of the step before [°C]."""


def setpoints(
    thickness: Float[Array, "*n"], target: Float[Array, "*n"], speed: Float[Array, "*n"], zone: int
) -> Float[Array, "*n"]:
    """The furnace's table: zone temperature [°C] for a product's thickness [mm] and target [°C] at a speed [m/min].

    Each zone is as far above the target as `BOOST` says, in proportion to a polynomial of the heat load, which was
    fitted to the steady states of the nominal furnace whose plate leaves with its core at the target.

    Args:
        thickness: (...), thickness of the product [mm].
        target: (...), its exit temperature [°C].
        speed: (...), speed of the line [m/min].
        zone: number of the zone, from 0.
    """
    load = thickness * speed / 36.0 - 1.0
    return target + BOOST[zone] * (LOAD[0] + LOAD[1] * load + LOAD[2] * load**2)


def setpoints_of(
    thickness: Float[Array, " 5"], target: Float[Array, " 5"], speed: Float[Array, ""]
) -> Float[Array, " Z"]:
    """The table's zone temperatures [°C] for what stands at the stations: each zone between its two.

    Args:
        thickness: (5,), thickness of the product [mm].
        target: (5,), its exit temperature [°C].
        speed: speed of the line [m/min].
    """
    thickness, target = (thickness[1:] + thickness[:-1]) / 2, (target[1:] + target[:-1]) / 2
    return jnp.stack([setpoints(thickness[z], target[z], speed, z) for z in range(ZONES)])


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
