"""What is still needed of each tag while an export streams by: its last value, and what came since.

Rows are put in their place as long as they come no later than the clock's `late_seconds`; the first of equal rows
counts, and rows that contradict each other go by the clock's rule. What does not count goes to the quarantine.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from configs.mapping import Clock
from tasks.adapters.arrivals import Chunk
from tasks.adapters.raw_rows import UNKNOWN_TIME, RawQuarantine, RawRows
from tasks.adapters.resample import Samples, severity

REPEATED = "repeats an earlier row"
CONTRADICTED = "contradicts another row of the same time"
BAD_ENTRY_EXISTS = np.uint32(0x809F0000)
"""OPC UA's code for an entry whose time is taken; here, of a time at which rows contradict each other."""

Mask = npt.NDArray[np.bool_]
Index = npt.NDArray[np.int64]


class Tracks:
    """The tags' recent past.

    Args:
        tags: how many.
        clock: how late a row may come, and which of several rows of one time counts.
        quarantine: takes rows that come twice.
    """

    def __init__(self, tags: int, clock: Clock, quarantine: RawQuarantine) -> None:
        self.clock, self.quarantine = clock, quarantine
        self.late = round(clock.late_seconds * 1e9)
        self.top = UNKNOWN_TIME
        empty = RawRows(*(np.zeros(0, t) for t in (np.uint16, np.int64, np.float64, np.uint32, np.int64)))
        self._held = [empty] * tags
        self._new: list[list[RawRows]] = [[] for _ in range(tags)]

    @property
    def complete(self) -> int:
        """Time [ns] before which no row can come any more."""
        return self.top - self.late if self.top != UNKNOWN_TIME else UNKNOWN_TIME

    def push(self, chunk: Chunk) -> None:
        """Take the next rows of the export."""
        self.top = chunk.top
        rows, ends = chunk.rows, chunk.ends
        back = np.flatnonzero(rows.times[1:] <= rows.times[:-1]) + 1
        # At the first row of each tag time goes back without harm.
        back = np.setdiff1d(back, ends)
        disordered = set(np.searchsorted(ends, back, side="right").tolist())
        begin = 0
        for code, end in enumerate(ends.tolist()):
            if end > begin:
                # Views, whose chunk is let go once `trim` has copied what stays.
                self._append(code, rows.take(slice(begin, end)), code in disordered)
            begin = end

    def _append(self, code: int, rows: RawRows, disordered: bool) -> None:
        new, held = self._new[code], self._held[code]
        last = new[-1].times[-1] if new else (held.times[-1] if len(held.times) else UNKNOWN_TIME)
        if not disordered and rows.times[0] > last:
            new.append(rows)
            return
        merged = _joined([held, *new, rows])
        merged = merged.take(np.argsort(merged.times, kind="stable"))
        if (merged.times[1:] == merged.times[:-1]).any():
            merged = self._one_per_time(merged)
        self._held[code], self._new[code] = merged, []

    def _one_per_time(self, rows: RawRows) -> RawRows:
        """The row that counts at each time; the others are accounted for here unless they were before."""
        first = np.flatnonzero(np.append(True, rows.times[1:] != rows.times[:-1]))
        group = np.cumsum(np.append(True, rows.times[1:] != rows.times[:-1])) - 1
        index = np.arange(len(rows.ids))
        usable = severity(rows.statuses) < 2
        clash = rows.statuses == BAD_ENTRY_EXISTS
        before = np.logical_or.reduceat(clash, first)
        some = np.logical_or.reduceat(usable, first)
        least = np.minimum.reduceat(np.where(usable, rows.values, np.inf), first)
        most = np.maximum.reduceat(np.where(usable, rows.values, -np.inf), first)
        low = np.minimum.reduceat(np.where(usable, rows.statuses, np.uint32(2**32 - 1)), first)
        high = np.maximum.reduceat(np.where(usable, rows.statuses, np.uint32(0)), first)
        agree = ~before & (~some | ((least == most) & (low == high)))
        eldest = np.minimum.reduceat(np.where(usable, index, len(index)), first)
        youngest = np.maximum.reduceat(np.where(usable, index, -1), first)
        pick = np.where(some, youngest if self.clock.same_time == "last" else eldest, first)
        pick = np.where(agree & some, eldest, pick)
        refuse = ~agree & (self.clock.same_time == "reject")
        rejected = usable & (index != pick[group]) | (usable & refuse[group])
        reasons = np.where(agree[group[rejected]], REPEATED, CONTRADICTED)
        self.quarantine.add(rows.take(rejected), reasons.astype(object))
        kept = rows.take(pick)
        return kept._replace(
            values=np.where(refuse, np.nan, kept.values), statuses=np.where(refuse, BAD_ENTRY_EXISTS, kept.statuses)
        )

    def samples(self, code: int) -> Samples:
        """A tag's history from its last value before the moments that are still to be settled."""
        if self._new[code]:
            self._held[code] = _joined([self._held[code], *self._new[code]])
            self._new[code] = []
        held = self._held[code]
        return Samples(held.times, held.values, held.statuses)

    def trim(self, to: int) -> None:
        """Forget what no moment from `to` on needs: all before a tag's last value, and all but the first Bad since."""
        to = min(to, self.complete)
        for code in range(len(self._held)):
            rows = self._held[code]
            past = int(np.searchsorted(rows.times, to, side="right"))
            usable = np.flatnonzero(severity(rows.statuses[:past]) < 2)
            anchor = int(usable[-1]) if len(usable) else 0
            keep = np.concatenate([np.arange(anchor, min(anchor + 2, past)), np.arange(past, len(rows.ids))])
            self._held[code] = rows.take(keep)  # a copy, lest a view keep a whole chunk alive


def _joined(parts: list[RawRows]) -> RawRows:
    filled = [part for part in parts if len(part.ids)]
    if len(filled) == 1:
        return filled[0]
    return RawRows(*(np.concatenate(columns) for columns in zip(*filled, strict=True)))
