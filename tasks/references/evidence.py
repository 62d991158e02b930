"""What a candidate of a simulated plant is judged by: certificates, servability, and the numbers beside them."""

from __future__ import annotations

from pathlib import Path

from tasks.references.base import Interval, Reference
from tasks.references.learning import SimulatorErrors


class Certificate(Reference):
    """The outcome of an attempt at certification."""

    claim: str
    passed: bool
    attempt: int
    alpha: float
    episodes: int
    violations: int
    upper_bound: float
    handovers: float
    composite: str
    path: Path
    reused: bool = False

    @property
    def found(self) -> str:
        verdict = "certified" if self.passed else "not certified"
        return f"{verdict}: {self.violations} violations in {self.episodes:,} episodes, attempt {self.attempt}"


class Certification(Reference):
    """The candidate's certificate, or none where an earlier gate failed and no attempt was made."""

    certificate: Certificate | None = None

    @property
    def found(self) -> str:
        return self.certificate.found if self.certificate else "not attempted: an earlier gate failed"


class Latency(Reference):
    """Percentiles of the time that one action takes, in microseconds."""

    p50: float
    p99: float


class Servability(Reference):
    """Whether a bundle loads in a fresh process, answers as recorded and keeps its latency budget."""

    reasons: tuple[str, ...]
    answers: int
    max_error: float | None
    """Largest difference from the recorded actions, as a share of half the action range."""
    tolerance: float
    latency_us: Latency | None
    budget_us: float
    seconds_to_ready: float | None

    @property
    def passed(self) -> bool:
        """Whether nothing was found against it."""
        return not self.reasons

    @property
    def found(self) -> str:
        if self.latency_us is None:
            return "; ".join(self.reasons) or "not attempted: an earlier gate failed"
        return "; ".join(self.reasons) or f"{self.answers} answers agree, p99 {self.latency_us.p99:.0f} µs"


class Service(Reference):
    """The check of servability, or none where an earlier gate failed."""

    check: Servability | None = None

    @property
    def found(self) -> str:
        return self.check.found if self.check else "not attempted: an earlier gate failed"


class Evidence(Reference):
    """The numbers that a candidate is judged by, without files: whoever doubts a verdict computes it from these."""

    beat_plant: bool
    """Whether lower bounds above the plant's own controller are required, or only shown."""
    data: tuple[str, ...]
    """What validation found against the dataset."""
    simulator: SimulatorErrors
    ope: Interval
    """Gain over the logged controller, by held-out logs."""
    supported: bool
    reason: str = ""
    """Why the logs do not support it; empty where they do."""
    unweighed: str = ""
    """That its discount weighs few of the steps that it is of; empty where it does not."""
    rollouts: Interval
    """Return against the plant's own controller, on the simulator."""
    fallback_share: float = 0.0
    """Share of the candidate's steps on the simulator that the fallback decided."""
    champion: Interval | None = None
    """Gain over the champion, by held-out logs; none where it has no policy to compare, or there is none."""
    champion_unsupported: str = ""
    """Why the logs do not support that estimate; empty where they do, and in entries from before it was recorded."""
    champion_rollouts: Interval | None = None
    """Return against that champion, on the simulator; none as above, and in entries from before it was asked for."""
    incomparable: bool = False
    """Whether the champion was made for other limits."""
    fallback: Certificate
    certificate: Certificate | None = None
    servability: Servability | None = None
