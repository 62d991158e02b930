"""Verdicts of the gates: pure functions of a candidate's evidence.

Stored ledger entries were judged by these functions, and an audit applies them again. Never change the result of a
function. To change a gate, add a function and a new version in `tasks.versions.versions`.
"""

from __future__ import annotations

import math

from tasks.references import Evidence, ProcessEvidence, SignalError, SimulatorErrors

SIMULATOR_EXCESS = 1.25
"""Allowed ratio of the prediction error on held-out logs to the largest error within the operating domain."""
SIMULATOR_FLOOR = 0.01
"""Error allowed in addition, as a share of the signal's spread: resampling and instruments round."""
ROUNDING = 1e-5
"""Excess over a rate limit that counts as float32 rounding, as a share of the action's range."""
OUTSIDE = 0.02
"""Share of held-out rows that may lie outside the support in addition to twice the share beyond the quantile."""
IMPROBABLE = 1e-3
"""Probability below which rollouts contradict a certificate."""
NAIVE = ("persistence", "linear autoregression")
"""Predictors that a learned model must beat."""


def data(evidence: Evidence | ProcessEvidence) -> bool:
    """Return whether validation found nothing against the dataset."""
    return not evidence.data


def simulator_excess(error: SignalError) -> float:
    """Return a signal's prediction error on held-out logs as a share of the allowed error; above 1 fails."""
    allowed = SIMULATOR_EXCESS * error.domain + SIMULATOR_FLOOR * error.spread
    # Non-finite errors are the worst case: otherwise a domain whose plants diverge would explain every log.
    if not (math.isfinite(allowed) and math.isfinite(error.logs)):
        return math.inf
    return error.logs / allowed if allowed else math.inf


def domain_explains(errors: SimulatorErrors) -> bool:
    """Return whether the operating domain explains the held-out logs of every signal."""
    return bool(errors.signals) and all(simulator_excess(error) <= 1.0 for error in errors.signals.values())


def simulator(evidence: Evidence) -> bool:
    """Return whether the simulator predicts the held-out logs."""
    return domain_explains(evidence.simulator)


def ope(evidence: Evidence | ProcessEvidence) -> bool:
    """Return whether held-out logs support an estimate, and show a gain where one is required."""
    if not evidence.supported:
        return False
    if not evidence.beat_plant and math.isfinite(evidence.ope.lower):
        return True
    return evidence.ope.lower > 0


def not_worse_by_logs(evidence: Evidence) -> bool:
    """Return whether held-out logs do not show a loss against the logged controller, where a gain is required.

    Logs that support no estimate show nothing.
    """
    if not evidence.supported or (not evidence.beat_plant and math.isfinite(evidence.ope.upper)):
        return True
    return evidence.ope.upper >= 0


def rollouts(evidence: Evidence) -> bool:
    """Return whether rollouts show a gain over the tuned controller, or give a finite estimate if none is required."""
    if not evidence.beat_plant and math.isfinite(evidence.rollouts.lower):
        return True
    return evidence.rollouts.lower > 0


def champion(evidence: Evidence) -> bool:
    """Return whether neither held-out logs nor rollouts show the candidate worse than the champion."""
    if evidence.incomparable or evidence.champion is None:
        return True
    if evidence.champion_unsupported:
        return False
    compared = (evidence.champion, evidence.champion_rollouts)
    return all(interval.upper >= 0 for interval in compared if interval is not None)


def champion_by_rollouts(evidence: Evidence) -> bool:
    """Return whether neither rollouts nor held-out logs, if they support an estimate, show the candidate worse."""
    if evidence.incomparable or evidence.champion is None:
        return True
    by_logs = evidence.champion_unsupported or evidence.champion.upper >= 0
    by_rollouts = evidence.champion_rollouts is not None and evidence.champion_rollouts.upper >= 0
    return bool(by_logs) and by_rollouts


def fallback(evidence: Evidence) -> bool:
    """Return whether the fallback is certified."""
    return evidence.fallback.passed


def statistical(evidence: Evidence) -> bool | None:
    """Return whether the composite is certified, or None if certification was not attempted."""
    return None if evidence.certificate is None else evidence.certificate.passed


def statistical_of_one_program(evidence: Evidence) -> bool | None:
    """Return whether the composite is certified, on the simulator that passed its gate and as rollouts allow."""
    if not statistical(evidence):
        return statistical(evidence)
    return one_program(evidence) and rollouts_agree(evidence)


def one_program(evidence: Evidence) -> bool:
    """Return whether certificate and simulator gate are about the same lowered program of the simulator's step."""
    certificate = evidence.certificate
    return certificate is not None and bool(certificate.step) and certificate.step == evidence.simulator.step


def rollouts_agree(evidence: Evidence) -> bool:
    """Return whether the rollouts' violations are possible at the certificate's upper bound of the rate.

    P(K >= k) for K ~ Binomial(n, bound) must be at least `IMPROBABLE`.
    """
    certificate, n, k = evidence.certificate, evidence.rollout_episodes, evidence.rollout_violations
    if certificate is None:
        return False
    p = certificate.upper_bound
    fewer = math.fsum(math.comb(n, i) * p**i * (1 - p) ** (n - i) for i in range(k))
    return 1 - fewer >= IMPROBABLE


def servability(evidence: Evidence | ProcessEvidence) -> bool | None:
    """Return whether the bundle can be served, or None if this was not tried."""
    return None if evidence.servability is None else not evidence.servability.reasons


def learned_model(evidence: ProcessEvidence) -> bool:
    """Return whether the learned model predicts held-out episodes better than every naive predictor."""
    prediction = evidence.model
    if not prediction.ratios or not prediction.horizons or any(name not in prediction.ratios for name in NAIVE):
        return False
    # A comparison with NaN is false, so an undefined error fails.
    return all(ratio.upper < 1.0 for ratio in prediction.ratios.values())


def bounds(evidence: ProcessEvidence) -> bool:
    """Return whether every action stayed within its bounds and rate limits."""
    check = evidence.bounds
    return check.inputs > 0 and check.beyond_bounds <= 0 and check.beyond_rates <= ROUNDING


def support_known(evidence: ProcessEvidence) -> bool:
    """Return whether the support contains enough of the held-out rows that did not calibrate it."""
    check = evidence.support
    return math.isfinite(check.radius) and check.outside <= 2 * (1 - check.quantile) + OUTSIDE


def shield(evidence: ProcessEvidence) -> bool:
    """Return whether the support is known and the shield lets the policy act."""
    check = evidence.support
    return support_known(evidence) and check.handed_over <= check.most_handed_over


def log_only_fallback(evidence: ProcessEvidence) -> bool:
    """Return whether the fallback answers every held-out row, and explains the logged controller if it is a clone."""
    check = evidence.fallback
    explained = all(share >= check.least_explained for share in check.explained.values())
    return check.rows > 0 and not check.unsound and explained
