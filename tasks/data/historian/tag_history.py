"""Group the rows of an export by tag, and keep the recent rows of each tag.

A row that is late by at most `clock.late_seconds` is sorted into place; other late rows are rejected. Of equal rows,
the first is kept; for contradicting rows of the same time, `clock.same_time` decides. Rejected rows go to the
quarantine.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, TypeVar, cast

import numpy as np
import numpy.typing as npt

from configs.mapping import Clock
from tasks.data.historian.raw_rows import UNKNOWN_TIME, Mask, RawQuarantine, RawRows, Rejects
from tasks.data.historian.resample import Samples, severity
from tasks.data.store.records import REPEATED

Item = TypeVar("Item")
Index = npt.NDArray[np.int64]

PORTION_ROWS = 2**17
"""Number of rows to group at a time; so few rows fit into the processor's cache, which is five times as fast."""
CONTRADICTED = "contradicts another row of the same time"
BAD_ENTRY_EXISTS = np.uint32(0x809F0000)
"""OPC UA status code Bad_EntryExists, for a time with contradicting rows."""

NO_SAMPLES = Samples(np.zeros(0, np.int64), np.zeros(0), np.zeros(0, np.uint32))


class Chunk(NamedTuple):
    rows: RawRows
    """Rows sorted by tag; the rows of one tag are in the order of the export."""
    ends: npt.NDArray[np.int64]
    top: int
    rejects: list[Rejects]


def changes(values: npt.NDArray[np.float64]) -> Mask:
    """Mark the first value, and each value that differs from the value before."""
    found: Mask = np.append(True, values[1:] != values[:-1])[: len(values)]
    return found


def portions(items: Iterable[tuple[RawRows, list[Rejects]]]) -> Iterator[tuple[RawRows, list[Rejects]]]:
    """Divide rows into portions of at most `PORTION_ROWS` rows; rejected rows come with the first portion."""
    for rows, rejects in items:
        for start in range(0, max(len(rows.ids), 1), PORTION_ROWS):
            yield rows.take(slice(start, start + PORTION_ROWS)), rejects if start == 0 else []


class TagGrouper:
    """Groups the rows of an export by tag, and rejects rows that are later than `clock.late_seconds`.

    `tags` is the number of tags. After `silence` ns without any row, the archive counts as silent.
    """

    def __init__(self, tags: int, clock: Clock, silence: int) -> None:
        self.tags, self.clock, self.silence = tags, clock, silence
        self.late = round(clock.late_seconds * 1e9)
        self.top = UNKNOWN_TIME
        self.silences: list[tuple[int, int]] = []
        self.counts = {name: np.zeros(tags, np.int64) for name in ("good", "uncertain", "bad")}
        self.displaced = 0

    def arrange(self, rows: RawRows, rejects: list[Rejects]) -> Chunk:
        if len(rows.ids):
            rows, late = self._in_time(rows)
            rejects = [*rejects, *late]
        counts = np.bincount(rows.codes, minlength=self.tags)
        self._count(rows, counts)
        return Chunk(_by_tag(rows, counts), np.cumsum(counts), self.top, rejects)

    def _in_time(self, rows: RawRows) -> tuple[RawRows, list[Rejects]]:
        times = rows.times
        if times[0] >= self.top and (times[1:] >= times[:-1]).all():
            self._listen(times)
            self.top = int(times[-1])
            return rows, []
        crest = np.maximum.accumulate(np.concatenate([[self.top], times]))
        behind = np.where(crest[:-1] == UNKNOWN_TIME, 0, crest[:-1] - np.maximum(times, -(2**62)))
        late = behind > self.late
        self.displaced += int(((behind > 0) & ~late).sum())
        self._listen(crest[1:])
        self.top = int(crest[-1])
        if not late.any():
            return rows, []
        # Do not reject Bad rows again: the decoder has already rejected them.
        fresh = rows.take(late & (severity(rows.statuses) < 2))
        reason = f"arrived more than {self.clock.late_seconds:g} s late"
        return rows.take(~late), [Rejects(fresh, np.full(len(fresh.ids), reason, object), None)]

    def _listen(self, times: npt.NDArray[np.int64]) -> None:
        before = times[0] if self.top == UNKNOWN_TIME else self.top
        if times[-1] - before > self.silence:
            moments = np.concatenate([[before], times])
            where = np.flatnonzero(np.diff(moments) > self.silence)
            self.silences += zip(moments[where].tolist(), moments[where + 1].tolist(), strict=True)

    def _count(self, rows: RawRows, counts: npt.NDArray[np.int64]) -> None:
        odd = np.flatnonzero(rows.statuses)
        grade, codes = severity(rows.statuses[odd]), rows.codes[odd]
        uncertain, bad = (np.bincount(codes[mask], minlength=self.tags) for mask in (grade == 1, grade >= 2))
        self.counts["uncertain"] += uncertain
        self.counts["bad"] += bad
        self.counts["good"] += counts - uncertain - bad


