"""Candidates as people meet them: which of them wait for a decision, and what was decided against one."""

from __future__ import annotations

from collections.abc import Sequence

from configs.errors import BadInput
from tasks.adapters.ledger import champions, shadows
from tasks.adapters.ledger.ledger import Entry
from tasks.references import CandidateRecord, Evidence, ProcessEvidence

VERBS = {"rejection": "rejected", "withdrawal": "withdrew"}
"""Verdicts against a composite: it is not promoted again."""


def record_of(entry: Entry) -> CandidateRecord:
    """What a candidate's ledger entry says."""
    return CandidateRecord.model_validate(entry.body)


def in_force(entries: Sequence[Entry], plant: str, evidence: Evidence | ProcessEvidence) -> Entry | None:
    """What a candidate would replace: the promotion in force, or of a process without a simulator its last shadow."""
    find = shadows.last_shadow if isinstance(evidence, ProcessEvidence) else champions.champion
    return find(entries, plant)


def was_rejected(entries: Sequence[Entry], plant: str, composite: str) -> bool:
    """Whether a person rejected this composite, or withdrew it."""
    return verdict_against(entries, plant, composite) is not None


def verdict_against(entries: Sequence[Entry], plant: str, composite: str) -> Entry | None:
    """The first rejection or withdrawal of a composite."""
    return next((e for e in entries if e.kind in VERBS and e.plant == plant and e.body["composite"] == composite), None)


def waiting(entries: Sequence[Entry], plant: str | None = None) -> list[Entry]:
    """Candidates that passed every gate and have been neither promoted nor rejected, nor overtaken by another one.

    What a candidate was compared with is the champion, or of a process the shadow; one that it is already waits for
    nothing.
    """
    promoted = {e.body.get("candidate") for e in entries if e.kind in ("promotion", "shadow")}
    rejected = {e.body["composite"] for e in entries if e.kind in VERBS}
    found = []
    for entry in entries:
        if entry.kind != "candidate" or plant not in (None, entry.plant) or entry.digest in promoted:
            continue
        record = record_of(entry)
        current = in_force(entries, entry.plant, record.evidence)
        replaced, running = (current.digest, current.body["composite"]) if current else (None, None)
        if record.passed and record.composite not in {*rejected, running} and record.champion == replaced:
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
