"""Stored rows with the history that a run asks for: datasets stay plain, so that one serves runs of any history."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np
import numpy.typing as npt

from configs.run import OpenedRun
from neorl_core.history import History, history_of, longest, resting_action, stacked_spec, stacked_transitions
from neorl_core.plants.base import clip_to
from neorl_core.safety.composite import Composite
from neorl_core.safety.support import SupportShield
from neorl_core.types import Plant, PlantSpec, Process, Transition
from tasks.data.store.episodes import Logs
from tasks.data.store.reader import StoredDataset
from tasks.models.plants.known import plant_of

Floats = npt.NDArray[np.floating]


class Past(NamedTuple):
    """Which earlier values rows get, and what is taken for applied before an episode's first."""

    history: History | None
    applied: Callable[[Floats], Floats]
    """First observations (E, O) -> actions (E, A)."""

    @property
    def longest(self) -> int:
        """The steps that the oldest value is old."""
        return 0 if self.history is None else longest(self.history)

    def rows(self, transitions: Transition, starts: npt.NDArray[np.int64]) -> Transition:
        """Rows (N, ...) with their history.

        Args:
            transitions: physical units, each episode's in order.
            starts: (E,) first row of each episode, ascending from 0.
        """
        if self.history is None:
            return transitions
        first = self.applied(np.asarray(transitions.observation)[starts])
        return stacked_transitions(self.history, transitions, starts, first)

    def stacked(self, logs: Logs) -> Logs:
        """Logs whose observations have their history."""
        return logs._replace(transitions=self.rows(logs.transitions, logs.starts))


def observed_spec(run: OpenedRun) -> PlantSpec:
    """The run's plant as its policies see it, earlier values included.

    Raises:
        ValueError: where the run's history does not fit the plant.
    """
    spec = plant_of(run).spec
    return stacked_spec(spec, history_of(run.history, spec))


NO_PAST = Past(None, lambda observation: observation)


def past_of(run: OpenedRun, store: StoredDataset) -> Past:
    """The history that a run asks for.

    Args:
        run: its plant, history and share of held-out episodes.
        store: of a process the training episodes, whose median action is taken for applied before an episode begins.

    Raises:
        ValueError: as `neorl_core.history.history_of`.
    """
    plant, history = plant_of(run), observed_spec(run).history
    if history is None:
        return NO_PAST
    if plant.plant is not None:
        return of_simulator(history, plant.plant)
    rows = store.episode_blocks(store.split(run.data.held_out)[0], ("actions",))
    action = np.concatenate([block["actions"] for block in rows])
    return resting(history, resting_action(action, plant.spec.action.low, plant.spec.action.high))


def of_simulator(history: History | None, plant: Plant) -> Past:
    """The history of a simulated plant, whose first observation tells what is applied, as far as it does."""
    return Past(history, jax.jit(jax.vmap(lambda row: clip_to(plant.spec.action, plant.applied(row)))))


def resting(history: History | None, rest: Floats) -> Past:
    """The history of a process, where one action (A,) is taken for applied before any episode."""
    before = np.asarray(rest, np.float32)
    return Past(history, lambda observation: np.broadcast_to(before, (len(observation), len(before))))


def past_of_composite(plant: Plant | Process, composite: Composite) -> Past:
    """The history that a composite keeps."""
    if composite.history is None:
        return NO_PAST
    if isinstance(plant, Plant):
        return of_simulator(composite.history, plant)
    assert isinstance(composite.shield, SupportShield)
    return resting(composite.history, np.asarray(composite.shield.rest))
