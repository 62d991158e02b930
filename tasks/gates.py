"""The gates of a candidate: a verdict for each gate, with its numbers in words.

`judge` has no side effects. The rules for verdicts are in `tasks.versions`, because the audit applies the same rules.
The words are only shown, so they may change.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from tasks.references import (
    MOSTLY,
    NAIVE_PREDICTORS,
    Certificate,
    Evidence,
    Gate,
    Interval,
    ProcessEvidence,
    SimulatorErrors,
)
from tasks.versions import verdicts
from tasks.versions.versions import current

REQUIRED = tuple(current().simulated)
"""Gates of a candidate for a plant with a simulator, cheapest first."""
REQUIRED_LOG_ONLY = tuple(current().log_only)
"""Gates of a candidate for a log-only plant, cheapest first."""
ABSENT_LOG_ONLY = {
    "simulator": "there is no simulator to compare with the logs",
    "rollouts": "there is no simulator to roll out on; the learned model only gives an estimate",
    "champion": "only certified composites become champion, so there is no champion to compare with",
    "statistical": "a certificate is about a simulator, so no probability of violation is known",
}
"""Gates that a log-only plant cannot have, with the reason."""
BEFORE_CERTIFICATION = REQUIRED[: REQUIRED.index("statistical")]
"""Gates that must pass before a certification attempt, because an attempt spends error probability."""

MODEL_CURES = {
    "persistence": "use logs in which the signals move more, or add the tags that drive them",
    "linear autoregression": "use more logs, from more of the operating range, or a longer history; for a plant "
    "that is so linear, a linear controller is enough",
}
"""Advice to the user, by the naive predictor that the learned model did not beat."""
NEARER = "use logs in which the actions vary more, or a policy that stays nearer to them (train.algorithm: td3_bc)"


def judge(evidence: Evidence | ProcessEvidence) -> tuple[Gate, ...]:
    """Judge every required gate of a candidate, cheapest first.

    Args:
        evidence: the candidate's numbers; a number is None if its check did not run.

    Returns:
        One gate for each required name; `passed` is None if the gate did not run because an earlier gate failed.
    """
    details = LOG_ONLY_DETAILS if isinstance(evidence, ProcessEvidence) else DETAILS
    return tuple(
        Gate(name=name, passed=passed, detail=details[name](evidence))
        for name, passed in current().verdicts(evidence).items()
    )


def may_serve(gates: Sequence[Gate]) -> bool:
    """Return whether every gate before servability passed."""
    return all(gate.passed for gate in gates if gate.name != "servability")


def may_certify(gates: Sequence[Gate]) -> bool:
    """Return whether every gate before certification passed."""
    return all(gate.passed for gate in gates if gate.name in BEFORE_CERTIFICATION)


def simulator_detail(errors: SimulatorErrors) -> str:
    """Describe the signal with the worst prediction error on held-out logs."""
    if not errors.signals:
        return "no signal of the held-out logs moves, so the simulator cannot be judged"
    worst = max(errors.signals, key=lambda name: verdicts.simulator_excess(errors.signals[name]))
    error = errors.signals[worst]
    return (
        f"prediction error on held-out logs {error.logs:.3g}, for plants of the operating domain under the same "
        f"actions up to {error.domain:.3g} ({worst}; {verdicts.simulator_excess(error):.2f} of the allowed error)"
    )


def _data(evidence: Evidence | ProcessEvidence) -> str:
    return "; ".join(evidence.data) or "all expectations hold"


def _learned_model(evidence: ProcessEvidence) -> str:
    model = evidence.model
    if not model.ratios or not model.horizons:
        return "no held-out episode has a step to predict"
    missing = [name for name in NAIVE_PREDICTORS if name not in model.ratios]
    if missing:
        return f"not compared with {' and '.join(missing)}"
    steps = "/".join(map(str, model.horizons))
    ratios = "; ".join(
        f"{ratio.value:.3f} [{ratio.lower:.3f}, {ratio.upper:.3f}] of the error of {name}"
        for name, ratio in model.ratios.items()
    )
    detail = f"free run over {steps} steps of {model.episodes} held-out episodes: {ratios}"
    if any(math.isinf(ratio.upper) for ratio in model.ratios.values()):
        return f"{detail}; too few episodes: use more logs"
    cures = [MODEL_CURES[name] for name, ratio in model.ratios.items() if not ratio.upper < 1.0]
    return "; ".join([detail, *cures[:1]])


def _bounds(evidence: ProcessEvidence) -> str:
    bounds = evidence.bounds
    return (
        f"over {bounds.inputs:,} inputs, actions exceed bounds by {max(bounds.beyond_bounds, 0):.2g} and rate limits "
        f"by {max(bounds.beyond_rates, 0):.2g} of their range"
    )


def _support(evidence: ProcessEvidence) -> str:
    support = evidence.support
    detail = (
        f"radius {support.radius:.3g} at the {support.quantile:g} quantile: {support.outside:.1%} of further held-out "
        f"rows are outside; hand-over at {support.handed_over:.1%} of them, at most {support.most_handed_over:.0%} "
        "allowed"
    )
    if not verdicts.support_known(evidence):
        return f"{detail}; the held-out episodes are too few or unlike the others: use logs of more days"
    if not verdicts.shield(evidence):
        return f"{detail}; the policy takes actions that were never logged: {NEARER}"
    return detail


def _process_fallback(evidence: ProcessEvidence) -> str:
    fallback = evidence.fallback
    explained = "".join(f", R² of {name} {share:.3f}" for name, share in fallback.explained.items())
    needed = f", at least {fallback.least_explained:g} each" if fallback.explained else ""
    detail = (
        f"{fallback.about}{explained}{needed}; {fallback.unsound} of {fallback.rows:,} held-out answers are unsound"
    )
    if not all(share >= fallback.least_explained for share in fallback.explained.values()):
        detail += (
            "; the logs do not follow this law: name the loops that run the plant (kind: pid), or hold (kind: hold)"
        )
    return detail


def _ope(evidence: ProcessEvidence) -> str:
    detail = f"estimated gain over the logged controller {_interval(evidence.ope)}"
    weighed = f"; {evidence.unweighed}" if evidence.unweighed else ""
    if not evidence.supported:
        why = f": {evidence.reason}" if evidence.reason else ""
        return f"the held-out logs do not support an estimate of this policy{why}; {NEARER}, or more episodes"
    if not evidence.beat_plant and math.isfinite(evidence.ope.lower):
        return f"{detail}; not required by gates.beat_plant{weighed}"
    narrower = not verdicts.ope(evidence) and evidence.ope.upper > 0
    more = "; more episodes would make the interval narrower" if narrower else ""
    return detail + more + weighed


def _by_logs(evidence: Evidence) -> str:
    if not evidence.supported:
        why = f": {evidence.reason}" if evidence.reason else ""
        return f"not supported by the held-out logs{why}; the simulator decides"
    detail = f"estimated gain over the logged controller {_interval(evidence.ope)}"
    if not verdicts.not_worse_by_logs(evidence):
        detail += "; the logs contradict the simulator: check which of them is wrong, before you train again"
    elif evidence.ope.upper < 0:
        detail += "; not required by gates.beat_plant"
    return f"{detail}; {evidence.unweighed}" if evidence.unweighed else detail


def _rollouts(evidence: Evidence) -> str:
    detail = f"return per episode on the simulator against the plant's controller {_interval(evidence.rollouts)}"
    if evidence.fallback_share > MOSTLY:
        detail += f"; the fallback decided {evidence.fallback_share:.0%} of its steps"
    if evidence.departure is not None:
        detail += f"; {evidence.departure:.1%} of its steps are unlike the logs"
    if not evidence.beat_plant and math.isfinite(evidence.rollouts.lower):
        detail += "; not required by gates.beat_plant"
    return detail


def _champion(evidence: Evidence) -> str:
    if evidence.incomparable:
        return "not compared: the champion was made for other limits"
    if evidence.champion is None:
        return "no trained champion to compare with"
    found = (
        [] if evidence.champion_unsupported else [f"estimated gain over the champion {_interval(evidence.champion)}"]
    )
    if evidence.champion_rollouts is not None:
        found.append(
            f"return per episode on the simulator against the champion {_interval(evidence.champion_rollouts)}"
        )
    if evidence.champion_unsupported:
        found.append(f"not supported by the held-out logs: {evidence.champion_unsupported}")
    return "; ".join(found)


def _statistical(evidence: Evidence) -> str:
    if evidence.certificate is None:
        return "not attempted: an earlier gate failed, so no error probability was spent"
    counts, certificate = _counts(evidence.certificate), evidence.certificate
    if certificate.passed and not verdicts.one_program(evidence):
        compared = evidence.simulator.step[:12]
        return f"{counts}; certified on simulator {certificate.step[:12]}, but simulator {compared} predicts the logs"
    if certificate.passed and not verdicts.rollouts_agree(evidence):
        return f"{counts}; contradicted by {evidence.rollout_violations} of {evidence.rollout_episodes} rollouts"
    return counts


def _servability(evidence: Evidence | ProcessEvidence) -> str:
    return "not attempted: an earlier gate failed" if evidence.servability is None else evidence.servability.found


def _interval(interval: Interval) -> str:
    return f"{interval.value:+.4g}, interval [{interval.lower:+.4g}, {interval.upper:+.4g}]"


def _counts(certificate: Certificate) -> str:
    return (
        f"{certificate.violations} violations in {certificate.episodes} episodes, attempt {certificate.attempt}, "
        f"α = {certificate.alpha:.4g}"
    )


DETAILS: dict[str, Callable[[Any], str]] = {
    "data": _data,
    "simulator": lambda evidence: simulator_detail(evidence.simulator),
    "ope": _by_logs,
    "rollouts": _rollouts,
    "champion": _champion,
    "fallback": lambda evidence: _counts(evidence.fallback),
    "statistical": _statistical,
    "servability": _servability,
}
LOG_ONLY_DETAILS: dict[str, Callable[[Any], str]] = {
    "data": _data,
    "learned_model": _learned_model,
    "ope": _ope,
    "bounds": _bounds,
    "shield": _support,
    "fallback": _process_fallback,
    "servability": _servability,
}
