"""Rows of the audit report about decisions, safety policies, champions, shadows, incidents and keys."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from configs.safety_policy import SafetyPolicy
from tasks.audit_report.tables import DecisionRow, IncidentRow, InForce, Period, PolicyRow
from tasks.evidence.decisions.approvals import VerdictBody, approvers, signed_how
from tasks.evidence.decisions.champions import IN_FORCE, WithdrawalBody
from tasks.evidence.decisions.shadows import ExtensionBody, course
from tasks.evidence.ledger.entry import Entry
from tasks.evidence.ledger.signing import keyid_of
from tasks.evidence.ledger.voided import VOID, leaves_service
from tasks.evidence.people.keyring import KeyBody, RevocationBody, RotationBody
from tasks.evidence.policies import PolicyBody
from tasks.files.canonical import format_time
from tasks.references import DriftRecord, ShadowComparison

HOME_NAME = "in the home's name"


def decisions_in(entries: Sequence[Entry], period: Period) -> Iterator[DecisionRow]:
    for entry in entries:
        if not period.contains(entry.timestamp):
            continue
        if entry.kind in ("approval", "rejection"):
            verdict = entry.read(VerdictBody)
            what = "rejected" if entry.kind == "rejection" else verdict.meaning or "approved"
            by = (verdict.version, verdict.by, verdict.note)
            yield _decision(entry, str(what), *by, signed_how(entry), verdict.role)
        elif entry.kind == "withdrawal":
            taken = entry.read(WithdrawalBody)
            yield _decision(entry, "withdrew", taken.version, taken.by, taken.why, signed_how(entry))
        elif entry.kind == "rollback":
            back = entry.body
            yield _decision(
                entry, "rolled back to it", back["version"], back["by"], back["why"], signed_how(entry), back["role"]
            )
        elif entry.kind == "policy":
            policy = entry.read(PolicyBody)
            keys = ", ".join(f"key {keyid_of(text.encode())}" for text in policy.signatures)
            yield _decision(entry, "signed the safety policy", "", policy.by, policy.why, keys or HOME_NAME)
        elif entry.kind == "extension":
            longer = entry.read(ExtensionBody)
            version = next(str(e.body["version"]) for e in entries if e.digest == longer.shadow)
            more = f"extended the shadow by {longer.days} days"
            yield _decision(entry, more, version, longer.by, longer.note, HOME_NAME)


def _decision(entry: Entry, what: str, version: str, by: str, why: str, signed: str, role: str = "") -> DecisionRow:
    return DecisionRow(
        entry=entry.sequence,
        time=entry.timestamp,
        plant=entry.plant,
        what=what,
        version=version,
        by=by,
        role=role,
        why=why,
        signed=signed,
    )


def in_force_in(entries: Sequence[Entry], period: Period) -> Iterator[InForce]:
    """Yield champions and shadows that were in force during a period, sorted by plant, champions first."""
    for plant in sorted({entry.plant for entry in entries if entry.kind in (*IN_FORCE, "shadow")}):
        own = [entry for entry in entries if entry.plant == plant]
        for found in (*_champions(own, entries), *_shadows(own, entries)):
            if found.until is None or found.until >= period.begin:
                yield found


def _champions(own: Sequence[Entry], entries: Sequence[Entry]) -> Iterator[InForce]:
    turns = [entry for entry in own if entry.kind in IN_FORCE or leaves_service(entry)]
    for entry, following in pairwise([*turns, None]):
        if entry is None or entry.kind not in IN_FORCE:
            continue
        ended = ""
        if following is not None and following.kind == "withdrawal":
            ended = f"withdrawn by {following.body['by']}: {following.body['why']}"
        elif following is not None and following.kind in ("rollback", VOID):
            person = f"{following.body['by']}: {following.body['why']}"
            if following.kind == VOID:
                person += "; the rollback was voided, but this version stays out of service"
            ended = f"rolled back to version {following.body['version']} by {person}"
        elif following is not None:
            ended = f"replaced by version {following.body['version']}"
        yield _in_force(entry, entries, "champion", following.timestamp if following else None, ended)


def _shadows(own: Sequence[Entry], entries: Sequence[Entry]) -> Iterator[InForce]:
    """Yield every shadow of a log-only plant. A shadow ends with its period, a rejection or the next shadow."""
    for entry in own:
        if entry.kind != "shadow":
            continue
        run = course(own, entry)
        until, ended, later = format_time(run.until), "its period ended", run.ended
        if later is not None and later.timestamp < until:
            rejected = later.kind == "rejection"
            ended = f"rejected by {later.body['by']}" if rejected else f"replaced by {later.body['version']}"
            until = later.timestamp
        yield _in_force(entry, entries, "shadow", until, ended)


def _in_force(entry: Entry, entries: Sequence[Entry], kind: str, until: str | None, ended: str) -> InForce:
    candidate = next(e for e in entries if e.digest == entry.body["candidate"])
    return InForce.model_validate(
        {
            "entry": entry.sequence,
            "time": entry.timestamp,
            "plant": entry.plant,
            "kind": kind,
            "version": str(entry.body["version"]),
            "composite": entry.body["composite"],
            "until": until,
            "ended": ended,
            "approver": str(entry.body["by"]) if entry.kind == "rollback" else approvers(entries, entry),
            "own": candidate.body["role"] == "fallback",
        }
    )


def policies_in(entries: Sequence[Entry], period: Period) -> Iterator[PolicyRow]:
    signed = [entry for entry in entries if entry.kind == "policy"]
    for entry in signed:
        following = next((e for e in signed if e.plant == entry.plant and e.sequence > entry.sequence), None)
        if following is not None and following.timestamp < period.begin:
            continue
        body = entry.read(PolicyBody)
        yield PolicyRow(
            entry=entry.sequence,
            time=entry.timestamp,
            plant=entry.plant,
            claim=_asked(body.policy),
            approvers=_approvers(body.policy),
            approval_days=body.policy.approval_days,
            certificate_days=body.policy.certificate_days,
            by=body.by,
            why=body.why,
        )


def _asked(policy: SafetyPolicy) -> str:
    return (
        f"P(an episode of {policy.horizon} steps violates {policy.limits}) ≤ {policy.p0:g} with confidence "
        f"{policy.confidence:.6g}, domain family {policy.family}; gates {', '.join(policy.gates)}"
        + ("; better than the plant's own controller" if policy.beat_plant else "")
    )


def _approvers(policy: SafetyPolicy) -> str:
    wanted = policy.approvers
    if not wanted.count:
        return "the rule decides"
    parts = [f"{wanted.count} person{'s' if wanted.count > 1 else ''}"]
    parts += [f"as {', '.join(wanted.roles)}"] if wanted.roles else []
    parts += [f"{wanted.reviewers} reviewers besides"] if wanted.reviewers else []
    parts += ["each with a key of their own"] if wanted.keys else []
    parts += ["not who ran the retraining"] if wanted.not_author else []
    return ", ".join(parts)


def incidents_in(entries: Sequence[Entry], period: Period) -> Iterator[IncidentRow]:
    """Yield withdrawals, rollbacks, rejected shadows, drift alarms, revoked keys and voided entries of a period."""
    shadows = {e.body["composite"]: e for e in entries if e.kind == "shadow"}
    for entry in entries:
        if not period.contains(entry.timestamp):
            continue
        what = detail = ""
        if entry.kind == "withdrawal":
            body = entry.read(WithdrawalBody)
            what, detail = "champion withdrawn", f"version {body.version}, by {body.by}: {body.why}"
        elif entry.kind == "rollback":
            back = entry.body
            what, detail = "champion rolled back", f"to version {back['version']}, by {back['by']}: {back['why']}"
        elif entry.kind == "rejection" and entry.body["composite"] in shadows:
            verdict = entry.read(VerdictBody)
            what, detail = (
                "shadow ended",
                f"version {verdict.version}, by {verdict.by}: {verdict.note or 'no reason given'}",
            )
        elif (entry.kind == "drift" and (alarm := entry.read(DriftRecord).alarm)) or (
            entry.kind == "comparison" and (alarm := entry.read(ShadowComparison).drift.alarm)
        ):
            what, detail = "drift alarm", alarm
        elif entry.kind == "revocation":
            revoked = entry.read(RevocationBody)
            what = "key revoked"
            detail = f"key {revoked.key} from {revoked.since} on, by {revoked.by}: {revoked.why}"
        elif entry.kind == VOID:
            what, detail = "entry voided", entry.void
        if what:
            yield IncidentRow(entry=entry.sequence, time=entry.timestamp, plant=entry.plant, what=what, detail=detail)


def keys_in(entries: Sequence[Entry], period: Period) -> Iterator[IncidentRow]:
    """Yield keys that were enrolled or replaced in a period; `incidents_in` yields revoked keys."""
    for entry in entries:
        if not period.contains(entry.timestamp) or entry.kind not in ("key", "rotation"):
            continue
        if entry.kind == "key":
            key = entry.read(KeyBody)
            roles = ", ".join(key.roles) or "no role"
            what, detail = "enrolled", f"a key of {key.person} ({roles}), by {key.by}: {key.why}"
        else:
            turn = entry.read(RotationBody)
            what, detail = "replaced", f"key {turn.old} of {turn.person or 'the home'}, by {turn.by}: {turn.why}"
        yield IncidentRow(entry=entry.sequence, time=entry.timestamp, plant=entry.plant, what=what, detail=detail)
