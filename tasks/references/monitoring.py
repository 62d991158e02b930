"""What is found of a plant's newest logs beside those that its champion, or shadow, learned from."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from tasks.references.base import Reference


def watchable(blocks: int, reference_blocks: int) -> bool:
    """Whether blocks of newer logs can raise an alarm beside so many of the reference.

    Args:
        blocks: of the newer logs.
        reference_blocks: that they are ranked among.
    """
    return blocks > 0 and reference_blocks >= _least_reference()


def _least_reference() -> int:
    # It brings NumPy, which who reads references needs not wait for.
    from neorl_core.safety.drift import LEAST_REFERENCE

    return LEAST_REFERENCE


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

    @property
    def watched(self) -> bool:
        """Whether an alarm was possible."""
        return watchable(self.blocks, self.reference_blocks)


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
    def unwatched(self) -> tuple[SignalDrift, ...]:
        """Signals of which no alarm was possible, whatever they did."""
        return tuple(signal for signal in self.signals if not signal.watched)

    @property
    def watched(self) -> bool:
        """Whether an alarm was possible of any signal: where none was, that there is none says nothing."""
        return self.alarm is not None or len(self.unwatched) < len(self.signals)

    @property
    def found(self) -> str:
        """The finding in one sentence."""
        seen = f"{self.rows:,} steps of {self.episodes} episodes"
        if not self.watched:
            length = min(signal.block_steps for signal in self.signals)
            own, newer = (max(n) for n in zip(*((s.reference_blocks, s.blocks) for s in self.signals), strict=True))
            return (
                f"drift not watched in {seen}: expected a block of newer logs beside {_least_reference()} of the "
                f"reference, got at most {newer} beside {own}, of {length} steps or more: learn from longer logs, or "
                "wait for more"
            )
        worst = max(self.signals, key=lambda signal: signal.log_evidence)
        least = f"log evidence {self.log_evidence:.1f} of {self.log_threshold:.1f}"
        rate = f"at most {self.alarms_per_year:g} false alarms a year on average"
        drift = "no drift in" if self.alarm is None else f"drift at {self.alarm} of"
        left = f"; not watched: {', '.join(signal.name for signal in self.unwatched)}" if self.unwatched else ""
        return f"{drift} {seen}: {least}, most in {worst.name} of the {worst.group}, {rate}{left}"
