"""Add a run's history (earlier observations and actions) to rows, because datasets store rows without history."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np
import numpy.typing as npt

from configs.run import OpenedRun
from neorl_core.history import longest_lag, parse_history, resting_action, stacked_spec, stacked_transitions
from neorl_core.plants.base import clip_to
from neorl_core.safety.composite import Composite
from neorl_core.safety.support import SupportShield
from neorl_core.types import History, Plant, PlantSpec, Process, Transition
from tasks.data.store.episodes import Logs
from tasks.data.store.reader import StoredDataset
from tasks.models.plants.known import plant_of

Floats = npt.NDArray[np.floating]


class RowHistory(NamedTuple):
    """A history, and a function for the actions that are assumed before an episode's first row."""

    history: History | None
    applied: Callable[[Floats], Floats]
    """Maps the first observations of E episodes (E, O) to the actions assumed before them (E, A)."""

    @property
    def longest(self) -> int:
        """The longest lag in steps."""
        return 0 if self.history is None else longest_lag(self.history)

    def rows(self, transitions: Transition, starts: npt.NDArray[np.int64]) -> Transition:
        """Add the history to rows (N, ...) in physical units; `starts` (E,) has the number of each first row."""
        if self.history is None:
            return transitions
        first = self.applied(np.asarray(transitions.observation)[starts])
        return stacked_transitions(self.history, transitions, starts, first)

    def stacked(self, logs: Logs) -> Logs:
        return logs._replace(transitions=self.rows(logs.transitions, logs.starts))


def observed_spec(run: OpenedRun) -> PlantSpec:
    """Return the spec of the run's plant with the run's history; raise ValueError if the history does not fit."""
    spec = plant_of(run).spec
    return stacked_spec(spec, parse_history(run.history, spec))


NO_HISTORY = RowHistory(None, lambda observation: observation)


def run_history(run: OpenedRun, store: StoredDataset) -> RowHistory:
    """Return the history of a run; raise ValueError if the history does not fit the plant.

    For a log-only plant, the median action of the training episodes is assumed before each episode.
    """
    plant, history = plant_of(run), observed_spec(run).history
    if history is None:
        return NO_HISTORY
    if plant.plant is not None:
        return simulator_history(history, plant.plant)
    rows = store.episode_blocks(store.split(run.data.held_out)[0], ("actions",))
    action = np.concatenate([block["actions"] for block in rows])
    return resting_history(history, resting_action(action, plant.spec.action.low, plant.spec.action.high))


def simulator_history(history: History | None, plant: Plant) -> RowHistory:
    """Return the history for a simulated plant; the plant derives earlier actions from the first observation."""
    return RowHistory(history, jax.jit(jax.vmap(lambda row: clip_to(plant.spec.action, plant.applied(row)))))


def resting_history(history: History | None, rest: Floats) -> RowHistory:
    """Return the history for a log-only plant; the action `rest` (A,) is assumed before each episode."""
    before = np.asarray(rest, np.float32)
    return RowHistory(history, lambda observation: np.broadcast_to(before, (len(observation), len(before))))


def composite_history(plant: Plant | Process, composite: Composite) -> RowHistory:
    if composite.history is None:
        return NO_HISTORY
    if isinstance(plant, Plant):
        return simulator_history(composite.history, plant)
    assert isinstance(composite.shield, SupportShield)
    return resting_history(composite.history, np.asarray(composite.shield.rest))
