"""References about log-only plants: learned model, protection, shadow. They certify nothing."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from tasks.references.base import Interval, Reference
from tasks.references.evidence import Servability
from tasks.references.monitoring import blocks_to_alarm

NO_CLAIM = "no statistical safety claim"
"""First line of the claims about a policy of a log-only plant."""

NAIVE_PREDICTORS = ("persistence", "linear autoregression")
"""Baselines that a learned model must beat."""


class PredictionErrors(Reference):
    """RMS errors of free-running predictions on held-out episodes, in standard deviations of the signals."""

    horizons: tuple[int, ...]
    """Steps, as far as held-out episodes are long enough."""
    errors: dict[str, tuple[float, ...]]
    """Error by predictor and horizon; the learned model comes first."""
    ratios: dict[str, Interval]
    """Error of the learned model divided by that of each baseline, geometric mean over signals and horizons."""
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
        """Return the model with its files in another folder of models."""
        folder = models / self.weights.parent.name
        return self.model_copy(
            update={"weights": folder / self.weights.name, "residuals": folder / self.residuals.name}
        )

    @property
    def found(self) -> str:
        return self.prediction.found


class FallbackCheck(Reference):
    """Check of the fallback."""

    kind: str
    about: str
    explained: dict[str, float] = Field(default_factory=dict)
    """R² of a cloned law on held-out episodes, by action."""
    least_explained: float = 0.0
    rows: int
    """Held-out rows that the fallback answered."""
    unsound: int
    """Rows with an action that is not finite or out of bounds."""


class BoundsCheck(Reference):
    """Check of the composite's actions for inputs of every kind, including infinite and NaN."""

    inputs: int
    beyond_bounds: float
    """Largest excess over a bound, as a share of the action's range; at most 0 if all actions respect it."""
    beyond_rates: float
    """Largest excess over a rate limit, as a share of the range; at most 0 apart from rounding."""


class SupportCheck(Reference):
    """Check of the support."""

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
    """Returns of composite and fallback in the learned model: an estimate as good as the model."""

    returns: Interval
    fallback_returns: Interval
    violated: float
    """Share of episodes in the model that violate a limit."""
    fallback_violated: float
    handed_over: float
    horizon: int
    episodes: int
    """Number of held-out starts. Each runs in every member, which adds no episodes."""

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
    """Gain over the logged controller, by off-policy evaluation."""
    supported: bool
    reason: str = ""
    """Reason if the logs do not support the estimate; else empty."""
    unweighed: str = ""
    """Warning if the discount covers few steps of the horizon; else empty."""
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
    """Log of the least mean number of blocks before a false alarm."""
    alarm: str | None = None
    """Episode and step of the first alarm."""

    @property
    def watched(self) -> bool:
        """Whether there were enough blocks for an alarm to be possible."""
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
    """Share of steps at which every proposed action differs from the plant's by at most a tenth of its range."""
    support: float
    """Share of steps whose actual action is inside the support of the shadow's data."""
    interventions: float
    """Share of steps at which the shield handed over or changed the policy's action."""
    difference: dict[str, float]
    """RMS difference between proposed and actual action, as a share of its range."""
    model_error: float
    """Mean one-step score of the learned model under the plant's actions; 1 on held-out episodes."""
    drift: DriftFinding
