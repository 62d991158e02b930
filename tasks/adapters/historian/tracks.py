"""What is still needed of each tag while an export streams by: its last value, and what came since.

Rows are put in their place as long as they come no later than the clock's `late_seconds`; the first of equal rows
counts, and rows that contradict each other go by the clock's rule. What does not count goes to the quarantine.
"""

from __future__ import annotations

import itertools

import numpy as np
import numpy.typing as npt

from configs.mapping import Clock
from tasks.adapters.historian.arrivals import Chunk
from tasks.adapters.historian.raw_rows import UNKNOWN_TIME, RawQuarantine, RawRows
from tasks.adapters.historian.resample import Samples, severity

REPEATED = "repeats an earlier row"
CONTRADICTED = "contradicts another row of the same time"
BAD_ENTRY_EXISTS = np.uint32(0x809F0000)
"""OPC UA's code for an entry whose time is taken; here, of a time at which rows contradict each other."""

NO_SAMPLES = Samples(np.zeros(0, np.int64), np.zeros(0), np.zeros(0, np.uint32))

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
        self._parts: list[list[RawRows]] = [[] for _ in range(tags)]
        """Each tag's rows in order of time, one part after the other; none is empty."""
        self._samples: dict[int, Samples] = {}
        """What `samples` found, as long as it holds."""

    @property
    def complete(self) -> int:
        """Time [ns] before which no row can come any more."""
        return self.top - self.late if self.top != UNKNOWN_TIME else UNKNOWN_TIME

    def push(self, chunk: Chunk) -> None:
        """Take the next rows of the export."""
        self.top = chunk.top
        self._samples.clear()
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
        parts = self._parts[code]
        if not disordered and (not parts or rows.times[0] > parts[-1].times[-1]):
            parts.append(rows)
            return
        merged = RawRows(*(np.concatenate(columns) for columns in zip(*parts, rows, strict=True)))
        merged = merged.take(np.argsort(merged.times, kind="stable"))
        if (merged.times[1:] == merged.times[:-1]).any():
            merged = self._one_per_time(merged)
        self._parts[code] = [merged]

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
        if code not in self._samples:
            columns = [(part.times, part.values, part.statuses) for part in self._parts[code]] or [NO_SAMPLES]
            self._samples[code] = Samples(*map(np.concatenate, zip(*columns, strict=True)))
        return self._samples[code]

    def trim(self, to: int) -> None:
        """Forget what no moment from `to` on needs: all before a tag's last value, and all but the first Bad since."""
        to = min(to, self.complete)
        for code, parts in enumerate(self._parts):
            times, _, statuses = self.samples(code)
            past = int(np.searchsorted(times, to, side="right"))
            usable = np.flatnonzero(severity(statuses[:past]) < 2)
            anchor = int(usable[-1]) if len(usable) else 0
            keep = np.concatenate([np.arange(anchor, min(anchor + 2, past)), np.arange(past, len(times))])
            ends = list(itertools.accumulate(len(part.ids) for part in parts))
            kept, low = [], 0
            for part, end, high in zip(parts, ends, np.searchsorted(keep, ends).tolist(), strict=True):
                if low < high:
                    # A copy, lest a view keep a whole chunk alive.
                    kept.append(part.take(keep[low:high] - (end - len(part.ids))))
                low = high
            self._parts[code] = kept
        self._samples.clear()
