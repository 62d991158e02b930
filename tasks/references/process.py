"""References about log-only plants (learned model, protection, shadow), and about drift. None is a certificate."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from typing import Literal

from pydantic import Field

from tasks.references.base import Interval, Reference
from tasks.references.evidence import Servability

NO_CLAIM = "no statistical safety claim"
"""First line of the claims about a policy of a log-only plant."""

NAIVE_PREDICTORS = ("persistence", "linear autoregression")
"""Predictors that a learned model must beat."""


class PredictionErrors(Reference):
    """Root mean square errors of free-running predictions on held-out episodes, in the signals' standard deviations."""

    horizons: tuple[int, ...]
    """Numbers of predicted steps for which held-out episodes are long enough."""
    errors: dict[str, tuple[float, ...]]
    """Error by predictor and horizon; the learned model comes first."""
    ratios: dict[str, Interval]
    """Error of the learned model divided by each naive predictor's error; geometric mean over signals and horizons."""
    episodes: int
    confidence: float

    @property
    def found(self) -> str:
        versus = ", ".join(f"{ratio.value:.3f} of {name}" for name, ratio in self.ratios.items())
        return f"error of the learned model over {'/'.join(map(str, self.horizons))} steps: {versus}"


class LearnedModel(Reference):
    """An ensemble fitted to bootstrapped training episodes, with its prediction errors on held-out episodes."""

    digest: str
    weights: Path
    residuals: Path
    """Scores of one-step errors on held-out rows, for drift detection."""
    prediction: PredictionErrors

    def at(self, models: Path) -> LearnedModel:
        folder = models / self.weights.parent.name
        return self.model_copy(
            update={"weights": folder / self.weights.name, "residuals": folder / self.residuals.name}
        )

    @property
    def found(self) -> str:
        return self.prediction.found


class FallbackCheck(Reference):
    """Result of the check that the fallback gives possible actions and, if cloned, explains the logged actions."""

    kind: str
    about: str
    explained: dict[str, float] = Field(default_factory=dict)
    """R² of a cloned law on held-out episodes, by action."""
    least_explained: float = 0.0
    rows: int
    """Held-out rows that the fallback answered."""
    unsound: int
    """Rows with an action that is out of bounds or not finite."""


class BoundsCheck(Reference):
    """Result of the check that actions stay within bounds and rate limits for all inputs, also infinite and NaN."""

    inputs: int
    beyond_bounds: float
    """Largest excess over a bound, as a share of the action's range; at most 0 if all actions respect it."""
    beyond_rates: float
    """Largest excess over a rate limit, as a share of the range; at most 0 apart from rounding."""


class SupportCheck(Reference):
    """Result of the check how often logged actions and the policy's actions are outside the support."""

    quantile: float
    radius: float
    """Largest distance to logged steps inside the support, in standard deviations."""
    outside: float
    """Share of held-out rows, not used for calibration, whose logged action is outside the support."""
    handed_over: float
    """Share of the same rows at which the policy's action is outside the support."""
    most_handed_over: float


class Protection(Reference):
    """Checks of fallback, bounds and support of the selected composite."""

    fallback: FallbackCheck
    bounds: BoundsCheck
    support: SupportCheck

    @property
    def found(self) -> str:
        return (
            f"fallback: {self.fallback.about}; actions within bounds and rates for {self.bounds.inputs:,} inputs; "
            f"handed over at {self.support.handed_over:.1%} of held-out rows"
        )


class ModelEstimate(Reference):
    """Returns of composite and fallback in the learned model. The estimates are only as reliable as the model."""

    returns: Interval
    fallback_returns: Interval
    violated: float
    """Share of episodes in the model that violate a limit."""
    fallback_violated: float
    handed_over: float
    horizon: int
    episodes: int
    """Number of held-out starts. A start runs in every model of the ensemble, but counts once."""

    @property
    def found(self) -> str:
        return (
            f"estimate on the learned model, no certificate: return {self.returns}, the fallback's "
            f"{self.fallback_returns}; limits violated in {self.violated:.1%} of episodes, by the "
            f"fallback in {self.fallback_violated:.1%}; {self.episodes} held-out starts, {self.horizon} steps each"
        )


