"""The cells of the study."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.graph_study.agents import cell_agents
from benchmarks.graph_study.logs import Case, cases, logs, loops, plant_of
from benchmarks.graph_study.speed import on_one_core, rows
from neorl_core.algorithms import ALGORITHMS
from neorl_core.fit import FitResult, fit
from neorl_core.graph.policy import with_layout
from neorl_core.networks import Policy, critics_apply, normalise, policy_act, to_unit
from neorl_core.plants.power_grid import enumerated
from neorl_core.plants.power_grid.feeder import Feeder
from neorl_core.plants.power_grid.feeder33 import FEEDER
from neorl_core.plants.power_grid.feeders.case118zh import CASE118ZH
from neorl_core.plants.power_grid.power_flow import magnitude
from neorl_core.plants.power_grid.radial import leaving, meshed_of
from neorl_core.plants.power_grid.switching import LOW, Grid, flow, in_service_of, split_observation, topology
from neorl_core.training.population import Algorithm
from neorl_core.types import Plant, Transition


class Size(NamedTuple):
    """Size of a cell."""

    days: int = 400
    updates: int = 2_000
    loads: int = 100
    """Loads of each kind in the comparison."""
    batch: int = 64
    decisions: int = 1_000
    trials: int = 64
    """Days in the comparison of agents."""
    seeds: int = 5
    """Number of policies for each kind of agents, one for each seed."""


FULL = Size()
SMALL = Size(days=8, updates=10, loads=3, batch=8, decisions=5, trials=2, seeds=2)
"""Size of a cell in the tests."""
GRAPH = {"graph": 5, "hidden": [24]}
DENSE = {"hidden": [256, 256]}
LEARNERS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "graph, bc": ("bc", GRAPH | {"actor_lr": 3e-3}),
    "graph, td3_bc": ("td3_bc", GRAPH | {"actor_lr": 3e-3, "critic_lr": 1e-3, "discount": 0.0, "alpha": 0.5}),
    "graph, iql": ("iql", GRAPH | {"actor_lr": 3e-3, "critic_lr": 1e-3, "discount": 0.0}),
    "MLP, bc": ("bc", DENSE),
    "MLP, td3_bc": ("td3_bc", DENSE | {"critic_lr": 1e-3, "discount": 0.0, "alpha": 0.5}),
    "MLP, iql": ("iql", DENSE | {"critic_lr": 1e-3, "discount": 0.0}),
}
"""Learner and settings of each policy. The discount is 0: the loss of an hour depends on this hour's switches only."""
RATES = (3e-3, 1e-3)
"""Learning rates of the actors on 118 buses."""
Act = Callable[[jax.Array], jax.Array]


def grid_of(feeder: Feeder, plant: Plant) -> Grid:
    """Return the feeder with the derived data that the plant uses."""
    impedance = np.stack([feeder.resistance, feeder.reactance], -1)
    return Grid(feeder, meshed_of(feeder), leaving(feeder), impedance, plant.params)


def deciding(grid: Grid, act: Callable[[Any, jax.Array], jax.Array]) -> Callable[[Any, Case], Any]:
    """Return a function that opens a policy's lines and returns loss [MW] and lowest voltage [pu] for each load."""

    def one(policy: Any, observation: jax.Array, active: jax.Array, reactive: jax.Array, params: Any) -> Any:
        chosen = topology(grid, act(policy, observation), in_service_of(grid, params, observation.dtype))
        found = flow(grid, chosen.path, active, reactive, params)
        return found.loss, jnp.min(magnitude(found.voltage))

    return jax.jit(lambda policy, on: jax.vmap(partial(one, policy))(*on))


def outcome(grid: Grid, act: Act, on: Case) -> tuple[np.ndarray, np.ndarray]:
    """Return loss [MW] and lowest voltage [pu] for each load, with the lines that `act` opens."""
    loss, lowest = deciding(grid, lambda _, x: act(x))(None, on)
    return np.asarray(loss, np.float64), np.asarray(lowest, np.float64)


