"""Copies of a plant that run in parallel and restart when an episode ends, for learners without gradients."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from neorl_core.online.learner import Setting, composite_of, shortfalls
from neorl_core.plants.base import clip_to
from neorl_core.safety.composite import (
    PolicyState,
    composite_controller,
    correction_inputs,
    make_composite,
    unshielded_controller,
)
from neorl_core.safety.shield import dwell_count
from neorl_core.types import Params, Plant


class Copy(NamedTuple):
    """A copy of the plant, before the policy acts."""

    constants: Params
    state: Params
    observation: Float[Array, " O"]
    applied: Float[Array, " A"]
    """Action in force."""
    memory: PolicyState
    """State of the composite, before it receives the observation."""
    inputs: Float[Array, " I"]
    """Inputs of the policy, in physical units."""
    time: Int[Array, ""]


class Moved(NamedTuple):
    """Result of a step of a copy."""

    copy: Copy
    """The copy after the step, or a new start if the episode has ended."""
    after: Copy
    """The copy after the step, before a new start."""
    score: Float[Array, ""]
    """Points of score of the step."""
    penalty: Float[Array, ""]
    """Σ relu(1 − margin/least)² over the limits."""
    violated: Bool[Array, ""]
    ended: Bool[Array, ""]
    """Whether the step ended the episode, also by the time limit."""


def points(plant: Plant, reward: Float[Array, "*n"]) -> Float[Array, "*n"]:
    """Return rewards in points of score."""
    low, high = plant.spec.score_range
    return reward * (100.0 / (high - low))


def start(setting: Setting, key: PRNGKeyArray) -> Copy:
    """Start an episode with constants from the operating domain."""
    plant = setting.plant
    constants_key, reset_key = jax.random.split(key)
    constants = plant.sample_params(constants_key, plant.domain)
    state, observation = plant.reset(reset_key, constants)
    applied = plant.applied(observation)
    memory = composite_controller(plant).init(make_composite(plant, shield=setting.shield), observation)
    inputs = _inputs(plant, memory, observation, applied)
    found = Copy(constants, state, observation, applied, memory, inputs, jnp.int32(0))
    # Python numbers of a plant have weak types, which a step would change: the program would be compiled twice.
    strong: Copy = jax.tree.map(lambda x: jnp.asarray(x, jnp.asarray(x).dtype), found)
    return strong


def move(setting: Setting, copy: Copy, output: Float[Array, " U"], key: PRNGKeyArray, protected: bool) -> Moved:
    """Take a step with an output of the policy's network, and restart if the episode ends.

    Args:
        output: (U,), output of the network before the tanh, or a preference of each discrete choice.
        protected: whether the composite acts, or the policy without the shield.
    """
    plant, config = setting.plant, setting.config
    step_key, start_key = jax.random.split(key)
    # A network without weights gives its last bias at every observation.
    alone = {"Dense_0": {"kernel": jnp.zeros((len(copy.inputs), len(output))), "bias": output}}
    composite = composite_of(alone, setting)
    if protected:
        memory, command = composite_controller(plant).act(composite, copy.memory, copy.observation, copy.applied)
        action = clip_to(plant.spec.action, command)
    else:
        before = copy.memory.fallback, ()
        (fallback, _), command = unshielded_controller(plant).act(composite, before, copy.observation, copy.applied)
        action = clip_to(plant.spec.action, command)
        since = dwell_count(setting.shield, copy.memory.since, copy.applied, action)
        memory = copy.memory._replace(fallback=fallback, action=action, since=since)
    state, now = plant.step(step_key, copy.state, action, copy.constants)
    inputs = _inputs(plant, memory, now.observation, action)
    after = Copy(copy.constants, state, now.observation, action, memory, inputs, copy.time + jnp.int32(1))
    ended = now.terminated | now.truncated | (after.time >= plant.spec.horizon)
    fresh = start(setting, start_key)
    return Moved(
        copy=jax.tree.map(lambda new, old: jnp.where(ended, new, old), fresh, after),
        after=after,
        score=points(plant, now.reward),
        penalty=jnp.sum(shortfalls(now.margins, setting.shield, config.margin) ** 2),
        violated=jnp.any(now.margins < 0),
        ended=ended,
    )


def known(plant: Plant, copy: Copy) -> Float[Array, " V"]:
    """Return everything that determines the future of a copy: true state, constants, memories and time."""
    everything = copy.inputs, copy.state, copy.constants, copy.memory, copy.time / plant.spec.horizon
    leaves = [jnp.ravel(leaf).astype(copy.inputs.dtype) for leaf in jax.tree.leaves(everything)]
    return jnp.nan_to_num(jnp.concatenate(leaves), posinf=0.0, neginf=0.0)


def _inputs(plant: Plant, memory: PolicyState, observation: Array, applied: Array) -> Array:
    following, command = plant.fallback.act(plant.fallback_params, memory.fallback, observation, applied)
    command = clip_to(plant.spec.action, command)
    if plant.spec.choices is not None:
        command = jnp.round(command)
    return correction_inputs(observation, following, command)
