"""Logs of an imperfect dispatcher, and loads for the comparison."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from neorl_core.plants.power_grid.feeder import Feeder
from neorl_core.plants.power_grid.radial import radial
from neorl_core.plants.power_grid.switching import Domain, Params, split_observation, switching_plant
from neorl_core.types import Plant, Transition

ERRORS = (0.1, 0.5, 1.5)
"""Standard deviation of the dispatcher's error in the logarithm of a line's load; each is for a third of the days."""
DOMAIN = Domain()


class Case(NamedTuple):
    """Loads to decide on, one per row."""

    observation: np.ndarray
    active: np.ndarray
    reactive: np.ndarray
    params: Params


def loops(feeder: Feeder) -> tuple[np.ndarray, np.ndarray]:
    """Return two halves of the lines on loops: those that fail in the logs, and those that never fail there."""
    lines = np.flatnonzero(np.abs(feeder.loops).sum(0))
    return lines[::2], lines[1::2]


def _day_of(plant: Plant, key: jax.Array, lines: np.ndarray, share: float) -> Params:
    key_day, key_share, key_line = jax.random.split(key, 3)
    params: Params = plant.sample_params(key_day, plant.domain)
    line = jnp.asarray(lines)[jax.random.randint(key_line, (), 0, len(lines))]
    return params._replace(outage=jnp.where(jax.random.uniform(key_share) < share, line, -1).astype(float))


def logs(plant: Plant, feeder: Feeder, days: int, seed: int) -> Transition:
    """Play days of 24 decisions of a dispatcher, who opens the lines with the least estimated load."""
    lines = loops(feeder)[0]

    def day(key: jax.Array) -> Any:
        key_day, key_reset, key_error, key_steps = jax.random.split(key, 4)
        params = _day_of(plant, key_day, lines, 0.5)
        error = jnp.asarray(ERRORS)[jax.random.randint(key_error, (), 0, len(ERRORS))]

        def hour(carry: Any, key: jax.Array) -> Any:
            (state, observation), (key_now, key_step) = carry, jax.random.split(key)
            now = split_observation(feeder, observation)
            taken = now.meshed * jnp.exp(error * jax.random.normal(key_now, now.meshed.shape))
            opened = radial(jnp.where(now.in_service > 0.5, -taken, jnp.inf), feeder).opened
            action = 2.0 * opened - 1.0
            state, after = plant.step(key_step, state, action, params)
            row = observation, action, after.reward, after.observation, after.terminated
            return (state, after.observation), row

        return jax.lax.scan(hour, plant.reset(key_reset, params), jax.random.split(key_steps, plant.spec.horizon))[1]

    found = jax.jit(lambda keys: jax.lax.map(day, keys, batch_size=32))(jax.random.split(jax.random.key(seed), days))
    observation, action, reward, following, terminated = (np.asarray(x) for x in found)
    # Discard hours after a blackout.
    lit = np.cumsum(terminated, axis=1) - terminated == 0
    zero = np.zeros(lit.sum(), np.float32)
    ended = terminated[lit].astype(np.float32)
    return Transition(observation[lit], action[lit], reward[lit], zero, following[lit], ended)


def cases(plant: Plant, feeder: Feeder, lines: np.ndarray, share: float, count: int, seed: int) -> Case:
    """Return `count` loads from separate days; in a `share` of them one of `lines` is out of service."""

    def one(key: jax.Array) -> Any:
        key_day, key_reset = jax.random.split(key)
        params = _day_of(plant, key_day, lines, share)
        # At midnight all loads are near 72 % of the peak, so scale them over the whole range. Leave out noise.
        params = params._replace(load_scale=params.load_scale / 0.72, meter_noise=0.0)
        _, observation = plant.reset(key_reset, params)
        return observation, params

    observation, params = jax.jit(jax.vmap(one))(jax.random.split(jax.random.key(seed), count))
    now = split_observation(feeder, observation)
    every = jax.tree.map(lambda x: np.broadcast_to(np.asarray(x), (count, *np.shape(x)[1:])), params)
    return Case(np.asarray(observation), np.asarray(now.active), np.asarray(now.reactive), every)


def plant_of(feeder: Feeder) -> Plant:
    """Return the plant of the study."""
    return switching_plant(feeder, 1.04 if feeder.name == "case118zh" else 1.02, DOMAIN)
