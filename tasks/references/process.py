"""What is known of a process without a simulator: learned model, protection, and estimates that certify nothing."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from tasks.references.base import Interval, Reference
from tasks.references.evidence import Servability
from tasks.references.monitoring import blocks_to_alarm

NO_CLAIM = "no statistical safety claim"
"""The first line of what is claimed of a policy without a simulator."""

NAIVE_PREDICTORS = ("persistence", "linear autoregression")
"""What needs no learning, and has to be beaten by a model that did."""


class PredictionErrors(Reference):
    """Root mean square errors of free-running predictions of held-out episodes, in deviations of the signals."""

    horizons: tuple[int, ...]
    """Steps; those that the held-out episodes are long enough for."""
    errors: dict[str, tuple[float, ...]]
    """By predictor, at each horizon; the learned model first."""
    ratios: dict[str, Interval]
    """The learned model's error beside each other predictor's, geometric mean over signals and horizons."""
    episodes: int
    confidence: float

    @property
    def found(self) -> str:
        versus = ", ".join(f"{ratio.value:.3f} of that of {name}" for name, ratio in self.ratios.items())
        return f"error of the learned model over {'/'.join(map(str, self.horizons))} steps: {versus}"


class LearnedModel(Reference):
    """An ensemble that was fitted to bootstrapped training episodes, and how it predicts held-out ones."""

    digest: str
    weights: Path
    residuals: Path
    """Scores of its one-step errors on the held-out rows, for the drift alarm of a shadow."""
    prediction: PredictionErrors

    def at(self, models: Path) -> LearnedModel:
        """The same model with its files in another folder of models."""
        folder = models / self.weights.parent.name
        return self.model_copy(
            update={"weights": folder / self.weights.name, "residuals": folder / self.residuals.name}
        )

    @property
    def found(self) -> str:
        return self.prediction.found


class FallbackCheck(Reference):
    """What takes over, named for what it is."""

    kind: str
    about: str
    """In words, for people."""
    explained: dict[str, float] = Field(default_factory=dict)
    """R² of a cloned law on held-out episodes, by action."""
    least_explained: float = 0.0
    rows: int
    """Held-out rows that it answered."""
    unsound: int
    """Of these, how many with an action that is not finite or beyond the bounds."""


class BoundsCheck(Reference):
    """Actions of the composite for inputs of every kind, those that are not finite included."""

    inputs: int
    beyond_bounds: float
    """Largest excess over a bound, as a share of the action's range; at most 0 where all hold."""
    beyond_rates: float
    """Largest excess over a rate limit, as a share of the range; rounding apart at most 0."""


class SupportCheck(Reference):
    """Where the policy is trusted."""

    quantile: float
    radius: float
    """Largest distance to logged steps inside the support, in deviations."""
    outside: float
    """Share of the rows of held-out episodes that did not calibrate it, with their logged actions, outside of it."""
    handed_over: float
    """Share of the same rows at which the policy's own action is outside of it."""
    most_handed_over: float


class Protection(Reference):
    """What was found of fallback, bounds and support of the selected composite."""

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
    """What composite and fallback come to in the learned model: an estimate that holds as far as the model does."""

    returns: Interval
    fallback_returns: Interval
    violated: float
    """Share of episodes that left a limit, in the model."""
    fallback_violated: float
    handed_over: float
    """Share of steps."""
    horizon: int
    episodes: int
    """Held-out starts, each run in every member: a member more is no episode more."""

    @property
    def found(self) -> str:
        return (
            f"estimate on the learned model, no certificate: return {self.returns}, the fallback's "
            f"{self.fallback_returns}; limits left in {self.violated:.1%} of episodes, by the "
            f"fallback in {self.fallback_violated:.1%}; {self.episodes} held-out starts, {self.horizon} steps each"
        )


class ProcessEvidence(Reference):
    """The numbers that a candidate of a process without a simulator is judged by."""

    beat_plant: bool
    data: tuple[str, ...]
    model: PredictionErrors
    ope: Interval
    """Gain over the logged controller, by held-out logs."""
    supported: bool
    reason: str = ""
    """Why the logs do not support it; empty where they do."""
    unweighed: str = ""
    """That its discount weighs few of the steps that it is of; empty where it does not."""
    bounds: BoundsCheck
    support: SupportCheck
    fallback: FallbackCheck
    servability: Servability | None = None


class DriftFinding(Reference):
    """What the drift alarm made of newer logs."""

    blocks: int
    """Blocks of steps whose mean scores were watched."""
    step_seconds: float
    """Seconds of a step; with the steps of a block and the alarms in a year it gives the threshold."""
    block_steps: int
    """Steps of a block, over which scores have lost their memory."""
    reference_blocks: int
    """Blocks of held-out steps that they were ranked among."""
    alarms_per_year: float
    """False alarms in a year of watching, at most on average, while blocks are exchangeable with the reference."""
    log_evidence: float
    """Largest over time."""
    log_threshold: float
    """Log of the blocks that pass on average, at least, before a false alarm."""
    alarm: str | None = None
    """Where the threshold was reached first: episode and step."""

    @property
    def watched(self) -> bool:
        """Whether an alarm was possible: where there is next to nothing to compare, silence says nothing."""
        needed = blocks_to_alarm(self.reference_blocks, self.log_threshold)
        return self.alarm is not None or (needed is not None and self.blocks >= needed)


class ShadowComparison(Reference):
    """A shadow's proposals beside what the plant did; of actions that were not taken no return is told."""

    shadow: str
    """Digest of the shadow's ledger entry."""
    dataset: str
    """Digest of the newer logs' dataset."""
    rows: int
    episodes: int
    """Those compared, counted from 1 wherever one is named."""
    left_out: int = 0
    """Further episodes, which the shadow's own dataset holds."""
    agreement: float
    """Share of steps at which every proposed action was within a tenth of its range of what was done."""
    support: float
    """Share of steps, with what was done, inside the support of the shadow's own data."""
    interventions: float
    """Share of steps at which the shield handed over, or changed what the policy asked for."""
    difference: dict[str, float]
    """Root mean square difference of each proposed action from what was done, as a share of its range."""
    model_error: float
    """Mean one-step score of the learned model under the operator's actions; 1 is that of held-out episodes."""
    drift: DriftFinding
