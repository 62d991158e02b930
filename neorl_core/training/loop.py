"""The training loop: chunks of a compiled program, resumable between any two of them."""

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
"""Rows of the learning curves, at least, where there are as many updates."""
LONGEST_ROW = 500
"""Gradient steps of a row, at most: what a slow algorithm needs for them is how long an interruption may wait."""


class Plan(NamedTuple):
    """How a run is cut, so that each of its programs is compiled once; all in gradient steps."""

    log_every: int
    """Gradient steps whose metrics are averaged into one row of the learning curves."""
    chunk: int
    """Gradient steps between two returns to Python, a multiple of `log_every`."""
    updates: int
    """Gradient steps of the whole run, a multiple of `chunk`."""
    warm_up: int = 0
    """Gradient steps of the warm-up, which is a program of its own; a multiple of `chunk`."""

    @property
    def steps(self) -> Int[np.ndarray, " L"]:
        """Gradient steps made at each row of the learning curves."""
        return np.arange(self.log_every, self.updates + 1, self.log_every)


class RunState(NamedTuple):
    """The state of a training run: all that is needed to go on from it."""

    population: TrainState
    curves: dict[str, Float[np.ndarray, "P L"]]
    """Each metric's values by its name, a row for each member; NaN where training has not come yet."""

    @property
    def done(self) -> int:
        """Gradient steps made."""
        return int(on_host(self.population.step)[0])


class TrainingRows(NamedTuple):
    """The prepared transitions of a run, of which each chunk draws from those on the device."""

    shapes: Transition
    """Like any answer of `at`: arrays, or shapes and types."""
    at: Callable[[int], Transition]
    """Updates made -> the transitions that the next chunk draws from, on the device. It depends on nothing else."""


def resident(data: Transition) -> TrainingRows:
    """Rows that stay on the device for the whole run."""
    return TrainingRows(data, lambda done: data)


def schedule(updates: int, chunk: int, batches: int, warm_up: int = 0) -> Plan:
    """Cut a run into chunks of equal size.

    Args:
        updates: gradient steps asked for.
        chunk: gradient steps wished for between two returns to Python.
        batches: the algorithm's `batches_per_update`.
        warm_up: gradient steps of another program at the start, rounded up to whole rows; a chunk ends there.

    Returns:
        The plan, whose `updates` are the least that fit and are not fewer than asked for. The chunk changes neither of
        the other two.

    Raises:
        ValueError: when nothing is left after the warm-up.
    """
    log_every = max(min(updates // CURVE_ROWS, LONGEST_ROW) // batches, 1) * batches
    rows = -(-updates // log_every)
    first = -(-warm_up // log_every)
    if first >= rows:
        raise ValueError(
            f"expected more updates than the {warm_up:,} that come before the policy's, got {updates:,}: ask for more, "
            "or lower warm_up_updates."
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
    """The loop over chunks: every run of the pipeline and of `fit` goes through it.

    Args:
        algorithm: what to train.
        fresh: state to begin with, from `init_population`.
        data: prepared transitions.
        plan: how the run is cut, from `schedule`.
        batch_size: transitions per gradient step.
        limit: beyond which a metric has diverged, as the rows' `Scaling` has it.
        resume: given the fresh start, returns where to begin: itself, or what an earlier run's `report` was told.
        report: told of the progress and of the updates in all, at the start and after every chunk. Saving, evaluating
            and showing are its affair; what it raises ends the run.

    Returns:
        The progress at the end.

    Raises:
        ValueError: when what `resume` gives does not fit the plan.
        FloatingPointError: when every member diverged; the state that `report` was told of last is the last good one.
    """
    advance = make_train_chunk(algorithm, plan.chunk, plan.log_every, batch_size)
    names = jax.eval_shape(advance, fresh, data.shapes)[1]
    rows = plan.updates // plan.log_every
    state = RunState(fresh, {k: np.full((x.shape[0], rows), np.nan, x.dtype) for k, x in names.items()})
    state = state if resume is None else resume(state)
    if state.done % plan.chunk:
        raise ValueError(
            f"expected to go on from a multiple of {plan.chunk} updates, got {state.done}: keep the same chunk."
        )
    if report:
        report(state, plan.updates)
    for done in range(state.done, plan.updates, plan.chunk):
        advance = make_train_chunk(phase(algorithm, done < plan.warm_up), plan.chunk, plan.log_every, batch_size)
        population, metrics = advance(state.population, data.at(done))
        told = on_host(metrics)
        if np.asarray(diverged(told, limit)).all():
            raise FloatingPointError(
                f"expected training to stay finite, got divergence of every member by update {done + plan.chunk}: "
                "lower the learning rates."
            )
        state = RunState(population, {k: _filled(x, told[k], done // plan.log_every) for k, x in state.curves.items()})
        if report:
            report(state, plan.updates)
    return state


def on_host(tree: Any) -> Any:
    """Every array as NumPy's, whole, on whatever devices and processes its parts are."""
    if all(getattr(x, "is_fully_addressable", True) for x in jax.tree.leaves(tree)):
        return jax.tree.map(np.asarray, tree)
    return multihost_utils.process_allgather(tree, tiled=True)


def _filled(curve: np.ndarray, rows: np.ndarray, at: int) -> np.ndarray:
    """A copy, for what `report` was told of before must stay as it was."""
    curve = np.array(curve)
    curve[:, at : at + rows.shape[1]] = rows
    return curve
