"""Plants that differ from a simulator: other constants, a sensor lag, an actuator dead band, and a delay.

The differences are part of the operating domain, so one compiled program serves all hidden plants of a simulator.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from neorl_core.plants.base import Scalar, clip_to
from neorl_core.types import Params, Plant, Timestep


class Difference(NamedTuple):
    """Differences between a hidden plant and the simulator; the default is no difference."""

    factors: Mapping[str, Scalar]
    """Factor on the nominal value, by constant; NaN if the constant is drawn from the operating domain."""
    lag: Scalar = 0.0
    """Time constant of the lagging sensors, in control steps."""
    dead_band: Scalar = 0.0
    """Change of an action to which the actuator does not react, as a share of the action's range."""
    delay: Scalar = 0.0
    """Further delay of the actions, in control steps: 0 or 1."""


class Domain(NamedTuple):
    """Operating domain of a hidden plant."""

    known: Params
    """Operating domain of the simulator, for everything that the difference does not fix."""
    difference: Difference


class Constants(NamedTuple):
    """Constants of a hidden plant."""

    known: Params
    difference: Difference


class State(NamedTuple):
    """State of a hidden plant."""

    known: Params
    """True state of the process."""
    shown: Float[Array, " O"]
    """Last values of the sensors."""
    waiting: Float[Array, " A"]
    """Last command, which a delayed actuator receives in the next step."""
    position: Float[Array, " A"]
    """Position of the actuator."""


def lagged(shown: Float[Array, " O"], true: Float[Array, " O"], lag: Scalar) -> Float[Array, " O"]:
    """Return the values of sensors with first-order lag after a step: y + (1 − exp(−1/τ)) (x − y).

    Args:
        shown: (O,), values y before the step.
        true: (O,), values x after the step.
        lag: time constant τ in steps; 0 returns x.
    """
    slow = jnp.asarray(lag) > 0
    share = jnp.where(slow, -jnp.expm1(-1.0 / jnp.where(slow, lag, 1.0)), 1.0)
    return jnp.where(slow, shown + share * (true - shown), true)


def moved(position: Float[Array, " A"], command: Float[Array, " A"], band: Float[Array, " A"]) -> Float[Array, " A"]:
    """Return the position of an actuator with a dead band: the command, or the old position if it is within the band.

    Args:
        position: (A,), position before the step.
        command: (A,), commanded position.
        band: (A,), largest change to which the actuator does not react, in the action's unit.
    """
    return jnp.where(jnp.abs(command - position) > band, command, position)


@cache
def hide(plant: Plant, lagging: tuple[str, ...]) -> Plant:
    """Return a plant that differs from a simulator by the `Difference` in its operating domain.

    Reward and margins belong to the true process; the observation contains the values of the sensors. A command passes
    the delay, then the dead band. Without a difference, the plant equals the simulator. Pass a `Domain` as domain; the
    plant has no default domain.

    Args:
        lagging: names of the signals with lagging sensors.

    Raises:
        ValueError: if the plant has no such signal.
    """
    if unknown := set(lagging) - set(plant.spec.observation.names):
        raise ValueError(f"{plant.spec.name} has no signal {min(unknown)}: choose of {plant.spec.observation.names}")
    slow = jnp.asarray([name in lagging for name in plant.spec.observation.names])
    width = np.asarray(plant.spec.action.high) - np.asarray(plant.spec.action.low)

    def sample_params(key: PRNGKeyArray, domain: Domain) -> Constants:
        drawn = plant.sample_params(key, domain.known)
        fixed = {}
        for name, factor in domain.difference.factors.items():
            usual = jnp.asarray(getattr(drawn, name))
            fixed[name] = jnp.where(jnp.isnan(factor), usual, factor * jnp.asarray(getattr(plant.params, name)))
        return Constants(drawn._replace(**fixed), domain.difference)

    def reset(key: PRNGKeyArray, constants: Constants) -> tuple[State, Float[Array, " O"]]:
        state, observation = plant.reset(key, constants.known)
        at = clip_to(plant.spec.action, plant.applied(observation))
        return State(state, observation, at, at), observation

    def step(
        key: PRNGKeyArray, state: State, action: Float[Array, " A"], constants: Constants
    ) -> tuple[State, Timestep]:
        difference = constants.difference
        command = clip_to(plant.spec.action, action)
        received = jnp.where(jnp.asarray(difference.delay) > 0, state.waiting, command)
        position = moved(state.position, received, difference.dead_band * jnp.asarray(width, command.dtype))
        known, now = plant.step(key, state.known, position, constants.known)
        shown = jnp.where(slow, lagged(state.shown, now.observation, difference.lag), now.observation)
        return State(known, shown, command, position), now._replace(observation=shown)

    return plant._replace(domain=(), sample_params=sample_params, reset=reset, step=step, resume=None)


class Recentred(NamedTuple):
    """Operating domain in which estimated constants are known better, or elsewhere, than in the simulator's domain."""

    known: Params
    """Operating domain of the simulator."""
    centre: Mapping[str, Float[Array, " *n"]]
    """Factor on the drawn value, by constant: the estimate relative to the nominal value."""
    deviation: Mapping[str, Float[Array, " *n"]]
    """Standard deviation of the logarithm of a further factor, by constant: the uncertainty of the estimate."""


@cache
def recentre(plant: Plant) -> Plant:
    """Return a plant with an operating domain of the type `Recentred`; with factors of 1, it equals the simulator.

    c' = c · centre · exp(deviation · w), with the drawn value c and w ~ N(0, 1)
    """

    def sample_params(key: PRNGKeyArray, domain: Recentred) -> Params:
        drawn = plant.sample_params(key, domain.known)
        moved = {}
        for i, name in enumerate(domain.centre):
            value = jnp.asarray(getattr(drawn, name))
            away = jax.random.normal(jax.random.fold_in(key, 1_000 + i), value.shape, value.dtype)
            moved[name] = value * domain.centre[name] * jnp.exp(domain.deviation[name] * away)
        return drawn._replace(**moved)

    return plant._replace(sample_params=sample_params, domain=())
