"""The rules of writing, one per kind of entry: the signer applies them before it signs, and the audit once more."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from pydantic import ValidationError

from configs.errors import Refused
from tasks.evidence.attempts import ResultBody, check_attempt, check_result
from tasks.evidence.decisions.champions import IN_FORCE, check_promotion, check_rollback, check_withdrawal
from tasks.evidence.decisions.shadows import check_comparison, check_extension, check_shadow
from tasks.evidence.decisions.verdicts import check_approval, check_rejection
from tasks.evidence.federations import check_federation, check_round
from tasks.evidence.ledger.entry import Body, Entry
from tasks.evidence.people.rules import check_key, check_revocation, check_rotation
from tasks.evidence.policies import check_policy
from tasks.evidence.witness.seeds import check_nonce, check_seed
from tasks.references import CandidateRecord, Certificate, DecisionRecord, DriftRecord, ProcessEvidence
from tasks.versions.versions import Version, version_of

Rule = Callable[[Sequence[Entry], Entry], None]
"""(all entries before it, the entry) -> nothing, or Refused: it reads nothing else, so that it can be repeated."""


MADE_BY = {"promoted": IN_FORCE, "shadow": ("shadow",)}
"""Verdicts of retrainings, and the kinds of entries by which they come true."""


class RefusalBody(Body):
    """A run was refused."""

    reason: str
    sources: tuple[str, ...] = ()
    """Digests of the logs that it was given."""


class NoteBody(Body):
    """A remark, which decides nothing."""

    text: str = ""


def check_refusal(history: Sequence[Entry], entry: Entry) -> None:
    """Refuse a refusal that gives no reason."""
    entry.read(RefusalBody)


def check_note(history: Sequence[Entry], entry: Entry) -> None:
    """Refuse a note that is more than a text."""
    entry.read(NoteBody)


def check_candidate(history: Sequence[Entry], entry: Entry) -> None:
    """Refuse a candidate whose gates are incomplete or contradict their numbers, or whose certificates are not logged.

    Args:
        history: all entries before the candidate.
        entry: the candidate.

    Raises:
        Refused: naming the gate or the certificate.
    """
    record, version = entry.read(CandidateRecord), version_of(entry.rules)
    check_record(record, entry.plant, version)
    evidence = record.evidence
    if isinstance(evidence, ProcessEvidence):
        check_without_simulator(record, entry.plant, version)
        return
    own = evidence.fallback if record.role == "fallback" else evidence.certificate
    if own is not None and own.composite != record.composite:
        raise Refused(
            f"expected a certificate of composite {record.composite[:12]} in its evidence, got one of "
            f"{own.composite[:12]}: certify what is proposed."
        )
    results = [e.read(ResultBody) for e in history if (e.kind, e.plant) == ("result", entry.plant)]
    for certificate in (evidence.fallback, evidence.certificate):
        if certificate is not None and not any(_agrees(certificate, result) for result in results):
            raise Refused(
                f"expected the numbers of attempt {certificate.attempt} as the ledger has them, got "
                f"{certificate.found}: retrain, so that the evidence is gathered again."
            )


def check_without_simulator(record: CandidateRecord, plant: str, version: Version) -> None:
    """Refuse a record without a simulator's evidence where there is a simulator, or of more than a candidate.

    Raises:
        Refused: saying which.
    """
    if plant in version.simulators:
        raise Refused(f"expected evidence of a simulator for {plant}, got a process's: retrain it on its simulator.")
    if record.role != "candidate" or record.claim is not None:
        raise Refused(
            f"expected a candidate of process {plant} without a claim, got a {record.role} or a claim: nothing "
            "certifies a process without a simulator."
        )


def check_record(record: CandidateRecord, plant: str, version: Version) -> None:
    """Refuse a candidate whose gates are incomplete, or whose verdicts do not follow from the numbers beside them.

    Args:
        record: what was, or is to be, written down.
        plant: the plant's name.
        version: rules that it was judged by.

    Raises:
        Refused: naming the gate.
    """
    fault = version.fault(record.gates, record.evidence, record.role == "fallback")
    passed = all(gate.passed for gate in record.gates)
    if fault is None and record.passed is not passed:
        fault = f"'passed' must be {passed} by the gates, got {record.passed}"
    if fault is not None:
        raise Refused(f"{fault}, in version {record.version} of {plant}: retrain it, no decision can mend a record.")


def check_decision(history: Sequence[Entry], entry: Entry) -> None:
    """Refuse a decision that its outcome contradicts, or that says of a composite what no entry made of it.

    Args:
        history: all entries before the decision.
        entry: the decision.
    """
    record = entry.read(DecisionRecord)
    outcome = record.outcome
    if (record.verdict, record.run_key, entry.plant) != (outcome.verdict, outcome.run_key, outcome.plant):
        raise Refused(
            f"expected a decision with the verdict {outcome.verdict} on run {outcome.run_key} of {outcome.plant}, as "
            f"its outcome says, got {record.verdict} on {record.run_key} of {entry.plant}: run it again."
        )
    kinds = MADE_BY.get(record.verdict)
    about = outcome.candidate.digest if outcome.candidate else ""
    if kinds and not any(e.kind in kinds and e.plant == entry.plant and e.body["composite"] == about for e in history):
        raise Refused(
            f"expected a {kinds[0]} of composite {about[:12] or 'none'} before a decision that says "
            f"{record.verdict!r}, got none: run it again."
        )


def check_drift(history: Sequence[Entry], entry: Entry) -> None:
    """Refuse a drift against no champion or shadow of the plant, or whose threshold or alarm is another.

    Args:
        history: all entries before the drift.
        entry: the drift.

    Raises:
        Refused: naming what is wrong.
    """
    # It brings NumPy, which the signer of a home that watches nothing needs not wait for.
    from neorl_core.safety.drift_test import YEAR, alarm_threshold

    found = entry.read(DriftRecord)
    against = next((e for e in history if e.digest == found.against), None)
    if against is None or against.kind not in (*IN_FORCE, "shadow") or against.plant != entry.plant:
        raise Refused(f"expected a drift from what was champion or shadow of {entry.plant}, got another.")
    candidate = next(e for e in history if e.digest == against.body["candidate"])
    if found.reference != candidate.read(CandidateRecord).dataset.digest:
        raise Refused(f"expected a drift from the dataset of version {against.body['version']}, got another.")
    rates = (found.step_seconds, found.alarms_per_year)
    if not all(math.isfinite(rate) and rate > 0 for rate in rates):
        raise Refused("expected a positive step and number of alarms in a year, got another: monitor anew.")
    threshold = math.log(alarm_threshold(YEAR / found.step_seconds, found.alarms_per_year))
    if not math.isclose(found.log_threshold, threshold, rel_tol=1e-9, abs_tol=1e-12):
        raise Refused(
            f"expected the threshold {threshold:g} that {found.alarms_per_year:g} alarms a year come to, got "
            f"{found.log_threshold:g}: monitor anew."
        )
    reached = found.log_evidence >= found.log_threshold
    if math.isnan(found.log_evidence) or reached is not (found.alarm is not None):
        raise Refused("expected an alarm where the evidence reached its threshold and nowhere else, got another.")


GROUPS = {
    "attempts": ("attempt", "seed", "nonce", "result"),
    "decisions": ("candidate", "approval", "rejection", "decision"),
    "promotions": ("policy", "promotion", "rollback", "withdrawal"),
    "shadows": ("shadow", "extension", "comparison"),
    "monitoring": ("drift",),
    "federations": ("federation", "round"),
    "keys": ("key", "rotation", "revocation"),
}
"""Kinds as an audit sums them up; the others decide nothing."""

RULES: dict[str, Rule] = {
    "attempt": check_attempt,
    "seed": check_seed,
    "nonce": check_nonce,
    "result": check_result,
    "candidate": check_candidate,
    "decision": check_decision,
    "approval": check_approval,
    "rejection": check_rejection,
    "policy": check_policy,
    "promotion": check_promotion,
    "rollback": check_rollback,
    "withdrawal": check_withdrawal,
    "shadow": check_shadow,
    "extension": check_extension,
    "comparison": check_comparison,
    "drift": check_drift,
    "federation": check_federation,
    "round": check_round,
    "key": check_key,
    "rotation": check_rotation,
    "revocation": check_revocation,
    "refusal": check_refusal,
    "note": check_note,
}


def check(history: Sequence[Entry], entry: Entry) -> None:
    """Refuse an entry that breaks the rule of its kind.

    Args:
        history: all entries before this one.
        entry: signed already, or about to be.

    Raises:
        Refused: naming what is wrong with it.
    """
    rule = RULES.get(entry.kind)
    if rule is None:
        raise Refused(f"expected an entry of one of the kinds {', '.join(RULES)}, got {entry.kind!r}: correct it.")
    try:
        rule(history, entry)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(map(str, first["loc"])) or "body"
        raise Refused(f"expected the body of a {entry.kind}, got {field!r}: {first['msg']}.") from error
    except (KeyError, TypeError, ValueError) as error:
        raise Refused(f"expected the body of a {entry.kind}, got one that cannot be read ({error!r}).") from error


def _agrees(certificate: Certificate, result: ResultBody) -> bool:
    names = ("passed", "claim", "alpha", "episodes", "violations", "upper_bound", "composite")
    return certificate.attempt == result.number and all(
        getattr(certificate, name) == getattr(result, name) for name in names
    )
