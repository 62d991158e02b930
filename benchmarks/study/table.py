"""Statistics of runs and cells, and the files that keep them."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from benchmarks.ope_study.table import BEHAVIOURS, DEVELOPMENT, OTHERS
from benchmarks.pages import ROOT, STUDIES
from neorl_core.safety.bounds import Interval, mean_interval
from tasks.evaluation.evaluate import rank

RESULTS = ROOT / "benchmarks" / "results" / "study"
PAGE = STUDIES / "retraining.md"
RUNS = {"medium": 5, "pid": 2, "mixed": 2, "official": 10}
"""Number of runs of a cell. `official` is double_mass on the episodes that NeoRL-2 publishes."""
OFFICIAL = "double_mass", "official"
FRESH_SEED, OFFICIAL_SEED = 3800, 9000
"""First seed of the plants that were not used for development, and of NeoRL-2's episodes; later seeds count up."""
FEW = 3
"""Least number of runs for an interval over runs."""
MODEL_FREE = ("bc", "iql", "td3_bc")
Floats = npt.NDArray[np.float64]


class Cell(NamedTuple):
    """Statistics of a cell. Scores are means over the runs that are not refused, in points of the plant's scale."""

    runs: int
    unsupported: int
    """Runs refused because the logs do not support the selected member's estimate."""
    gainless: int
    """Runs refused because the gain estimated on separate held-out episodes is not above 0."""
    score: float
    """Score of the selected members; NaN if all runs are refused."""
    behaviour: float
    controller: float
    over_behaviour: Interval
    over_controller: Interval
    regret: float
    """Score of the best member minus that of the selected one."""
    seconds: float
    """Duration of the longest run, computed by the function `seconds`."""
    shown: int
    """Runs with a proven gain: the lower bound on separate held-out episodes is above 0."""
    shown_rightly: int
    """Runs with a proven gain that score above the logged controller."""

    @property
    def refused(self) -> int:
        """Number of refused runs."""
        return self.unsupported + self.gainless

    @property
    def refuses(self) -> bool:
        """Whether more than half of the runs are refused."""
        return 2 * self.refused > self.runs


NOTHING = Interval(math.nan, math.nan, math.nan)


def summary(result: Mapping[str, Any]) -> Cell:
    """Return the statistics of a cell."""
    runs, kept = result["runs"], [run for run in result["runs"] if ships(run)]
    supported = [run for run in runs if run["supported"]]
    shown = [run for run in kept if (run["claimed"][0] or 0.0) > 0]

    def mean(name: str) -> float:
        return float(np.mean([run["scores"].get(name, math.nan) for run in kept])) if kept else math.nan

    return Cell(
        runs=len(runs),
        unsupported=len(runs) - len(supported),
        gainless=len(supported) - len(kept),
        score=float(np.mean([chosen(run) for run in kept])) if kept else math.nan,
        behaviour=mean("behaviour"),
        controller=mean("controller"),
        over_behaviour=gain(kept, "behaviour"),
        over_controller=gain(kept, "controller"),
        regret=float(np.mean([regret(run) for run in kept])) if kept else math.nan,
        seconds=max(map(seconds, runs)),
        shown=len(shown),
        shown_rightly=sum(run["gains"]["behaviour"][0] > 0 for run in shown if "behaviour" in run["gains"]),
    )


def seconds(run: Mapping[str, Any]) -> float:
    """Return the duration of a run: the smaller one of CPU seconds and wall-clock seconds.

    Wall-clock time is too long if other runs used the machine; CPU time is too long if two cores shared the work.
    """
    return float(min(run["seconds"], run["cpu_seconds"]))


def ships(run: Mapping[str, Any]) -> bool:
    """Return whether the run is not refused: the logs support the estimate, and a gain is expected."""
    return bool(run["supported"] and (run["expected"] or 0.0) > 0)


def learner(member: Mapping[str, Any]) -> str:
    """Return the name of a member's learner."""
    best = "best_episodes" in member["hyperparameters"]
    return f"{member['algorithm']} of the best episodes" if best else str(member["algorithm"])


def chosen(run: Mapping[str, Any]) -> float:
    """Return the score of the selected member."""
    return float(run["members"][run["selected"]]["score"])


def regret(run: Mapping[str, Any]) -> float:
    """Return the score of the best member minus that of the selected one."""
    return float(max(member["score"] for member in run["members"])) - chosen(run)


