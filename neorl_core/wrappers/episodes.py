"""Episodes of a plant one step at a time: the pure programs under the environments of this package."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, NamedTuple

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, UInt32

from neorl_core.history import History, begun, followed, history_of, stacked_spec
from neorl_core.plants import PLANTS
from neorl_core.plants.base import clip_to
from neorl_core.types import Constraint, Params, Plant, PlantSpec, Space, Timestep


class Running(NamedTuple):
    """An episode under way; of N plants every array has the leading axis N."""

    root: UInt32[Array, "*n 2"]
    """Data of the key that the seed gave."""
    episode: Int[Array, "*n"]
    """Which episode since the seed: each folds its number into the root."""
    state: Any
    params: Params
    """The plant's constants, drawn for this episode."""
    steps: UInt32[Array, "*n 2"]
    """Data of the key of its steps."""
    step: Int[Array, "*n"]
    seen: Any = ()
    """(*n, S) the last observation with its history, where there is one."""


def plant_of(plant: str | Plant) -> Plant:
    """The plant of that name, or the plant itself.

    Raises:
        ValueError: with the names that there are.
    """
    if isinstance(plant, Plant):
        return plant
    if plant not in PLANTS:
        raise ValueError(f"expected a plant among {', '.join(PLANTS)}, got '{plant}': correct the name.")
    return PLANTS[plant]


def domain_of(plant: Plant, changes: Mapping[str, float] | None) -> Params:
    """The plant's operating domain with some values replaced; an argument of programs, so that no value is compiled in.

    No array is made: a process that only builds environments does not start JAX, and may be forked.

    Raises:
        ValueError: on a name that the domain lacks.
    """
    unknown = set(changes or {}) - set(plant.domain._fields)
    if unknown:
        raise ValueError(
            f"expected domain values of {plant.spec.name} ({', '.join(plant.domain._fields)}), got {sorted(unknown)}: "
            "correct the names."
        )
    return plant.domain._replace(**(changes or {}))


def seen_of(plant: Plant, history: Mapping[str, int] | None) -> PlantSpec:
    """The plant's spec, its observation with as many earlier values of each named signal or action.

    Raises:
        ValueError: on an unknown name or a number that is none of steps.
    """
    return stacked_spec(plant.spec, history_of(history or {}, plant.spec))


def root_of(generator: np.random.Generator) -> UInt32[np.ndarray, " 2"]:
    """Two words of a generator, which make a key."""
    return generator.integers(0, 2**32, 2, np.uint32)


def box(space: Space, indices: tuple[int, ...] | None = None) -> gymnasium.spaces.Box:
    """The bounds of a vector, or of some of its components, in physical units."""
    chosen = list(range(space.size) if indices is None else indices)
    low, high = (np.asarray(x, np.float32)[chosen] for x in (space.low, space.high))
    return gymnasium.spaces.Box(low, high, dtype=np.float32)


def action_box(space: Space, physical: bool, indices: tuple[int, ...] | None = None) -> gymnasium.spaces.Box:
    """The bounds of an action: the actuators' own, or -1 to 1.

    Args:
        space: the plant's action space.
        physical: whether actions are in physical units rather than between -1 and 1.
        indices: components of one agent; all by default.
    """
    bounds = box(space, indices)
    return bounds if physical else gymnasium.spaces.Box(-1.0, 1.0, bounds.shape, np.float32)


def action_space(spec: PlantSpec, physical: bool) -> gymnasium.Space[Any]:
    """What an environment of a plant takes: `action_box`, or the numbers of a discrete action's choices."""
    return action_box(spec.action, physical) if spec.choices is None else gymnasium.spaces.Discrete(len(spec.choices))


def to_command(spec: PlantSpec, action: Float[Array, " A"], physical: bool) -> Float[Array, " A"]:
    """The physical command that an action stands for: middle + half range · clip(action, -1, 1), or the action.

    Args:
        spec: the plant's.
        action: (A,), action of the agent.
        physical: whether actions are in physical units rather than between -1 and 1; the number of a choice always is.
    """
    if physical or spec.choices is not None:
        return action
    low, high = (jnp.asarray(x, action.dtype) for x in (spec.action.low, spec.action.high))
    return (low + high) / 2 + (high - low) / 2 * jnp.clip(action, -1.0, 1.0)


def start(
    plant: Plant, history: History | None, domain: Params, root: UInt32[Array, " 2"], episode: Int[Array, ""]
) -> Any:
    """The beginning of an episode, with the keys of `plants.base.rollouts`.

    Args:
        plant: the simulator.
        history: earlier values that are shown beside the observation.
        domain: operating domain that its constants are drawn from.
        root: (2,), data of the environment's key.
        episode: number of the episode.

    Returns:
        Running, and the observation (S,) as the sensors show it, with its history.
    """
    key = jax.random.fold_in(jax.random.wrap_key_data(root, impl="threefry2x32"), episode)
    key_constants, key_run = jax.random.split(key)
    params = plant.sample_params(key_constants, domain)
    key_reset, key_steps = jax.random.split(key_run)
    state, observation = plant.reset(key_reset, params)
    shown = clip_to(plant.spec.observation, observation)
    seen = _shown(begun(history, shown, clip_to(plant.spec.action, plant.applied(shown))))
    kept = () if history is None else seen
    return Running(root, episode, state, params, jax.random.key_data(key_steps), jnp.int32(0), kept), seen


