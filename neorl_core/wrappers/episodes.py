"""Episodes of a plant, one step at a time: pure programs and helpers shared by the environments of this package."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, NamedTuple

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from jax._src import xla_bridge  # JAX has no public way to ask whether a backend is running.
from jaxtyping import Array, Float, Int, UInt32

from neorl_core.history import parse_history, stack_first, stack_next, stacked_spec
from neorl_core.plants import PLANTS
from neorl_core.plants.base import clip_to
from neorl_core.types import Constraint, History, Params, Plant, PlantSpec, Space, Timestep


class Running(NamedTuple):
    """State of an episode; for N plants every array has the leading axis N."""

    root: UInt32[Array, "*n 2"]
    """Key data of the seed."""
    episode: Int[Array, "*n"]
    """Number of the episode since the seed, folded into the root."""
    state: Any
    params: Params
    """Constants of the plant, drawn for this episode."""
    steps: UInt32[Array, "*n 2"]
    """Key data of the steps."""
    step: Int[Array, "*n"]
    seen: Any = ()
    """(*n, S), last observation with history, if any."""


def plant_of(plant: str | Plant) -> Plant:
    """Look up a plant by name; a plant is returned as it is.

    Raises:
        ValueError: on an unknown name.
    """
    if isinstance(plant, Plant):
        return plant
    if plant not in PLANTS:
        raise ValueError(f"'{plant}' is not a plant: use one of {', '.join(PLANTS)}")
    return PLANTS[plant]


def domain_of(plant: Plant, changes: Mapping[str, float] | None) -> Params:
    """Return the plant's operating domain with some values replaced.

    Contains no JAX arrays: a process that only builds environments does not start JAX, and may be forked.

    Raises:
        ValueError: on a name that the domain does not have.
    """
    unknown = set(changes or {}) - set(plant.domain._fields)
    if unknown:
        raise ValueError(
            f"{plant.spec.name} does not have the domain values {sorted(unknown)}: use "
            f"{', '.join(plant.domain._fields)}"
        )
    return plant.domain._replace(**(changes or {}))


def observed_spec(plant: Plant, history: Mapping[str, int] | None) -> PlantSpec:
    """Return the plant's spec with a number of earlier values, by name of a signal or action.

    Raises:
        ValueError: on an unknown name or an invalid number of steps.
    """
    return stacked_spec(plant.spec, parse_history(history or {}, plant.spec))


def draw_root(generator: np.random.Generator) -> UInt32[np.ndarray, " 2"]:
    """Draw the data of a key from a generator."""
    return generator.integers(0, 2**32, 2, np.uint32)


def box(space: Space, indices: tuple[int, ...] | None = None) -> gymnasium.spaces.Box:
    """Return the range of a vector, or of some components, in physical units."""
    chosen = list(range(space.size) if indices is None else indices)
    low, high = (np.asarray(x, np.float32)[chosen] for x in (space.low, space.high))
    return gymnasium.spaces.Box(low, high, dtype=np.float32)


def action_box(space: Space, physical: bool, indices: tuple[int, ...] | None = None) -> gymnasium.spaces.Box:
    """Return the range of an action: the actuators' range, or -1 to 1."""
    bounds = box(space, indices)
    return bounds if physical else gymnasium.spaces.Box(-1.0, 1.0, bounds.shape, np.float32)


def action_space(spec: PlantSpec, physical: bool) -> gymnasium.Space[Any]:
    """Return the action space of an environment: `action_box`, or the choices of a discrete action."""
    return action_box(spec.action, physical) if spec.choices is None else gymnasium.spaces.Discrete(len(spec.choices))


def to_command(spec: PlantSpec, action: Float[Array, " A"], physical: bool) -> Float[Array, " A"]:
    """Return the physical command of an action: middle + half range · clip(action, -1, 1), or the action itself."""
    if physical or spec.choices is not None:
        return action
    low, high = (jnp.asarray(x, action.dtype) for x in (spec.action.low, spec.action.high))
    return (low + high) / 2 + (high - low) / 2 * jnp.clip(action, -1.0, 1.0)


def start(
    plant: Plant, history: History | None, domain: Params, root: UInt32[Array, " 2"], episode: Int[Array, ""]
) -> Any:
    """Start episode number `episode` of a root key, with the keys of `plants.base.rollouts`.

    Returns:
        The running episode, and the observation (S,) clipped to the sensors' range, with history.
    """
    key = jax.random.fold_in(jax.random.wrap_key_data(root, impl="threefry2x32"), episode)
    key_constants, key_run = jax.random.split(key)
    params = plant.sample_params(key_constants, domain)
    key_reset, key_steps = jax.random.split(key_run)
    state, observation = plant.reset(key_reset, params)
    shown = clip_to(plant.spec.observation, observation)
    # The observation space is float32, at any precision of the plant.
    seen = stack_first(history, shown, clip_to(plant.spec.action, plant.applied(shown))).astype(jnp.float32)
    kept = () if history is None else seen
    return Running(root, episode, state, params, jax.random.key_data(key_steps), jnp.int32(0), kept), seen


