"""Rollouts of the candidate on the simulator, and prediction errors of the simulator on held-out logs.

The episodes differ from those of `tasks.ranking`, which selects the candidate: the best of several is biased upwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from configs.home import Home
from configs.run import OpenedRun
from neorl_core.plants.base import EpisodeResult, Trajectory, rollouts
from neorl_core.plants.replay import LoggedEpisodes, ReplayErrors, replay_errors
from neorl_core.safety import bounds
from neorl_core.safety.bounds import mean_interval, paired_difference_interval
from neorl_core.safety.composite import composite_controller, make_composite
from neorl_core.types import Params, Plant, PlantSpec
from tasks.data.store import reader
from tasks.data.store.episodes import Logs, read_logs
from tasks.evaluation.departure import departure
from tasks.evaluation.support import thinned
from tasks.files.arrays import npz_bytes
from tasks.files.canonical import digest_json, write_atomic
from tasks.identify import simulator_of
from tasks.models.bundles.bundle import load_bundle
from tasks.models.plants.known import plant_of
from tasks.models.plants.step import step_digest
from tasks.references import (
    KNOWN,
    Champion,
    ControllerRollouts,
    Dataset,
    Evaluation,
    Identification,
    Interval,
    Population,
    Rollouts,
    SignalError,
    SimulatorErrors,
)
from tasks.stages import cached
from tasks.training.shielding import shield_of

if TYPE_CHECKING:
    from tasks.progress import Report

STEPS_AHEAD = (1, 10)
"""Prediction horizons in steps. Errors of constants grow with the horizon; errors by noise hardly grow."""
SIMULATED_PLANTS = 32
"""Number of plants drawn from the domain. One more plant has the largest error of a signal with probability 1/33."""
SIMULATED_ROWS, LONGEST_EPISODE = 2_048, 256
"""Largest number of held-out steps that each drawn plant replays, in total and in one episode."""

COMPARED_ROWS = 1_000_000
"""Logged rows with which the departure of the rollouts is measured, of training and of held-out episodes each."""

ROLLOUT_SEED = 20_260_000
"""Added to the run's seed, because training and certification must not use the same random numbers."""

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
"""Scores from NeoRL-2 (arXiv 2503.19267), averaged over seeds, for settings selected by rollouts."""


def domain_of(plant: Plant, run: OpenedRun) -> Any:
    """Return the plant's operating domain with the run's overrides."""
    return plant.domain._replace(**run.certify.domain)


def score(spec: PlantSpec, ret: float) -> float:
    """Return the score of a return: 0 at the lower end and 100 at the upper end of the plant's score range."""
    low, high = spec.score_range
    return 100.0 * (ret - low) / (high - low)


@cached()
def simulate(
    home: Home,
    run: OpenedRun,
    dataset: Dataset,
    population: Population,
    evaluation: Evaluation,
    champion: Champion,
    progress: Report | None = None,
    identification: Identification = KNOWN,
) -> Rollouts:
    """Roll out the candidate, the champion and the tuned controller on the same simulated episodes.

    Args:
        champion: the champion, which is rolled out if it runs on this simulator and is not the candidate.

    Returns:
        Statistics of each controller, the candidate's paired differences, and the departure from the logs.
    """
    plant = simulator_of(plant_of(run), identification)
    domain = domain_of(plant, run)
    keys = jax.random.split(jax.random.key(ROLLOUT_SEED + run.seed), run.evaluate.rollouts)
    confidence, candidate = run.evaluate.confidence, population.members[evaluation.selected].bundle
    own = make_composite(plant, shield=shield_of(plant.spec, run.shield))
    composites = {
        "plant controller": own,
        "candidate": load_bundle(candidate.folder, candidate.digest, run.source)[1],
    }
    if champion.bundle is not None and champion.bundle.digest != candidate.digest:
        composites["champion"] = load_bundle(champion.bundle.folder, champion.bundle.digest, run.source)[1]
    shielded = composite_controller(plant)
    results: dict[str, EpisodeResult] = {}
    for name, composite in composites.items():
        # Plots need all steps; a second program without them would take seconds to compile.
        results[name] = jax.device_get(rollouts(plant, shielded, composite, keys, domain, trace=True))
        if progress:
            progress(len(results), len(composites), "controllers")
    differences = {
        other: as_interval(paired_difference_interval(results["candidate"].ret, results[other].ret, confidence))
        for other in results
        if other != "candidate"
    }
    store = reader.StoredDataset.open(dataset.store, dataset.digest)
    training, held_out = (read_logs(store, _spread(store, episodes)) for episodes in store.split(run.data.held_out))
    settings = [run.evaluate.model_dump(mode="json"), run.certify.domain, run.shield.model_dump(mode="json"), run.seed]
    compared = [dataset.digest, run.data.held_out, population.digest, evaluation.selected]
    compared += [champion.bundle and champion.bundle.digest]
    compared += [identification.domain] if identification.constants else []
    folder = home.folder("runs", run.plant, "rollouts", digest_json([*compared, *settings])[:16])
    return Rollouts(
        controllers={name: _summary(plant.spec, result, confidence) for name, result in results.items()},
        differences=differences,
        score=score(plant.spec, float(np.mean(results["candidate"].ret))),
        trajectories=write_atomic(folder / "trajectories.npz", npz_bytes(_first_episodes(results))),
        departure=departure(plant.spec, training, held_out, _steps(results), run.seed, folder),
    )


