"""What happens to a chunk of rows on its way in: rows that come too late are told, the others grouped by tag.

It runs in a thread of its own, ahead of the resampling, so that two cores have something to do.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from configs.mapping import Clock
from tasks.adapters.historian.raw_rows import UNKNOWN_TIME, RawRows
from tasks.adapters.historian.resample import severity

Item = TypeVar("Item")


class Rejects(NamedTuple):
    """Rows that do not count, and why."""

    rows: RawRows
    reasons: npt.NDArray[Any]
    texts: list[str | None] | None


class Chunk(NamedTuple):
    """Some consecutive rows of an export, in good order."""

    rows: RawRows
    """Tag after tag, in the order of the export otherwise."""
    ends: npt.NDArray[np.int64]
    """Where each tag's rows end (tags,)."""
    top: int
    """The youngest time so far."""
    rejects: list[Rejects]


PORTION_ROWS = 2**17
"""Rows that are grouped at a time: their columns stay in a core's cache, which makes it five times as fast."""


def portions(items: Iterable[tuple[RawRows, list[Rejects]]]) -> Iterator[tuple[RawRows, list[Rejects]]]:
    """The same rows, at most `PORTION_ROWS` at a time."""
    for rows, rejects in items:
        for start in range(0, max(len(rows.ids), 1), PORTION_ROWS):
            yield rows.take(slice(start, start + PORTION_ROWS)), rejects if start == 0 else []


class Arrivals:
    """Rows as they arrive.

    Args:
        tags: how many.
        clock: how late a row may come.
    """

    def __init__(self, tags: int, clock: Clock) -> None:
        self.tags, self.clock = tags, clock
        self.late = round(clock.late_seconds * 1e9)
        self.top = UNKNOWN_TIME
        self.counts = {name: np.zeros(tags, np.int64) for name in ("good", "uncertain", "bad")}
        self.displaced = 0
        """Rows that came late and were put in their place."""

    def arrange(self, rows: RawRows, rejects: list[Rejects]) -> Chunk:
        """The rows that came in time, by tag."""
        if len(rows.ids):
            rows, late = self._in_time(rows)
            rejects = [*rejects, *late]
        counts = np.bincount(rows.codes, minlength=self.tags)
        self._count(rows, counts)
        return Chunk(_by_tag(rows, counts), np.cumsum(counts), self.top, rejects)

    def _in_time(self, rows: RawRows) -> tuple[RawRows, list[Rejects]]:
        times = rows.times
        if times[0] >= self.top and (times[1:] >= times[:-1]).all():
            self.top = int(times[-1])
            return rows, []
        crest = np.maximum.accumulate(np.concatenate([[self.top], times]))
        behind = np.where(crest[:-1] == UNKNOWN_TIME, 0, crest[:-1] - np.maximum(times, -(2**62)))
        late = behind > self.late
        self.displaced += int(((behind > 0) & ~late).sum())
        self.top = int(crest[-1])
        if not late.any():
            return rows, []
        # Those that are Bad were told of already.
        fresh = rows.take(late & (severity(rows.statuses) < 2))
        reason = f"came more than {self.clock.late_seconds:g} s late"
        return rows.take(~late), [Rejects(fresh, np.full(len(fresh.ids), reason, object), None)]

    def _count(self, rows: RawRows, counts: npt.NDArray[np.int64]) -> None:
        odd = np.flatnonzero(rows.statuses)
        grade, codes = severity(rows.statuses[odd]), rows.codes[odd]
        uncertain, bad = (np.bincount(codes[mask], minlength=self.tags) for mask in (grade == 1, grade >= 2))
        self.counts["uncertain"] += uncertain
        self.counts["bad"] += bad
        self.counts["good"] += counts - uncertain - bad


def _by_tag(rows: RawRows, counts: npt.NDArray[np.int64]) -> RawRows:
    # A radix sort, by as many digits as the codes have.
    codes = rows.codes.astype(np.uint8) if len(counts) <= 256 else rows.codes
    order = np.argsort(codes, kind="stable")
    ids = rows.ids
    consecutive = len(ids) and ids[-1] - ids[0] == len(ids) - 1 and bool((ids[1:] > ids[:-1]).all())
    times, values = rows.times.take(order), rows.values.take(order)
    statuses = rows.statuses.take(order) if rows.statuses.any() else rows.statuses
    # In place, for fresh memory costs time.
    ids = np.add(order, ids[0], out=order) if consecutive else ids.take(order)
    return RawRows(np.repeat(np.arange(len(counts), dtype=np.uint16), counts), times, values, statuses, ids)


def ahead(items: Iterator[Item], depth: int = 2) -> Iterator[Item]:
    """The same items, made in a thread of its own that runs at most `depth` ahead; its errors come out here."""
    ready: queue.Queue[tuple[bool, Any]] = queue.Queue(depth)
    stopped = threading.Event()

    def hand_on(done: bool, item: Any) -> None:
        while not stopped.is_set():
            try:
                ready.put((done, item), timeout=0.1)
                return
            except queue.Full:
                continue

    def work() -> None:
        try:
            for item in items:
                hand_on(False, item)
                del item
                if stopped.is_set():
                    return
            hand_on(True, None)
        except BaseException as error:  # whatever it is, it is raised where the items are used
            hand_on(True, error)

    thread = threading.Thread(target=work, name="neorl-arrivals", daemon=True)
    thread.start()
    try:
        while True:
            done, item = ready.get()
            if done:
                if item is not None:
                    raise item
                return
            yield item
            del item
    finally:
        stopped.set()
        thread.join()
