"""Evidence about a candidate of a simulated plant: certificates, servability and numbers."""

from __future__ import annotations

from pathlib import Path

from tasks.references.base import Interval, Reference
from tasks.references.learning import SimulatorErrors


class Certificate(Reference):
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
    step: str = ""
    """Digest of the lowered program of the simulator's step; empty in early entries."""

    @property
    def found(self) -> str:
        verdict = "certified" if self.passed else "not certified"
        return f"{verdict}: {self.violations} violations in {self.episodes:,} episodes, attempt {self.attempt}"


class Certification(Reference):
    """The candidate's certificate; None if an earlier gate failed."""

    certificate: Certificate | None = None

    @property
    def found(self) -> str:
        return self.certificate.found if self.certificate else "not attempted: an earlier gate failed"


class Latency(Reference):
    """Percentiles of the time per action, in microseconds."""

    p50: float
    p99: float


class Servability(Reference):
    """Result of the servability check: a bundle loads in a new process, reproduces recorded actions and is fast."""

    reasons: tuple[str, ...]
    answers: int
    max_error: float | None
    """Largest difference from the recorded actions, as a share of half the action's range."""
    tolerance: float
    latency_us: Latency | None
    budget_us: float
    seconds_to_ready: float | None

    @property
    def passed(self) -> bool:
        return not self.reasons

    @property
    def found(self) -> str:
        if self.latency_us is None:
            return "; ".join(self.reasons) or "not attempted: an earlier gate failed"
        return "; ".join(self.reasons) or f"{self.answers} answers agree, p99 {self.latency_us.p99:.0f} µs"


class Service(Reference):
    """The servability check; None if an earlier gate failed."""

    check: Servability | None = None

    @property
    def found(self) -> str:
        return self.check.found if self.check else "not attempted: an earlier gate failed"


class Evidence(Reference):
    """Numbers that decide the gates; an auditor can recompute every verdict from them."""

    beat_plant: bool
    """Whether a gain over the tuned controller is required; if false, it is only reported."""
    data: tuple[str, ...]
    """Faults that validation found in the dataset."""
    simulator: SimulatorErrors
    ope: Interval
    """Gain over the logged controller, by off-policy evaluation."""
    supported: bool
    reason: str = ""
    """Reason if the logs do not support the estimate; else empty."""
    unweighed: str = ""
    rollouts: Interval
    """Gain in return over the tuned controller, by rollouts."""
    rollout_violations: int = 0
    """Violated episodes of the candidate among the rollouts; 0 in early entries."""
    rollout_episodes: int = 0
    fallback_share: float = 0.0
    """Share of rollout steps that the fallback decided."""
    departure: float | None = None
    """Share of rollout steps unlike the logs; None in early entries."""
    champion: Interval | None = None
    """Gain over the champion, by off-policy evaluation; None without a champion that has a policy."""
    champion_unsupported: str = ""
    """Reason if the logs do not support the estimate. Empty otherwise, and in entries of old versions."""
    champion_rollouts: Interval | None = None
    """Gain over the champion, by rollouts. None without such a champion, and in entries of old versions."""
    incomparable: bool = False
    """Whether the champion was made for different limits."""
    fallback: Certificate
    certificate: Certificate | None = None
    servability: Servability | None = None
