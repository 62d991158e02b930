"""Copies of a plant that run in parallel and restart when an episode ends, for learners without gradients.

For continuous actions, a policy observes the action and the state of the plant's controller, and corrects the action
(`analytic_gradient` learns policies of the same kind). For discrete actions, it observes the plant and makes the whole
choice.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from neorl_core.networks import Normaliser
from neorl_core.online.learner import OBSERVED, least_margins, observe
from neorl_core.plants.base import Trajectory, clip_to, rollouts
from neorl_core.safety.composite import correction_inputs
from neorl_core.types import Controller, Params, Plant, varies


class Copy(NamedTuple):
    """A copy of the plant, before the policy acts."""

    constants: Params
    state: Params
    memory: Params
    """State of the plant's controller; empty for discrete actions."""
    command: Params
    """(A,), action of the plant's controller; empty for discrete actions."""
    inputs: Float[Array, " I"]
    """Inputs of the policy, in physical units."""
    time: Int[Array, ""]


class Moved(NamedTuple):
    """Result of a step of a copy."""

    copy: Copy
    """The copy after the step, or a new start if the episode has ended."""
    after: Float[Array, " I"]
    """Inputs of the policy after the step, before a new start."""
    score: Float[Array, ""]
    """Points of score of the step."""
    penalty: Float[Array, ""]
    """Σ relu(1 − margin/least)² over the limits."""
    terminated: Bool[Array, ""]
    ended: Bool[Array, ""]
    """Whether the step ended the episode, also by the time limit."""


class Scales(NamedTuple):
    """Scales of the inputs and values of networks, from first episodes."""

    normaliser: Normaliser
    value_mean: Float[Array, ""]
    value_scale: Float[Array, ""]
    """Mean and standard deviation of the discounted returns, in points of score."""


def point(plant: Plant) -> float:
    """Return the points of score for a reward of 1."""
    low, high = plant.spec.score_range
    return 100.0 / (high - low)


def start(plant: Plant, key: PRNGKeyArray) -> Copy:
    """Start an episode with constants from the operating domain."""
    constants_key, reset_key = jax.random.split(key)
    constants = plant.sample_params(constants_key, plant.domain)
    state, observation = plant.reset(reset_key, constants)
    memory: Params = ()
    if plant.spec.choices is None:
        memory = plant.fallback.init(plant.fallback_params, observation)
    found = Copy(constants, state, *_seen(plant, memory, observation, plant.applied(observation)), jnp.int32(0))
    # Python numbers of a plant have weak types, which a step would change: the program would be compiled twice.
    strong: Copy = jax.tree.map(lambda x: jnp.asarray(x, jnp.asarray(x).dtype), found)
    return strong


def move(plant: Plant, copy: Copy, action: Float[Array, " A"], key: PRNGKeyArray, margin: float) -> Moved:
    """Take a step with an action, and restart if the episode ends.

    Args:
        margin: margin below which the step is penalised, as for `least_margins`.
    """
    step_key, start_key = jax.random.split(key)
    action = clip_to(plant.spec.action, action)
    state, now = plant.step(step_key, copy.state, action, copy.constants)
    following = Copy(
        copy.constants, state, *_seen(plant, copy.memory, now.observation, action), copy.time + jnp.int32(1)
    )
    ended = now.terminated | now.truncated | (following.time >= plant.spec.horizon)
    lack = jax.nn.relu(1.0 - now.margins / least_margins(plant.spec, margin))
    fresh = start(plant, start_key)
    return Moved(
        copy=jax.tree.map(lambda new, old: jnp.where(ended, new, old), fresh, following),
        after=following.inputs,
        score=now.reward * point(plant),
        penalty=jnp.sum(lack**2),
        terminated=now.terminated,
        ended=ended,
    )


def _seen(plant: Plant, memory: Params, observation: Array, applied: Array) -> tuple[Params, Params, Array]:
    """Return state and action of the plant's controller, and the inputs of the policy."""
    if plant.spec.choices is not None:
        return (), (), observation
    memory, command = plant.fallback.act(plant.fallback_params, memory, observation, applied)
    command = clip_to(plant.spec.action, command)
    return memory, command, correction_inputs(observation, memory, command)


def scales(plant: Plant, key: PRNGKeyArray, discount: float) -> Scales:
    """Run episodes of the plant's controller, or of random choices for discrete actions, and return the scales."""
    keys = jax.random.split(key, OBSERVED)
    if plant.spec.choices is None:
        normaliser = observe(plant, key)
        seen = rollouts(plant, plant.fallback, plant.fallback_params, keys, plant.domain, trace=True).trajectory
        assert seen is not None
    else:
        seen = rollouts(plant, _random(plant.spec.acting), key, keys, plant.domain, trace=True).trajectory
        assert seen is not None
        normaliser = _whole_choices(plant, seen)
    values = _returns(plant, seen, discount)
    mean, deviation = values.mean(), values.std()
    scale = deviation if varies(mean, deviation) else 1.0
    return Scales(normaliser, jnp.float32(mean), jnp.float32(scale))


@lru_cache(maxsize=16)
def _random(count: int) -> Controller:
    """Return a controller that takes each of `count` choices with equal probability; its parameters are a key."""

    def act(key: PRNGKeyArray, state: Params, observation: Array, applied: Array) -> Any:
        # Episodes differ by their observations only.
        words = jax.lax.bitcast_convert_type(jnp.sum(observation), jnp.uint32)
        drawn = jax.random.randint(jax.random.fold_in(key, words), (1,), 0, count)
        return state, drawn.astype(observation.dtype)

    return Controller(lambda key, observation: (), act)


def _whole_choices(plant: Plant, seen: Trajectory) -> Normaliser:
    """Return the normaliser of a policy that makes whole choices."""
    rows = np.asarray(seen.observations, np.float64)[np.asarray(seen.alive)]
    mean, deviation = rows.mean(0), rows.std(0)
    low, high = (np.asarray(bound) for bound in plant.spec.action[2:])
    scale = np.where(varies(mean, deviation), deviation, 1.0)
    found = (jnp.asarray(x, jnp.float32) for x in (mean, scale, (low + high) / 2, (high - low) / 2))
    observed, deviated, centre, half = found
    return Normaliser(observed, deviated, centre, half, jnp.arange(plant.spec.acting, dtype=jnp.float32))


def _returns(plant: Plant, seen: Trajectory, discount: float) -> Float[np.ndarray, " n"]:
    """Return the discounted return from every step of the episodes on, in points of score."""
    points = np.asarray(seen.rewards, np.float64) * point(plant)
    for t in range(points.shape[1] - 2, -1, -1):
        points[:, t] += discount * points[:, t + 1]
    found: Float[np.ndarray, " n"] = points[np.asarray(seen.alive)]
    return found