def optimum(grid: Grid, on: Case) -> tuple[np.ndarray, np.ndarray]:
    """Return for each load the least loss [MW] of all topologies, and the lowest voltage [pu] of that topology."""
    positions = enumerated.positions()
    impedance = jnp.asarray(grid.impedance, jnp.float32) * jnp.asarray(on.params.impedance_scale)[:, None, None]
    source = jnp.asarray(on.params.source_voltage[0])
    loss, lowest = map(np.array, enumerated.losses(jnp.asarray(positions), on.active, on.reactive, impedance, source))
    opened, out = enumerated.opened_by(positions), np.asarray(on.params.outage).astype(int)
    loss[(out >= 0)[None] & ~opened[:, out]] = np.inf
    best = loss.argmin(0)
    return loss[best, np.arange(len(out))], lowest[best, np.arange(len(out))]


def judged(grid: Grid, act: Act, on: Case, best: np.ndarray) -> dict[str, float]:
    """Compare the losses of a policy with `best`, the least loss [MW] for each load."""
    loss, lowest = outcome(grid, act, on)
    ratio = loss / best
    return {
        "within": float(np.mean(ratio <= 1.05)),
        "median": float(np.median(ratio)),
        "mean": float(np.mean(ratio)),
        "violations": int(np.sum(lowest < LOW)),
    }


def learned(data: Transition, plant: Plant, name: str, size: Size) -> FitResult:
    """Train the policy of one entry of `LEARNERS`."""
    algorithm, overrides = LEARNERS[name]
    overrides = overrides | {"actor_recipe": {"schedule": "cosine", "steps": size.updates}}
    return fit(data, plant.spec, algorithm, updates=size.updates, overrides=overrides, batch_size=size.batch, chunk=500)


