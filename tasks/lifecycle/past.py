"""Who was in force at an instant, and what that rested on then."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from tasks.evidence.attempts import ResultBody, certificate_file
from tasks.evidence.decisions import champions, shadows
from tasks.evidence.decisions.approvals import signed_how
from tasks.evidence.decisions.queue import record_of
from tasks.evidence.ledger.entry import Entry
from tasks.evidence.policies import PolicyBody, certified_claims, expires, policy_entry
from tasks.files.times import normalise_time
from tasks.references import Reference


class PastApproval(Reference):
    """A person's decision that a version rested on."""

    by: str
    role: str
    when: str
    meaning: str
    note: str
    signed: str
    """By whose key, in words."""
    entry: str


class PastCertificate(Reference):
    """The certificate that a version rested on."""

    file: str
    """Under the home."""
    sha256: str
    claim: str | None
    since: str
    until: str | None
    """By the policy of then; none where there was no policy."""
    entry: str


class PastDataset(Reference):
    """The dataset that a version was made of."""

    digest: str
    rows: int
    episodes: int
    sources: tuple[str, ...]
    """SHA-256 digests of the logs."""


class InForce(Reference):
    """Who was in force at an instant."""

    plant: str
    at: str
    """The instant, in UTC."""
    zone: str
    """How the zone came about, in words."""
    who: str
    """Who was in force, in words."""
    version: str | None = None
    composite: str | None = None
    since: str | None = None
    entry: str | None = None
    """Digest of the ledger's entry that put it into force."""
    certificate: PastCertificate | None = None
    dataset: PastDataset | None = None
    approvals: tuple[PastApproval, ...] = ()
    policy: str | None = None
    """Digest of the policy's entry of then."""


def in_force_at(entries: Sequence[Entry], plant: str, at: str) -> InForce:
    """Who was champion of a plant at an instant, or ran in shadow, with certificate, dataset and approvals.

    Args:
        entries: verified, from `Ledger.entries()`.
        plant: the plant's name.
        at: a date, whose last microsecond in UTC is meant, or an ISO time, in UTC where it names no zone.

    Raises:
        BadInput: when it is neither.
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
        told = f"version {watched.entry.body['version']} in shadow, until {watched.until.isoformat(timespec='seconds')}"
        return _with(blank, known, watched.entry, told)
    how = f", brought back by {now.body['by']} ({now.body['why']})" if now.kind == "rollback" else ""
    return _with(blank, known, now, f"version {now.body['version']} was champion{how}")


def zone_of(at: str) -> str:
    """How a time's zone is meant, for whoever asked."""
    if len(at) <= len("2026-11-20"):
        return "the end of that day in UTC"
    return "UTC, for it names no zone" if datetime.fromisoformat(at).tzinfo is None else "as it names its zone"


def _with(blank: InForce, known: Sequence[Entry], now: Entry, told: str) -> InForce:
    promotion = champions.restored(known, now)
    record = record_of({entry.digest: entry for entry in known}[now.body["candidate"]])
    given = [*champions.approvals_of(known, promotion), *([now] if now.kind == "rollback" else [])]
    return blank.model_copy(
        update={
            "who": told,
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
    """The last certificate of the composite that there was when it came into force."""
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
