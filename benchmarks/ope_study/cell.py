"""A cell of the study: data, policies, their estimates, and afterwards the truth."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from configs.home import Home
from configs.load import load_run
from configs.run import RunConfig
from neorl_core.algorithms import ALGORITHMS
from neorl_core.fit import fit
from neorl_core.networks import Policy
from neorl_core.ope import fqe
from neorl_core.ope.agreement import Estimate
from neorl_core.plants import PLANTS
from neorl_core.plants.base import rollouts
from neorl_core.safety.composite import bare_controller
from neorl_core.training.loop import RunState
from neorl_core.training.population import policies
from neorl_core.training.preparation import prepare
from tasks.adapters.store.episodes import Logs, read_logs
from tasks.adapters.store.histories import NO_PAST
from tasks.adapters.store.reader import StoredDataset
from tasks.adapters.synthetic.episodes import generate
from tasks.evaluation.estimators import decisions, episodes_of, fit_estimators

ROOT = Path(__file__).resolve().parents[2]
TRUTH_SEED = 20_261_122


class Size(NamedTuple):
    """How large a cell is."""

    rows: int = 50_000
    updates: int = 900
    """Gradient steps of each learner."""
    truth: int = 256
    """Episodes of the simulator behind each true value."""
    evaluate: Mapping[str, int] = {}
    """Overrides of a run's `evaluate`."""


FULL = Size()
SMALL = Size(2_000, 60, 16, {"fqe_updates": 40, "model_updates": 40, "bootstraps": 50})
"""A cell of the tests."""
LEARNERS: dict[str, tuple[dict[str, Any], dict[str, list[float]]]] = {
    "bc": ({}, {}),
    "td3_bc": ({"actor_lr": 1e-3, "critic_lr": 1e-3, "discount": 0.97}, {"alpha": [0.5, 2.5, 20.0]}),
    "iql": ({"actor_lr": 1e-3, "critic_lr": 1e-3, "discount": 0.97}, {}),
    "bptt": ({"discount": 0.97}, {"penalty": [0.1, 2.0]}),
}
"""What policies are learned with: overrides, and what the members differ in. Each is kept at a third of its way too."""
NOISES = (0.03, 0.1, 0.2, 0.4)
"""Deviations, beside a weight's size, of the normal noise on the clone's weights."""


class Candidates(NamedTuple):
    """Policies by name; the first is the clone of the behaviour."""

    names: list[str]
    policies: list[Policy]