class ProcessEvidence(Reference):
    """Numbers that decide the gates of a log-only plant's candidate."""

    beat_plant: bool
    data: tuple[str, ...]
    model: PredictionErrors
    ope: Interval
    supported: bool
    reason: str = ""
    unweighed: str = ""
    bounds: BoundsCheck
    support: SupportCheck
    fallback: FallbackCheck
    servability: Servability | None = None


class DriftFinding(Reference):
    """Result of drift detection on newer logs."""

    blocks: int
    step_seconds: float
    """Seconds per step; gives the threshold together with block_steps and alarms_per_year."""
    block_steps: int
    """Steps per block: long enough for scores of different blocks to be uncorrelated."""
    reference_blocks: int
    alarms_per_year: float
    """Largest mean number of false alarms per year, if blocks are exchangeable with the reference."""
    log_evidence: float
    log_threshold: float
    """Log of the minimum mean number of blocks before a false alarm."""
    alarm: str | None = None
    """Episode and step of the first alarm."""
    needs_days: float | None = None
    """Days of further reference that are needed for monitoring; None in records of an earlier test."""

    @property
    def watched(self) -> bool:
        """Whether there were enough blocks for an alarm to be possible."""
        if self.needs_days:
            return False
        needed = blocks_to_alarm(self.reference_blocks, self.log_threshold)
        return self.alarm is not None or (needed is not None and self.blocks >= needed)


class ShadowComparison(Reference):
    """Comparison of a shadow's proposals with the plant's actions; returns of proposals are unknown."""

    shadow: str
    """Digest of the shadow's ledger entry."""
    dataset: str
    rows: int
    episodes: int
    """Number of compared episodes; numbering starts at 1."""
    left_out: int = 0
    """Episodes left out because the shadow's dataset contains them."""
    agreement: float
    """Share of steps at which every proposed action differs from the plant's action by at most a tenth of the range."""
    support: float
    """Share of steps whose actual action is inside the support of the shadow's data."""
    interventions: float
    """Share of steps at which the shield handed over or changed the policy's action."""
    difference: dict[str, float]
    """Root mean square difference between proposed and actual action, as a share of the action's range."""
    model_error: float
    """Mean one-step score of the learned model under the plant's actions; 1 on held-out episodes."""
    drift: DriftFinding


def needs_more_days(days: float) -> str:
    """Return a sentence about a reference that is too short for monitoring."""
    return f"not monitored: needs {_days(days)}"


def _days(days: float) -> str:
    return f"{math.ceil(days):,} more day{'s' if days > 1 else ''}"


def blocks_to_alarm(reference_blocks: int, log_evidence: float) -> int | None:
    """Return the minimum number of newer blocks that can raise an alarm; None if the reference is too short."""
    # Imported here, because this import loads NumPy.
    from neorl_core.safety.drift_detection import LEAST_REFERENCE, fewest_to_alarm

    return fewest_to_alarm(reference_blocks, log_evidence) if reference_blocks >= LEAST_REFERENCE else None


def least_reference() -> int:
    """Return the minimum number of reference blocks for drift detection."""
    from neorl_core.safety.drift_detection import LEAST_REFERENCE

    return LEAST_REFERENCE


DriftGroup = Literal["observations", "actions", "rewards", "model"]
"""Monitored quantities: three that are logged, and the errors of one-step predictions."""


class SignalDrift(Reference):
    """Evidence for the drift of one signal."""

    name: str
    group: DriftGroup
    shift: float
    """Shift of the mean, in standard deviations of the reference; for the model, mean error minus 1."""
    log_evidence: float
    """Largest log evidence over time, comparable with the common threshold."""
    blocks: int
    reference_blocks: int
    block_steps: int
    needs_days: float | None = None
    """Days of further reference that are needed for monitoring; None in records of an earlier test."""


