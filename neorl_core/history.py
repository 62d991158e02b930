"""Earlier values beside an observation, for plants of which a single observation shows too little.

A stacked observation (S,) is the plain one (O,), followed by the last values of some of its components and then of some
actions, each newest first. A step later all of them have moved on by one place, so that the whole memory is the stacked
observation itself, and one table of indices says what becomes of it: the same for logs, for a controller that runs, for
an environment and within a learned model. Where an episode begins, its first observation and the action that is taken
for applied stand for all that was before.

Mnih et al. 2015, Human-level control through deep reinforcement learning (Nature 518), stack frames to the same end.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from functools import cache
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jaxtyping import Array, Float, Int

from neorl_core.networks import Normaliser
from neorl_core.types import PlantSpec, Space, Transition

LAG = "_lag_"
"""Between a signal's name and how many steps ago it had the value."""
MOST = 1_024
"""Numbers of a stacked observation at most: beyond, one is better off with another representation."""


class History(NamedTuple):
    """How many earlier values of each signal a policy sees beside the observation."""

    observation: tuple[int, ...]
    """(O,) of each component of the observation."""
    action: tuple[int, ...]
    """(A,) of each component of the action."""


# Its numbers shape programs: they are structure, not arrays.
jax.tree_util.register_static(History)


def history_of(counts: Mapping[str, int], spec: PlantSpec) -> History | None:
    """The history of signals and actions by name; None where nothing is asked for.

    Args:
        counts: earlier values of each named signal or action. A name that is both means the action, for the observation
            of a command is the older one.
        spec: the plant's own.

    Raises:
        ValueError: naming what is unknown, no whole number from 1, longer than an episode, or too wide together.
    """
    names = (*spec.observation.names, *spec.action.names)
    for name, count in counts.items():
        if name not in names:
            close = difflib.get_close_matches(name, names, n=1)
            cure = f"did you mean '{close[0]}'?" if close else "choose one of those."
            raise ValueError(f"expected history of {', '.join(names)}, got '{name[:80]}': {cure}")
        if not (isinstance(count, int | np.integer) and 1 <= count < spec.horizon):
            raise ValueError(
                f"expected a history of '{name}' of 1 to {spec.horizon - 1} steps, fewer than the {spec.horizon} of an "
                f"episode, got {count}: correct the number."
            )
    if not counts:
        return None
    if spec.choices is not None and (chosen := spec.action.names[0]) in counts:
        raise ValueError(
            f"expected a history of signals, got one of '{chosen}', whose choices are no quantities: drop it."
        )
    acting = tuple(counts.get(name, 0) for name in spec.action.names)
    observed = tuple(0 if name in spec.action.names else counts.get(name, 0) for name in spec.observation.names)
    history = History(observed, acting)
    past = stacked_spec(spec, history).observation.names[len(spec.observation.names) :]
    if doubled := next((name for name in past if name in names), None):
        raise ValueError(f"expected no signal of the name '{doubled}', got one, which its history needs: rename it.")
    if stacked_size(history) > MOST:
        raise ValueError(
            f"expected at most {MOST:,} numbers in an observation with its history, got {stacked_size(history):,}: "
            "name fewer signals or steps."
        )
    return history


def stacked_size(history: History) -> int:
    """S, the numbers of a stacked observation."""
    return len(history.observation) + sum(history.observation) + sum(history.action)


def longest(history: History) -> int:
    """The steps that the oldest value is old."""
    return max(*history.observation, *history.action)


def stacked_spec(spec: PlantSpec, history: History | None) -> PlantSpec:
    """The plant as a policy with this history sees it; its own spec where there is none."""
    if history is None:
        return spec
    o, a = spec.observation, spec.action
    past = [
        (f"{name}{LAG}{k}", unit, low, high)
        for space, counts in ((o, history.observation), (a, history.action))
        for *row, count in zip(*space, counts, strict=True)
        for name, unit, low, high in [row]
        for k in range(1, count + 1)
    ]
    names, units, low, high = (tuple(column) for column in zip(*past, strict=True))
    return spec._replace(
        observation=Space(o.names + names, o.units + units, o.low + low, o.high + high), history=history
    )


