"""Rules for every kind of entry; the signer applies them before signing, and the audit applies them again."""

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
"""Function of the earlier entries and the new entry; it raises Refused if the new entry breaks the rule.

A rule reads no other data, so that an audit can repeat it.
"""

MADE_BY = {"promoted": IN_FORCE, "shadow": ("shadow",)}
"""Verdict of a retraining -> kinds of entries, one of which must exist."""


class RefusalBody(Body):
    """Body of a `refusal` entry: NeoRL refused a run."""

    reason: str
    sources: tuple[str, ...] = ()
    """Digests of the run's logs."""


class NoteBody(Body):
    """Body of a `note` entry: a remark without effect."""

    text: str = ""


def check_refusal(history: Sequence[Entry], entry: Entry) -> None:
    entry.read(RefusalBody)


def check_note(history: Sequence[Entry], entry: Entry) -> None:
    entry.read(NoteBody)


def check_candidate(history: Sequence[Entry], entry: Entry) -> None:
    """Check a candidate: no gate is missing, verdicts follow from the evidence, and certificates are in the ledger."""
    record, version = entry.read(CandidateRecord), version_of(entry.rules)
    check_record(record, entry.plant, version)
    evidence = record.evidence
    if isinstance(evidence, ProcessEvidence):
        check_without_simulator(record, entry.plant, version)
        return
    own = evidence.fallback if record.role == "fallback" else evidence.certificate
    if own is not None and own.composite != record.composite:
        raise Refused(
            f"the evidence has a certificate of composite {own.composite[:12]}, but the candidate is composite "
            f"{record.composite[:12]}: certify the candidate"
        )
    results = [e.read(ResultBody) for e in history if (e.kind, e.plant) == ("result", entry.plant)]
    for certificate in (evidence.fallback, evidence.certificate):
        if certificate is not None and not any(_agrees(certificate, result) for result in results):
            raise Refused(
                f"no result in the ledger agrees with attempt {certificate.attempt} of the evidence "
                f"({certificate.found}): retrain to gather the evidence again"
            )


def check_without_simulator(record: CandidateRecord, plant: str, version: Version) -> None:
    """Check that a candidate with evidence of a log-only plant belongs to such a plant and makes no claim."""
    if plant in version.simulators:
        raise Refused(f"{plant} has a simulator, but the evidence is of a log-only plant: retrain it on its simulator")
    if record.role != "candidate" or record.claim is not None:
        raise Refused(
            f"log-only plant {plant} can only have candidates without a claim, got role {record.role} and claim "
            f"{str(record.claim)[:40]!r}: a claim needs a simulator"
        )


def check_record(record: CandidateRecord, plant: str, version: Version) -> None:
    """Check that no gate of a candidate is missing, and that the gates' verdicts follow from the numbers."""
    fault = version.fault(record.gates, record.evidence, record.role == "fallback")
    passed = all(gate.passed for gate in record.gates)
    if fault is None and record.passed is not passed:
        fault = f"'passed' must be {passed} according to the gates, got {record.passed}"
    if fault is not None:
        raise Refused(f"{fault}, in version {record.version} of {plant}: retrain {plant}")


def check_decision(history: Sequence[Entry], entry: Entry) -> None:
    """Check that a retraining's decision agrees with its outcome, and that the promotion or shadow it states exists."""
    record = entry.read(DecisionRecord)
    outcome = record.outcome
    if (record.verdict, record.run_key, entry.plant) != (outcome.verdict, outcome.run_key, outcome.plant):
        raise Refused(
            f"the decision states {record.verdict} on run {record.run_key} of {entry.plant}, but the outcome "
            f"{outcome.verdict} on {outcome.run_key} of {outcome.plant}: retrain again"
        )
    kinds = MADE_BY.get(record.verdict)
    about = outcome.candidate.digest if outcome.candidate else ""
    if kinds and not any(e.kind in kinds and e.plant == entry.plant and e.body["composite"] == about for e in history):
        raise Refused(
            f"the decision states {record.verdict!r}, but there is no {kinds[0]} of composite {about[:12] or 'none'}: "
            "retrain again"
        )


def check_drift(history: Sequence[Entry], entry: Entry) -> None:
    """Check a drift entry: it refers to a champion or shadow, and threshold and alarm follow from its settings."""
    # Imported late: most signers do not need NumPy.
    from neorl_core.safety.drift_detection import YEAR, alarm_threshold

    found = entry.read(DriftRecord)
    against = next((e for e in history if e.digest == found.against), None)
    if against is None or against.kind not in (*IN_FORCE, "shadow") or against.plant != entry.plant:
        raise Refused(f"entry {found.against[:12]} was never champion or shadow of {entry.plant}: monitor again")
    candidate = next(e for e in history if e.digest == against.body["candidate"])
    if found.reference != candidate.read(CandidateRecord).dataset.digest:
        raise Refused(f"{found.reference[:12]} is not the dataset of version {against.body['version']}: monitor again")
    rates = (found.step_seconds, found.alarms_per_year)
    if not all(math.isfinite(rate) and rate > 0 for rate in rates):
        raise Refused(f"step and alarms per year must be positive, got {rates[0]:g} s and {rates[1]:g}: monitor again")
    threshold = math.log(alarm_threshold(YEAR / found.step_seconds, found.alarms_per_year))
    if not math.isclose(found.log_threshold, threshold, rel_tol=1e-9, abs_tol=1e-12):
        raise Refused(
            f"the threshold for {found.alarms_per_year:g} alarms per year is {threshold:g}, got "
            f"{found.log_threshold:g}: monitor again"
        )
    reached = found.log_evidence >= found.log_threshold
    if math.isnan(found.log_evidence) or reached is not (found.alarm is not None):
        raise Refused(
            f"an alarm must be stated if and only if the evidence of drift ({found.log_evidence:g}) reaches the "
            f"threshold ({found.log_threshold:g}), got {found.alarm}: monitor again"
        )


GROUPS = {
    "attempts": ("attempt", "seed", "nonce", "result"),
    "decisions": ("candidate", "approval", "rejection", "decision"),
    "promotions": ("policy", "promotion", "rollback", "withdrawal"),
    "shadows": ("shadow", "extension", "comparison"),
    "monitoring": ("drift",),
    "federations": ("federation", "round"),
    "keys": ("key", "rotation", "revocation"),
}
"""Groups of kinds that an audit reports together. Entries of other kinds have no effect."""

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
    rule = RULES.get(entry.kind)
    if rule is None:
        raise Refused(f"an entry's kind must be one of {', '.join(RULES)}, got {entry.kind!r}")
    try:
        rule(history, entry)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(map(str, first["loc"])) or "body"
        raise Refused(f"invalid body of a {entry.kind}: field {field!r}: {first['msg']}") from error
    except (KeyError, TypeError, ValueError) as error:
        raise Refused(f"invalid body of a {entry.kind}: {error!r}") from error


def _agrees(certificate: Certificate, result: ResultBody) -> bool:
    names = ("passed", "claim", "alpha", "episodes", "violations", "upper_bound", "composite")
    return certificate.attempt == result.number and all(
        getattr(certificate, name) == getattr(result, name) for name in names
    )
