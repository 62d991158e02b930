"""The gates: what a candidate must pass before it may be promoted, each judged by numbers alone.

`judge` is pure. The flow calls it, the ledger's rules call it again when a candidate is written and when one is
promoted, and the audit calls it once more: a verdict that its numbers contradict is refused each time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import get_args

from tasks.references import Certificate, Evidence, Gate, GateName, Interval, Servability, SignalError, SimulatorErrors

REQUIRED: tuple[GateName, ...] = get_args(GateName)
"""The gates of a candidate, in order of cost."""
REQUIRED_OF_FALLBACK: tuple[GateName, ...] = ("fallback",)
"""The gates of the plant's own controller, which nothing was trained for."""
BEFORE_CERTIFICATION = REQUIRED[: REQUIRED.index("statistical")]
"""An attempt spends error probability, so it is only made where these passed."""

SIMULATOR_EXCESS = 1.5
"""How many times the domain's own one-step error the logs' may be."""
SIMULATOR_FLOOR = 0.01
"""What the error may be besides, as a share of the signal's spread, for resampling and instruments round."""


def judge(evidence: Evidence) -> tuple[Gate, ...]:
    """Every required gate, in order.

    Args:
        evidence: the numbers; what was not attempted is None.

    Returns:
        One gate for each name in REQUIRED; `passed` is None where an earlier gate made an attempt pointless.
    """
    gates: dict[GateName, Gate] = {
        "data": _gate("data", not evidence.data, "; ".join(evidence.data) or "all expectations hold"),
        "simulator": _simulator(evidence.simulator),
        "ope": _ope(evidence),
        "rollouts": _rollouts(evidence),
        "champion": _champion(evidence),
        "fallback": _gate("fallback", evidence.fallback.passed, _counts(evidence.fallback)),
        "statistical": _statistical(evidence.certificate),
        "servability": _servability(evidence.servability),
    }
    return tuple(gates[name] for name in REQUIRED)


def may_certify(gates: Sequence[Gate]) -> bool:
    """Whether every gate before certification passed."""
    return all(gate.passed for gate in gates if gate.name in BEFORE_CERTIFICATION)


def check_gates(gates: Sequence[Gate], evidence: Evidence, fallback: bool) -> str | None:
    """What is wrong with a set of gates: an incomplete set, or a verdict that its numbers contradict.

    Args:
        gates: as they were written down.
        evidence: the numbers beside them.
        fallback: whether they are of the plant's own controller.

    Returns:
        The fault in words, or None.

    Example:
        >>> check_gates((), evidence, fallback=False)  # doctest: +SKIP
        'expected the gates data, simulator, ..., got none'
    """
    required = REQUIRED_OF_FALLBACK if fallback else REQUIRED
    names = tuple(gate.name for gate in gates)
    if names != required:
        return f"expected the gates {', '.join(required)}, got {', '.join(names) or 'none'}"
    for gate, again in zip(gates, (g for g in judge(evidence) if g.name in required), strict=True):
        if gate.passed is not again.passed:
            return f"expected gate {gate.name} to be {_word(again.passed)} by its numbers, got {_word(gate.passed)}"
    return None


def _gate(name: GateName, passed: bool | None, detail: str) -> Gate:
    return Gate(name=name, passed=passed, detail=detail)


def _word(passed: bool | None) -> str:
    return {True: "passed", False: "failed", None: "not run"}[passed]


def _simulator(errors: SimulatorErrors) -> Gate:
    """Whether the domain explains the held-out logs: a claim about a simulator that misses them is worth nothing."""

    def excess(found: SignalError) -> float:
        allowed = SIMULATOR_EXCESS * found.domain + SIMULATOR_FLOOR * found.spread
        ratio = found.logs / allowed if allowed else math.inf
        # A NaN is the worst of all, and no comparison may hide it.
        return math.inf if math.isnan(ratio) else ratio

    if not errors.signals:
        return _gate("simulator", False, "no signal of the held-out logs moves, so the simulator cannot be judged")
    worst = max(errors.signals, key=lambda name: excess(errors.signals[name]))
    found = errors.signals[worst]
    detail = (
        f"one-step error on held-out logs {found.logs:.3g}, in the operating domain {found.domain:.3g} ({worst}, "
        f"{excess(found):.2f} of what is allowed)"
    )
    return _gate("simulator", excess(found) <= 1.0, detail)


def _ope(evidence: Evidence) -> Gate:
    """Whether held-out logs show the candidate above the plant's own controller: lower bound of the difference."""
    detail = f"estimated gain over the logged controller {_words(evidence.ope)}"
    if not evidence.supported:
        return _gate("ope", False, f"the held-out logs do not support an estimate of this policy ({detail})")
    if not evidence.beat_plant and math.isfinite(evidence.ope.lower):
        return _gate("ope", True, f"{detail}; not required by gates.beat_plant")
    return _gate("ope", evidence.ope.lower > 0, detail)


def _rollouts(evidence: Evidence) -> Gate:
    """Whether the composite is above the plant's own controller on the simulator: it would replace that controller."""
    detail = f"return per episode on the simulator against the plant's controller {_words(evidence.rollouts)}"
    if not evidence.beat_plant and math.isfinite(evidence.rollouts.lower):
        return _gate("rollouts", True, f"{detail}; not required by gates.beat_plant")
    return _gate("rollouts", evidence.rollouts.lower > 0, detail)


def _champion(evidence: Evidence) -> Gate:
    """Whether held-out logs show the candidate no worse than the champion: upper bound of the difference."""
    if evidence.incomparable:
        return _gate("champion", True, "not compared: the champion was made for other limits")
    if evidence.champion is None:
        return _gate("champion", True, "no trained champion to compare with")
    detail = f"estimated gain over the champion {_words(evidence.champion)}"
    return _gate("champion", evidence.champion.upper >= 0, detail)


def _statistical(certificate: Certificate | None) -> Gate:
    """Whether the composite is certified."""
    if certificate is None:
        detail = "not attempted: an earlier gate failed, so no error probability was spent"
        return _gate("statistical", None, detail)
    return _gate("statistical", certificate.passed, _counts(certificate))


def _servability(check: Servability | None) -> Gate:
    """Whether the bundle loads in a fresh process, answers the recorded inputs and keeps its latency budget."""
    if check is None:
        return _gate("servability", None, "not attempted: an earlier gate failed")
    return _gate("servability", check.passed, check.found)


def _words(found: Interval) -> str:
    return f"{found.value:+.4g}, interval [{found.lower:+.4g}, {found.upper:+.4g}]"


def _counts(certificate: Certificate) -> str:
    return (
        f"{certificate.violations} violations in {certificate.episodes} episodes, attempt {certificate.attempt}, "
        f"α = {certificate.alpha:.4g}"
    )
