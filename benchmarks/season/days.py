"""What a day of a season came to, and what is made of all of them."""

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
from neorl_core.safety.drift_test import YEAR
from tasks.log_only.drift import step_seconds

SPARE = 2
"""Champions that there have to be before one is rolled back to the other."""
LEVEL = 0.01
"""Of the test by which a new champion is worse than the one before it."""
FEW = 10
"""Days at the beginning and at the end whose retrainings are compared."""
ALARMS_PER_YEAR = Shadow().alarms_per_year
"""The rate that `neorl monitor` states where nothing else is said."""


class Sizes(BaseModel):
    """Of a home, in 10^6 bytes."""

    model_config = ConfigDict(frozen=True)

    ledger: float
    prefect: float
    mlflow: float
    home: float
    memory: float
    """The most that the process of the retrainings has held so far."""


class Day(BaseModel):
    """A day of the season."""

    model_config = ConfigDict(frozen=True)

    day: int
    fouled: float
    """Share of the heat transfer that is lost."""
    evidence: float | None
    """Of drift, as a share of what an alarm takes; None where nothing could be watched."""
    alarm: bool
    steps: int
    """That were watched."""
    verdict: str
    failed: tuple[str, ...] = ()
    """Gates that did not pass."""
    refused: str = ""
    """Why the retraining was refused, where it was."""
    rolled_back: str = ""
    """The version that was taken out of service in the morning."""
    champion: str
    """Version in service in the evening."""
    monitor_seconds: float
    seconds: float
    """Of the retraining."""
    processor_seconds: float
    """Of its process, whatever else the machine was doing."""
    sizes: Sizes

    @property
    def line(self) -> str:
        """The day in a line."""
        evidence = "nothing watched" if self.evidence is None else f"evidence {self.evidence:+.2f}"
        back = f", version {self.rolled_back} rolled back" if self.rolled_back else ""
        failed = f" ({', '.join(self.failed)})" if self.failed else ""
        return (
            f"day {self.day:2d}: {evidence}{', alarm' if self.alarm else ''}; {self.verdict}{failed} in "
            f"{self.seconds:.1f} s; champion {self.champion or 'none'}{back}"
        )


def worse(gains: npt.NDArray[np.float64], violations: int) -> bool:
    """Whether a champion does worse than the one before it in the same episodes: by a one-sided t-test, or in limits.

    Args:
        gains: (E,) its return less that of the other.
        violations: its episodes that violate a limit, less those of the other.
    """
    if violations > 0:
        return True
    spread = float(gains.std(ddof=1)) / math.sqrt(len(gains))
    return bool(spread > 0 and stats.t.cdf(float(gains.mean()) / spread, len(gains) - 1) < LEVEL)


class Season(BaseModel):
    """What is made of all days."""

    verdicts: dict[str, int]
    rollbacks: int
    calm_steps: int
    """That were watched while the plant was as the champion had learned it."""
    false_alarms: int
    expected: float
    """False alarms in so many steps, at most, by the stated rate."""
    first_alarm: int | None
    """Day of the first alarm after fouling began."""
    alarms: int
    """While it was fouled."""
    ratio: float
    """Median seconds of the last retrainings by those of the first, the very first left out."""
    processor_ratio: float
    """The same of processor seconds."""


def summary(days: Sequence[Day]) -> Season:
    """What is made of all days; the first retraining, which compiles its programs, is in no time."""
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
