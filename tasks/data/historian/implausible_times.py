"""Find implausible times, from a wrong clock.

A row with a time in 1970, 2300 or 9999 would extend a log by decades. Times are joined into stretches, intervals
without a break of more than a day. A stretch is implausible if it has few rows and is far from all other stretches.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tasks.data.historian.raw_rows import DAY, UNKNOWN_TIME, Times

MONTH = 30 * DAY
DECADE = 3653 * DAY
FEW = 0.01
"""Share of all rows below which a stretch more than a month from the others is implausible."""
MANY = 0.5
"""Share of all rows below which a stretch more than ten years from the others is implausible."""
NEVER = np.iinfo(np.int64).max


class Stretches(NamedTuple):
    """S intervals of time, in order, more than a day apart, as arrays (S,)."""

    first: Times
    last: Times
    rows: Times
    total: npt.NDArray[np.float64]
    """Sum of the times of all rows, in ns."""

    @staticmethod
    def joined(parts: Sequence[Stretches]) -> Stretches:
        """Join the stretches of several parts of a log; stretches less than a day apart become one."""
        if not parts:
            return Stretches.of(np.zeros(0, np.int64))
        every = Stretches._make(np.concatenate(columns) for columns in zip(*parts, strict=True))
        if len(every.first) < 2:
            return every
        order = np.argsort(every.first, kind="stable")
        ordered = Stretches._make(column[order] for column in every)
        first, last, rows, total = ordered.first, ordered.last, ordered.rows, ordered.total
        until = np.maximum.accumulate(last)
        begins = np.flatnonzero(np.append(True, first[1:] // 2 - until[:-1] // 2 > DAY // 2))
        return Stretches(
            first[begins],
            np.maximum.reduceat(last, begins),
            np.add.reduceat(rows, begins),
            np.add.reduceat(total, begins),
        )

    @staticmethod
    def of(times: Times) -> Stretches:
        """Divide known times, in any order, into stretches."""
        if not len(times):
            nothing = np.zeros(0, np.int64)
            return Stretches(nothing, nothing, nothing, np.zeros(0))
        least, most = int(times.min()), int(times.max())
        if most - least <= DAY:
            total = np.array([times.sum(dtype=np.float64)])
            return Stretches(np.array([least]), np.array([most]), np.array([len(times)]), total)
        ordered = times if (times[1:] >= times[:-1]).all() else np.sort(times)
        # Use halves, because the difference of two times may exceed 64 bits.
        begins = np.flatnonzero(np.append(True, ordered[1:] // 2 - ordered[:-1] // 2 > DAY // 2))
        ends = np.append(begins[1:], len(ordered))
        total = np.add.reduceat(ordered.astype(np.float64), begins)
        return Stretches(ordered[begins], ordered[ends - 1], ends - begins, total)

    @property
    def apart(self) -> float:
        """Longest time between two stretches in ns."""
        return float((self.first[1:] / 1.0 - self.last[:-1]).max(initial=0.0))

    def take(self, which: npt.NDArray[np.bool_]) -> Stretches:
        return Stretches._make(column[which] for column in self)

    def implausible(self) -> npt.NDArray[np.bool_]:
        """Mark stretches that have few rows and are far from the stretches with most rows (S,)."""
        wrong = np.zeros(len(self.first), bool)
        if len(wrong) < 2:
            return wrong
        share = self.rows / self.rows.sum()
        for distance, least in ((DECADE, MANY), (MONTH, FEW)):
            known = np.flatnonzero(~wrong)
            apart = self.first[known][1:] / 2 - self.last[known][:-1] / 2 > distance / 2
            group = np.cumsum(np.append(False, apart))
            held = np.bincount(group, share[known])
            # The group of stretches with most rows is never implausible.
            wrong[known] |= (held < min(least, held.max()))[group]
        return wrong


class Implausible:
    def __init__(self, stretches: Stretches) -> None:
        self._edges = np.stack([stretches.first, stretches.last + 1], axis=1).ravel()

    def __bool__(self) -> bool:
        return bool(len(self._edges))

    def among(self, times: Times) -> npt.NDArray[np.bool_]:
        found: npt.NDArray[np.bool_] = np.searchsorted(self._edges, times, side="right") % 2 == 1
        return found


class FileTimes(NamedTuple):
    stretches: Stretches
    earliest: int
    """Earliest time of a row that is not late."""
    rows: int
    behind: int
    """Number of late rows: rows after a row with a later time."""
    astray: Times
    """Row numbers of the rows with a wrong clock."""

    @property
    def first(self) -> int:
        return int(self.stretches.first.min(initial=NEVER))

    @property
    def last(self) -> int:
        return int(self.stretches.last.max(initial=UNKNOWN_TIME))

    @property
    def centre(self) -> float:
        """Mean time of all rows, in ns since 1970."""
        return float(self.stretches.total.sum() / max(int(self.stretches.rows.sum()), 1))


def without_implausible(files: Sequence[FileTimes]) -> tuple[list[FileTimes], Implausible]:
    """Return the files' summaries without implausible times, and the implausible times of all files."""
    every = Stretches.joined([one.stretches for one in files])
    wrong = Implausible(every.take(every.implausible()))
    if not wrong:
        return list(files), wrong
    kept = []
    for one in files:
        stretches = one.stretches.take(~wrong.among(one.stretches.first))
        first = int(stretches.first.min(initial=NEVER))
        kept.append(one._replace(stretches=stretches, earliest=max(one.earliest, first)))
    return kept, wrong