def advance(
    plant: Plant, physical: bool, history: History | None, running: Running, action: Float[Array, " A"]
) -> tuple[Running, Timestep]:
    """One step. Sensors end at the bounds of the observation space; the plant's state does not.

    Args:
        plant: the simulator.
        physical: whether actions are in physical units rather than between -1 and 1.
        history: earlier values that are shown beside the observation; those of actions are in physical units.
        running: the episode under way.
        action: (A,), action of the agent.
    """
    key = jax.random.fold_in(jax.random.wrap_key_data(running.steps, impl="threefry2x32"), running.step)
    command = clip_to(plant.spec.action, to_command(plant.spec, action, physical))
    state, now = plant.step(key, running.state, command, running.params)
    seen = _shown(followed(history, running.seen, command, clip_to(plant.spec.observation, now.observation)))
    kept = () if history is None else seen
    return running._replace(state=state, step=running.step + 1, seen=kept), now._replace(observation=seen)


def _shown(seen: Float[Array, " S"]) -> Float[Array, " S"]:
    """In the precision of the observation space, whatever the plant computes in."""
    return seen.astype(jnp.float32)


class Programs(NamedTuple):
    """Compiled once per plant."""

    start: Callable[[Params, Any, Any], tuple[Running, Float[Array, " O"]]]
    """(domain, root, episode) -> (running, observation)"""
    step: Callable[[Running, Any], tuple[Running, Timestep]]
    """(running, action) -> (running, timestep)"""


@cache
def programs(plant: Plant, physical: bool, history: History | None) -> Programs:
    """The compiled start and step of one plant; the same arguments give the same programs."""
    return Programs(
        jax.jit(lambda domain, root, episode: start(plant, history, domain, root, episode)),
        jax.jit(lambda running, action: advance(plant, physical, history, running, action)),
    )


def as_action(action: Any, shape: tuple[int, ...]) -> Float[np.ndarray, ...]:
    """An action as single precision numbers.

    Raises:
        ValueError: when its shape is another, or a number is NaN.
    """
    found = np.asarray(action, np.float32)
    if found.shape != shape:
        raise ValueError(f"expected an action of shape {shape}, got {found.shape}: one number for each actuator.")
    if np.isnan(found).any():
        raise ValueError(f"expected numbers in an action, got NaN in {found.tolist()}: look at the policy that acts.")
    return found


def as_vectors(spec: PlantSpec, action: Any, plants: tuple[int, ...] = ()) -> Float[np.ndarray, "*n A"]:
    """What an environment was given as vectors of the plant's actions: `as_action`, or of each choice its number.

    Args:
        spec: the plant's.
        action: one for each plant.
        plants: (N,) how many are stepped together; () for one.

    Raises:
        ValueError: as `as_action`, and on what is no number of a choice.
    """
    if spec.choices is None:
        return as_action(action, (*plants, spec.action.size))
    found = as_action(action, plants)
    if not np.isin(found, np.arange(len(spec.choices))).all():
        raise ValueError(
            f"expected numbers of choices, 0 to {len(spec.choices) - 1}, got {np.asarray(action).tolist()}: "
            f"they stand for {', '.join(spec.choices)}."
        )
    return found[..., None]


def check_options(options: Mapping[str, Any] | None, known: tuple[str, ...] = ()) -> None:
    """Refuse options of `reset` that would do nothing.

    Raises:
        ValueError: naming them.
    """
    if unknown := sorted(map(str, set(options or {}) - set(known))):
        raise ValueError(
            f"expected {f'no option but {known[0]}' if known else 'no options'} in reset, got {unknown}: leave them "
            "out; what a plant shall be like is 'domain', given when the environment is made."
        )


def table_name(plant: Plant) -> str | Plant:
    """What stands for a plant in a pickle: its name, where it is of the table, for its functions may not pickle."""
    name = plant.spec.name
    return name if name in PLANTS and PLANTS[name] is plant else plant


def violations(margins: Float[np.ndarray, "*n K"]) -> Float[np.ndarray, "*n K"]:
    """The amount by which each limit is violated, in its unit; NaN counts as infinitely much."""
    return np.where(np.isnan(margins), np.inf, np.maximum(-margins, 0.0))


def info_of(constraints: tuple[Constraint, ...], margins: Float[np.ndarray, " K"]) -> dict[str, Any]:
    """What a step tells besides: margins and costs by the limit's name, and whether any limit is violated (0 or 1)."""
    costs = violations(margins)
    names = [limit.name for limit in constraints]
    return {
        "margins": dict(zip(names, map(float, margins), strict=True)),
        "costs": dict(zip(names, map(float, costs), strict=True)),
        "cost": float(np.any(costs > 0)),
    }
