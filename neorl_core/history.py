"""Observation histories: add earlier values to an observation that does not show the plant's full state.

A stacked observation has S numbers: the plain observation (O numbers), then earlier values of chosen signals and
actions, for each signal from the newest to the oldest. With every step, each earlier value moves to the next older
place. At the start of an episode, all earlier values equal the first observation and the initially applied action.

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
    """Build a `History` from the number of earlier values per signal; return None if `counts` is empty.

    Args:
        counts: number of earlier values, by name of a signal or an action. If a signal and an action have the same
            name, the name means the action, because the signal shows an older value of the action.

    Raises:
        ValueError: if a name is unknown, a count is outside 1 to horizon - 1, or S would exceed `MOST`.
    """
    names = (*spec.observation.names, *spec.action.names)
    for name, count in counts.items():
        if name not in names:
            close = difflib.get_close_matches(name, names, n=1)
            cure = f"did you mean '{close[0]}'?" if close else "choose one of these"
            raise ValueError(f"history must name signals or actions ({', '.join(names)}), got '{name[:80]}': {cure}")
        if not (isinstance(count, int | np.integer) and 1 <= count < spec.horizon):
            raise ValueError(
                f"history of '{name}' must be 1 to {spec.horizon - 1} steps (episodes have {spec.horizon}), got "
                f"{count}: correct the number"
            )
    if not counts:
        return None
    if spec.choices is not None and (chosen := spec.action.names[0]) in counts:
        raise ValueError(f"history cannot include '{chosen}', because its choices have no numeric order: remove it")
    acting = tuple(counts.get(name, 0) for name in spec.action.names)
    observed = tuple(0 if name in spec.action.names else counts.get(name, 0) for name in spec.observation.names)
    history = History(observed, acting)
    earlier = stacked_spec(spec, history).observation.names[len(spec.observation.names) :]
    if doubled := next((name for name in earlier if name in names), None):
        raise ValueError(
            f"history adds a signal '{doubled}', but {spec.name} already uses this name: rename the signal"
        )
    if stacked_size(history) > MOST:
        raise ValueError(
            f"an observation with history must have at most {MOST:,} numbers, got {stacked_size(history):,}: use fewer "
            "signals or steps"
        )
    return history


def stacked_size(history: History) -> int:
    """Return S, the number of values in a stacked observation."""
    return len(history.observation) + sum(history.observation) + sum(history.action)


def longest_lag(history: History) -> int:
    """Return the age of the oldest value in a history, in steps."""
    return max(*history.observation, *history.action)


def stacked_spec(spec: PlantSpec, history: History | None) -> PlantSpec:
    """Return the plant's spec with the earlier values as additional signals; unchanged if `history` is None."""
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
    """Return, for each earlier value (S - O,), the index of its signal in the observation followed by the action."""
    counts = (*history.observation, *history.action)
    return np.repeat(np.arange(len(counts)), counts)


@cache
def _moved(history: History) -> npt.NDArray[np.int64]:
    """Return each earlier value's index (S - O,) one step before, in the stacked observation followed by the action."""
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
        applied: (..., A) action assumed to be in force before the first step.
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
    """Return the normaliser of stacked observations; earlier values are scaled like the current value."""
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
    """Return logged transitions with stacked observations, as a running controller would have built them.

    Args:
        history: the history; None returns the rows unchanged.
        transitions: (N, ...) steps of each episode in order of time.
        starts: (E,) first row of each episode, ascending from 0.
        applied: (E, A) action assumed to be in force before each episode.
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
    # The final observation of an episode has no row of its own, so its history is moved from the last row.
    both, after = np.concatenate([stacked, action], axis=1), np.asarray(transitions.next_observation)
    following = np.concatenate([after, both[:, _moved(history)]], axis=1)
    columns: dict[str, np.ndarray] = {"observation": stacked, "next_observation": following}
    return transitions._replace(**columns)  # type: ignore[arg-type]


def episode_starts(transitions: Transition) -> Int[np.ndarray, " E"]:
    """Return the first row of each episode: its observation differs from the previous row's next observation."""
    observation, after = np.asarray(transitions.observation), np.asarray(transitions.next_observation)
    continued = np.all(after[:-1] == observation[1:], axis=1)
    return np.flatnonzero(np.append(True, ~continued)[: len(observation)])


def resting_action(action: npt.ArrayLike, low: Sequence[float], high: Sequence[float]) -> npt.NDArray[np.floating]:
    """Return a substitute for an unknown applied action: the median of logged actions (N, A) within the bounds."""
    rest: npt.NDArray[np.floating] = np.clip(np.median(np.asarray(action), axis=0), low, high)
    return rest