def direct_value(held_out: Transition, plant: Plant, size: Size) -> Callable[[Act], float]:
    """Return a function that estimates a policy's value: a critic learns the reward of an hour from held-out days, and
    the value is its mean at the policy's actions (direct method, Dudík et al. 2011, arXiv 1103.4601).
    """
    overrides = dict(LEARNERS["graph, td3_bc"][1])
    known: list[Any] = []
    fitted = fit(
        held_out,
        plant.spec,
        "td3_bc",
        updates=size.updates,
        overrides=overrides,
        batch_size=size.batch,
        chunk=size.updates,
        report=lambda state, _: known.append(state.population.learner.critics),
    )
    critics = jax.tree.map(lambda x: x[0], known[-1])
    normaliser = fitted.policies[0].normaliser
    rows = jnp.asarray(held_out.observation[:: max(len(held_out.reward) // 512, 1)])

    def value(act: Act) -> float:
        action = jnp.sign(jax.lax.map(act, rows))
        q = critics_apply(critics, normalise(normaliser, rows), to_unit(normaliser, action))
        return float(jnp.mean(jnp.min(q, 0)))

    return value


def cell_optimum(size: Size = FULL) -> dict[str, Any]:
    """On 33 buses: train every policy, estimate its value from held-out days, then compare with the optimum."""
    plant = plant_of(FEEDER)
    grid, (known, unknown) = grid_of(FEEDER, plant), loops(FEEDER)
    ours, held_out = logs(plant, FEEDER, size.days, 1), logs(plant, FEEDER, max(size.days // 4, 2), 2)
    value = direct_value(held_out, plant, size)
    acts: dict[str, Act] = {}
    rows: dict[str, dict[str, Any]] = {}
    for name in LEARNERS:
        began = time.process_time()
        acts[name] = partial(policy_act, learned(ours, plant, name, size).policies[0])
        rows[name] = {"seconds": time.process_time() - began, "estimate": _estimate(value, grid, acts[name])}
        print(name, rows[name], flush=True)
    acts["the plant's own rule"] = lambda x: plant.fallback.act(plant.fallback_params, (), x, plant.applied(x))[1]
    acts["switches as they are"] = plant.applied
    kinds = {
        "known": cases(plant, FEEDER, known, 0.5, size.loads, 3),
        "held out": cases(plant, FEEDER, unknown, 1.0, size.loads, 4),
    }
    for kind, on in kinds.items():
        best, lowest = optimum(grid, on)
        rows.setdefault("the optimum", {})[kind] = {"violations": int(np.sum(lowest < LOW))}
        for name, act in acts.items():
            rows.setdefault(name, {})[kind] = judged(grid, act, on, best)
    return {"policies": rows, "loads": size.loads, "days": size.days, "updates": size.updates}


def _estimate(value: Callable[[Act], float], grid: Grid, act: Act) -> float:
    """Return the estimated value of the lines that a policy opens, instead of its raw output."""

    def opened(x: jax.Array) -> jax.Array:
        return 2.0 * topology(grid, act(x), split_observation(grid.feeder, x).in_service).opened - 1.0

    return value(opened)


def cell_transfer(size: Size = FULL) -> dict[str, Any]:
    """On 118 buses: train weights of 33 buses further, train from scratch, and compare with the plant's own rule.

    Each number of updates is a separate training with a cosine schedule, because results with a constant rate vary too
    much. Both variants are trained with every learning rate in `RATES`.
    """
    small, large = plant_of(FEEDER), plant_of(CASE118ZH)
    grid = grid_of(CASE118ZH, large)
    source = learned(logs(small, FEEDER, size.days, 1), small, "graph, bc", size).policies[0]
    data = logs(large, CASE118ZH, size.days // 4, 5)
    on = cases(large, CASE118ZH, loops(CASE118ZH)[1], 0.5, size.loads, 6)
    own = outcome(grid, lambda x: large.fallback.act(large.fallback_params, (), x, large.applied(x))[1], on)[0]
    layout = large.spec.layout
    assert layout is not None
    moved, decide, whole = with_layout(source.params, layout), deciding(grid, policy_act), max(size.updates // 2, 20)
    beginnings = {"from scratch": ALGORITHMS["bc"], "tuned": _begun_with(ALGORITHMS["bc"], moved)}
    rows: dict[str, list[dict[str, Any]]] = {name: [] for name in beginnings}
    trainings = (("tuned", 20), ("tuned", 10), ("tuned", 5), ("from scratch", 5), ("from scratch", 1))
    for rate, (name, part) in itertools.product(RATES, trainings):
        updates = whole // part
        overrides = GRAPH | {"actor_lr": rate, "actor_recipe": {"schedule": "cosine", "steps": updates}}
        fitted = fit(
            data,
            large.spec,
            beginnings[name],
            updates=updates,
            seeds=range(size.seeds),
            overrides=overrides,
            batch_size=size.batch,
        )
        if not rows["tuned"]:
            untuned = Policy(moved, fitted.policies[0].normaliser)
            rows["tuned"].append({"updates": 0, "rate": 0.0} | _beside(decide, [untuned], on, own))
        rows[name].append({"updates": updates, "rate": rate} | _beside(decide, fitted.policies, on, own))
        print(name, rows[name][-1], flush=True)
    return {"rows": rows, "loads": size.loads, "updates": whole, "days": size.days // 4}


def _beside(
    decide: Callable[[Any, Case], Any], policies: Sequence[Policy], on: Case, own: np.ndarray
) -> dict[str, list[float]]:
    """Return for each policy: mean loss / loss of the plant's own rule, and share of loads with low voltage."""
    found = [tuple(map(np.asarray, decide(policy, on))) for policy in policies]
    return {
        "loss": [float(np.mean(loss / own)) for loss, _ in found],
        "violations": [float(np.mean(lowest < LOW)) for _, lowest in found],
    }


def _begun_with(algorithm: Algorithm, actor: Any) -> Algorithm:
    """Return the algorithm with given initial weights of the actor."""

    def init(key: jax.Array, spec: Any, config: Any) -> Any:
        return algorithm.init(key, spec, config)._replace(actor=actor)

    return algorithm._replace(init=init)


def cell_speed(size: Size = FULL) -> dict[str, Any]:
    """Measure the microseconds from an observation to the open lines, one decision after the other on one core."""
    return on_one_core(rows, size.decisions, GRAPH) | {"rounds": GRAPH["graph"], "width": GRAPH["hidden"][0]}


CELLS: Mapping[str, Callable[[Size], dict[str, Any]]] = {
    "optimum": cell_optimum,
    "transfer": cell_transfer,
    "speed": cell_speed,
    "agents": cell_agents,
}