@cache
def _sources(history: History) -> npt.NDArray[np.int64]:
    """(S - O,) which component of observation and action each earlier value is of."""
    counts = (*history.observation, *history.action)
    return np.repeat(np.arange(len(counts)), counts)


@cache
def _moved(history: History) -> npt.NDArray[np.int64]:
    """(S - O,) where each earlier value stood a step before: in the stacked observation with the action behind it."""
    observed, at = len(history.observation), stacked_size(history)
    now = np.append(np.arange(observed), at + np.arange(len(history.action)))
    found, place = list[int](), observed
    for component, count in enumerate((*history.observation, *history.action)):
        if count:
            found += [int(now[component]), *range(place, place + count - 1)]
        place += count
    return np.asarray(found, np.int64)


def begun(
    history: History | None, observation: Float[Array, "*n O"], applied: Float[Array, "*n A"]
) -> Float[Array, "*n S"]:
    """The stacked observation at an episode's beginning.

    Args:
        history: which earlier values; None leaves the observation as it is.
        observation: (..., O), the first.
        applied: (..., A), what is taken for applied before it.
    """
    if history is None:
        return observation
    both = jnp.concatenate([observation, applied], axis=-1)
    return jnp.concatenate([observation, both[..., _sources(history)]], axis=-1)


def followed(
    history: History | None,
    stacked: Float[Array, "*n S"],
    action: Float[Array, "*n A"],
    following: Float[Array, "*n O"],
) -> Float[Array, "*n S"]:
    """The stacked observation a step later.

    Args:
        history: which earlier values; None leaves what follows as it is.
        stacked: (..., S), now.
        action: (..., A), what was in force during the step.
        following: (..., O), what was observed after it.
    """
    if history is None:
        return following
    both = jnp.concatenate([stacked, action], axis=-1)
    return jnp.concatenate([following, both[..., _moved(history)]], axis=-1)


def stacked_normaliser(history: History | None, plain: Normaliser) -> Normaliser:
    """Earlier values are scaled as present ones, so that a step within normalised numbers is a move of places."""
    if history is None:
        return plain
    return plain._replace(
        mean=begun(history, plain.mean, plain.action_centre), scale=begun(history, plain.scale, plain.action_half_range)
    )


def stacked_transitions(
    history: History | None,
    transitions: Transition,
    starts: Int[np.ndarray, " E"],
    applied: Float[np.ndarray, "E A"],
) -> Transition:
    """Logged rows with their history, as a controller would have had it: the values of `begun` and `followed`, copied.

    Args:
        history: which earlier values; None leaves the rows as they are.
        transitions: (N, ...), each episode's rows in order.
        starts: (E,) first row of each episode, ascending from 0.
        applied: (E, A) what is taken for applied before each.
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
    # Of the row after the last of an episode nothing is stored but its observation, and nothing else is new in it.
    both, after = np.concatenate([stacked, action], axis=1), np.asarray(transitions.next_observation)
    following = np.concatenate([after, both[:, _moved(history)]], axis=1)
    columns: dict[str, np.ndarray] = {"observation": stacked, "next_observation": following}
    return transitions._replace(**columns)  # type: ignore[arg-type]


def begins(transitions: Transition) -> Int[np.ndarray, " E"]:
    """The rows that do not continue, bit for bit, what the row before them saw next."""
    observation, after = np.asarray(transitions.observation), np.asarray(transitions.next_observation)
    continued = np.all(after[:-1] == observation[1:], axis=1)
    return np.flatnonzero(np.append(True, ~continued)[: len(observation)])


def resting_action(action: npt.ArrayLike, low: Sequence[float], high: Sequence[float]) -> npt.NDArray[np.floating]:
    """The action that is taken for applied where nothing tells what is: the median of the logged ones (N, A)."""
    rest: npt.NDArray[np.floating] = np.clip(np.median(np.asarray(action), axis=0), low, high)
    return rest
