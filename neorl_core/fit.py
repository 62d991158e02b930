"""Train policies on logged transitions in one call: `fit`."""

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
    """Result of `fit` for a population of P members, with L rows in each learning curve."""

    algorithm: str
    config: Any
    """All hyper-parameters of the algorithm, defaults included."""
    policies: tuple[Policy, ...]
    members: tuple[Member, ...]
    sound: Bool[np.ndarray, " P"]
    """(P,) False if the training of a member diverged; do not use the policy of such a member."""
    steps: Int[np.ndarray, " L"]
    """(L,) Number of updates after which each row of the curves was recorded."""
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
    """Train policies on logged transitions: one policy per seed and point of a hyper-parameter grid.

    Args:
        transitions: N logged steps in physical units; every field has the leading axis N.
        spec: names, units and bounds of observations and actions.
        algorithm: a name in `ALGORITHMS` or your own `Algorithm`.
        updates: gradient steps of each member; `schedule` may round this number up.
        seeds: seeds of random numbers; every point of the grid is trained with every seed.
        overrides: hyper-parameters by name, with values that replace the defaults.
        grid: numeric hyper-parameters by name, with the values to try; all combinations are trained.
        chunk: gradient steps between two calls of `report`; does not affect the result.
        mesh: devices that share the members and batches, from `sharding.mesh_of`; one device by default.
        resume: callback that receives the fresh state and returns the state to start from; see `train`.
        report: callback that receives the state and the total number of updates after each chunk; see `train`.

    Returns:
        Policies and learning curves, both in the order of `FitResult.members`.

    Raises:
        ValueError: if the algorithm or a hyper-parameter is unknown, the algorithm cannot learn this kind of actions
            (discrete or continuous), or the transitions do not fit the spec.
        FloatingPointError: if every member diverged; the state last passed to `report` is still valid.

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
    """Build a `FitResult` from the final state of a training run.

    Args:
        population: the members, in the order of training.
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
    """Return the algorithm with this name in `ALGORITHMS`.

    Raises:
        ValueError: if there is no such algorithm; the message lists the available names.
    """
    if name not in ALGORITHMS:
        raise ValueError(f"unknown algorithm '{name}': choose one of {', '.join(ALGORITHMS)}")
    return ALGORITHMS[name]


def check_transitions(transitions: Transition, spec: PlantSpec) -> None:
    """Check shapes and values of logged transitions against the spec of a plant.

    Args:
        transitions: (N, ...) in physical units.

    Raises:
        ValueError: if there are no rows, a shape is wrong, a number is not finite, or an action is not a choice.
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
            raise ValueError(f"{name} must have shape {shape}, got {np.shape(values)}: select other columns")
        # An infinite next action means that no next action was logged.
        valid = np.isfinite(values) | ((name == "next_action") & np.isposinf(values))
        if not valid.all():
            where = tuple(int(i) for i in np.argwhere(~valid)[0])
            raise ValueError(f"{name} must be finite, got {values[where]} in row {where[0]}: remove this row")
    if spec.choices is not None and not (valid := np.isin(transitions.action, np.arange(len(spec.choices)))).all():
        wrong = np.asarray(transitions.action)[~valid][0]
        raise ValueError(
            f"actions of {spec.name} must be choice numbers from 0 to {len(spec.choices) - 1}, got {wrong:g}: check "
            "the action column"
        )
