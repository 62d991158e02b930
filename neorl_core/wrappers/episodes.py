"""Simulate a plant step by step. The environments of this package share these functions."""

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
    """State of a running episode. For N plants, every array has a leading axis N."""

    root: UInt32[Array, "*n 2"]
    """Random key made from the seed."""
    episode: Int[Array, "*n"]
    """Number of the episode since the seed was set, from 0. Root and number determine the episode's random numbers."""
    state: Any
    """State of the plant."""
    params: Params
    """Constants of the plant in this episode."""
    steps: UInt32[Array, "*n 2"]
    """Random key for the noise of the steps."""
    step: Int[Array, "*n"]
    seen: Any = ()
    """Last stacked observation (*n, S); empty without history."""


def plant_of(plant: str | Plant) -> Plant:
    """Return the built-in plant of a name. If the argument is a plant, return the argument.

    Raises:
        ValueError: if no built-in plant has the name.
    """
    if isinstance(plant, Plant):
        return plant
    if plant not in PLANTS:
        raise ValueError(f"'{plant}' is not a plant: use one of {', '.join(PLANTS)}")
    return PLANTS[plant]


def domain_of(plant: Plant, changes: Mapping[str, float] | None) -> Params:
    """Return the plant's operating domain with some parameters replaced.

    The function creates no JAX arrays, so that a process may create environments and fork afterwards.

    Raises:
        ValueError: if the domain has no parameter of a given name.
    """
    unknown = set(changes or {}) - set(plant.domain._fields)
    if unknown:
        raise ValueError(
            f"the operating domain of {plant.spec.name} has no parameters {sorted(unknown)}: use "
            f"{', '.join(plant.domain._fields)}"
        )
    return plant.domain._replace(**(changes or {}))


def observed_spec(plant: Plant, history: Mapping[str, int] | None) -> PlantSpec:
    """Return the plant's spec with earlier values in the observation; `history` gives their number by signal or action.

    Raises:
        ValueError: if a name is unknown or a number is invalid.
    """
    return stacked_spec(plant.spec, parse_history(history or {}, plant.spec))


def draw_root(generator: np.random.Generator) -> UInt32[np.ndarray, " 2"]:
    """Draw a random key."""
    return generator.integers(0, 2**32, 2, np.uint32)


def box(space: Space, indices: tuple[int, ...] | None = None) -> gymnasium.spaces.Box:
    """Return the Gymnasium space with a vector's ranges, in physical units; `indices` selects components."""
    chosen = list(range(space.size) if indices is None else indices)
    low, high = (np.asarray(x, np.float32)[chosen] for x in (space.low, space.high))
    return gymnasium.spaces.Box(low, high, dtype=np.float32)


def action_box(space: Space, physical: bool, indices: tuple[int, ...] | None = None) -> gymnasium.spaces.Box:
    """Return the Gymnasium space of a continuous action: the actuators' ranges if `physical`, otherwise -1 to 1."""
    bounds = box(space, indices)
    return bounds if physical else gymnasium.spaces.Box(-1.0, 1.0, bounds.shape, np.float32)


def action_space(spec: PlantSpec, physical: bool) -> gymnasium.Space[Any]:
    """Return the Gymnasium space of a plant's action, which may be continuous (`action_box`) or discrete."""
    return action_box(spec.action, physical) if spec.choices is None else gymnasium.spaces.Discrete(len(spec.choices))


def to_command(spec: PlantSpec, action: Float[Array, " A"], physical: bool) -> Float[Array, " A"]:
    """Convert an action from -1 to 1 into physical units. Physical and discrete actions are returned unchanged."""
    if physical or spec.choices is not None:
        return action
    low, high = (jnp.asarray(x, action.dtype) for x in (spec.action.low, spec.action.high))
    return (low + high) / 2 + (high - low) / 2 * jnp.clip(action, -1.0, 1.0)


def start(
    plant: Plant, history: History | None, domain: Params, root: UInt32[Array, " 2"], episode: Int[Array, ""]
) -> Any:
    """Start an episode with constants from the operating domain, and the random numbers of `plants.base.rollouts`.

    Returns:
        The running episode, and the first observation (S,), clipped to the sensors' ranges, with history.
    """
    key = jax.random.fold_in(jax.random.wrap_key_data(root, impl="threefry2x32"), episode)
    key_constants, key_run = jax.random.split(key)
    params = plant.sample_params(key_constants, domain)
    key_reset, key_steps = jax.random.split(key_run)
    state, observation = plant.reset(key_reset, params)
    shown = clip_to(plant.spec.observation, observation)
    # The observation space is float32, even if the plant computes in float64.
    seen = stack_first(history, shown, clip_to(plant.spec.action, plant.applied(shown))).astype(jnp.float32)
    kept = () if history is None else seen
    return Running(root, episode, state, params, jax.random.key_data(key_steps), jnp.int32(0), kept), seen


