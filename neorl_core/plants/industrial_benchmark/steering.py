"""How the benchmark is run: velocity and gain are held by set point, and the shift follows the Goldstone automaton."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from neorl_core.plants.industrial_benchmark import goldstone
from neorl_core.plants.industrial_benchmark.goldstone import effective_shift
from neorl_core.types import Controller

STEPS = (1.0, 10.0, math.sin(math.pi / 12) / 0.9 * 100.0 / 5.0)
"""How far an action of 1 moves velocity, gain and shift."""


class SteeringParams(NamedTuple):
    """Where to hold velocity and gain, by set point, and where the shift goes as the automaton turns."""

    setpoints: Any
    """(P,) ascending."""
    steerings: Any
    """(P, 2) velocity, gain."""
    radii: Any
    """(12,) effective shift for each step of a turn of the hat: at home, 1 to 6 outwards, 5 to 1 back; all the same to
    hold the shift."""


def _steer(
    params: SteeringParams, before: goldstone.Automaton, observation: Float[Array, " 6"], applied: Float[Array, " 3"]
) -> tuple[goldstone.Automaton, Float[Array, " 3"]]:
    setpoint, shift = observation[0], observation[3]
    at, radii = (jnp.asarray(x, setpoint.dtype) for x in (params.setpoints, params.radii))
    columns = jnp.asarray(params.steerings, setpoint.dtype).T
    # The automaton is hidden, but it follows from the shifts, all of which were seen.
    automaton = goldstone.turn(before, effective_shift(shift, setpoint))
    outside = goldstone.turn(automaton, jnp.ones_like(shift)).phi
    turn = jnp.where(outside > automaton.phi, outside, 2 * goldstone.TOP - outside)
    radius = radii[jnp.where(outside > 0, turn, 0.0).astype(jnp.int32)]
    wanted = jnp.stack(
        [*(jnp.interp(setpoint, at, column) for column in columns), goldstone.shift_of(radius, setpoint)]
    )
    return automaton, jnp.clip((wanted - observation[1:4]) / jnp.asarray(STEPS, wanted.dtype), -1.0, 1.0)


steer = Controller(lambda params, observation: goldstone.rest(observation.dtype), _steer)
"""Goes to the velocity and gain of the set point and stays there; the shift is held, or goes round with the hat."""
