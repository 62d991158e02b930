"""The simulator: how controllers compare on it, for the record, and how well it predicts the plant's own logs.

Rollouts take no part in selection or in a gate on the logs: policies are chosen by off-policy evaluation before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import numpy as np
import numpy.typing as npt

from configs.home import Home
from configs.run import RunConfig
from neorl_core.plants import PLANTS
from neorl_core.plants.base import EpisodeResult, rollouts
from neorl_core.safety import bounds
from neorl_core.safety.bounds import mean_interval, paired_difference_interval
from neorl_core.safety.composite import Composite, bare_controller, composite_controller, make_composite
from neorl_core.types import Plant, PlantSpec
from tasks.adapters.files.arrays import npz_bytes
from tasks.adapters.files.canonical import digest_json, write_atomic
from tasks.adapters.models.bundle import load_bundle
from tasks.adapters.store import reader
from tasks.adapters.store.episodes import read_logs
from tasks.references import (
    Bundle,
    Champion,
    ControllerRollouts,
    Dataset,
    Evaluation,
    Interval,
    Population,
    Rollouts,
    SignalError,
    SimulatorErrors,
)
from tasks.stages import cached

if TYPE_CHECKING:
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
    """The plant's operating domain, a NamedTuple of its own type, with the run's overrides."""
    return plant.domain._replace(**run.certify.domain)


def score(spec: PlantSpec, ret: float) -> float:
    """Normalised score: 100 (return − low) / (high − low) on the plant's score range."""
    low, high = spec.score_range
    return 100.0 * (ret - low) / (high - low)


@cached()
def simulate(
    home: Home,
    run: RunConfig,
    population: Population,
    evaluation: Evaluation,
    champion: Champion,
    progress: Report | None = None,
) -> Rollouts:
    """Roll out every member, the champion and the plant's controller on the same episodes of the simulator.

    Args:
        home: where the trajectories for plots are kept.
        run: its plant, seed, evaluation and operating domain.
        population: the members.
        evaluation: their evaluation, which selected the candidate.
        champion: rolled out where it can be run on this simulator and is not the candidate itself.
        progress: told of controllers done.

    Returns:
        What came of each controller, the candidate's paired differences from the others, and every member's score
        without its shield.
    """
    plant, domain = PLANTS[run.plant], domain_of(PLANTS[run.plant], run)
    keys = jax.random.split(jax.random.key(ROLLOUT_SEED + run.seed), run.evaluate.rollouts)
    confidence, candidate = run.evaluate.confidence, population.members[evaluation.selected].bundle
    members = [_composite(member.bundle) for member in population.members]
    composites = {"plant controller": make_composite(plant), "candidate": members[evaluation.selected]}
    if champion.bundle is not None and champion.bundle.digest != candidate.digest:
        composites["champion"] = _composite(champion.bundle)
    total = len(composites) + len(members)
    shielded, bare = composite_controller(plant), bare_controller(plant)
    results: dict[str, EpisodeResult] = {}
    for name, composite in composites.items():
        # All steps are kept, for the plots and because a second program would take seconds to compile.
        results[name] = jax.device_get(rollouts(plant, shielded, composite, keys, domain, trace=True))
        if progress:
            progress(len(results), total, "controllers")
    scores = []
    for i, member in enumerate(members):
        returns = np.asarray(rollouts(plant, bare, member.policy, keys, domain).ret, np.float64)
        scores.append(_interval(mean_interval([score(plant.spec, r) for r in returns], confidence)))
        if progress:
            progress(len(results) + i + 1, total, "controllers")
    differences = {
        other: _interval(paired_difference_interval(results["candidate"].ret, results[other].ret, confidence))
        for other in results
        if other != "candidate"
    }
    settings = [run.evaluate.model_dump(mode="json"), run.certify.domain, run.seed]
    compared = [population.digest, evaluation.selected, champion.bundle and champion.bundle.digest]
    folder = home.folder("runs", run.plant, "rollouts", digest_json([*compared, *settings])[:16])
    return Rollouts(
        controllers={name: _summary(plant.spec, result, confidence) for name, result in results.items()},
        differences=differences,
        member_scores=tuple(scores),
        score=scores[evaluation.selected].value,
        trajectories=write_atomic(folder / "trajectories.npz", npz_bytes(_first_episodes(results))),
    )


