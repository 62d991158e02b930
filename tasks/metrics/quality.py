"""Quality of ingested data: losses, sample qualities, and violations.

A share has risen if it exceeds the share in the champion's data by more than a difference that the engineer sets.
`neorl monitor` and the rule for Prometheus use the same difference. A significance test is not used, because losses,
bad samples and violations come in bursts: one broken transmitter affects a thousand rows. A test that assumes
independent rows would call each burst significant."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Literal, get_args

from configs.errors import Refused
from tasks.data.store.records import Manifest, SourceRecord, losses
from tasks.files.canonical import sha256_hex
from tasks.references.base import Reference

Share = Literal["raw_rows", "rows", "gaps", "uncertain", "bad", "violations"]
"""Monitored shares: lost raw rows, rows, control steps in gaps, samples, violations."""
SHARES: tuple[Share, ...] = get_args(Share)
WORDS: dict[Share, str] = {
    "raw_rows": "raw rows lost",
    "rows": "rows lost",
    "gaps": "control steps in gaps",
    "uncertain": "samples Uncertain",
    "bad": "samples Bad",
    "violations": "rows beyond a hard limit",
}


class Quality(Reference):
    """Numbers of read, used and lost rows of a dataset, or of some of its sources."""

    dataset: str
    sources: int
    read: int
    used: int
    lost: dict[str, int]
    """Rows or control steps that are not in the dataset, by reason."""
    shares: dict[Share, float]
    """Known shares; only a historian's export has samples, gaps and limits."""


class Rise(Reference):
    """A share that increased by more than the accepted difference."""

    share: Share
    now: float
    before: float

    def __str__(self) -> str:
        return f"{self.now:.1%} of {WORDS[self.share]} instead of {self.before:.1%}"


def read_sources(store: Path, digest: str) -> tuple[SourceRecord, ...]:
    """Return the row counts of each source from a dataset's manifest.

    Raises:
        Refused: if the manifest was altered.
        OSError: if there is no manifest.
    """
    data = (store / "manifests" / f"{digest}.json").read_bytes()
    if (got := sha256_hex(data)) != digest:
        raise Refused(f"manifest {digest[:12]} was altered, its SHA-256 is {got[:12]}: restore it from a backup")
    made = Manifest.model_validate_json(data)
    return tuple(source for origin in made.provenance for source in origin.sources)


def quality_of(digest: str, sources: Sequence[SourceRecord], known: Collection[str] = ()) -> Quality | None:
    """Add up the row counts of a dataset's sources.

    Args:
        known: SHA-256 of sources to leave out, such as those of the champion's data.

    Returns:
        The sum; None if all sources are left out.
    """
    new = [source for source in sources if source.sha256 not in known]
    if not new:
        return None
    lost: dict[str, int] = {}
    for source in new:
        for reason, count in source.lost.items():
            lost[reason] = lost.get(reason, 0) + count
    used = sum(source.used for source in new)
    return Quality(
        dataset=digest,
        sources=len(new),
        read=used + sum(lost.values()),
        used=used,
        lost=lost,
        shares=dict(_shares(new)),
    )


def rises(now: Quality, before: Quality, allowed: float) -> tuple[Rise, ...]:
    """Return shares that increased by more than `allowed`, largest increase first."""
    both = [share for share in SHARES if share in now.shares and share in before.shares]
    found = [Rise(share=share, now=now.shares[share], before=before.shares[share]) for share in both]
    return tuple(sorted((r for r in found if r.now - r.before > allowed), key=lambda r: r.before - r.now))


def _shares(sources: Sequence[SourceRecord]) -> Iterator[tuple[Share, float]]:
    accounts = [source.account for source in sources if source.account is not None]
    raw, rows, gaps = losses(sources)
    yield "rows", rows.share
    if not accounts:
        return
    yield "raw_rows", raw.share
    yield "gaps", gaps.share
    samples = [counts for account in accounts for counts in account.samples.values()]
    total = max(sum(s.good + s.uncertain + s.bad for s in samples), 1)
    yield "uncertain", sum(s.uncertain for s in samples) / total
    yield "bad", sum(s.bad for s in samples) / total
    yield "violations", sum(account.beyond_limits for account in accounts) / max(sum(a.rows for a in accounts), 1)
