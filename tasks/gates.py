"""The gates: what a candidate must pass before it may be promoted, each judged by numbers alone.

`judge` is pure. The flow calls it, the ledger's rules call it again when a candidate is written and when one is
promoted, and the audit calls it once more: a verdict that its numbers contradict is refused each time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tasks.references import (
    MOSTLY,
    NAIVE_PREDICTORS,
    Certificate,
    Evidence,
    FallbackCheck,
    Gate,
    GateName,
    Interval,
    PredictionErrors,
    ProcessEvidence,
    Servability,
    SignalError,
    SimulatorErrors,
    SupportCheck,
)

REQUIRED: tuple[GateName, ...] = (
    "data",
    "simulator",
    "ope",
    "rollouts",
    "champion",
    "fallback",
    "statistical",
    "servability",
)
"""The gates of a candidate of a simulated plant, in order of cost."""
REQUIRED_OF_FALLBACK: tuple[GateName, ...] = ("fallback",)
"""The gates of the plant's own controller, which nothing was trained for."""
REQUIRED_OF_PROCESS: tuple[GateName, ...] = (
    "data",
    "learned_model",
    "ope",
    "bounds",
    "shield",
    "fallback",
    "servability",
)
"""The gates of a candidate of a process without a simulator; approval is the ledger's, as for all."""
ABSENT_OF_PROCESS = {
    "simulator": "there is none to be held against the logs",
    "rollouts": "there is no simulator to roll out on; what the learned model says is an estimate, and no gate",
    "champion": "nothing uncertified becomes champion, so there is none to compare with",
    "statistical": "a certificate is a claim about a simulator: no probability of violation is known",
}
"""Gates that a process cannot have, and why."""
BEFORE_CERTIFICATION = REQUIRED[: REQUIRED.index("statistical")]
"""An attempt spends error probability, so it is only made where these passed."""

SIMULATOR_EXCESS = 1.25
"""How many times the largest error of the operating domain's plants the logs' may be: no simulator is exact."""
ROUNDING = 1e-5
"""What a rate limit may be exceeded by, as a share of the action's range: float32 rounds."""
OUTSIDE = 0.02
"""Share of held-out rows that the envelope may shut out beyond what the quantile does."""
SIMULATOR_FLOOR = 0.01
"""What the error may be besides, as a share of the signal's spread, for resampling and instruments round."""
CURES_OF_MODEL = {
    "persistence": "it takes logs in which the signals move more, or tags of what moves them",
    "linear autoregression": "it takes more logs, from more of the operating range, or a longer history; where the "
    "process is as linear as this, a linear controller will do",
}
"""What would make the learned model better than a predictor that it is not shown to be better than."""
NEARER = "it takes logs in which the actions vary more, or a policy that stays nearer to them (train.algorithm: td3_bc)"


def judge(evidence: Evidence | ProcessEvidence) -> tuple[Gate, ...]:
    """Every required gate, in order.

    Args:
        evidence: the numbers, of a simulated plant or a process; what was not attempted is None.

    Returns:
        One gate for each name that `required_of` the evidence; `passed` is None where an earlier gate made an attempt
        pointless.
    """
    if isinstance(evidence, ProcessEvidence):
        return _of_process(evidence)
    gates: dict[GateName, Gate] = {
        "data": _data(evidence),
        "simulator": simulator_gate(evidence.simulator),
        "ope": _ope(evidence),
        "rollouts": _rollouts(evidence),
        "champion": _champion(evidence),
        "fallback": _gate("fallback", evidence.fallback.passed, _counts(evidence.fallback)),
        "statistical": _statistical(evidence.certificate),
        "servability": _servability(evidence.servability),
    }
    return tuple(gates[name] for name in REQUIRED)


def _of_process(evidence: ProcessEvidence) -> tuple[Gate, ...]:
    gates: dict[GateName, Gate] = {
        "data": _data(evidence),
        "learned_model": _learned_model(evidence.model),
        "ope": _ope(evidence),
        "bounds": _bounds(evidence),
        "shield": _support(evidence.support),
        "fallback": _process_fallback(evidence.fallback),
        "servability": _servability(evidence.servability),
    }
    return tuple(gates[name] for name in REQUIRED_OF_PROCESS)


