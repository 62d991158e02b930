"""References about drift: newest logs compared with the data of the champion or shadow."""

from __future__ import annotations

import math
from collections import Counter
from typing import Literal

from pydantic import Field

from tasks.references.base import Reference


def blocks_to_alarm(reference_blocks: int, log_evidence: float) -> int | None:
    """Return the least number of newer blocks that can raise an alarm; None if the reference is too short.

    Args:
        log_evidence: log evidence that raises an alarm.
    """
    # Imports NumPy, which readers of references do not need.
    from neorl_core.safety.drift_detection import LEAST_REFERENCE, fewest_to_alarm

    return fewest_to_alarm(reference_blocks, log_evidence) if reference_blocks >= LEAST_REFERENCE else None


def least_reference() -> int:
    """Return the least number of reference blocks for drift detection."""
    from neorl_core.safety.drift_detection import LEAST_REFERENCE

    return LEAST_REFERENCE


DriftGroup = Literal["observations", "actions", "rewards", "model"]
"""Monitored quantities: three that are logged, and the errors of one-step predictions."""


class SignalDrift(Reference):
    """Drift of one signal."""

    name: str
    group: DriftGroup
    shift: float
    """Shift of the mean, in standard deviations of the reference; for the model, mean error minus 1."""
    log_evidence: float
    """Largest log evidence over time, comparable with the common threshold."""
    blocks: int
    reference_blocks: int
    block_steps: int
    """Steps per block: long enough for blocks to be uncorrelated."""


class DriftRecord(Reference):
    """A window of newer logs compared with the data of the champion or shadow."""

    against: str
    """Digest of the ledger entry of the promotion or shadow."""
    reference: str
    """Digest of the dataset that the champion or shadow learned from."""
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
    alarms_per_year: float
    """Largest mean number of false alarms per year, if blocks are exchangeable with the reference."""
    log_evidence: float
    """Largest log evidence over time, of all signals together."""
    log_threshold: float
    """Log of the least mean number of steps before a false alarm."""
    alarm: str | None = None
    """Episode and step of the first alarm."""
    signals: tuple[SignalDrift, ...] = Field(min_length=1)

    def needed(self, signal: SignalDrift) -> int | None:
        """Return the least number of blocks with which a signal alone can raise an alarm: see `blocks_to_alarm`."""
        groups = Counter(one.group for one in self.signals)
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
        """Whether any signal had enough blocks to raise an alarm."""
        return len(self.unwatched) < len(self.signals)

    @property
    def found(self) -> str:
        """The finding in one sentence."""
        seen = f"{self.rows:,} steps of {self.episodes} episodes"
        if not self.watched:
            return f"drift not monitored in {seen}: {self._lacking()}"
        worst = max(self.signals, key=lambda signal: signal.log_evidence)
        least = f"log evidence {self.log_evidence:.1f} of {self.log_threshold:.1f}"
        rate = f"at most {self.alarms_per_year:g} false alarms a year on average"
        drift = "no drift in" if self.alarm is None else f"drift at {self.alarm} of"
        left = f"; not monitored: {', '.join(signal.name for signal in self.unwatched)}" if self.unwatched else ""
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
