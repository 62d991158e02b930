"""Unintended losses of rows, for which a dataset may be refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from tasks.data.store.records import GAP, REPEATED, SourceRecord
from tasks.data.store.schema import NO_SUCCESSOR


class Loss(NamedTuple):
    """Rows or control steps lost unintentionally."""

    kind: str
    read: int
    reasons: Counter[str]
    key: str
    """The key of `data` that limits the share lost."""

    @property
    def share(self) -> float:
        return self.reasons.total() / max(self.read, 1)


def losses(records: Sequence[SourceRecord]) -> tuple[Loss, ...]:
    """Return the losses of raw rows, and of rows or control steps, by failed checks and by gaps.

    Not counted: exclusions by the mapping (ignored tags, modes, trips), silence of the whole archive, rows without a
    next observation (some formats end episodes so), and raw rows that repeat an earlier one, as overlapping files do.
    """
    accounts = [record.account for record in records if record.account is not None]
    raw, failed = Counter[str](), Counter[str]()
    for account in accounts:
        raw.update(account.raw.reasons)
    for record in records:
        failed.update(record.reasons)
    raw.pop(REPEATED, None)
    failed.pop(NO_SUCCESSOR, None)
    gaps = Counter({GAP: sum(account.gap - account.silent for account in accounts)})
    seen = sum(record.seen for record in records)
    return (
        Loss("raw rows", sum(account.raw.rows - account.raw.ignored for account in accounts), raw, "max_quarantined"),
        Loss("control steps" if accounts else "rows", seen, failed, "max_quarantined"),
        Loss("control steps in gaps", seen + gaps.total(), gaps, "max_gaps"),
    )