def required_of(evidence: Evidence | ProcessEvidence, fallback: bool) -> tuple[GateName, ...]:
    """The gates that a candidate must pass, by the kind of its plant.

    Args:
        evidence: of a simulated plant, or of a process.
        fallback: whether the candidate is the plant's own controller; that of a process is none.
    """
    if isinstance(evidence, ProcessEvidence):
        return REQUIRED_OF_PROCESS
    return REQUIRED_OF_FALLBACK if fallback else REQUIRED


def may_serve(gates: Sequence[Gate]) -> bool:
    """Whether every gate before that of servability passed."""
    return all(gate.passed for gate in gates if gate.name != "servability")


def may_certify(gates: Sequence[Gate]) -> bool:
    """Whether every gate before certification passed."""
    return all(gate.passed for gate in gates if gate.name in BEFORE_CERTIFICATION)


def check_gates(gates: Sequence[Gate], evidence: Evidence | ProcessEvidence, fallback: bool) -> str | None:
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
    required = required_of(evidence, fallback)
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


def simulator_excess(found: SignalError) -> float:
    """A signal's prediction error on held-out logs as a share of what is allowed: above 1 the domain does not explain
    them.
    """
    allowed = SIMULATOR_EXCESS * found.domain + SIMULATOR_FLOOR * found.spread
    # What is not finite is the worst of all: a domain whose plants diverge would explain every log.
    if not (math.isfinite(allowed) and math.isfinite(found.logs)):
        return math.inf
    return found.logs / allowed if allowed else math.inf


def simulator_gate(errors: SimulatorErrors) -> Gate:
    """Whether the domain explains the held-out logs: a claim about a simulator that misses them is worth nothing."""
    if not errors.signals:
        return _gate("simulator", False, "no signal of the held-out logs moves, so the simulator cannot be judged")
    worst = max(errors.signals, key=lambda name: simulator_excess(errors.signals[name]))
    found = errors.signals[worst]
    detail = (
        f"prediction error on held-out logs {found.logs:.3g}, of the operating domain's plants under the same actions "
        f"up to {found.domain:.3g} ({worst}; {simulator_excess(found):.2f} of what is allowed)"
    )
    return _gate("simulator", simulator_excess(found) <= 1.0, detail)


def _data(evidence: Evidence | ProcessEvidence) -> Gate:
    return _gate("data", not evidence.data, "; ".join(evidence.data) or "all expectations hold")


def _learned_model(found: PredictionErrors) -> Gate:
    """Whether the model predicts held-out episodes better than what needs no learning: else it is no basis."""
    if not found.ratios or not found.horizons:
        return _gate("learned_model", False, "no held-out episode has a step to predict")
    missing = [name for name in NAIVE_PREDICTORS if name not in found.ratios]
    if missing:
        return _gate("learned_model", False, f"not compared with {' and '.join(missing)}")
    steps = "/".join(map(str, found.horizons))
    told = "; ".join(
        f"{ratio.value:.3f} [{ratio.lower:.3f}, {ratio.upper:.3f}] of the error of {name}"
        for name, ratio in found.ratios.items()
    )
    # A comparison with NaN is false, so that an error that does not exist fails.
    better = all(ratio.upper < 1.0 for ratio in found.ratios.values())
    detail = f"free run over {steps} steps of {found.episodes} held-out episodes: {told}"
    if any(math.isinf(ratio.upper) for ratio in found.ratios.values()):
        return _gate("learned_model", better, f"{detail}; so few episodes show nothing: it takes more logs")
    cures = [CURES_OF_MODEL[name] for name, ratio in found.ratios.items() if not ratio.upper < 1.0]
    return _gate("learned_model", better, "; ".join([detail, *cures[:1]]))


def _bounds(evidence: ProcessEvidence) -> Gate:
    """Whether the composite's actions kept bounds and rate limits for inputs of every kind."""
    found = evidence.bounds
    held = found.inputs > 0 and found.beyond_bounds <= 0 and found.beyond_rates <= ROUNDING
    detail = (
        f"over {found.inputs:,} inputs actions are beyond bounds by {max(found.beyond_bounds, 0):.2g} and beyond rate "
        f"limits by {max(found.beyond_rates, 0):.2g} of their range"
    )
    return _gate("bounds", held, detail)


