"""Candidates as people meet them: which of them wait for a decision, and what was decided against one."""

from __future__ import annotations

from collections.abc import Sequence

from configs.errors import BadInput
from tasks.evidence.decisions import champions, shadows
from tasks.evidence.decisions.approvals import RULED_OUT, ruled_out
from tasks.evidence.ledger.entry import Entry
from tasks.evidence.ledger.voided import VOID, leaves_service
from tasks.references import CandidateRecord, Evidence, ProcessEvidence

VERBS = {**RULED_OUT, "rollback": "rolled back from", VOID: "rolled back from"}
"""Verdicts against a composite: it is not promoted again. What was rolled back from may be rolled back to."""


def record_of(entry: Entry) -> CandidateRecord:
    """What a candidate's ledger entry says."""
    return CandidateRecord.model_validate(entry.body)


def in_force(entries: Sequence[Entry], plant: str, evidence: Evidence | ProcessEvidence) -> Entry | None:
    """What a candidate would replace: the promotion in force, or of a process without a simulator its last shadow."""
    find = shadows.last_shadow if isinstance(evidence, ProcessEvidence) else champions.champion
    return find(entries, plant)


def was_rejected(entries: Sequence[Entry], plant: str, composite: str) -> bool:
    """Whether a person rejected this composite, withdrew it or rolled back from it."""
    return verdict_against(entries, plant, composite) is not None


def verdict_against(entries: Sequence[Entry], plant: str, composite: str) -> Entry | None:
    """The first rejection or withdrawal of a composite, else the rollback that left it behind."""
    if (final := ruled_out(entries, plant, composite)) is not None:
        return final
    own = [e for e in entries if e.plant == plant and (e.kind == "rollback" or leaves_service(e))]
    # What a rollback that does not count was to bring back is left to what was said before.
    turns = (
        e
        for e in reversed(own)
        if e.kind not in RULED_OUT
        and composite in ((e.body["composite"], e.body["leaves"]) if e.kind == "rollback" else (e.body["leaves"],))
    )
    last = next(turns, None)
    return last if last is not None and last.body["leaves"] == composite else None


def waiting(entries: Sequence[Entry], plant: str | None = None) -> list[Entry]:
    """Candidates that passed every gate and have been neither promoted nor rejected, nor overtaken by another one.

    What a candidate was compared with is the champion, or of a process the shadow; one that it is already waits for
    nothing.
    """
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
    """The candidate of a registry version.

    Raises:
        BadInput: when the ledger knows none.
    """
    found = candidate_with([e for e in entries if e.kind == "candidate" and e.plant == plant], version=version)
    if found is None:
        known = ", ".join(e.body["version"] for e in entries if e.kind == "candidate" and e.plant == plant) or "none"
        raise BadInput(f"expected a version of {plant} that the ledger knows ({known}), got '{version}': correct it.")
    return found


def candidate_with(entries: Sequence[Entry], **wanted: str) -> Entry | None:
    """The last of these candidates whose body says so."""
    matching = (e for e in reversed(entries) if all(str(e.body[k]) == v for k, v in wanted.items()))
    return next(matching, None)
