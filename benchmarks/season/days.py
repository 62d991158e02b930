"""Results of a day, and statistics of a season."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict
from scipy import stats

from benchmarks.season.plant import CALM, CLEANED, PLANT
from configs.run import Shadow
from neorl_core.safety.drift_detection import YEAR
from tasks.log_only.drift import step_seconds

SPARE = 2
"""Number of champions that a rollback needs."""
LEVEL = 0.01
"""Significance level of the test for a worse champion."""
FEW = 10
"""Number of days at the start and at the end whose durations are compared."""
ALARMS_PER_YEAR = Shadow().alarms_per_year
"""The default rate of false alarms of `neorl monitor`."""


class Sizes(BaseModel):
    """Sizes of a home in MB."""

    model_config = ConfigDict(frozen=True)

    ledger: float
    prefect: float
    mlflow: float
    home: float
    memory: float
    """Peak memory of the process so far."""


class Day(BaseModel):
    """A day of the season."""

    model_config = ConfigDict(frozen=True)

    day: int
    fouled: float
    """Lost share of the heat transfer."""
    evidence: float | None
    """Drift evidence / alarm level; None if nothing was monitored."""
    alarm: bool
    steps: int
    """Monitored steps."""
    verdict: str
    failed: tuple[str, ...] = ()
    """Failed gates."""
    refused: str = ""
    """Error of a refused retraining."""
    rolled_back: str = ""
    """Version that was rolled back in the morning."""
    champion: str
    """Champion's version in the evening."""
    monitor_seconds: float
    seconds: float
    """Duration of the retraining."""
    processor_seconds: float
    """CPU time of the retraining."""
    sizes: Sizes

    @property
    def line(self) -> str:
        """Return a line about the day for the terminal."""
        evidence = "not monitored" if self.evidence is None else f"evidence {self.evidence:+.2f}"
        back = f", version {self.rolled_back} rolled back" if self.rolled_back else ""
        failed = f" ({', '.join(self.failed)})" if self.failed else ""
        return (
            f"day {self.day:2d}: {evidence}{', alarm' if self.alarm else ''}; {self.verdict}{failed} in "
            f"{self.seconds:.1f} s; champion {self.champion or 'none'}{back}"
        )


def worse(gains: npt.NDArray[np.float64], violations: int) -> bool:
    """Return whether a champion is worse than the previous one, by a one-sided t-test or by violated limits.

    Args:
        gains: (E,) return minus that of the previous champion.
        violations: violated episodes minus those of the previous champion.
    """
    if violations > 0:
        return True
    spread = float(gains.std(ddof=1)) / math.sqrt(len(gains))
    return bool(spread > 0 and stats.t.cdf(float(gains.mean()) / spread, len(gains) - 1) < LEVEL)


class Season(BaseModel):
    """Statistics of all days."""

    verdicts: dict[str, int]
    rollbacks: int
    calm_steps: int
    """Monitored steps before fouling began."""
    false_alarms: int
    expected: float
    """Largest expected number of false alarms in these steps, at the set rate."""
    first_alarm: int | None
    """Day of the first alarm after fouling began."""
    alarms: int
    """Days with an alarm while fouled."""
    ratio: float
    """Median duration of the last retrainings / median duration of the first retrainings after day 0."""
    processor_ratio: float
    """The same ratio for CPU time."""


def summary(days: Sequence[Day]) -> Season:
    """Return the statistics of a season; durations are without day 0, on which programs are compiled."""
    calm = [day for day in days if day.day < CALM]
    drifted = [day for day in days if CALM <= day.day < CLEANED]
    few = min(FEW, max((len(days) - 1) // 2, 1))
    first, last = days[1 : few + 1], days[-few:]
    steps = sum(day.steps for day in calm)
    return Season(
        verdicts=dict(sorted(Counter(day.verdict for day in days).items())),
        rollbacks=sum(bool(day.rolled_back) for day in days),
        calm_steps=steps,
        false_alarms=sum(day.alarm for day in calm),
        expected=steps * step_seconds(PLANT.spec) / YEAR * ALARMS_PER_YEAR,
        first_alarm=next((day.day for day in drifted if day.alarm), None),
        alarms=sum(day.alarm for day in drifted),
        ratio=_ratio([day.seconds for day in first], [day.seconds for day in last]),
        processor_ratio=_ratio([day.processor_seconds for day in first], [day.processor_seconds for day in last]),
    )


def _ratio(first: Sequence[float], last: Sequence[float]) -> float:
    return float(np.median(last) / np.median(first)) if first and last else math.nan
