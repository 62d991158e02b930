"""Rollouts on the twin, for the record: how the population, the champion and the plant's controller compare.

Nothing here takes part in selection or in a gate on the logs: policies are chosen by OPE before this stage runs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np

from configs.home import Home
from configs.run import RunConfig
from neorl_core.plants import PLANTS
from neorl_core.plants.base import EpisodeResult, rollouts
from neorl_core.safety.bounds import Interval, mean_interval, paired_difference_interval
from neorl_core.safety.composite import Composite, bare_controller, composite_controller, make_composite
from neorl_core.types import Plant, PlantSpec
from tasks.adapters.files.arrays import npz_bytes
from tasks.adapters.files.canonical import digest_json, write_atomic
from tasks.adapters.models.bundle import load_bundle
from tasks.progress import Report

ROLLOUT_SEED = 20_260_000
"""Added to the run's seed, so that evaluation shares no randomness with training or certification."""

PUBLISHED_SCORES = {
    "double_mass": {
        "data": 56.6,
        "BC": 65.1,
        "TD3BC": 60.0,
        "CQL": 70.2,
        "MCQ": 77.8,
        "EDAC": 78.7,
        "MOPO": 68.2,
        "COMBO": 68.3,
        "RAMBO": 76.2,
        "MOBILE": 64.4,
    }
}
"""NeoRL-2 (arXiv 2503.19267): best seed-averaged scores, selected online."""


def domain_of(plant: Plant, run: RunConfig) -> Any:
    """The plant's operating domain with the run's overrides."""
    return plant.domain._replace(**run.certify.domain)


def score(spec: PlantSpec, ret: float) -> float:
    """Normalised score: 100 (return − low) / (high − low) on the plant's score range."""
    low, high = spec.score_range
    return 100.0 * (ret - low) / (high - low)


def as_json(interval: Interval) -> dict[str, float]:
    """An interval as the references carry it."""
    return {"value": float(interval.value), "lower": float(interval.lower), "upper": float(interval.upper)}


def simulate(
    home: Home,
    run: RunConfig,
    population: dict[str, Any],
    selected: int,
    champion: dict[str, str] | None,
    progress: Report | None = None,
) -> dict[str, Any]:
    """Roll out every member, the champion and the plant's controller on the same episodes of the twin.

    Args:
        population: reference from `train`.
        selected: the member that OPE chose.
        champion: folder and digest of the champion's bundle, if there is one.
        progress: told of each controller done.

    Returns:
        Per controller: return, score, violated share; the candidate's paired difference from the plant's controller
        and from the champion; members' bare scores; where the trajectories for plots lie.
    """
    plant = PLANTS[run.plant]
    domain = domain_of(plant, run)
    keys = jax.random.split(jax.random.key(ROLLOUT_SEED + run.seed), run.evaluate.rollouts)
    confidence = run.evaluate.confidence
    shielded, bare = composite_controller(plant), bare_controller(plant)
    results: dict[str, EpisodeResult] = {}
    composites: dict[str, Composite] = {"plant controller": make_composite(plant)}
    members = [load_bundle(Path(m["path"]), m["digest"])[1] for m in population["members"]]
    composites["candidate"] = members[selected]
    if champion is not None and champion["digest"] != population["members"][selected]["digest"]:
        composites["champion"] = load_bundle(Path(champion["path"]), champion["digest"])[1]
    total = len(composites) + len(members)
    for name, composite in composites.items():
        # All steps are kept, for the plots and because a second program would take seconds to compile.
        results[name] = jax.device_get(rollouts(plant, shielded, composite, keys, domain, trace=True))
        if progress:
            progress(len(results), total, "controllers")
    scores = []
    for i, member in enumerate(members):
        returns = np.asarray(rollouts(plant, bare, member.policy, keys, domain).ret, np.float64)
        scores.append(as_json(mean_interval([score(plant.spec, r) for r in returns], confidence)))
        if progress:
            progress(len(results) + i + 1, total, "controllers")
    controllers = {
        name: {
            "return": as_json(mean_interval(result.ret, confidence)),
            "score": score(plant.spec, float(np.mean(result.ret))),
            "violated": int(np.sum(result.violated)),
            "episodes": int(result.ret.size),
            "handovers_per_episode": float(np.mean(result.handovers)),
            "least_margins": [float(x) for x in np.min(result.min_margins, axis=0)],
        }
        for name, result in results.items()
    }
    differences = {
        other: as_json(paired_difference_interval(results["candidate"].ret, results[other].ret, confidence))
        for other in results
        if other != "candidate"
    }
    folder = home.folder(
        "runs",
        run.plant,
        "rollouts",
        digest_json(
            [
                *(population["digest"], selected, run.evaluate.model_dump(mode="json"), run.certify.domain, run.seed),
                champion and champion["digest"],
            ]
        )[:16],
    )
    path = write_atomic(folder / "trajectories.npz", npz_bytes(_first_episodes(results)))
    return {
        "controllers": controllers,
        "differences": differences,
        "member_scores": scores,
        "score": scores[selected]["value"],
        "trajectories": str(path),
    }


def _first_episodes(results: dict[str, EpisodeResult]) -> dict[str, np.ndarray]:
    """One episode of each controller, with the same randomness: arrays named 'controller/observations' and so on."""
    return {
        f"{name}/{field}": np.asarray(getattr(result.trajectory, field)[0])
        for name, result in results.items()
        for field in ("observations", "actions", "handed_over")
    }