def as_interval(found: bounds.Interval) -> Interval:
    """Return an interval of the core as a reference."""
    return Interval(value=float(found.value), lower=float(found.lower), upper=float(found.upper))


def _summary(spec: PlantSpec, result: EpisodeResult, confidence: float) -> ControllerRollouts:
    steps = result.trajectory
    assert steps is not None
    return ControllerRollouts(
        returns=as_interval(mean_interval(result.ret, confidence)),
        score=score(spec, float(np.mean(result.ret))),
        violated=int(np.sum(result.violated)),
        episodes=int(result.ret.size),
        handovers_per_episode=float(np.mean(result.handovers)),
        fallback_share=float(np.sum(steps.handed_over) / np.sum(steps.alive)),
        least_margins=tuple(float(x) for x in np.min(result.min_margins, axis=0)),
    )


def _spread(store: reader.StoredDataset, episodes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return evenly spaced episodes with about COMPARED_ROWS rows, or all episodes of a smaller dataset."""
    rows = int(np.diff(store.episodes)[episodes].sum())
    return thinned(episodes, max(len(episodes) * COMPARED_ROWS // max(rows, 1), 1))


def _steps(results: dict[str, EpisodeResult]) -> dict[str, Trajectory]:
    """Return the trajectories of all controllers."""
    return {name: result.trajectory for name, result in results.items() if result.trajectory is not None}


def _first_episodes(results: dict[str, EpisodeResult]) -> dict[str, np.ndarray]:
    """Return the first episode of each controller as arrays with names such as 'candidate/observations'."""
    return {
        f"{name}/{field}": np.asarray(getattr(result.trajectory, field)[0])
        for name, result in results.items()
        for field in ("observations", "actions", "margins", "handed_over")
    }


@cached()
def validate_simulator(
    home: Home, run: OpenedRun, dataset: Dataset, identification: Identification = KNOWN
) -> SimulatorErrors:
    """Compare the simulator's prediction errors on held-out logs with its errors on plants drawn from the domain.

    The simulator also mispredicts plants of the operating domain, because of noise, disturbances and other constants.
    If the errors on the logs are larger, the domain does not cover the real plant. Set points are left out, because
    operators move them.

    Returns:
        Root mean square errors of every signal that moves, one step and several steps ahead.
    """
    plant = simulator_of(plant_of(run), identification)
    store = reader.StoredDataset.open(dataset.store, dataset.digest)
    logs = _chosen(read_logs(store, store.split(run.data.held_out)[1]))
    errors = prediction_errors(plant, logs, domain_of(plant, run), run.seed)
    return errors.model_copy(update={"step": step_digest(plant_of(run).simulator())})


def prediction_errors(plant: Plant, logs: LoggedEpisodes, domain: Params, seed: int) -> SimulatorErrors:
    """Return a simulator's prediction errors on logs, and the largest errors on plants of a domain."""
    longest = int(np.asarray(logs.present).sum(axis=1).max())
    horizons = [steps for steps in STEPS_AHEAD if steps <= longest]
    keys = jax.random.split(jax.random.key(seed), SIMULATED_PLANTS)
    found = jax.device_get(replay_errors(plant, plant.params, logs, jnp.asarray(horizons), keys, domain))
    return signal_errors(plant.spec.observation.names, found, logs, horizons)


def signal_errors(
    names: Sequence[str], found: ReplayErrors, logs: LoggedEpisodes, horizons: Sequence[int]
) -> SimulatorErrors:
    """Return errors by signal and horizon, for the gate; set points are left out."""
    spread = np.asarray(logs.next_observations)[np.asarray(logs.present)].std(axis=0, dtype=np.float64)
    signals = dict[str, SignalError]()
    for k, steps in enumerate(horizons):
        ahead = "" if steps == 1 else f", {steps} steps ahead"
        for i, name in enumerate(names):
            # A signal with NaN spread is included, so that the gate fails.
            if not found.held[i] and not spread[i] <= 0:
                largest = float(np.max(found.simulated[:, k, i]))
                error = SignalError(logs=float(found.logged[k, i]), domain=largest, spread=float(spread[i]))
                signals[name + ahead] = error
    return SimulatorErrors(signals=signals)


def _chosen(logs: Logs) -> LoggedEpisodes:
    """Return the first steps of evenly spaced held-out episodes, at most SIMULATED_ROWS steps in all."""
    lengths = np.diff(np.append(logs.starts, len(logs.episode)))
    most = int(min(lengths.max(), LONGEST_EPISODE))
    which = np.unique(np.linspace(0, len(lengths) - 1, max(SIMULATED_ROWS // most, 1)).round().astype(int))
    present = np.arange(most) < lengths[which, None]
    rows = np.where(present, logs.starts[which, None] + np.arange(most), logs.starts[which, None])
    steps = logs.transitions
    seen, acted, then = (jnp.asarray(x[rows]) for x in (steps.observation, steps.action, steps.next_observation))
    return LoggedEpisodes(seen, acted, then, jnp.asarray(present))
