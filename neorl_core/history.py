"""Observation histories, for plants with states that a single observation does not show.

A stacked observation (S,) is the plain one (O,) followed by earlier values of some of its components and of some
actions, each newest first. One step later every earlier value moves on by one place, so the stacked observation is the
whole memory. One index table describes this move for logs, running controllers, environments and learned models. At the
start of an episode, the first observation and the initially applied action fill the history.

Mnih et al. 2015, Human-level control through deep reinforcement learning (Nature 518), stack frames for the same
purpose.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from functools import cache

import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jaxtyping import Array, Float, Int

from neorl_core.networks import Normaliser
from neorl_core.types import History, PlantSpec, Space, Transition

LAG = "_lag_"
"""Separator between the name of a signal and the number of steps back."""
MOST = 1_024
"""Largest size of a stacked observation."""


def parse_history(counts: Mapping[str, int], spec: PlantSpec) -> History | None:
    """Return the history given by names and counts, or None if `counts` is empty.

    Args:
        counts: earlier values per signal or action. A name that is both means the action, because the observation of a
            command is older.
        spec: spec of the plant.

    Raises:
        ValueError: on unknown names, counts outside 1 to horizon - 1, or a stacked observation that is too large.
    """
    names = (*spec.observation.names, *spec.action.names)
    for name, count in counts.items():
        if name not in names:
            close = difflib.get_close_matches(name, names, n=1)
            cure = f"did you mean '{close[0]}'?" if close else "choose one of these"
            raise ValueError(f"history can name {', '.join(names)}, got '{name[:80]}': {cure}")
        if not (isinstance(count, int | np.integer) and 1 <= count < spec.horizon):
            raise ValueError(
                f"history of '{name}' must be 1 to {spec.horizon - 1} steps (episodes have {spec.horizon}), got "
                f"{count}: correct the number"
            )
    if not counts:
        return None
    if spec.choices is not None and (chosen := spec.action.names[0]) in counts:
        raise ValueError(f"history cannot include '{chosen}', an action of choices without a numeric order: remove it")
    acting = tuple(counts.get(name, 0) for name in spec.action.names)
    observed = tuple(0 if name in spec.action.names else counts.get(name, 0) for name in spec.observation.names)
    history = History(observed, acting)
    earlier = stacked_spec(spec, history).observation.names[len(spec.observation.names) :]
    if doubled := next((name for name in earlier if name in names), None):
        raise ValueError(f"history needs the signal name '{doubled}', which is taken: rename that signal")
    if stacked_size(history) > MOST:
        raise ValueError(
            f"an observation with history must have at most {MOST:,} numbers, got {stacked_size(history):,}: use fewer "
            "signals or steps"
        )
    return history


def stacked_size(history: History) -> int:
    """Return S, the size of a stacked observation."""
    return len(history.observation) + sum(history.observation) + sum(history.action)


def longest_lag(history: History) -> int:
    """Return the age of the oldest value in steps."""
    return max(*history.observation, *history.action)


def stacked_spec(spec: PlantSpec, history: History | None) -> PlantSpec:
    """Return the spec as a policy with this history sees it."""
    if history is None:
        return spec
    o, a = spec.observation, spec.action
    earlier = [
        (f"{name}{LAG}{k}", unit, low, high)
        for space, counts in ((o, history.observation), (a, history.action))
        for *row, count in zip(*space, counts, strict=True)
        for name, unit, low, high in [row]
        for k in range(1, count + 1)
    ]
    names, units, low, high = (tuple(column) for column in zip(*earlier, strict=True))
    return spec._replace(
        observation=Space(o.names + names, o.units + units, o.low + low, o.high + high), history=history
    )


@cache
def _sources(history: History) -> npt.NDArray[np.int64]:
    """Return the observation or action component (S - O,) of each earlier value."""
    counts = (*history.observation, *history.action)
    return np.repeat(np.arange(len(counts)), counts)


@cache
def _moved(history: History) -> npt.NDArray[np.int64]:
    """Return the previous index (S - O,) of each earlier value in the stacked observation followed by the action."""
    observed, at = len(history.observation), stacked_size(history)
    now = np.append(np.arange(observed), at + np.arange(len(history.action)))
    indices, place = list[int](), observed
    for component, count in enumerate((*history.observation, *history.action)):
        if count:
            indices += [int(now[component]), *range(place, place + count - 1)]
        place += count
    return np.asarray(indices, np.int64)


def stack_first(
    history: History | None, observation: Float[Array, "*n O"], applied: Float[Array, "*n A"]
) -> Float[Array, "*n S"]:
    """Return the stacked observation at the start of an episode.

    Args:
        history: the history; None returns the observation unchanged.
        observation: (..., O) first observation.
        applied: (..., A) action taken as applied before it.
    """
    if history is None:
        return observation
    both = jnp.concatenate([observation, applied], axis=-1)
    return jnp.concatenate([observation, both[..., _sources(history)]], axis=-1)


def stack_next(
    history: History | None,
    stacked: Float[Array, "*n S"],
    action: Float[Array, "*n A"],
    following: Float[Array, "*n O"],
) -> Float[Array, "*n S"]:
    """Return the stacked observation one step later.

    Args:
        history: the history; None returns `following` unchanged.
        stacked: (..., S) current stacked observation.
        action: (..., A) action in force during the step.
        following: (..., O) observation after the step.
    """
    if history is None:
        return following
    both = jnp.concatenate([stacked, action], axis=-1)
    return jnp.concatenate([following, both[..., _moved(history)]], axis=-1)


def stacked_normaliser(history: History | None, plain: Normaliser) -> Normaliser:
    """Scale earlier values as current ones, so that a step only moves normalised numbers."""
    if history is None:
        return plain
    return plain._replace(
        mean=stack_first(history, plain.mean, plain.action_centre),
        scale=stack_first(history, plain.scale, plain.action_half_range),
    )


def stacked_transitions(
    history: History | None,
    transitions: Transition,
    starts: Int[np.ndarray, " E"],
    applied: Float[np.ndarray, "E A"],
) -> Transition:
    """Return logged rows with the history that a controller would have had (`stack_first`, then `stack_next`).

    Args:
        history: the history; None returns the rows unchanged.
        transitions: (N, ...) rows of each episode in order.
        starts: (E,) first row of each episode, ascending from 0.
        applied: (E, A) action taken as applied before each episode.
    """
    if history is None:
        return transitions
    observation, action = np.asarray(transitions.observation), np.asarray(transitions.action)
    rows = np.arange(len(observation))
    episode = np.searchsorted(starts, rows, side="right") - 1
    first = np.asarray(starts)[episode]
    stacked = np.empty((len(rows), stacked_size(history)), observation.dtype)
    observed = len(history.observation)
    stacked[:, :observed] = observation
    place = observed
    for component, count in enumerate((*history.observation, *history.action)):
        for k in range(1, count + 1):
            there = np.maximum(rows - k, first)
            if component < observed:
                stacked[:, place] = observation[there, component]
            else:
                own = component - observed
                stacked[:, place] = np.where(rows - k >= first, action[there, own], applied[episode, own])
            place += 1
    # The row after the last of an episode stores only its observation; all else moves on from the last row.
    both, after = np.concatenate([stacked, action], axis=1), np.asarray(transitions.next_observation)
    following = np.concatenate([after, both[:, _moved(history)]], axis=1)
    columns: dict[str, np.ndarray] = {"observation": stacked, "next_observation": following}
    return transitions._replace(**columns)  # type: ignore[arg-type]


def episode_starts(transitions: Transition) -> Int[np.ndarray, " E"]:
    """Return the rows that do not continue the previous row's next observation bit for bit."""
    observation, after = np.asarray(transitions.observation), np.asarray(transitions.next_observation)
    continued = np.all(after[:-1] == observation[1:], axis=1)
    return np.flatnonzero(np.append(True, ~continued)[: len(observation)])


def resting_action(action: npt.ArrayLike, low: Sequence[float], high: Sequence[float]) -> npt.NDArray[np.floating]:
    """Return the action taken as applied if unknown: the median of the logged actions (N, A), within the bounds."""
    rest: npt.NDArray[np.floating] = np.clip(np.median(np.asarray(action), axis=0), low, high)
    return rest
