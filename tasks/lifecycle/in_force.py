"""Find a plant's champion or shadow at a past time, with certificate, dataset, approvals and policy."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from tasks.evidence.attempts import ResultBody, certificate_file
from tasks.evidence.decisions import champions, shadows
from tasks.evidence.decisions.approvals import signed_how
from tasks.evidence.decisions.queue import record_of
from tasks.evidence.ledger.entry import Entry
from tasks.evidence.policies import PolicyBody, certified_claims, expires, policy_entry
from tasks.files.canonical import normalise_time
from tasks.references import Reference


class PastApproval(Reference):
    by: str
    role: str
    when: str
    meaning: str
    note: str
    signed: str
    """Description of the key that signed."""
    entry: str


class PastCertificate(Reference):
    file: str
    """Path relative to the home."""
    sha256: str
    claim: str | None
    since: str
    until: str | None
    """Time of expiry according to the policy at that time; None without a policy."""
    entry: str


class PastDataset(Reference):
    digest: str
    rows: int
    episodes: int
    sources: tuple[str, ...]
    """SHA-256 of the logs."""


class InForce(Reference):
    """The champion or shadow of a plant at a time, with certificate, training data, approvals and policy."""

    plant: str
    at: str
    """The time, in UTC."""
    zone: str
    """Explanation of the time zone."""
    who: str
    """Description of the version in force."""
    version: str | None = None
    composite: str | None = None
    since: str | None = None
    entry: str | None = None
    """Digest of the promotion, rollback or shadow entry."""
    certificate: PastCertificate | None = None
    dataset: PastDataset | None = None
    approvals: tuple[PastApproval, ...] = ()
    policy: str | None = None
    """Digest of the policy's entry at that time."""


def in_force_at(entries: Sequence[Entry], plant: str, at: str) -> InForce:
    """Return a plant's champion or shadow at a time, with certificate, dataset and approvals.

    Args:
        at: a date, which means the end of that day in UTC, or an ISO time; a time without zone is in UTC.
    """
    limit = normalise_time(at, last=True)
    known = [entry for entry in entries if entry.timestamp <= limit]
    now, policy = champions.champion(known, plant), policy_entry(known, plant)
    blank = InForce(
        plant=plant, at=limit, zone=zone_of(at), who=_nobody(known, plant), policy=policy.digest if policy else None
    )
    if now is None:
        watched = shadows.shadow(known, plant)
        if watched is None or not watched.runs(datetime.fromisoformat(limit)):
            return blank
        until = watched.until.isoformat(timespec="seconds")
        return _with(blank, known, watched.entry, f"version {watched.entry.body['version']} in shadow, until {until}")
    how = f", brought back by {now.body['by']} ({now.body['why']})" if now.kind == "rollback" else ""
    return _with(blank, known, now, f"version {now.body['version']} was champion{how}")


def zone_of(at: str) -> str:
    """Describe the time zone in which a date or time was read."""
    if len(at) <= len("2026-11-20"):
        return "the end of that day in UTC"
    return "UTC, because it has no zone" if datetime.fromisoformat(at).tzinfo is None else "with its own zone"


def _with(blank: InForce, known: Sequence[Entry], now: Entry, description: str) -> InForce:
    promotion = champions.restored(known, now)
    record = record_of({entry.digest: entry for entry in known}[now.body["candidate"]])
    given = [*champions.approvals_of(known, promotion), *([now] if now.kind == "rollback" else [])]
    return blank.model_copy(
        update={
            "who": description,
            "version": str(now.body["version"]),
            "composite": now.body["composite"],
            "since": now.timestamp,
            "entry": now.digest,
            "certificate": _certificate(known, now),
            "dataset": PastDataset(
                digest=record.dataset.digest,
                rows=record.dataset.rows,
                episodes=record.dataset.episodes,
                sources=tuple(source.sha256 for source in record.dataset.sources),
            ),
            "approvals": tuple(map(_approval, given)),
        }
    )


def _certificate(known: Sequence[Entry], now: Entry) -> PastCertificate | None:
    before = known[: now.sequence - 1]
    policy = policy_entry(known, now.plant)
    for result, _ in reversed(certified_claims(before, now.plant, now.body["composite"])):
        if (file := certificate_file(result)) is not None:
            days = policy.read(PolicyBody).policy.certificate_days if policy else None
            return PastCertificate(
                file=file.path,
                sha256=file.sha256,
                claim=result.read(ResultBody).claim,
                since=result.timestamp,
                until=expires(result, days).isoformat(timespec="seconds").replace("+00:00", "Z") if days else None,
                entry=result.digest,
            )
    return None


def _approval(entry: Entry) -> PastApproval:
    body = entry.body
    return PastApproval(
        by=body["by"],
        role=body.get("role", ""),
        when=entry.timestamp,
        meaning="brought back into service" if entry.kind == "rollback" else body.get("meaning") or "approved",
        note=body.get("note") or body.get("why") or "",
        signed=signed_how(entry),
        entry=entry.digest,
    )


def _nobody(known: Sequence[Entry], plant: str) -> str:
    last = next((e for e in reversed(known) if (e.kind, e.plant) == ("withdrawal", plant)), None)
    if last is None:
        return "nobody: there had been no promotion"
    return f"nobody: {last.body['by']} had withdrawn version {last.body['version']} ({last.body['why']})"