def advance(
    plant: Plant, physical: bool, history: History | None, running: Running, action: Float[Array, " A"]
) -> tuple[Running, Timestep]:
    """Simulate one step; observations are clipped to the sensors' range, the plant's state is not."""
    key = jax.random.fold_in(jax.random.wrap_key_data(running.steps, impl="threefry2x32"), running.step)
    command = clip_to(plant.spec.action, to_command(plant.spec, action, physical))
    state, now = plant.step(key, running.state, command, running.params)
    shown = clip_to(plant.spec.observation, now.observation)
    seen = stack_next(history, running.seen, command, shown).astype(jnp.float32)
    kept = () if history is None else seen
    return running._replace(state=state, step=running.step + 1, seen=kept), now._replace(observation=seen)


class Programs(NamedTuple):
    """Compiled programs of a plant."""

    start: Callable[[Params, Any, Any], tuple[Running, Float[Array, " O"]]]
    """(domain, root, episode) -> (running, observation)"""
    step: Callable[[Running, Any], tuple[Running, Timestep]]
    """(running, action) -> (running, timestep)"""


@cache
def programs(plant: Plant, physical: bool, history: History | None) -> Programs:
    """Return the compiled start and step of a plant; equal arguments return the same programs."""
    return Programs(
        jax.jit(lambda domain, root, episode: start(plant, history, domain, root, episode)),
        jax.jit(lambda running, action: advance(plant, physical, history, running, action)),
    )


def as_action(action: Any, shape: tuple[int, ...]) -> Float[np.ndarray, ...]:
    """Convert an action to float32.

    Raises:
        ValueError: on a wrong shape or NaN.
    """
    vector = np.asarray(action, np.float32)
    if vector.shape != shape:
        raise ValueError(f"action must have the shape {shape}, got {vector.shape}: pass one number per actuator")
    if np.isnan(vector).any():
        raise ValueError(f"action must not contain NaN, got {vector.tolist()}: check the policy")
    return vector


def as_vectors(spec: PlantSpec, action: Any, plants: tuple[int, ...] = ()) -> Float[np.ndarray, "*n A"]:
    """Convert actions of an environment to vectors of the plant: `as_action`, or the number of a choice.

    Raises:
        ValueError: as for `as_action`, and on an invalid number of a choice.
    """
    if spec.choices is None:
        return as_action(action, (*plants, spec.action.size))
    numbers = as_action(action, plants)
    if not np.isin(numbers, np.arange(len(spec.choices))).all():
        raise ValueError(
            f"choices must be numbers from 0 to {len(spec.choices) - 1} ({', '.join(spec.choices)}), got "
            f"{np.asarray(action).tolist()}"
        )
    return numbers[..., None]


def check_options(options: Mapping[str, Any] | None, allowed: tuple[str, ...] = ()) -> None:
    """Reject options of `reset` that would have no effect.

    Raises:
        ValueError: on an unknown option.
    """
    if unknown := sorted(map(str, set(options or {}) - set(allowed))):
        raise ValueError(
            f"reset() takes {f'only the option {allowed[0]}' if allowed else 'no options'}, got {unknown}: set the "
            "plant's conditions by `domain` when creating the environment"
        )


def table_name(plant: Plant) -> str | Plant:
    """Return the name of a built-in plant, for pickles, because functions of a plant may not pickle; else the plant."""
    name = plant.spec.name
    return name if name in PLANTS and PLANTS[name] is plant else plant


def violations(margins: Float[np.ndarray, "*n K"]) -> Float[np.ndarray, "*n K"]:
    """Return the violation of each limit, in the limit's unit; NaN counts as infinite."""
    return np.where(np.isnan(margins), np.inf, np.maximum(-margins, 0.0))


def info_of(constraints: tuple[Constraint, ...], margins: Float[np.ndarray, " K"]) -> dict[str, Any]:
    """Return the info of a step: margins and costs by name of the limit, and whether any limit is violated (0 or 1)."""
    costs = violations(margins)
    names = [limit.name for limit in constraints]
    return {
        "margins": dict(zip(names, map(float, margins), strict=True)),
        "costs": dict(zip(names, map(float, costs), strict=True)),
        "cost": float(np.any(costs > 0)),
    }


_forked = False


def _after_fork() -> None:
    global _forked
    _forked = _forked or xla_bridge.backends_are_initialized()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def check_process() -> None:
    """Check that JAX can run in this process: after a fork, JAX's threads are gone and the first computation hangs.

    Raises:
        RuntimeError: if the process was forked from one in which JAX runs.
    """
    if _forked:
        raise RuntimeError(
            f"process {os.getpid()} was forked from one in which JAX runs, so JAX would hang: pass "
            "vector_kwargs={'context': 'spawn'} to make_vec (context='spawn' to AsyncVectorEnv, start_method to "
            "SubprocVecEnv), or leave vectorization_mode out to run all plants in one compiled call"
        )
