"""Offline RL in one call: transitions in, policies and learning curves out."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int

from neorl_core.algorithms import ALGORITHMS
from neorl_core.networks import Policy
from neorl_core.training import (
    Algorithm,
    Metrics,
    TrainState,
    configure,
    diverged,
    init_population,
    make_train_chunk,
    members,
    phase,
    policies,
    prepare,
)
from neorl_core.types import PlantSpec, Transition

CURVE_ROWS = 200
"""Rows of the learning curves, at least, where there are as many updates."""
LONGEST_ROW = 500
"""Gradient steps of a row, at most: what a slow algorithm needs for them is how long an interruption may wait."""


class Progress(NamedTuple):
    """A run at some point: all that going on from there needs."""

    population: TrainState
    curves: Metrics
    """Metric -> (P, L); NaN where training has not come yet."""

    @property
    def done(self) -> int:
        """Updates made."""
        return int(self.population.step[0])


class Fitted(NamedTuple):
    """What training gave: one policy for each member of the population."""

    algorithm: str
    config: Any
    """The algorithm's `Config` in full, defaults included."""
    policies: tuple[Policy, ...]
    members: tuple[dict[str, Any], ...]
    """`{"index", "seed", "hyperparameters"}` of each member."""
    sound: Bool[np.ndarray, " P"]
    """Whether a member's metrics stayed finite and small; a policy that did not pass is of no use."""
    steps: Int[np.ndarray, " L"]
    """Updates made at each row of the curves."""
    curves: dict[str, Float[np.ndarray, "P L"]]

    def __str__(self) -> str:
        lines = [f"{self.algorithm}: {self.steps[-1]:,} updates, {len(self.policies)} member(s)"]
        for member in self.members:
            varied = "".join(f", {name} {value:g}" for name, value in member["hyperparameters"].items())
            last = ", ".join(f"{name} {rows[member['index'], -1]:.4g}" for name, rows in self.curves.items())
            verdict = "" if self.sound[member["index"]] else " (diverged)"
            lines.append(f"  seed {member['seed']}{varied}: {last}{verdict}")
        return "\n".join(lines)


