"""Rules, signing and logging of approvals and rejections."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Literal

from configs.errors import Refused
from configs.safety_policy import RULE
from tasks.evidence.decisions.approvals import (
    VerdictBody,
    check_all_gates,
    check_signed_time,
    check_version,
    of_process,
    open_approvals,
)
from tasks.evidence.decisions.champions import champion, check_compared
from tasks.evidence.ledger.entry import Entry
from tasks.evidence.ledger.ledger import Ledger
from tasks.evidence.people.keyring import KnownKey, folded
from tasks.evidence.people.rules import check_signed
from tasks.evidence.people.statement import Content, Signatory, with_signature
from tasks.evidence.policies import (
    PolicyBody,
    evidence_digests,
    expires,
    policy_entry,
    policy_of,
    unmet_approval,
)
from tasks.versions.texts import Texts


def verdict_content(
    history: Sequence[Entry], act: Literal["approval", "rejection"], plant: str, body: VerdictBody
) -> Content:
    now = champion(history, plant)
    about = {
        **evidence_digests(history, plant, body.composite),
        "candidate": body.candidate,
        "champion": now.digest if now else None,
        "composite": body.composite,
        "version": body.version,
    }
    return Content(act, plant, about, body.meaning, body.role, body.note)


def check_approval(history: Sequence[Entry], entry: Entry) -> None:
    """Check an approval: the candidate passed every gate, and the policy lets this person approve."""
    body = entry.read(VerdictBody)
    candidate = _candidate_of(history, entry, body)
    if candidate.body["passed"] is not True or not all(gate["passed"] is True for gate in candidate.body["gates"]):
        raise Refused(
            f"composite {body.composite[:12]} of {entry.plant} did not pass every gate, and an approval cannot replace "
            f"a gate: retrain {entry.plant}"
        )
    check_all_gates(candidate, entry.rules)
    policy = policy_of(history, entry.plant)
    if policy is not None and body.by == RULE and policy.approvers.count:
        raise Refused(
            f"the policy of {entry.plant} requires a person's approval of composite {body.composite[:12]}, got an "
            f"automatic approval: run 'neorl approve {entry.plant} {body.version}'"
        )
    process = of_process(candidate)
    if not process:
        check_compared(history, candidate)
    if body.meaning not in ("", "reviewed", "approved for shadow" if process else "approved for closed loop"):
        raise Refused(f"an approval of {entry.plant} cannot have the meaning {body.meaning!r}: leave the meaning out")
    signed_by = _check_verdict(history, entry, body, "approval")
    author = folded(str(candidate.body.get("author", "")))
    names = {"", folded(body.by), folded(signed_by.login if signed_by else body.by)}
    if policy is not None and policy.approvers.not_author and author in names:
        raise Refused(
            f"the policy of {entry.plant} requires another approver than the person who ran the retraining "
            f"({author or 'unknown'}), got {body.by}: ask another person to approve"
        )


def check_rejection(history: Sequence[Entry], entry: Entry) -> None:
    """Check a rejection: it names a person, and a candidate of the ledger that is not the champion."""
    body, now = entry.read(VerdictBody), champion(history, entry.plant)
    _candidate_of(history, entry, body)
    if now is not None and now.body["composite"] == body.composite:
        raise Refused(
            f"composite {body.composite[:12]} is the champion of {entry.plant} and cannot be rejected: use 'neorl "
            "withdraw'"
        )
    _check_verdict(history, entry, body, "rejection")


def _candidate_of(history: Sequence[Entry], entry: Entry, body: VerdictBody) -> Entry:
    candidate = next((e for e in history if e.kind == "candidate" and e.digest == body.candidate), None)
    if candidate is None or (candidate.plant, candidate.body["composite"]) != (entry.plant, body.composite):
        raise Refused(
            f"the {entry.kind} names no logged candidate of {entry.plant} with composite {body.composite[:12]}: "
            "retrain, and decide on the new candidate"
        )
    check_version(candidate, body.version)
    return candidate


def _check_verdict(
    history: Sequence[Entry], entry: Entry, body: VerdictBody, act: Literal["approval", "rejection"]
) -> KnownKey | None:
    if not body.by.strip():
        raise Refused(
            f"the {act} of a candidate needs a person's name, got {body.by!r}: give --by, or set NEORL_PERSON"
        )
    policy = policy_of(history, entry.plant)
    content = verdict_content(history, act, entry.plant, body)
    required = policy is not None and policy.approvers.keys
    found = check_signed(history, entry, body.by, body.signature, content, required=required)
    check_signed_time(body.signature, body.signed)
    return found


def approve(ledger: Ledger, plant: str, verdict: VerdictBody, signatory: Signatory | None = None) -> Entry:
    """Log the approval of a candidate; if the same approval is in the ledger and still counts, return its entry."""
    policy = policy_entry(ledger.entries(), plant)
    since = policy.sequence if policy else 0
    for given in open_approvals(ledger.entries(), plant, verdict.composite):
        same = all(given.body[name] == getattr(verdict, name) for name in ("by", "role", "candidate"))
        same = same and bool(given.body.get("signature")) is bool(signatory or verdict.signature)
        same = same and (given.body.get("meaning") == "reviewed") is (verdict.meaning == "reviewed")
        # Approvals from before the present policy, and expired approvals, are logged again.
        if same and given.sequence > since and not _expired(given, ledger, plant):
            return given

    def body(history: Sequence[Entry]) -> VerdictBody:
        return signed(history, "approval", plant, verdict, signatory)

    return ledger.append("approval", body, plant=plant)


def signed(
    history: Sequence[Entry],
    act: Literal["approval", "rejection"],
    plant: str,
    verdict: VerdictBody,
    signatory: Signatory | None,
) -> VerdictBody:
    """Return a decision with the person's signed statement; without a signatory, return it unchanged."""
    return with_signature(verdict, signatory, verdict_content(history, act, plant, verdict))


def missing_approvals(history: Sequence[Entry], plant: str, approval: Entry, texts: Texts | None = None) -> str | None:
    """Describe the first approval that the policy requires and that is missing; None if none is missing."""
    signed, body = policy_entry(history, plant), approval.body
    if signed is None:
        return None
    given = [e for e in open_approvals(history, plant, body["composite"]) if e.body["candidate"] == body["candidate"]]
    return unmet_approval(signed.read(PolicyBody).policy, signed, given, approval.timestamp, texts)


def _expired(approval: Entry, ledger: Ledger, plant: str) -> bool:
    policy = policy_of(ledger.entries(), plant)
    return policy is not None and expires(approval, policy.approval_days) < datetime.now(UTC)


def reject(ledger: Ledger, plant: str, verdict: VerdictBody, signatory: Signatory | None = None) -> Entry:
    """Log the rejection of a candidate. The rejection also ends its unused approvals."""

    def body(history: Sequence[Entry]) -> VerdictBody:
        return signed(history, "rejection", plant, verdict, signatory)

    return ledger.append("rejection", body, plant=plant)
