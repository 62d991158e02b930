"""Support of a dataset: the range of its steps, and reference steps for the distance of other steps."""

from __future__ import annotations

from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from neorl_core.safety.support import REFERENCES, choose_references
from neorl_core.types import PlantSpec, varies
from tasks.data.store.episodes import Logs

ROWS = 65_536
"""Largest number of evenly spaced rows from which references are chosen."""


Numbers = npt.NDArray[np.float64]
Row = TypeVar("Row", bound=np.generic)


class LoggedSupport(NamedTuple):
    """Range and references of logged steps; a step has D = O + A numbers, observation and action."""

    low: Numbers
    high: Numbers
    centre: Numbers
    """(D,), means."""
    scale: Numbers
    """(D,), standard deviations; infinite for a signal, and 1 for an action, that never moved."""
    references: jax.Array
    """(P, D), scaled logged steps that cover the data."""


def steps_of(logs: Logs) -> Numbers:
    """Return observations and actions, (N, O + A)."""
    t = logs.transitions
    return np.concatenate([np.asarray(t.observation, np.float64), np.asarray(t.action, np.float64)], axis=1)


def thinned(rows: npt.NDArray[Row], most: int = ROWS) -> npt.NDArray[Row]:
    """Return at most `most` evenly spaced rows."""
    return rows[:: -(-len(rows) // most)]


def logged_support(spec: PlantSpec, training: Logs, seed: int) -> LoggedSupport:
    """Return the support of training episodes.

    Args:
        seed: determines the first reference.
    """
    steps = steps_of(training)
    centre, deviation = steps.mean(axis=0), steps.std(axis=0)
    # A signal that never moved has no scale for distances, and one step that moves it would be infinitely far away.
    unmoved = np.where(np.arange(len(centre)) < spec.observation.size, np.inf, 1.0)
    scale = np.where(varies(centre, deviation), deviation, unmoved)
    scaled = jnp.asarray((thinned(steps) - centre) / scale, dtype=float)
    chosen = choose_references(jax.random.key(seed), scaled, min(REFERENCES, len(scaled)))
    return LoggedSupport(steps.min(axis=0), steps.max(axis=0), centre, scale, scaled[chosen])
