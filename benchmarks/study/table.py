"""What runs, cells and plants come to, and where they are kept."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from benchmarks.ope_study.table import BEHAVIOURS, DEVELOPMENT, OTHERS
from neorl_core.safety.bounds import Interval, mean_interval
from tasks.evaluation.evaluate import rank

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "study"
PAGE = ROOT / "docs" / "studies" / "retraining.md"
RUNS = {"medium": 5, "pid": 2, "mixed": 2, "official": 10}
"""Runs of a cell; `official` is double_mass on the episodes that NeoRL-2 publishes."""
OFFICIAL = "double_mass", "official"
FRESH_SEED, OFFICIAL_SEED = 3800, 9000
"""From here on seeds count up over the runs of the plants that took no part in the development, and over those on
NeoRL-2's own episodes; the study of estimates has others."""
FEW = 3
"""Runs of a cell from which on an interval over runs is told."""
MODEL_FREE = ("bc", "iql", "td3_bc")
Floats = npt.NDArray[np.float64]


class Cell(NamedTuple):
    """What the runs of a cell come to, in points of the plant's scale."""

    runs: int
    unsupported: int
    """Runs that are refused because the logs do not support the selected member's estimate."""
    gainless: int
    """Runs that are refused because its gain, as estimated by episodes that did not select it, is not above 0."""
    score: float
    """Of the selected members, mean over the runs that are not refused, as all that follows; NaN where all are."""
    behaviour: float
    controller: float
    over_behaviour: Interval
    over_controller: Interval
    regret: float
    """Best member less the selected one."""
    seconds: float
    """Of the longest run, as `seconds` says."""
    shown: int
    """Runs of which episodes that did not select show a gain over the logged controller, which the gate asks for."""
    shown_rightly: int
    """Those of them that score above the behaviour."""

    @property
    def refused(self) -> int:
        """Runs that expect no gain, or cannot tell: by default the gate refuses them; no other number has them."""
        return self.unsupported + self.gainless

    @property
    def refuses(self) -> bool:
        """Whether most of its runs are refused."""
        return 2 * self.refused > self.runs


NOTHING = Interval(math.nan, math.nan, math.nan)


def summary(result: Mapping[str, Any]) -> Cell:
    """What the runs of a cell come to."""
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
    """About how many seconds a run takes by itself: the processor's, or the clock's where two cores shared the work.

    What the clock says of a run beside others counts their work, too. Of most runs that had a core to themselves it
    says one to five seconds more than the processor, for files are waited for.
    """
    return float(min(run["seconds"], run["cpu_seconds"]))


def ships(run: Mapping[str, Any]) -> bool:
    """Whether the logs support the selected member, and other episodes than those that selected it expect a gain."""
    return bool(run["supported"] and (run["expected"] or 0.0) > 0)


def learner(member: Mapping[str, Any]) -> str:
    """What a member was trained by, in words."""
    best = "best_episodes" in member["hyperparameters"]
    return f"{member['algorithm']} of the best episodes" if best else str(member["algorithm"])


def chosen(run: Mapping[str, Any]) -> float:
    """Score of the selected member."""
    return float(run["members"][run["selected"]]["score"])


def regret(run: Mapping[str, Any]) -> float:
    """What the best member scores above the selected one."""
    return float(max(member["score"] for member in run["members"])) - chosen(run)


def gain(runs: Sequence[Mapping[str, Any]], over: str) -> Interval:
    """Mean over runs of what the selected members score above another controller in the same episodes, and 95 %.

    The runs are what varies: Student's t over `FEW` of them or more. Fewer say too little of that, so that the interval
    is over their episodes then, and says nothing of other runs.
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
    """The member that selection takes."""

    def ranked(member: Mapping[str, Any]) -> tuple[bool, bool, float]:
        known = {"supported": member["supported"], "outside": member["outside"]}
        if member["reason"] == "no finite estimate":
            known["outside"] = None
        known |= {"gain": member["gain"], "value": member["estimate"]}
        return rank(**{name: math.nan if number is None else number for name, number in known.items()})

    return max(members, key=ranked)


def model_free(run: Mapping[str, Any]) -> Mapping[str, Any]:
    """The member that would have been selected had there been no model-based one."""
    return select([member for member in run["members"] if member["algorithm"] in MODEL_FREE])


def interquartile_mean(values: npt.ArrayLike) -> float:
    """Mean of the middle half of values: a quarter, rounded down, is left out at each end.

    Source: Agarwal et al., Deep reinforcement learning at the edge of the statistical precipice (2021), section 4.3.
    """
    ordered: Floats = np.sort(np.asarray(values, np.float64).ravel())
    out = ordered.size // 4
    return float(ordered[out : ordered.size - out].mean())


def stratified_interval(values: Sequence[Sequence[float]], draws: int = 10_000, seed: int = 0) -> Interval:
    """Interquartile mean over tasks and runs, with its 95 % percentile interval: runs are drawn again within each task.

    Args:
        values: scores of the runs of each task; tasks may differ in their number.
        draws: resamples.
        seed: of the resamples.

    Returns:
        The mean, and its interval where every task has at least `FEW` runs: of one run nothing can be drawn again.

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
    """Where a cell is kept."""
    return RESULTS / f"{plant}-{behaviour}.json"


def kept() -> list[dict[str, Any]]:
    """All cells that have a run."""
    return [json.loads(path.read_text()) for path in sorted(RESULTS.glob("*.json"))]


def runs_of(plant: str, behaviour: str) -> list[dict[str, Any]]:
    """The finished runs of a cell."""
    path = path_of(plant, behaviour)
    found: list[dict[str, Any]] = json.loads(path.read_text())["runs"] if path.exists() else []
    return found


def missing(plants: Sequence[str], behaviours: Sequence[str]) -> Iterator[tuple[str, str, int]]:
    """Plant, behaviour and seed of each run that has no result yet; first runs first, one behaviour after the other."""
    for behaviour in behaviours:
        for number in range(RUNS[behaviour]):
            for plant in plants:
                if len(runs_of(plant, behaviour)) == number:
                    yield plant, behaviour, seed_of(plant, behaviour, number)


def seed_of(plant: str, behaviour: str, number: int) -> int:
    """Seed of a run: of the plants that were not developed on one that no cell of either study has had."""
    if behaviour == OFFICIAL[1]:
        return OFFICIAL_SEED + number
    if plant in DEVELOPMENT:
        return number
    place = len(BEHAVIOURS) * OTHERS.index(plant) + BEHAVIOURS.index(behaviour)
    return FRESH_SEED + max(RUNS.values()) * place + number
