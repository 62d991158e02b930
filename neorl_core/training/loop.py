"""The training loop: chunks of a compiled program, resumable after every chunk."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.experimental import multihost_utils
from jaxtyping import Float, Int

from neorl_core.training.population import Algorithm, TrainState, diverged, make_train_chunk, phase
from neorl_core.training.preparation import LARGEST
from neorl_core.types import Transition

CURVE_ROWS = 200
"""Smallest number of rows of the learning curves, if there are that many updates."""
LONGEST_ROW = 500
"""Largest number of gradient steps per row, which bounds the steps lost by an interruption."""


class Plan(NamedTuple):
    """Division of a run into rows and chunks, in gradient steps; every chunk runs the same program."""

    log_every: int
    """Gradient steps averaged into one row of the learning curves."""
    chunk: int
    """Gradient steps between two returns to Python, a multiple of `log_every`."""
    updates: int
    """Gradient steps of the run, a multiple of `chunk`."""
    warm_up: int = 0
    """Gradient steps of the warm-up, a separate program; a multiple of `chunk`."""

    @property
    def steps(self) -> Int[np.ndarray, " L"]:
        """Gradient steps taken at each row of the learning curves."""
        return np.arange(self.log_every, self.updates + 1, self.log_every)


class RunState(NamedTuple):
    """State of a run, sufficient to resume it."""

    population: TrainState
    curves: dict[str, Float[np.ndarray, "P L"]]
    """Metric name -> values (P, L), one row per member; NaN where training has not arrived yet."""

    @property
    def done(self) -> int:
        """Gradient steps taken."""
        return int(on_host(self.population.step)[0])


class TrainingRows(NamedTuple):
    """Prepared transitions of a run; each chunk samples from those on the device."""

    shapes: Transition
    """Arrays, or shapes and types, as returned by `at`."""
    at: Callable[[int], Transition]
    """Updates taken -> transitions on the device for the next chunk; a pure function."""


def resident(data: Transition) -> TrainingRows:
    """Keep all rows on the device for the whole run."""
    return TrainingRows(data, lambda done: data)


def schedule(updates: int, chunk: int, batches: int, warm_up: int = 0) -> Plan:
    """Divide a run into chunks of equal size.

    Args:
        updates: requested gradient steps, rounded up in the plan.
        chunk: desired gradient steps between two returns to Python; it changes neither of the others.
        batches: the algorithm's `batches_per_update`.
        warm_up: gradient steps of the warm-up, rounded up to whole rows; a chunk ends there.

    Raises:
        ValueError: if nothing is left after the warm-up.
    """
    log_every = max(min(updates // CURVE_ROWS, LONGEST_ROW) // batches, 1) * batches
    rows = -(-updates // log_every)
    first = -(-warm_up // log_every)
    if first >= rows:
        raise ValueError(
            f"updates must exceed the {warm_up:,} of the warm-up, got {updates:,}: increase updates, or lower "
            "warm_up_updates"
        )
    common = math.gcd(rows, first)
    divisors = [n for n in range(1, common + 1) if common % n == 0]
    chunk = min(divisors, key=lambda n: abs(n * log_every - chunk)) * log_every
    return Plan(log_every, chunk, rows * log_every, first * log_every)


def train(
    algorithm: Algorithm,
    fresh: TrainState,
    data: TrainingRows,
    plan: Plan,
    batch_size: int,
    *,
    limit: float = LARGEST,
    resume: Callable[[RunState], RunState] | None = None,
    report: Callable[[RunState, int], None] | None = None,
) -> RunState:
    """Train a population chunk by chunk.

    Args:
        algorithm: algorithm to train.
        fresh: initial state from `init_population`.
        data: prepared transitions.
        plan: division of the run from `schedule`.
        batch_size: transitions per gradient step.
        limit: value beyond which a metric counts as diverged (`Scaling.limit`).
        resume: callback that maps the initial state to the state to start from: itself, or one passed to `report`
            earlier.
        report: callback (state, total updates), called at the start and after every chunk, for saving and display; an
            exception ends the run.

    Returns:
        The final state.

    Raises:
        ValueError: if the resumed state does not fit the plan.
        FloatingPointError: if every member diverged; the last reported state is the last good one.
    """
    advance = make_train_chunk(algorithm, plan.chunk, plan.log_every, batch_size)
    names = jax.eval_shape(advance, fresh, data.shapes)[1]
    rows = plan.updates // plan.log_every
    state = RunState(fresh, {k: np.full((x.shape[0], rows), np.nan, x.dtype) for k, x in names.items()})
    state = state if resume is None else resume(state)
    if state.done % plan.chunk:
        raise ValueError(f"a run resumes at a multiple of {plan.chunk} updates, got {state.done}: keep the same chunk")
    if report:
        report(state, plan.updates)
    for done in range(state.done, plan.updates, plan.chunk):
        advance = make_train_chunk(phase(algorithm, done < plan.warm_up), plan.chunk, plan.log_every, batch_size)
        population, metrics = advance(state.population, data.at(done))
        metrics = on_host(metrics)
        if np.asarray(diverged(metrics, limit)).all():
            raise FloatingPointError(f"every member diverged by update {done + plan.chunk:,}: lower the learning rates")
        row = done // plan.log_every
        state = RunState(population, {k: _filled(x, metrics[k], row) for k, x in state.curves.items()})
        if report:
            report(state, plan.updates)
    return state


def on_host(tree: Any) -> Any:
    """Return every array as a whole NumPy array, gathered from all devices and processes."""
    if all(getattr(x, "is_fully_addressable", True) for x in jax.tree.leaves(tree)):
        return jax.tree.map(np.asarray, tree)
    return multihost_utils.process_allgather(tree, tiled=True)


def _filled(curve: np.ndarray, rows: np.ndarray, at: int) -> np.ndarray:
    """Return a filled copy; a curve passed to `report` must not change."""
    curve = np.array(curve)
    curve[:, at : at + rows.shape[1]] = rows
    return curve