def _composite(bundle: Bundle) -> Composite:
    composite: Composite = load_bundle(bundle.folder, bundle.digest)[1]
    return composite


def _interval(found: bounds.Interval) -> Interval:
    return Interval(value=float(found.value), lower=float(found.lower), upper=float(found.upper))


def _summary(spec: PlantSpec, result: EpisodeResult, confidence: float) -> ControllerRollouts:
    return ControllerRollouts(
        returns=_interval(mean_interval(result.ret, confidence)),
        score=score(spec, float(np.mean(result.ret))),
        violated=int(np.sum(result.violated)),
        episodes=int(result.ret.size),
        handovers_per_episode=float(np.mean(result.handovers)),
        least_margins=tuple(float(x) for x in np.min(result.min_margins, axis=0)),
    )


def _first_episodes(results: dict[str, EpisodeResult]) -> dict[str, np.ndarray]:
    """One episode of each controller, with the same randomness: arrays named 'controller/observations' and so on."""
    return {
        f"{name}/{field}": np.asarray(getattr(result.trajectory, field)[0])
        for name, result in results.items()
        for field in ("observations", "actions", "handed_over")
    }


@cached()
def validate_simulator(home: Home, run: RunConfig, dataset: Dataset) -> SimulatorErrors:
    """One-step prediction errors of the simulator, on held-out logs and on episodes of its own operating domain.

    In the domain the simulator's prediction misses what noise, disturbances and spread constants do. Logs that it
    misses by much more come from a plant that the domain does not cover. Set points, which operators move, are left
    out.

    Args:
        home: unused; every stage takes it.
        run: its plant, seed, operating domain, number of rollouts and share of held-out episodes.
        dataset: whose held-out episodes are predicted.

    Returns:
        The root mean square errors of every signal that moves.
    """
    plant = PLANTS[run.plant]
    store = reader.StoredDataset.open(dataset.store, dataset.digest)
    rows = read_logs(store, store.split(run.data.held_out)[1]).transitions
    predict = jax.jit(jax.vmap(plant.predict, (0, 0, None)))

    def errors(
        observation: npt.ArrayLike, action: npt.ArrayLike, following: npt.ArrayLike
    ) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.bool_]]:
        predicted = np.asarray(predict(observation, action, plant.params)[0], np.float64)
        held = np.all(predicted == np.asarray(observation), axis=0)
        return np.sqrt(np.mean((predicted - np.asarray(following, np.float64)) ** 2, axis=0)), held

    logged, held = errors(rows.observation, rows.action, rows.next_observation)
    keys = jax.random.split(jax.random.key(run.seed), run.evaluate.rollouts)
    trace = rollouts(plant, composite_controller(plant), make_composite(plant), keys, domain_of(plant, run), trace=True)
    episodes = trace.trajectory
    assert episodes is not None
    alive = np.asarray(episodes.alive)
    steps = (episodes.observations, episodes.actions, episodes.next_observations)
    simulated, _ = errors(*(np.asarray(x)[alive] for x in steps))
    spread = np.asarray(rows.next_observation).std(axis=0, dtype=np.float64)
    return SimulatorErrors(
        signals={
            name: SignalError(logs=float(logged[i]), domain=float(simulated[i]), spread=float(spread[i]))
            for i, name in enumerate(plant.spec.observation.names)
            # A signal whose spread is NaN stays in, and fails.
            if not held[i] and not spread[i] <= 0
        }
    )
