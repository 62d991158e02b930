"""Evidence that passes every gate; tests change one value."""

from __future__ import annotations

import math
from pathlib import Path

from tasks.references import (
    BoundsCheck,
    Certificate,
    DriftFinding,
    DriftRecord,
    Evidence,
    FallbackCheck,
    Interval,
    Latency,
    PredictionErrors,
    ProcessEvidence,
    Servability,
    ShadowComparison,
    SignalDrift,
    SignalError,
    SimulatorErrors,
    SupportCheck,
)

STEP = "5" * 64
"""Digest of the simulator's program."""


def interval(lower: float, upper: float) -> Interval:
    """Return an interval with the middle as estimate."""
    return Interval(value=(lower + upper) / 2, lower=lower, upper=upper)


def certificate(passed: bool = True, **changes: object) -> Certificate:
    """Return the outcome of an imaginary attempt."""
    found = Certificate(
        claim="P(violation) <= 0.001",
        passed=passed,
        attempt=3,
        alpha=0.0125,
        episodes=5000,
        violations=2,
        upper_bound=0.002,
        handovers=0.0,
        composite="0" * 64,
        path=Path("nowhere.dsse.json"),
        step=STEP,
    )
    return found.model_copy(update=changes)


SERVED = Servability(
    reasons=(),
    answers=64,
    max_error=0.0,
    tolerance=1e-4,
    latency_us=Latency(p50=20.0, p99=51.6),
    budget_us=20_000.0,
    seconds_to_ready=1.0,
)


def signal(logs: float, domain: float = 0.1, spread: float = 1.0) -> SignalError:
    """Return a signal's one-step errors."""
    return SignalError(logs=logs, domain=domain, spread=spread)


def evidence(**changes: object) -> Evidence:
    """Return evidence that passes every gate, with changes."""
    found = Evidence(
        beat_plant=True,
        data=(),
        simulator=SimulatorErrors(signals={"T": signal(0.1)}, step=STEP),
        ope=interval(0.1, 0.2),
        supported=True,
        rollouts=interval(0.1, 0.2),
        fallback=certificate(),
        certificate=certificate(),
        servability=SERVED,
    )
    return found.model_copy(update=changes)


def process_evidence(**changes: object) -> ProcessEvidence:
    """Return evidence of a log-only plant that passes every gate, with changes."""
    found = ProcessEvidence(
        beat_plant=True,
        data=(),
        model=PredictionErrors(
            horizons=(1, 5),
            errors={"learned model": (0.1, 0.2), "persistence": (0.4, 0.9)},
            ratios={"persistence": interval(0.2, 0.3), "linear autoregression": interval(0.8, 0.95)},
            episodes=9,
            confidence=0.95,
        ),
        ope=interval(0.1, 0.2),
        supported=True,
        bounds=BoundsCheck(inputs=1000, beyond_bounds=0.0, beyond_rates=-0.1),
        support=SupportCheck(quantile=0.99, radius=0.5, outside=0.01, handed_over=0.1, most_handed_over=0.5),
        fallback=FallbackCheck(
            kind="cloned", about="a clone", explained={"valve": 0.9}, least_explained=0.5, rows=100, unsound=0
        ),
        servability=SERVED,
    )
    return found.model_copy(update=changes)


def shadow_comparison(shadow: str, dataset: str, **changes: object) -> ShadowComparison:
    """Return the results of a shadow on one day of newer logs, with changes."""
    drift = DriftFinding(
        blocks=20,
        step_seconds=10.0,
        block_steps=5,
        reference_blocks=50,
        alarms_per_year=0.1,
        log_evidence=2.0,
        # 31,557,600 s in a year are 631,152 blocks of 50 s.
        log_threshold=math.log(6_311_520),
    )
    found = ShadowComparison(
        shadow=shadow,
        dataset=dataset,
        rows=100,
        episodes=2,
        agreement=0.5,
        support=0.9,
        interventions=0.1,
        difference={"valve": 0.2},
        model_error=1.1,
        drift=drift,
    )
    return found.model_copy(update=changes)


def drift_record(against: str, reference: str, dataset: str, **changes: object) -> DriftRecord:
    """Return the results of a window of newer logs without an alarm, with changes."""
    signal = SignalDrift(
        name="level", group="observations", shift=0.1, log_evidence=2.0, blocks=20, reference_blocks=50, block_steps=5
    )
    found = DriftRecord(
        against=against,
        reference=reference,
        dataset=dataset,
        rows=100,
        episodes=2,
        model="linear model",
        step_seconds=10.0,
        alarms_per_year=0.1,
        log_evidence=2.0,
        # A year has 3,155,760 steps of 10 s.
        log_threshold=math.log(31_557_600),
        signals=(signal,),
    )
    return found.model_copy(update=changes)
