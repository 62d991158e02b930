"""The training loop. It runs one compiled program chunk by chunk; a stopped run can continue after any chunk."""

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
"""Smallest number of rows of the learning curves. Runs with fewer updates have fewer rows."""
LONGEST_ROW = 500
"""Largest number of gradient steps per row of the learning curves."""


class Plan(NamedTuple):
    """Division of a run into rows of the learning curves and into chunks. All numbers are gradient steps."""

    log_every: int
    """Gradient steps averaged into one row of the learning curves."""
    chunk: int
    """Gradient steps in one call of the compiled program, a multiple of `log_every`."""
    updates: int
    """Gradient steps of the run, including the warm-up; a multiple of `chunk`."""
    warm_up: int = 0
    """Gradient steps of the warm-up at the start; a multiple of `chunk`."""

    @property
    def steps(self) -> Int[np.ndarray, " L"]:
        """Number of gradient steps taken at the end of each row of the learning curves."""
        return np.arange(self.log_every, self.updates + 1, self.log_every)


class RunState(NamedTuple):
    """Everything that is needed to continue a run."""

    population: TrainState
    curves: dict[str, Float[np.ndarray, "P L"]]
    """Values (P, L) by metric name, for P members and L rows. Future rows are NaN."""

    @property
    def done(self) -> int:
        """Number of gradient steps taken."""
        return int(on_host(self.population.step)[0])


class TrainingRows(NamedTuple):
    """Source of the prepared transitions. Each chunk draws its batches from the transitions that `at` returns."""

    shapes: Transition
    """Shapes and data types of the arrays that `at` returns; the arrays themselves are also allowed."""
    at: Callable[[int], Transition]
    """Number of gradient steps taken -> transitions on the device for the next chunk."""


def resident(data: Transition) -> TrainingRows:
    """Return a source that keeps all transitions on the device during the whole run."""
    return TrainingRows(data, lambda done: data)


def schedule(updates: int, chunk: int, batches: int, warm_up: int = 0) -> Plan:
    """Divide a run into chunks of equal size.

    Args:
        updates: requested gradient steps, rounded up to whole rows.
        chunk: desired gradient steps per chunk. The plan uses the nearest possible number.
        warm_up: gradient steps of the warm-up, rounded up to whole rows.

    Raises:
        ValueError: if the warm-up needs all gradient steps.
    """
    log_every = max(min(updates // CURVE_ROWS, LONGEST_ROW) // batches, 1) * batches
    rows = -(-updates // log_every)
    first = -(-warm_up // log_every)
    if first >= rows:
        raise ValueError(
            f"updates is {updates:,}, but the warm-up alone needs {warm_up:,} updates: increase updates, or reduce "
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
        plan: division of the run from `schedule`.
        limit: a member counts as diverged if a metric is larger (`Scaling.limit`).
        resume: callback that receives the initial state, and returns the state to start from. To continue a run, return
            a state that `report` received.
        report: callback (state, total updates), called at the start and after every chunk, for saving and display. An
            exception in the callback stops the run.

    Returns:
        The final state.

    Raises:
        ValueError: if the resumed state is not at the end of a chunk.
        FloatingPointError: if all members diverged. `report` does not receive the diverged state.
    """
    advance = make_train_chunk(algorithm, plan.chunk, plan.log_every, batch_size)
    names = jax.eval_shape(advance, fresh, data.shapes)[1]
    rows = plan.updates // plan.log_every
    state = RunState(fresh, {k: np.full((x.shape[0], rows), np.nan, x.dtype) for k, x in names.items()})
    state = state if resume is None else resume(state)
    if state.done % plan.chunk:
        raise ValueError(f"{state.done} saved updates are no multiple of chunk {plan.chunk}: use the saved run's chunk")
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
    """Return the tree with NumPy arrays. Parts of an array on several devices or processes are put together."""
    if all(getattr(x, "is_fully_addressable", True) for x in jax.tree.leaves(tree)):
        return jax.tree.map(np.asarray, tree)
    return multihost_utils.process_allgather(tree, tiled=True)


def _filled(curve: np.ndarray, rows: np.ndarray, at: int) -> np.ndarray:
    """Return a copy of the curve with new rows. The original must not change, because `report` may have stored it."""
    curve = np.array(curve)
    curve[:, at : at + rows.shape[1]] = rows
    return curve