def _by_tag(rows: RawRows, counts: npt.NDArray[np.int64]) -> RawRows:
    # A stable sort of small integers is a radix sort, which is fast.
    codes = rows.codes.astype(np.uint8) if len(counts) <= 256 else rows.codes
    order = np.argsort(codes, kind="stable")
    ids = rows.ids
    consecutive = len(ids) and ids[-1] - ids[0] == len(ids) - 1 and bool((ids[1:] > ids[:-1]).all())
    times, values = rows.times.take(order), rows.values.take(order)
    statuses = rows.statuses.take(order) if rows.statuses.any() else rows.statuses
    ids = np.add(order, ids[0], out=order) if consecutive else ids.take(order)
    return RawRows(np.repeat(np.arange(len(counts), dtype=np.uint16), counts), times, values, statuses, ids)


class TagHistory:
    """Keeps the recent rows of each tag, in order of time; if rows have the same time, `clock.same_time` decides.

    `episode` is the index of the tag that names episodes, or None. For each episode, only this tag's first row is kept.
    """

    def __init__(self, tags: int, clock: Clock, quarantine: RawQuarantine, episode: int | None = None) -> None:
        self.clock, self.quarantine, self.episode = clock, quarantine, episode
        self.late = round(clock.late_seconds * 1e9)
        self.top = UNKNOWN_TIME
        self._parts: list[list[RawRows]] = [[] for _ in range(tags)]
        """For each tag, its rows in order of time, as a list of non-empty parts."""
        self._samples: dict[int, Samples] = {}

    @property
    def complete(self) -> int:
        """Time in ns up to which no further row can arrive."""
        return self.top - self.late if self.top != UNKNOWN_TIME else UNKNOWN_TIME

    def push(self, chunk: Chunk) -> None:
        self.top = chunk.top
        self._samples.clear()
        rows, ends = chunk.rows, chunk.ends
        back = np.flatnonzero(rows.times[1:] <= rows.times[:-1]) + 1
        # The time may decrease at the first row of each tag.
        back = np.setdiff1d(back, ends)
        disordered = set(np.searchsorted(ends, back, side="right").tolist())
        begin = 0
        for code, end in enumerate(ends.tolist()):
            if end > begin:
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
        """Return one row for each time; quarantine the other rows, unless they were rejected before."""
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
        """Return the samples of the tag with an index, from the last value that may still be needed on."""
        if code not in self._samples:
            columns = [(part.times, part.values, part.statuses) for part in self._parts[code]] or [NO_SAMPLES]
            self._samples[code] = Samples(*map(np.concatenate, zip(*columns, strict=True)))
        return self._samples[code]

    def trim(self, to: int) -> None:
        """Remove rows that are not needed to compute values at times from `to` on.

        Of the rows before `to`, each tag keeps only the last usable row and the row after it.
        """
        to = min(to, self.complete)
        for code, parts in enumerate(self._parts):
            times, values, statuses = self.samples(code)
            past = int(np.searchsorted(times, to, side="right"))
            needed = changes(values[:past]) if code == self.episode else severity(statuses[:past]) < 2
            last = np.flatnonzero(needed)
            anchor = int(last[-1]) if len(last) else 0
            keep = np.concatenate([np.arange(anchor, min(anchor + 2, past)), np.arange(past, len(times))])
            ends = list(itertools.accumulate(len(part.ids) for part in parts))
            kept, low = [], 0
            for part, end, high in zip(parts, ends, np.searchsorted(keep, ends).tolist(), strict=True):
                if low < high:
                    # Copy, because a view would keep a whole chunk in memory.
                    kept.append(part.take(keep[low:high] - (end - len(part.ids))))
                low = high
            self._parts[code] = kept
        self._samples.clear()


def ahead(items: Iterator[Item], depth: int = 2) -> Iterator[Item]:
    """Yield items that a thread computes in advance, at most `depth` items; errors of the thread are raised here."""
    end = object()
    with ThreadPoolExecutor(1, "neorl-historian") as pool:
        # One of these items is being computed, so submit one more.
        waiting = deque(pool.submit(next, items, end) for _ in range(depth + 1))
        try:
            while (item := waiting.popleft().result()) is not end:
                waiting.append(pool.submit(next, items, end))
                yield cast(Item, item)
                del item
        finally:
            for future in waiting:
                future.cancel()
