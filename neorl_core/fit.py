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
from neorl_core.training.preparation import Scaling, moments, scaled, scaling
from neorl_core.types import PlantSpec, Transition


class Fitted(NamedTuple):
    """What training gave: one policy for each member of the population."""

    algorithm: str
    config: Any
    """The algorithm's `Config` in full, defaults included."""
    policies: tuple[Policy, ...]
    members: tuple[Member, ...]
    sound: Bool[np.ndarray, " P"]
    """Whether a member's metrics stayed finite and small; a policy that did not pass is of no use."""
    steps: Int[np.ndarray, " L"]
    """Updates made at each row of the curves."""
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
        mesh: devices to spread members and batches over, from `sharding.mesh_of`; one device by default.
        resume: gives the state to begin with, as `train` takes it.
        report: told of the state after each chunk, as `train` takes it.

    Returns:
        Policies and curves, ordered as `members`.

    Raises:
        ValueError: on an unknown algorithm or hyper-parameter, an algorithm of another kind of actions, or transitions
            that do not fit.
        FloatingPointError: when every member diverged; the state that `report` was told of last is the last good one.

    Example:
        >>> learned = fit(transitions, spec, "td3_bc", updates=100_000)  # doctest: +SKIP
        >>> action = policy_act(learned.policies[0], observation)  # doctest: +SKIP
    """
    learner = known_algorithm(algorithm) if isinstance(algorithm, str) else algorithm
    check_actions(learner, spec)
    check_transitions(transitions, spec)
    config = configure(learner, overrides or {}, updates)
    found = members(seeds, grid or {})
    fresh = init_population(learner, spec, config, found)
    plan = schedule(updates, chunk, learner.batches_per_update, warm_up_updates(learner, config))
    how = scaling(moments(transitions), spec, np.asarray(transitions.observation).dtype)
    data = scaled(how, transitions)
    if mesh is not None:
        learner, fresh = sharding.split(learner, mesh), sharding.placed(mesh, fresh)
        data = sharding.replicated(mesh, data)
    state = train(learner, fresh, resident(data), plan, batch_size, limit=how.limit, resume=resume, report=report)
    population = state.population if mesh is None else jax.tree.map(jnp.asarray, on_host(state.population))
    return fitted(learner, config, found, how, plan, state._replace(population=population))


def fitted(
    algorithm: Algorithm,
    config: Any,
    population: Sequence[Member],
    how: Scaling,
    plan: Plan,
    end: RunState,
) -> Fitted:
    """What a run has come to.

    Args:
        algorithm: what was trained.
        config: its `Config`.
        population: the members.
        how: the training data were scaled.
        plan: how the run was cut.
        end: the run's last state.
    """
    return Fitted(
        algorithm=algorithm.name,
        config=config,
        policies=tuple(policies(algorithm, end.population, how.normaliser)),
        members=tuple(population),
        sound=~np.asarray(diverged(end.curves, how.limit)),
        steps=plan.steps,
        curves=end.curves,
    )


def known_algorithm(name: str) -> Algorithm:
    """The algorithm of that name.

    Raises:
        ValueError: with the names that there are.
    """
    if name not in ALGORITHMS:
        raise ValueError(f"expected an algorithm among {', '.join(ALGORITHMS)}, got '{name}': correct the name.")
    return ALGORITHMS[name]


def check_transitions(transitions: Transition, spec: PlantSpec) -> None:
    """Refuse rows that no learner can take.

    Args:
        transitions: (N, ...), physical units.
        spec: of the plant that they are said to be of.

    Raises:
        ValueError: when there are none, or on shapes, numbers or choices that do not fit.
    """
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
        # Infinity is how a next action says that none was logged.
        if not (np.isfinite(values) | ((name == "next_action") & np.isposinf(values))).all():
            raise ValueError(f"expected finite numbers in {name}, got NaN or infinity: leave those rows out.")
    if spec.choices is not None and not np.isin(transitions.action, np.arange(len(spec.choices))).all():
        raise ValueError(
            f"expected actions of {spec.name} that are numbers of its choices, 0 to {len(spec.choices) - 1}, got "
            "others: check what was read."
        )
