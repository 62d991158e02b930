"""What is found of a plant's newest logs beside those that its champion, or shadow, learned from."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from tasks.references.base import Reference

DriftGroup = Literal["observations", "actions", "rewards", "model"]
"""What is watched: the three that are logged, and the errors of one-step predictions."""


class SignalDrift(Reference):
    """What the drift alarm made of one signal."""

    name: str
    group: DriftGroup
    shift: float
    """How far its mean moved, in deviations of the reference; of the model, its mean error there less 1."""
    log_evidence: float
    """Largest over time, against the threshold of all."""
    blocks: int
    """Blocks of the newer logs."""
    reference_blocks: int
    """Blocks of the reference that they were ranked among."""
    block_steps: int
    """Steps of a block, over which the signal has lost its memory."""


class DriftRecord(Reference):
    """A window of newer logs beside the data of the champion, or of the shadow of a process."""

    against: str
    """Digest of the ledger entry of the promotion, or of the shadow."""
    reference: str
    """Digest of the dataset that it learned from."""
    dataset: str
    """Digest of the newer logs' dataset."""
    rows: int
    episodes: int
    """Those watched, counted from 1 wherever one is named."""
    left_out: int = 0
    """Further episodes, which the reference holds."""
    model: Literal["learned model", "linear model"]
    """What predicts one step ahead: the process's own ensemble, or a linear law fitted to the reference."""
    step_seconds: float
    """Seconds of a step; of a plant whose time has no unit, 1."""
    alarms_per_year: float
    """False alarms in a year of watching, at most on average, while blocks are exchangeable with the reference."""
    log_evidence: float
    """Largest over time, of all signals together."""
    log_threshold: float
    """Log of the steps that pass on average, at least, before a false alarm."""
    alarm: str | None = None
    """Where the threshold was reached first: episode and step."""
    signals: tuple[SignalDrift, ...] = Field(min_length=1)

    @property
    def found(self) -> str:
        """The finding in one sentence."""
        watched = f"{self.rows:,} steps of {self.episodes} episodes"
        worst = max(self.signals, key=lambda signal: signal.log_evidence)
        least = f"log evidence {self.log_evidence:.1f} of {self.log_threshold:.1f}"
        rate = f"at most {self.alarms_per_year:g} false alarms a year on average"
        if self.alarm is None:
            return f"no drift in {watched}: {least}, most in {worst.name} of the {worst.group}, {rate}"
        return f"drift at {self.alarm} of {watched}: {least}, most in {worst.name} of the {worst.group}, {rate}"