def schedule(updates: int, chunk: int, batches: int, warm_up: int = 0) -> tuple[int, int, int]:
    """How a run is cut, so that one compiled program serves all of it.

    Args:
        updates: gradient steps asked for.
        chunk: gradient steps wished for between two returns to Python.
        batches: the algorithm's `batches_per_update`.
        warm_up: gradient steps of another program at the start, rounded up to whole rows; a chunk ends there.

    Returns:
        Gradient steps per row of the curves, per chunk (a multiple of it) and in all (a multiple of both, the least
        that is not below `updates`). The chunk changes neither of the other two.
    """
    log_every = max(min(updates // CURVE_ROWS, LONGEST_ROW) // batches, 1) * batches
    rows = -(-updates // log_every)
    common = math.gcd(rows, -(-warm_up // log_every)) if warm_up < updates else rows
    divisors = [n for n in range(1, common + 1) if common % n == 0]
    return log_every, min(divisors, key=lambda n: abs(n * log_every - chunk)) * log_every, rows * log_every


def fit(
    transitions: Transition,
    spec: PlantSpec,
    algorithm: str | Algorithm = "td3_bc",
    *,
    updates: int = 100_000,
    seeds: Sequence[int] = (0,),
    overrides: Mapping[str, Any] | None = None,
    grid: Mapping[str, Sequence[float]] | None = None,
    batch_size: int = 256,
    chunk: int = 500,
    resume: Callable[[Progress], Progress] | None = None,
    report: Callable[[Progress, int], None] | None = None,
) -> Fitted:
    """Train a population of policies on logged transitions.

    Args:
        transitions: (N, ...), physical units.
        spec: names and bounds of observations and actions.
        algorithm: one of `ALGORITHMS` by name, or an `Algorithm` of your own.
        updates: gradient steps; rounded up as `schedule` says.
        seeds: one member for each, and for each point of the grid.
        overrides: hyper-parameters that differ from the algorithm's defaults.
        grid: values of numeric hyper-parameters in which members differ.
        batch_size: transitions per gradient step.
        chunk: gradient steps between two calls of `report`; no result depends on it.
        resume: given the fresh start, returns where to begin: itself, or what an earlier run's `report` was told.
        report: told of the progress and of the updates in all, at the start and after every chunk.

    Returns:
        Policies and curves, ordered as `members`.

    Raises:
        ValueError: on an unknown algorithm or hyper-parameter, or transitions that do not fit the spec.
        FloatingPointError: when every member diverged; the state that `report` was told of last is the last good one.

    Example:
        >>> learned = fit(transitions, spec, "td3_bc", updates=100_000)  # doctest: +SKIP
        >>> action = policy_act(learned.policies[0], observation)  # doctest: +SKIP
    """
    learner = known_algorithm(algorithm) if isinstance(algorithm, str) else algorithm
    _check(transitions, spec)
    config = configure(learner, overrides or {})
    fresh = init_population(learner, spec, config, seeds, grid or {})
    warm_up = config.warm_up_updates if learner.warm_up else 0
    log_every, chunk, updates = schedule(updates, chunk, learner.batches_per_update, warm_up)
    normaliser, data = prepare(transitions, spec)
    advance = make_train_chunk(learner, chunk, log_every, batch_size)
    names = jax.eval_shape(advance, fresh, data)[1]
    state = Progress(fresh, {k: jnp.full((x.shape[0], updates // log_every), jnp.nan) for k, x in names.items()})
    state = state if resume is None else jax.tree.map(jnp.asarray, resume(state))
    if state.done % chunk:
        raise ValueError(
            f"expected to go on from a multiple of {chunk} updates, got {state.done}: keep the same chunk."
        )
    if report:
        report(state, updates)
    while (done := state.done) < updates:
        advance = make_train_chunk(phase(learner, config, done), chunk, log_every, batch_size)
        population, metrics = advance(state.population, data)
        if np.asarray(diverged(metrics)).all():
            raise FloatingPointError(
                f"expected training to stay finite, got divergence of every member by update {done + chunk}: lower the "
                "learning rates."
            )
        at = done // log_every
        curves = {k: x.at[:, at : at + chunk // log_every].set(metrics[k]) for k, x in state.curves.items()}
        state = Progress(population, curves)
        if report:
            report(state, updates)
    return Fitted(
        algorithm=learner.name,
        config=config,
        policies=tuple(policies(learner, state.population, normaliser)),
        members=tuple(members(seeds, grid or {})),
        sound=~np.asarray(diverged(state.curves)),
        steps=np.arange(1, updates // log_every + 1) * log_every,
        curves={name: np.asarray(rows) for name, rows in state.curves.items()},
    )


def known_algorithm(name: str) -> Algorithm:
    """The algorithm of that name.

    Raises:
        ValueError: with the names that there are.
    """
    if name not in ALGORITHMS:
        raise ValueError(f"expected an algorithm among {', '.join(ALGORITHMS)}, got '{name}': correct the name.")
    return ALGORITHMS[name]


def _check(transitions: Transition, spec: PlantSpec) -> None:
    rows = np.shape(transitions.reward)[0] if np.ndim(transitions.reward) else 0
    if rows == 0:
        raise ValueError("expected at least one transition, got none: check what was read.")
    widths = {"observation": (spec.observation.size,), "action": (spec.action.size,)}
    widths["next_observation"] = widths["observation"]
    widths["next_action"] = widths["action"]
    for name, values in transitions._asdict().items():
        if values is None:
            continue
        shape = (rows, *widths.get(name, ()))
        if np.shape(values) != shape:
            raise ValueError(f"expected {name} of shape {shape}, got {np.shape(values)}: check it against the spec.")
        # NaN is how a next action says that none was logged.
        if name != "next_action" and not np.isfinite(values).all():
            raise ValueError(f"expected finite numbers in {name}, got NaN or infinity: leave those rows out.")