class DriftRecord(Reference):
    """A window of newer logs compared with the data of the champion or shadow."""

    against: str
    """Digest of the ledger entry of the promotion or shadow."""
    reference: str
    """Digest of the dataset on which the champion or shadow was trained."""
    dataset: str
    rows: int
    episodes: int
    """Number of monitored episodes; numbering starts at 1."""
    left_out: int = 0
    """Episodes left out because the reference contains them."""
    model: Literal["learned model", "linear model"]
    """One-step predictor: the plant's learned ensemble, or a linear law fitted to the reference."""
    step_seconds: float
    """Seconds per step; 1 if the plant's time has no unit."""
    season: Literal["week", "day", "none", ""] = ""
    """Season that is removed from signals; empty in records of an earlier test."""
    alarms_per_year: float
    log_evidence: float
    """Largest log evidence over time, of all signals together."""
    log_threshold: float
    """Log of the minimum mean number of steps before a false alarm."""
    alarm: str | None = None
    signals: tuple[SignalDrift, ...] = Field(min_length=1)

    def needed(self, signal: SignalDrift) -> int | None:
        """Return the minimum number of blocks with which a signal alone can raise an alarm: see `blocks_to_alarm`."""
        if signal.needs_days:
            return None
        groups = Counter(one.group for one in self.signals if not one.needs_days)
        share = math.log(len(groups) * groups[signal.group])
        return blocks_to_alarm(signal.reference_blocks, self.log_threshold + share - math.log(signal.block_steps))

    @property
    def unwatched(self) -> tuple[SignalDrift, ...]:
        """Signals with too few blocks to raise an alarm; empty after an alarm."""
        if self.alarm is not None:
            return ()
        needed = ((signal, self.needed(signal)) for signal in self.signals)
        return tuple(signal for signal, blocks in needed if blocks is None or signal.blocks < blocks)

    @property
    def watched(self) -> bool:
        return len(self.unwatched) < len(self.signals)

    @property
    def found(self) -> str:
        seen = f"{self.rows:,} steps of {self.episodes} episodes"
        if not self.watched:
            if all(signal.needs_days for signal in self.signals):
                return f"drift {needs_more_days(min(signal.needs_days or 0.0 for signal in self.signals))}"
            return f"drift not monitored in {seen}: {self._lacking()}"
        worst = max(self.signals, key=lambda signal: signal.log_evidence)
        least = f"log evidence {self.log_evidence:.1f} of {self.log_threshold:.1f}"
        rate = f"at most {self.alarms_per_year:g} false alarms a year on average"
        if not self.season:
            rate = "by an earlier test, whose rate of false alarms is unknown"
        drift = "no drift in" if self.alarm is None else f"drift at {self.alarm} of"
        names = (
            signal.name + (f" (needs {_days(signal.needs_days)})" if signal.needs_days else "")
            for signal in self.unwatched
        )
        left = f"; not monitored: {', '.join(names)}" if self.unwatched else ""
        return f"{drift} {seen}: {least}, most in {worst.name} of the {worst.group}, {rate}{left}"

    def _lacking(self) -> str:
        """Return the requirement for the signal that is closest to being monitored."""
        known = [(blocks, signal) for signal in self.signals if (blocks := self.needed(signal)) is not None]
        if known:
            blocks, nearest = min(known, key=lambda one: (one[0] - one[1].blocks) * one[1].block_steps)
            return (
                f"{nearest.name} has {nearest.blocks} blocks of {nearest.block_steps} steps, {blocks} are needed: wait "
                "for more logs"
            )
        nearest = max(self.signals, key=lambda signal: signal.reference_blocks)
        return (
            f"the reference of {nearest.name} has {nearest.reference_blocks} blocks of {nearest.block_steps} steps, at "
            f"least {least_reference()} are needed: train on longer logs"
        )
