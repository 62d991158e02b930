"""Offline RL in one call: transitions in, policies and learning curves out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Bool, Float, Int

from neorl_core.algorithms import ALGORITHMS, check_actions
from neorl_core.networks import Policy
from neorl_core.training import sharding
from neorl_core.training.loop import Plan, RunState, on_host, resident, schedule, train
from neorl_core.training.population import (
    Algorithm,
    Member,
    configure,
    diverged,
    init_population,
    members,
    policies,
    warm_up_updates,
)
from neorl_core.training.preparation import Scaling, make_scaling, moments, scale_rows
from neorl_core.types import PlantSpec, Transition


class FitResult(NamedTuple):
    """Result of training, with one policy per member of the population."""

    algorithm: str
    config: Any
    """The algorithm's complete `Config`."""
    policies: tuple[Policy, ...]
    members: tuple[Member, ...]
    sound: Bool[np.ndarray, " P"]
    """Whether a member's metrics stayed finite and small; do not use the policies of other members."""
    steps: Int[np.ndarray, " L"]
    """Updates taken at each row of the curves."""
    curves: dict[str, Float[np.ndarray, "P L"]]

    def __str__(self) -> str:
        lines = [f"{self.algorithm}: {self.steps[-1]:,} updates, {len(self.policies)} member(s)"]
        for member in self.members:
            varied = "".join(f", {name} {value:g}" for name, value in member.hyperparameters.items())
            last = ", ".join(f"{name} {rows[member.index, -1]:.4g}" for name, rows in self.curves.items())
            verdict = "" if self.sound[member.index] else " (diverged)"
            lines.append(f"  seed {member.seed}{varied}: {last}{verdict}")
        return "\n".join(lines)


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
    mesh: Mesh | None = None,
    resume: Callable[[RunState], RunState] | None = None,
    report: Callable[[RunState, int], None] | None = None,
) -> FitResult:
    """Train a population of policies on logged transitions.

    Args:
        transitions: (N, ...) in physical units.
        spec: names and bounds of observations and actions.
        algorithm: a name in `ALGORITHMS` or your own `Algorithm`.
        updates: gradient steps, rounded up as in `schedule`.
        seeds: one member per seed and point of the grid.
        overrides: hyper-parameters that differ from the defaults.
        grid: values of numeric hyper-parameters that members vary.
        batch_size: transitions per gradient step.
        chunk: gradient steps between two calls of `report`; no result depends on it.
        mesh: devices for members and batches, from `sharding.mesh_of`; one device by default.
        resume: callback that returns the state to start from, as in `train`.
        report: callback with the state after each chunk, as in `train`.

    Returns:
        Policies and curves in the order of `members`.

    Raises:
        ValueError: on an unknown algorithm or hyper-parameter, an algorithm for the other kind of actions, or
            transitions that do not fit the spec.
        FloatingPointError: if every member diverged; the last reported state is the last good one.

    Example:
        >>> result = fit(transitions, spec, "td3_bc", updates=100_000)  # doctest: +SKIP
        >>> action = policy_act(result.policies[0], observation)  # doctest: +SKIP
    """
    learner = get_algorithm(algorithm) if isinstance(algorithm, str) else algorithm
    check_actions(learner, spec)
    check_transitions(transitions, spec)
    config = configure(learner, overrides or {}, updates)
    population = members(seeds, grid or {})
    fresh = init_population(learner, spec, config, population)
    plan = schedule(updates, chunk, learner.batches_per_update, warm_up_updates(learner, config))
    scaling = make_scaling(moments(transitions), spec, np.asarray(transitions.observation).dtype)
    data = scale_rows(scaling, transitions)
    if mesh is not None:
        learner, fresh = sharding.shard_batches(learner, mesh), sharding.shard_members(mesh, fresh)
        data = sharding.replicate(mesh, data)
    state = train(learner, fresh, resident(data), plan, batch_size, limit=scaling.limit, resume=resume, report=report)
    if mesh is not None:
        state = state._replace(population=jax.tree.map(jnp.asarray, on_host(state.population)))
    return make_result(learner, config, population, scaling, plan, state)


def make_result(
    algorithm: Algorithm,
    config: Any,
    population: Sequence[Member],
    scaling: Scaling,
    plan: Plan,
    end: RunState,
) -> FitResult:
    """Return the result of a run.

    Args:
        algorithm: trained algorithm.
        config: its `Config`.
        population: the members.
        scaling: scaling of the training data.
        plan: division of the run.
        end: final state of the run.
    """
    return FitResult(
        algorithm=algorithm.name,
        config=config,
        policies=tuple(policies(algorithm, end.population, scaling.normaliser)),
        members=tuple(population),
        sound=~np.asarray(diverged(end.curves, scaling.limit)),
        steps=plan.steps,
        curves=end.curves,
    )


def get_algorithm(name: str) -> Algorithm:
    """Return the algorithm of that name.

    Raises:
        ValueError: listing the available names.
    """
    if name not in ALGORITHMS:
        raise ValueError(f"unknown algorithm '{name}': choose one of {', '.join(ALGORITHMS)}")
    return ALGORITHMS[name]


def check_transitions(transitions: Transition, spec: PlantSpec) -> None:
    """Check that rows fit the spec of a plant.

    Args:
        transitions: (N, ...) in physical units.
        spec: spec of the plant.

    Raises:
        ValueError: if there are no rows, or shapes, numbers or choices do not fit.
    """
    rows = np.shape(transitions.reward)[0] if np.ndim(transitions.reward) else 0
    if rows == 0:
        raise ValueError("training needs at least one transition, got 0: check the file and the filters")
    widths = {"observation": (spec.observation.size,), "action": (spec.action.size,)}
    widths["next_observation"] = widths["observation"]
    widths["next_action"] = widths["action"]
    for name, values in transitions._asdict().items():
        if values is None:
            continue
        shape = (rows, *widths.get(name, ()))
        if np.shape(values) != shape:
            raise ValueError(f"{name} must have shape {shape}, got {np.shape(values)}: compare it with the spec")
        # A next action of infinity means that none was logged.
        valid = np.isfinite(values) | ((name == "next_action") & np.isposinf(values))
        if not valid.all():
            where = tuple(int(i) for i in np.argwhere(~valid)[0])
            raise ValueError(f"{name} must be finite, got {values[where]} in row {where[0]}: remove such rows")
    if spec.choices is not None and not (valid := np.isin(transitions.action, np.arange(len(spec.choices)))).all():
        wrong = np.asarray(transitions.action)[~valid][0]
        raise ValueError(
            f"actions of {spec.name} must number the choices from 0 to {len(spec.choices) - 1}, got {wrong:g}: check "
            "the action column"
        )
