"""Text of MLflow's pages, rendered from the ledger: status and decisions of each version."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from tasks.evidence.decisions import champions, shadows
from tasks.evidence.decisions.approvals import signed_how
from tasks.evidence.decisions.queue import candidate_with, record_of, verdict_against, waiting
from tasks.evidence.decisions.verdicts import missing_approvals
from tasks.evidence.ledger.entry import Entry
from tasks.references import CandidateRecord
from tasks.registry.reading import END, STATUS, Page
from tasks.registry.upload import STATUS_TAG
from tasks.versions.texts import Texts
from tasks.versions.versions import current

DECISIONS = ("approval", "rejection", "promotion", "rollback", "withdrawal", "shadow", "extension")
MOST = 12
"""Maximum number of decisions on a page; `neorl history` shows all."""
NOTE = 300
"""Maximum number of characters of a note on a page."""


def wanted_pages(entries: Sequence[Entry], plant: str, now: datetime, texts: Texts | None = None) -> dict[str, Page]:
    """Render each version's MLflow page from the ledger: the status tag and the first part of the description."""
    texts = texts or current().texts
    queue = {entry.digest for entry in waiting(entries, plant)}
    pages = {}
    for entry in entries:
        if (entry.kind, entry.plant) == ("candidate", plant):
            record = record_of(entry)
            decided = [e for e in entries if e.kind in DECISIONS and e.plant == plant and _is_about(e, entry, entries)]
            status = _status(entries, entry, record, entry.digest in queue, now)
            pages[record.version] = Page({STATUS_TAG: status}, _text(status, decided, entries, texts))
    return pages


def _is_about(decision: Entry, candidate: Entry, entries: Sequence[Entry]) -> bool:
    named = decision.body.get("candidate")
    if decision.kind == "rollback" and decision.body["leaves"] == candidate.body["composite"]:
        return True
    if named is None:
        cause = decision.body.get("promotion") or decision.body.get("shadow")
        named = next((entry.body["candidate"] for entry in entries if entry.digest == cause), None)
    return bool(named == candidate.digest)


def _status(entries: Sequence[Entry], candidate: Entry, record: CandidateRecord, waits: bool, now: datetime) -> str:
    """Return the status of a version, such as "champion" or "waits for approval"."""
    plant, promoted = candidate.plant, [e for e in entries if e.body.get("candidate") == candidate.digest]
    champion, against = champions.champion(entries, plant), verdict_against(entries, plant, record.composite)
    last = shadows.last_shadow(entries, plant)
    if champion is not None and champion.body["candidate"] == candidate.digest:
        return "champion"
    if against is not None:
        return {"withdrawal": "withdrawn", "rollback": "rolled back from"}.get(against.kind, "rejected")
    if last is not None and last.body["candidate"] == candidate.digest:
        watched = shadows.shadow(entries, plant)
        return "in shadow" if watched is not None and watched.runs(now) else "shadow expired"
    for kind, status in (("promotion", "was champion"), ("shadow", "was in shadow")):
        if any(entry.kind == kind for entry in promoted):
            return status
    if not record.passed:
        return "refused"
    if waits:
        return "waits for approval"
    if champion is not None and champion.body["composite"] == record.composite:
        same = next(record_of(entry) for entry in entries if entry.digest == champion.body["candidate"])
        return f"the champion, as version {same.version}"
    return "superseded"


def _text(status: str, decided: Sequence[Entry], entries: Sequence[Entry], texts: Texts) -> str:
    lines = [f"{STATUS}{status}", ""]
    if explained := dict(texts.explained).get(status):
        lines += [explained, ""]
    approvals = [entry for entry in decided if entry.kind == "approval"]
    if status == "waits for approval" and approvals:
        missing = missing_approvals(entries, approvals[-1].plant, approvals[-1], texts)
        lines += [texts.needs.format(missing=_cell(missing)) if missing else texts.approved, ""]
    if decided:
        lines += [f"| {' | '.join(texts.heading)} |", "|:--|:--|:--|:--|:--|"]
        lines += [f"| {' | '.join(_row(entry, texts))} |" for entry in decided[-MOST:]]
        lines.append("")
    return "\n".join([*lines, texts.footer]) + END


def _row(entry: Entry, texts: Texts) -> tuple[str, ...]:
    body = entry.body
    when = f"{datetime.fromisoformat(entry.timestamp).astimezone(UTC):%Y-%m-%d %H:%M:%S}Z"
    if entry.kind in ("promotion", "shadow"):
        what = texts.promoted if entry.kind == "promotion" else texts.in_shadow.format(days=body["days"])
        return when, what, "", "", ""
    what = _meaning(entry, texts) or texts.extended.format(days=body.get("days"))
    role = f" ({_cell(body['role'])})" if body.get("role") else ""
    note = _cell(body.get("note") or body.get("why") or "")
    return when, what, f"{_cell(body['by'])}{role}", note, signed_how(entry, texts)


def _meaning(decision: Entry, texts: Texts) -> str | None:
    """Return the meaning of a person's decision on a candidate; None for other decisions."""
    body = decision.body
    meanings = {"approval": "approved", "rejection": "rejected", "withdrawal": "withdrawn"}
    meanings["rollback"] = texts.rolled_back.format(version=body.get("version"))
    return body.get("meaning") or meanings.get(decision.kind)


def of_this_ledger(entries: Sequence[Entry], plant: str, version: str, composite: str) -> bool:
    """Return whether MLflow's version belongs to this ledger; homes may share a server."""
    found = candidate_with([e for e in entries if (e.kind, e.plant) == ("candidate", plant)], version=version)
    return found is not None and found.body["composite"] == composite


def _cell(text: str) -> str:
    """Shorten and escape a user's text for a cell of a Markdown table."""
    cell = " ".join(text.split())[:NOTE]
    for mark in "\\`*_[]<>|#!":
        cell = cell.replace(mark, f"\\{mark}")
    return cell.replace("\\<", "&lt;").replace("\\>", "&gt;")
