"""The quality of ingested data: what was lost, what instruments said of their own samples, what was beyond limits.

Shares of newer logs are held against those of the champion's data by a stated number of points, and not by a test of
significance. Losses, bad samples and violations come in bursts: one broken transmitter is a thousand rows. A binomial
or Fisher test that takes rows for independent would call each burst significant, and blocks long enough to be
exchangeable (`tasks.log_only.drift`) leave a window of a day with one or two of them. How much worse matters is the
engineer's decision, and the same number holds in `neorl monitor` and in Prometheus' rule.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Literal, get_args

from configs.errors import Refused
from tasks.data.store.losses import losses
from tasks.data.store.records import Manifest, SourceRecord
from tasks.files.canonical import sha256_hex
from tasks.references.base import Reference

Share = Literal["raw_rows", "rows", "gaps", "uncertain", "bad", "violations"]
"""What may become worse: lost raw rows, rows and control steps in gaps; samples; rows beyond a hard limit."""
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
    """What became of the rows of a dataset, or of some of its sources."""

    dataset: str
    """Its digest."""
    sources: int
    """Files or folders that these numbers are of."""
    read: int
    used: int
    lost: dict[str, int]
    """Rows, or control steps, that are not in the dataset, by reason."""
    shares: dict[Share, float]
    """Those that are known: only a historian's export has samples, gaps and limits that were looked at."""


class Rise(Reference):
    """A share that is larger by more than is put up with."""

    share: Share
    now: float
    before: float

    def __str__(self) -> str:
        return f"{self.now:.1%} of {WORDS[self.share]} in place of {self.before:.1%}"


def read_sources(store: Path, digest: str) -> tuple[SourceRecord, ...]:
    """What became of each source of a dataset, as its manifest says.

    Args:
        store: the plant's folder of datasets.
        digest: the dataset's.

    Raises:
        Refused: when the manifest is not the one of that name.
        OSError: when there is none.
    """
    data = (store / "manifests" / f"{digest}.json").read_bytes()
    if (got := sha256_hex(data)) != digest:
        raise Refused(f"expected manifest {digest[:12]} with this SHA-256, got {got[:12]}: restore it from a backup.")
    made = Manifest.model_validate_json(data)
    return tuple(source for origin in made.provenance for source in origin.sources)


def quality_of(digest: str, sources: Sequence[SourceRecord], known: Collection[str] = ()) -> Quality | None:
    """Add up what became of a dataset's sources.

    Args:
        digest: the dataset's.
        sources: from `read_sources`.
        known: SHA-256 of sources to leave out, such as those that the champion's data holds.

    Returns:
        Nothing where all of them are left out.
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
    """Shares that have grown by more than so much, the largest rise first."""
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