def candidates(logs: Logs, plant: str, size: Size) -> Candidates:
    """Policies of widely different worth from training episodes: learned ones, half-learned ones, and noisy clones."""
    spec, found = PLANTS[plant].spec, Candidates([], [])
    normaliser = prepare(logs.transitions, spec)[0]
    for name, (overrides, grid) in LEARNERS.items():
        kept: list[RunState] = []
        own = dict(overrides)
        if name == "bptt":
            warm = size.updates * 2 // 3
            own |= {"warm_up_updates": warm, "model_recipe": {"schedule": "cosine", "steps": warm}}
            own |= {"actor_recipe": {"preset": "sac", "schedule": "cosine", "steps": size.updates - warm}}
        learned = fit(
            logs.transitions,
            spec,
            name,
            updates=size.updates,
            overrides=own,
            grid=grid,
            chunk=max(size.updates // 3, 1),
            report=partial(_keep, kept),
        )
        early = policies(ALGORITHMS[name], kept[len(kept) // 2].population, normaliser)
        for stage, of_stage in (("", learned.policies), (", early", early)):
            for member, policy in zip(learned.members, of_stage, strict=True):
                varied = "".join(f" {key}={value:g}" for key, value in member.hyperparameters.items())
                found.names.append(f"{name}{varied}{stage}")
                found.policies.append(policy)
    clone = found.policies[0]
    for i, noise in enumerate(NOISES * 2):
        found.names.append(f"bc, weights moved by {noise:g} ({i // len(NOISES) + 1})")
        found.policies.append(clone._replace(params=shaken(clone.params, jax.random.key(i), noise)))
    return found


def _keep(kept: list[RunState], state: RunState, updates: int) -> None:
    kept.append(state)


def shaken(params: dict[str, Any], key: jax.Array, noise: float) -> dict[str, Any]:
    """Weights with normal noise of a share of each array's root mean square."""
    leaves, structure = jax.tree.flatten(params)
    keys = jax.random.split(key, len(leaves))
    moved = [
        x + noise * jnp.sqrt(jnp.mean(x**2)) * jax.random.normal(k, x.shape) for x, k in zip(leaves, keys, strict=True)
    ]
    result: dict[str, Any] = jax.tree.unflatten(structure, moved)
    return result


def true_values(plant: str, found: Sequence[Policy], discount: float, episodes: int) -> list[list[float]]:
    """Mean discounted return of each policy on the simulator, and its standard error."""
    simulator = PLANTS[plant]
    keys = jax.random.split(jax.random.key(TRUTH_SEED), episodes)
    weight = discount ** np.arange(simulator.spec.horizon)
    controller, values = bare_controller(simulator), []
    for policy in found:
        played = rollouts(simulator, controller, policy, keys, simulator.domain, trace=True).trajectory
        assert played is not None
        returns = np.asarray(played.rewards, np.float64) @ weight
        values.append([float(returns.mean()), float(returns.std(ddof=1) / np.sqrt(episodes))])
    return values


def logged(run: RunConfig, behaviour: str, home: Home, size: Size, seed: int) -> tuple[Logs, Logs]:
    """Generated episodes: those to train on and those held out."""
    horizon = PLANTS[run.plant].spec.horizon
    made = generate(run.plant, behaviour, -(-size.rows // horizon), seed, home.folder("generated", run.plant))
    assert made.digest is not None
    store = StoredDataset.open(made.path, made.digest)
    ours, held_out = (read_logs(store, episodes) for episodes in store.split(run.data.held_out))
    return ours, held_out


def configured(plant: str, size: Size, seed: int) -> RunConfig:
    """The plant's run with its own discount, as configs/ has it."""
    known = load_run(ROOT / "configs" / f"{plant}.yaml")
    return RunConfig(plant=plant, seed=seed, evaluate=known.evaluate.model_copy(update=dict(size.evaluate)))


def cell(
    plant: str, behaviour: str, home: Home, size: Size = FULL, seed: int = 0, peers: Path | None = None
) -> dict[str, Any]:
    """One cell: estimates first, the truth afterwards.

    Args:
        plant: its name.
        behaviour: what played the episodes.
        home: where generated episodes are kept.
        size: of the cell.
        seed: of episodes, training and estimates.
        peers: where the held-out steps, and what the policies do there, are written for estimators of others.
    """
    began = time.perf_counter(), time.process_time()
    run = configured(plant, size, seed)
    ours, held_out = logged(run, behaviour, home, size, seed)
    found = candidates(ours, plant, size)
    estimators = fit_estimators(episodes_of(run, held_out, NO_PAST, found.policies[0].normaliser))
    if peers is not None:
        every = [decisions(estimators.episodes, policy) for policy in found.policies]
        together = {name: np.stack([getattr(one, name) for one in every]) for name in fqe.Decisions._fields}
        archive: dict[str, Any] = estimators.episodes.steps._asdict() | together
        peers.parent.mkdir(parents=True, exist_ok=True)
        np.savez(peers, discount=run.evaluate.discount, **archive)
    rows = [estimated(estimators.of(policy), run.evaluate.confidence) for policy in found.policies]
    truth = true_values(plant, found.policies, run.evaluate.discount, size.truth)
    for row, name, (value, error) in zip(rows, found.names, truth, strict=True):
        row |= {"policy": name, "truth": value, "truth_error": error}
    return {
        "plant": plant,
        "behaviour": behaviour,
        "seed": seed,
        "rows": size.rows,
        "discount": run.evaluate.discount,
        "logged": estimators.logged().value,
        "policies": rows,
        "seconds": time.perf_counter() - began[0],
        "cpu_seconds": time.process_time() - began[1],
    }


def estimated(found: Estimate, confidence: float) -> dict[str, Any]:
    """An estimate as it is kept; numbers that are not finite are null."""
    lower, upper = found.bounds(confidence)
    numbers = {"value": found.value, "lower": lower, "upper": upper, "outside": found.outside}
    kept: dict[str, Any] = {name: float(x) if np.isfinite(x) else None for name, x in numbers.items()}
    return kept | {"supported": found.supported, "reason": found.reason}
