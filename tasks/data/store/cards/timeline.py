"""Count a dataset's used and lost rows over time, with the reasons from the quarantine files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tasks.data.store.reader import StoredDataset
from tasks.data.store.records import TimelineCard
from tasks.data.store.statistics import PERIODS, Statistics

MOST_REASONS = 5
"""Largest number of reasons to show separately; all others are added up."""
OTHERS = "other reasons"


def timeline_of(dataset: StoredDataset, found: Statistics) -> TimelineCard:
    """Count used and lost rows in equal periods of time; without timestamps, in equal ranges of row numbers.

    Missing quarantine files are skipped.
    """
    first, last = found.span
    by_time = len(found.present) > 0
    sources = dataset.sources
    if not by_time:
        first, last = 0, max(sum(source.seen for source in sources), found.rows)
    lost, raw = Counter[tuple[int, str]](), Counter[tuple[int, str]]()
    astray = before = 0
    for source in sources:
        parts = [dataset.root / part.file for part in source.quarantine]
        # Rows of each source are numbered from 0.
        shift = 0 if by_time else before
        counted, away = _counts(parts, "timestamp" if by_time else "row", first - shift, last - shift)
        lost, astray = lost + counted, astray + away
        if by_time:
            parts = [dataset.root / part.file for part in source.raw_quarantine]
            counted, away = _counts(parts, "timestamp", first, last)
            raw, astray = raw + counted, astray + away
        before += source.seen
    steps = (last - first) / PERIODS / (found.period * 1e9) if by_time else (last - first) / PERIODS
    used = found.present
    if not by_time:
        per = np.zeros(PERIODS)
        for (period, _), count in lost.items():
            per[period] += count
        used = np.clip(1 - per / max(steps, 1e-9), 0.0, 1.0)
    return TimelineCard(
        by="time" if by_time else "row",
        first=first,
        last=last,
        steps_per_period=steps,
        used=tuple(used.tolist()),
        lost=_by_reason(lost),
        raw_lost=_by_reason(raw),
        astray=astray,
    )


def _counts(files: Sequence[Path], column: str, first: int, last: int) -> tuple[Counter[tuple[int, str]], int]:
    there = [file for file in files if file.exists()]
    if not there or last <= first:
        return Counter(), 0
    import polars as pl

    place = ((pl.col(column).cast(pl.Int64) - first) / ((last - first) / PERIODS)).floor()
    frame = (
        pl.scan_parquet(there)
        .select(place.cast(pl.Int64, strict=False).alias("period"), "reason")
        .group_by("period", "reason")
        .len()
        .collect(engine="streaming")
    )
    counted, astray = Counter[tuple[int, str]](), 0
    for period, reason, count in frame.iter_rows():
        if period is None or not 0 <= period < PERIODS:
            astray += count
        else:
            counted[period, reason] += count
    return counted, astray


def _by_reason(counted: Counter[tuple[int, str]]) -> dict[str, tuple[int, ...]]:
    totals: Counter[str] = Counter()
    for (_, reason), count in counted.items():
        totals[reason] += count
    frequent = [reason for reason, _ in totals.most_common(MOST_REASONS)]
    result: dict[str, list[int]] = {reason: [0] * PERIODS for reason in frequent}
    for (period, reason), count in sorted(counted.items()):
        result.setdefault(reason if reason in frequent else OTHERS, [0] * PERIODS)[period] += count
    return {reason: tuple(counts) for reason, counts in result.items()}