def gain(runs: Sequence[Mapping[str, Any]], over: str) -> Interval:
    """Return the mean score difference between selected members and another controller, with a 95 % interval.

    With at least `FEW` runs, it is Student's t interval over runs. With fewer runs, it is an interval over episodes,
    which says nothing about other runs.
    """
    found = [run["gains"][over] for run in runs if over in run["gains"]]
    if not found:
        return NOTHING
    means, errors = np.array(found, np.float64).T
    if len(found) >= FEW:
        return mean_interval(means)
    half = 1.96 * float(np.sqrt((errors**2).sum())) / len(found)
    return Interval(float(means.mean()), float(means.mean()) - half, float(means.mean()) + half)


def select(members: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return the member that the pipeline selects."""

    def ranked(member: Mapping[str, Any]) -> tuple[bool, bool, float]:
        known = {"supported": member["supported"], "outside": member["outside"]}
        if member["reason"] == "no finite estimate":
            known["outside"] = None
        known |= {"gain": member["gain"], "value": member["estimate"]}
        return rank(**{name: math.nan if number is None else number for name, number in known.items()})

    return max(members, key=ranked)


def model_free(run: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the member that the pipeline would select among the members of model-free learners."""
    return select([member for member in run["members"] if member["algorithm"] in MODEL_FREE])


def interquartile_mean(values: npt.ArrayLike) -> float:
    """Return the mean of the middle half of the values: a quarter, rounded down, is left out at each end.

    Source: Agarwal et al., Deep reinforcement learning at the edge of the statistical precipice (2021), section 4.3.
    """
    ordered: Floats = np.sort(np.asarray(values, np.float64).ravel())
    out = ordered.size // 4
    return float(ordered[out : ordered.size - out].mean())


def stratified_interval(values: Sequence[Sequence[float]], draws: int = 10_000, seed: int = 0) -> Interval:
    """Return the interquartile mean over tasks and runs with a 95 % interval by a stratified bootstrap.

    Args:
        values: scores of the runs of each task; tasks may have different numbers of runs.
        draws: number of resamples.
        seed: seed of the resamples.

    Returns:
        The mean and its interval; the interval is NaN if a task has fewer than `FEW` runs.

    Source: as `interquartile_mean`, section 4.1.
    """
    random = np.random.default_rng(seed)
    tasks = [np.asarray(task, np.float64) for task in values]
    value = interquartile_mean(np.concatenate(tasks))
    if min(task.size for task in tasks) < FEW:
        return Interval(value, math.nan, math.nan)
    drawn = [
        interquartile_mean(np.concatenate([task[random.integers(task.size, size=task.size)] for task in tasks]))
        for _ in range(draws)
    ]
    lower, upper = np.quantile(drawn, [0.025, 0.975])
    return Interval(value, float(lower), float(upper))


def path_of(plant: str, behaviour: str) -> Path:
    """Return the file of a cell."""
    return RESULTS / f"{plant}-{behaviour}.json"


def kept() -> list[dict[str, Any]]:
    """Return all cells that have a run."""
    return [json.loads(path.read_text()) for path in sorted(RESULTS.glob("*.json"))]


def runs_of(plant: str, behaviour: str) -> list[dict[str, Any]]:
    """Return the finished runs of a cell."""
    path = path_of(plant, behaviour)
    found: list[dict[str, Any]] = json.loads(path.read_text())["runs"] if path.exists() else []
    return found


def missing(plants: Sequence[str], behaviours: Sequence[str]) -> Iterator[tuple[str, str, int]]:
    """Yield plant, behaviour and seed of each missing run, one behaviour after the other."""
    for behaviour in behaviours:
        for number in range(RUNS[behaviour]):
            for plant in plants:
                if len(runs_of(plant, behaviour)) == number:
                    yield plant, behaviour, seed_of(plant, behaviour, number)


def seed_of(plant: str, behaviour: str, number: int) -> int:
    """Return the seed of a run. Plants that were not used for development have seeds of their own."""
    if behaviour == OFFICIAL[1]:
        return OFFICIAL_SEED + number
    if plant in DEVELOPMENT:
        return number
    place = len(BEHAVIOURS) * OTHERS.index(plant) + BEHAVIOURS.index(behaviour)
    return FRESH_SEED + max(RUNS.values()) * place + number