def _support(found: SupportCheck) -> Gate:
    """Whether the support is known, holds held-out rows that did not calibrate it, and lets the policy act."""
    detail = (
        f"radius {found.radius:.3g} at the {found.quantile:g} quantile: {found.outside:.1%} of further held-out rows "
        f"outside, the policy handed over at {found.handed_over:.1%} of them, at most {found.most_handed_over:.0%} "
        "allowed"
    )
    known = math.isfinite(found.radius) and found.outside <= 2 * (1 - found.quantile) + OUTSIDE
    if not known:
        detail += "; the held-out episodes are too few or unlike the others: it takes logs of more days"
    elif not found.handed_over <= found.most_handed_over:
        detail += f"; the policy acts as was never logged: {NEARER}"
    return _gate("shield", known and found.handed_over <= found.most_handed_over, detail)


def _process_fallback(found: FallbackCheck) -> Gate:
    """Whether what takes over answers every held-out row, and explains the logged controller where it is cloned."""
    explained = [share >= found.least_explained for share in found.explained.values()]
    held = found.rows > 0 and not found.unsound and all(explained)
    told = "".join(f", R² of {name} {share:.3f}" for name, share in found.explained.items())
    needed = f", at least {found.least_explained:g} each" if found.explained else ""
    detail = f"{found.about}{told}{needed}; {found.unsound} of {found.rows:,} held-out answers unsound"
    if not all(explained):
        detail += "; the logs follow no such law: name the loops that run the plant (kind: pid), or hold (kind: hold)"
    return _gate("fallback", held, detail)


def _ope(evidence: Evidence | ProcessEvidence) -> Gate:
    """Whether held-out logs show the candidate above the plant's own controller: lower bound of the difference."""
    detail = f"estimated gain over the logged controller {_words(evidence.ope)}"
    weighed = f"; {evidence.unweighed}" if evidence.unweighed else ""
    if not evidence.supported:
        why = f": {evidence.reason}" if evidence.reason else ""
        unknown = f"the held-out logs do not support an estimate of this policy{why}; {NEARER}, or more episodes"
        return _gate("ope", False, unknown)
    if not evidence.beat_plant and math.isfinite(evidence.ope.lower):
        return _gate("ope", True, f"{detail}; not required by gates.beat_plant{weighed}")
    above = evidence.ope.lower > 0
    narrower = not above and evidence.ope.upper > 0
    more = "; more episodes would make the interval narrower" if narrower else ""
    return _gate("ope", above, detail + more + weighed)


def _rollouts(evidence: Evidence) -> Gate:
    """Whether the composite is above the plant's own controller on the simulator: it would replace that controller."""
    detail = f"return per episode on the simulator against the plant's controller {_words(evidence.rollouts)}"
    if evidence.fallback_share > MOSTLY:
        detail += f"; the fallback decided {evidence.fallback_share:.0%} of its steps"
    if not evidence.beat_plant and math.isfinite(evidence.rollouts.lower):
        return _gate("rollouts", True, f"{detail}; not required by gates.beat_plant")
    return _gate("rollouts", evidence.rollouts.lower > 0, detail)


def _champion(evidence: Evidence) -> Gate:
    """Whether neither held-out logs nor the simulator show the candidate worse than the champion: upper bounds.

    Logs alone rarely tell two policies apart; what is no worse by them every day may be worse from day to day.
    """
    if evidence.incomparable:
        return _gate("champion", True, "not compared: the champion was made for other limits")
    if evidence.champion is None:
        return _gate("champion", True, "no trained champion to compare with")
    if evidence.champion_unsupported:
        detail = f"the held-out logs support no estimate of the gain over the champion: {evidence.champion_unsupported}"
        return _gate("champion", False, detail)
    found = [("estimated gain over the champion", evidence.champion)]
    if evidence.champion_rollouts is not None:
        found.append(("return per episode on the simulator against it", evidence.champion_rollouts))
    detail = "; ".join(f"{what} {_words(interval)}" for what, interval in found)
    return _gate("champion", all(interval.upper >= 0 for _, interval in found), detail)


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
