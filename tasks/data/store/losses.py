"""What was lost of the rows that were read, without anybody's wish: what a dataset may be refused for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from tasks.data.store.records import GAP, REPEATED, SourceRecord
from tasks.data.store.schema import NO_SUCCESSOR


class Loss(NamedTuple):
    """What was lost, of what was read, without anybody's wish."""

    what: str
    read: int
    reasons: Counter[str]
    key: str
    """The key of `data` that says what share may be lost."""

    @property
    def share(self) -> float:
        return self.reasons.total() / max(self.read, 1)


def losses(records: Sequence[SourceRecord]) -> tuple[Loss, ...]:
    """What was lost of raw rows, and of rows or control steps, by failing and by gaps.

    What the mapping leaves out (ignored tags, modes, trips) is no loss. Nor is a silence of the whole archive, nor a
    row that nothing follows: formats without next observations end episodes so. Nor is a raw row that says what an
    earlier one said, as in files that overlap.
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
