"""What is found of a plant's newest logs beside those that its champion, or shadow, learned from."""

from __future__ import annotations

import math
from collections import Counter
from typing import Literal

from pydantic import Field

from tasks.references.base import Reference


def blocks_to_alarm(reference_blocks: int, log_evidence: float) -> int | None:
    """The fewest blocks of newer logs that can raise an alarm, however far they drifted; None where hardly any can.

    Args:
        reference_blocks: that they are ranked among.
        log_evidence: that raises it, of these blocks alone.
    """
    # It brings NumPy, which who reads references needs not wait for.
    from neorl_core.safety.drift_test import LEAST_REFERENCE, fewest_to_alarm

    return fewest_to_alarm(reference_blocks, log_evidence) if reference_blocks >= LEAST_REFERENCE else None


def least_reference() -> int:
    """The fewest blocks of a reference beside which a drift is found."""
    from neorl_core.safety.drift_test import LEAST_REFERENCE

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

    def needed(self, signal: SignalDrift) -> int | None:
        """The fewest blocks of a signal that can raise an alarm by itself, or None: see `blocks_to_alarm`."""
        groups = Counter(one.group for one in self.signals)
        share = math.log(len(groups) * groups[signal.group])
        return blocks_to_alarm(signal.reference_blocks, self.log_threshold + share - math.log(signal.block_steps))

    @property
    def unwatched(self) -> tuple[SignalDrift, ...]:
        """Signals that could have raised no alarm by themselves, whatever they did; none where there is one."""
        if self.alarm is not None:
            return ()
        needed = ((signal, self.needed(signal)) for signal in self.signals)
        return tuple(signal for signal, blocks in needed if blocks is None or signal.blocks < blocks)

    @property
    def watched(self) -> bool:
        """Whether any signal could have raised an alarm: where none could, that there is none says nothing."""
        return len(self.unwatched) < len(self.signals)

    @property
    def found(self) -> str:
        """The finding in one sentence."""
        seen = f"{self.rows:,} steps of {self.episodes} episodes"
        if not self.watched:
            return f"drift not watched in {seen}: {self._lacking()}"
        worst = max(self.signals, key=lambda signal: signal.log_evidence)
        least = f"log evidence {self.log_evidence:.1f} of {self.log_threshold:.1f}"
        rate = f"at most {self.alarms_per_year:g} false alarms a year on average"
        drift = "no drift in" if self.alarm is None else f"drift at {self.alarm} of"
        left = f"; not watched: {', '.join(signal.name for signal in self.unwatched)}" if self.unwatched else ""
        return f"{drift} {seen}: {least}, most in {worst.name} of the {worst.group}, {rate}{left}"

    def _lacking(self) -> str:
        """What it takes to watch the signal that lacks least."""
        known = [(blocks, signal) for signal in self.signals if (blocks := self.needed(signal)) is not None]
        if known:
            blocks, nearest = min(known, key=lambda one: (one[0] - one[1].blocks) * one[1].block_steps)
            return (
                f"expected at least {blocks} blocks of {nearest.block_steps} steps of {nearest.name}, got "
                f"{nearest.blocks}: wait for more logs"
            )
        nearest = max(self.signals, key=lambda signal: signal.reference_blocks)
        return (
            f"expected a reference of {least_reference()} blocks of {nearest.block_steps} steps of {nearest.name}, got "
            f"{nearest.reference_blocks}: learn from longer logs"
        )
