"""One run: generate episodes, train the default population, select a member, then score all controllers."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from benchmarks.pages import ROOT
from configs.home import Home
from configs.load import load_run
from configs.run import OpenedRun, Train
from neorl_core.control.behaviour import Behaviour, play
from neorl_core.plants import PLANTS
from neorl_core.plants.base import rollouts
from neorl_core.safety.composite import bare_controller
from tasks.data.synthetic.behaviours import policy_of, score
from tasks.data.synthetic.episodes import generate
from tasks.evaluation.evaluate import evaluate
from tasks.ingest import ingest
from tasks.models.bundles.bundle import load_bundle
from tasks.references import Champion, Evaluation, Population
from tasks.simulate import ROLLOUT_SEED
from tasks.training.train import train

NOT_FINITE = -1_000.0
"""Score of an episode with a non-finite return."""


class Size(NamedTuple):
    """Size of a run."""

    rows: int = 50_000
    rollouts: int = 256
    train: Mapping[str, Any] = {}
    """Overrides of a run's `train`."""
    evaluate: Mapping[str, int] = {}
    """Overrides of the plant's `evaluate`."""


FULL = Size()
_LEARNER = {"updates": 60, "seeds": 1}
SMALL = Size(
    2_000,
    16,
    {"algorithm": "iql", **_LEARNER, "beside": [{"algorithm": "td3_bc", **_LEARNER}]},
    {"model_updates": 40, "bootstraps": 50},
)
"""Size of a run in the tests."""


def configured(plant: str, seed: int, size: Size) -> OpenedRun:
    """Return the plant's configuration in configs/ with the default learners."""
    known = load_run(ROOT / "configs" / f"{plant}.yaml")
    evaluated = known.evaluate.model_copy(update=dict(size.evaluate))
    trained = Train.model_validate(dict(size.train))
    return OpenedRun(plant=plant, seed=seed, train=trained, shield=known.shield, evaluate=evaluated)


def generated(plant: str, behaviour: str, seed: int, home: Home, size: Size) -> Path:
    """Return a file of episodes by a logged controller; generate it if it is missing."""
    path = home.folder("generated", plant) / f"{behaviour}-{seed}-{size.rows}.hdf5"
    if not path.exists():
        generate(plant, behaviour, -(-size.rows // PLANTS[plant].spec.horizon), seed, path)
    return path


def one_run(
    plant: str, behaviour: str, seed: int, home: Home, size: Size = FULL, data: Sequence[Path] = ()
) -> dict[str, Any]:
    """Make one run.

    Args:
        plant: name of the plant.
        behaviour: name of the logged controller. With `data` the name has no effect on the data, and this controller is
            not scored.
        seed: seed of episodes, training, estimates and scoring.
        home: home that stores everything.
        size: size of the run.
        data: files with episodes; default: generate episodes.

    Returns:
        Scores, the estimates that the selection used, and the wall-clock seconds from reading the file to selecting.
    """
    run = configured(plant, seed, size)
    files = list(data) or [generated(plant, behaviour, seed, home, size)]
    began = time.perf_counter(), _processor()
    dataset = ingest(home, run, files)
    population = train(home, run.for_training(), dataset)
    selected = evaluate(home, run.part("evaluate", "history", "data.held_out"), dataset, population, Champion())
    seconds, cpu = time.perf_counter() - began[0], _processor() - began[1]
    scored = _scores(plant, None if data else behaviour, seed, population, size.rollouts)
    return {
        "seed": seed,
        "seconds": seconds,
        "cpu_seconds": cpu,
        "rows": population.rows,
        "selected": selected.selected,
        "supported": selected.supported,
        "expected": _finite(selected.difference.value),
        "claimed": [_finite(x) for x in (selected.difference.lower, selected.difference.upper)],
        "diverged": list(population.diverged),
        "members": _members(population, selected, scored["members"]),
        "scores": {name: float(found.mean()) for name, found in scored.items() if name != "members"},
        "gains": {
            name: _mean_and_error(scored["members"][selected.selected] - found)
            for name, found in scored.items()
            if name != "members"
        },
    }


def _processor() -> float:
    """Return the CPU seconds of this process and of its finished child processes, which may train members."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def _scores(
    plant: str, behaviour: str | None, seed: int, population: Population, episodes: int
) -> dict[str, npt.NDArray[np.float64]]:
    """Return scores (E,) of the logged and the tuned controller and (M, E) of the members, in the same episodes."""
    simulator = PLANTS[plant]
    keys = jax.random.split(jax.random.key(ROLLOUT_SEED + seed), episodes)
    bare = bare_controller(simulator)
    found = {}
    if behaviour is not None:
        made = policy_of(simulator, behaviour)
        parts = np.array([[float(x) for x in part] for part in made.parts.values()], np.float32)
        each = Behaviour(*(jnp.asarray(column[np.arange(episodes) % len(parts)]) for column in parts.T))
        found["behaviour"] = np.asarray(play(simulator, made.base, made.base_params, each, keys).ret, np.float64)
    own = simulator.fallback, simulator.fallback_params
    found["controller"] = np.asarray(rollouts(simulator, *own, keys, simulator.domain).ret, np.float64)
    policies = [
        load_bundle(member.bundle.folder, member.bundle.digest, None)[1].policy for member in population.members
    ]
    found["members"] = np.stack(
        [np.asarray(rollouts(simulator, bare, policy, keys, simulator.domain).ret, np.float64) for policy in policies]
    )
    scores = {name: score(simulator, returns) for name, returns in found.items()}
    return {name: np.where(np.isfinite(each), each, NOT_FINITE) for name, each in scores.items()}


def _members(population: Population, selected: Evaluation, scores: npt.NDArray[np.float64]) -> list[dict[str, Any]]:
    return [
        {
            "algorithm": member.algorithm,
            "seed": member.seed,
            "hyperparameters": member.hyperparameters,
            "score": float(each.mean()),
            "estimate": _finite(known.ope.value),
            "lower": _finite(known.ope.lower),
            "gain": _finite(known.gain.lower),
            "supported": known.supported,
            "reason": known.reason,
            "outside": _finite(known.outside),
        }
        for member, known, each in zip(population.members, selected.members, scores, strict=True)
    ]


def _mean_and_error(values: npt.NDArray[np.float64]) -> list[float]:
    return [float(values.mean()), float(values.std(ddof=1) / np.sqrt(values.size))]


def _finite(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