def advance(
    plant: Plant, physical: bool, history: History | None, running: Running, action: Float[Array, " A"]
) -> tuple[Running, Timestep]:
    """Simulate one step. The observation is clipped to the sensors' ranges; the plant's state is not."""
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
    """`start`: (domain, root, episode) -> (running, observation)."""
    step: Callable[[Running, Any], tuple[Running, Timestep]]
    """`advance`: (running, action) -> (running, timestep)."""


@cache
def programs(plant: Plant, physical: bool, history: History | None) -> Programs:
    """Return `start` and `advance` for a plant, compiled."""
    return Programs(
        jax.jit(lambda domain, root, episode: start(plant, history, domain, root, episode)),
        jax.jit(lambda running, action: advance(plant, physical, history, running, action)),
    )


def as_action(action: Any, shape: tuple[int, ...]) -> Float[np.ndarray, ...]:
    """Return the action as a float32 array.

    Raises:
        ValueError: if the action has the wrong shape or contains NaN.
    """
    vector = np.asarray(action, np.float32)
    if vector.shape != shape:
        raise ValueError(f"action must have the shape {shape}, got {vector.shape}: pass one number per actuator")
    if np.isnan(vector).any():
        raise ValueError(f"action must not contain NaN, got {vector.tolist()}: check the policy")
    return vector


def as_vectors(spec: PlantSpec, action: Any, plants: tuple[int, ...] = ()) -> Float[np.ndarray, "*n A"]:
    """Return actions as float32 vectors (*n, A). The number of a choice becomes a vector of length 1.

    Raises:
        ValueError: if an action has the wrong shape, contains NaN, or is not the number of a choice.
    """
    if spec.choices is None:
        return as_action(action, (*plants, spec.action.size))
    numbers = as_action(action, plants)
    if not np.isin(numbers, np.arange(len(spec.choices))).all():
        raise ValueError(
            f"choices must be numbers from 0 to {len(spec.choices) - 1} ({', '.join(spec.choices)}), got "
            f"{np.asarray(action).tolist()}: correct the action"
        )
    return numbers[..., None]


def check_options(options: Mapping[str, Any] | None, allowed: tuple[str, ...] = ()) -> None:
    """Check that all options of `reset` are allowed.

    Raises:
        ValueError: if an option is not allowed.
    """
    if unknown := sorted(map(str, set(options or {}) - set(allowed))):
        raise ValueError(
            f"reset() takes {f'only the option {allowed[0]}' if allowed else 'no options'}, got {unknown}: use the "
            "argument `domain` of the environment to change the plant's conditions"
        )


def table_name(plant: Plant) -> str | Plant:
    """Return a built-in plant's name, or any other plant itself. Pickles store names, because plants may not pickle."""
    name = plant.spec.name
    return name if name in PLANTS and PLANTS[name] is plant else plant


def violations(margins: Float[np.ndarray, "*n K"]) -> Float[np.ndarray, "*n K"]:
    """Return the amount by which each limit is violated, in the limit's unit; infinite if the margin is NaN."""
    return np.where(np.isnan(margins), np.inf, np.maximum(-margins, 0.0))


def info_of(constraints: tuple[Constraint, ...], margins: Float[np.ndarray, " K"]) -> dict[str, Any]:
    """Return the info of a step: `margins` and `costs` by the limit's name, and `cost`, 1 if any limit is violated."""
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
    """Check that JAX can run in this process. After a fork, JAX has no threads, and its first computation would hang.

    Raises:
        RuntimeError: if this process was forked from a process in which JAX was running.
    """
    if _forked:
        raise RuntimeError(
            f"process {os.getpid()} was forked from a process in which JAX was running, so JAX would hang: start "
            "processes by 'spawn' (vector_kwargs={'context': 'spawn'} for make_vec, start_method for SubprocVecEnv), "
            "or call make_vec without vectorization_mode"
        )
