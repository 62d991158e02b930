"""Candidates that wait for a decision, and decisions against a composite."""

from __future__ import annotations

from collections.abc import Sequence

from configs.errors import BadInput
from tasks.evidence.decisions import champions, shadows
from tasks.evidence.decisions.approvals import RULED_OUT, ruled_out
from tasks.evidence.ledger.entry import Entry
from tasks.evidence.ledger.voided import VOID, leaves_service
from tasks.references import CandidateRecord, Evidence, ProcessEvidence

VERBS = {**RULED_OUT, "rollback": "rolled back from", VOID: "rolled back from"}
"""Kinds of decisions after which a composite is not promoted again, each with a verb for messages."""


def record_of(entry: Entry) -> CandidateRecord:
    """Return the record of a candidate from its ledger entry."""
    return CandidateRecord.model_validate(entry.body)


def in_force(entries: Sequence[Entry], plant: str, evidence: Evidence | ProcessEvidence) -> Entry | None:
    """Return the entry that a candidate would replace: the champion's, or the last shadow's on a log-only plant."""
    find = shadows.last_shadow if isinstance(evidence, ProcessEvidence) else champions.champion
    return find(entries, plant)


def was_rejected(entries: Sequence[Entry], plant: str, composite: str) -> bool:
    """Return whether a person rejected or withdrew this composite, or rolled back from it."""
    return verdict_against(entries, plant, composite) is not None


def verdict_against(entries: Sequence[Entry], plant: str, composite: str) -> Entry | None:
    """Return the decision against a composite: its first rejection or withdrawal, else the last rollback from it."""
    if (final := ruled_out(entries, plant, composite)) is not None:
        return final
    own = [e for e in entries if e.plant == plant and (e.kind == "rollback" or leaves_service(e))]
    # A voided rollback restores nothing: earlier decisions about the target still apply.
    turns = (
        e
        for e in reversed(own)
        if e.kind not in RULED_OUT
        and composite in ((e.body["composite"], e.body["leaves"]) if e.kind == "rollback" else (e.body["leaves"],))
    )
    last = next(turns, None)
    return last if last is not None and last.body["leaves"] == composite else None


def waiting(entries: Sequence[Entry], plant: str | None = None) -> list[Entry]:
    """Return undecided candidates that passed every gate and were compared with the present champion or shadow."""
    promoted = {e.body.get("candidate") for e in entries if e.kind in ("promotion", "shadow")}
    found = []
    for entry in entries:
        if entry.kind != "candidate" or plant not in (None, entry.plant) or entry.digest in promoted:
            continue
        record = record_of(entry)
        current = in_force(entries, entry.plant, record.evidence)
        replaced, running = (current.digest, current.body["composite"]) if current else (None, None)
        if not record.passed or record.composite == running or record.champion != replaced:
            continue
        if not was_rejected(entries, entry.plant, record.composite):
            found.append(entry)
    return found


def find_candidate(entries: Sequence[Entry], plant: str, version: str) -> Entry:
    found = candidate_with([e for e in entries if e.kind == "candidate" and e.plant == plant], version=version)
    if found is None:
        known = ", ".join(e.body["version"] for e in entries if e.kind == "candidate" and e.plant == plant) or "none"
        raise BadInput(f"{plant} has no version '{version}' in the ledger (versions: {known}): name a listed version")
    return found


def candidate_with(entries: Sequence[Entry], **wanted: str) -> Entry | None:
    """Return the last candidate that has the wanted values in its body, or None."""
    matching = (e for e in reversed(entries) if all(str(e.body[k]) == v for k, v in wanted.items()))
    return next(matching, None)
