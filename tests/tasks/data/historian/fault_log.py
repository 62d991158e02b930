"""A historian export with faults in chosen rows, and a list of the faults.

Two smooth signals, a valve and a mode, whose true course is known in closed form:

| tag  | signal                                          | archived                                             |
|------|-------------------------------------------------|------------------------------------------------------|
| TI-1 | 60 + 10 sin(2 pi t / 1800), degC                | sloped, every 5 s with up to 1 s of jitter           |
| LI-2 | 2 + 0.5 sin(2 pi t / 7200), m                   | sloped, when moved by a deadband, or after 120 s     |
| FV-3 | 50 + 30 sign(sin(2 pi t / 900)), %              | stepped, when changed, or after 600 s                |
| MODE | 1                                               | stepped, every 600 s                                 |
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl

START_NS = 1_767_571_200_000_000_000
SECOND = 10**9
DEADBAND = 0.01
"""m"""
SCAN = 5.0
"""s between looks at LI-2."""
CURVATURE = {"TI-1": 10 * (2 * np.pi / 1800) ** 2, "LI-2": 0.5 * (2 * np.pi / 7200) ** 2}
"""Greatest second derivative, per s^2."""
SLOPE = {"LI-2": 0.5 * 2 * np.pi / 7200}
"""Greatest first derivative, per s."""
LATE_SECONDS = 60.0
STATES = ("I/O Timeout", "Bad Input", "No Data")

Floats = npt.NDArray[np.float64]

REASONS = {
    "digital": "digital state",
    "bad": "status is Bad (0x808A0000)",
    "missing": "value is missing or not a number",
    "spike": "value is outside the instrument's range",
    "repeated": "repeats an earlier row",
    "contradicted": "contradicts another row of the same time",
    "late": f"arrived more than {LATE_SECONDS:g} s late",
    "astray": "timestamp is more than a day ahead of the rows around it",
    "timeless": "timestamp is missing",
    "garbled": "timestamp cannot be read",
    "nameless": "tag is missing",
    "unrated": "status is missing",
}
"""Beginning of the quarantine's reason, by fault."""


class _Row(NamedTuple):
    position: float
    """Place in the export in seconds; the row's time unless it is late."""
    tag: str | None
    time: int | str | None
    value: float | None
    text: str | None
    status: int | None
    fault: str | None


def truth(tag: str, seconds: Floats) -> Floats:
    """A signal's true value at seconds since the start."""
    if tag == "TI-1":
        return 60 + 10 * np.sin(2 * np.pi * seconds / 1800)
    if tag == "LI-2":
        return 2 + 0.5 * np.sin(2 * np.pi * seconds / 7200)
    if tag == "FV-3":
        return 50 + 30 * np.where(np.sin(2 * np.pi * (seconds + 1e-6) / 900) >= 0, 1.0, -1.0)
    return np.ones_like(seconds)


def clean_rows(seed: int, hours: float) -> dict[str, Floats]:
    """Seconds since the start at which each tag is archived."""
    rng = np.random.default_rng(seed)
    end = hours * 3600
    scans = np.arange(0, end, SCAN)
    jittered = np.round(scans + rng.uniform(0, 1, len(scans)), 3)
    jittered[0] = 0.0
    kept, last, age = [], np.inf, 0.0
    for second, value in zip(scans.tolist(), truth("LI-2", scans).tolist(), strict=True):
        age += SCAN
        if abs(value - last) > DEADBAND or age >= 120:
            kept.append(second)
            last, age = value, 0.0
    changes = np.union1d(np.arange(0, end, 450.0), np.arange(0, end, 600.0))
    return {"TI-1": jittered, "LI-2": np.array(kept), "FV-3": changes, "MODE": np.arange(0, end, 600.0)}


class Fault(NamedTuple):
    """A deliberately wrong row."""

    file: str
    row: int
    """Row in the file, counted from 0."""
    tag: str | None
    fault: str


class FaultyLog(NamedTuple):
    """An export with known faults."""

    path: Path
    """The file; the folder where there are several."""
    faults: tuple[Fault, ...]
    rows: int
    displaced: int
    """Sound rows that are not in order of time."""
    archived: dict[str, Floats]
    """Seconds since the start at which each tag has a sound row."""


def write_faulty(
    folder: Path,
    seed: int,
    hours: float = 12.0,
    each: int = 10,
    files: int = 1,
    file_format: Literal["parquet", "csv"] = "parquet",
) -> FaultyLog:
    """Write the export.

    Args:
        folder: made when absent; the export goes into its folder `export`.
        seed: of jitter and faults.
        hours: length of the record.
        each: faults of each kind; a contradiction spoils two rows.
        files: how many files the export has; their names are not in order of time.
        file_format: of the export.

    Returns:
        Where the export is, and what is wrong with it.
    """
    rng = np.random.default_rng([seed, 1])
    rows = _with_faults(clean_rows(seed, hours), rng, each, file_format)
    rows.sort(key=lambda row: row.position)
    export = folder / "export"
    export.mkdir(parents=True)
    bounds = np.linspace(0, len(rows), files + 1).astype(int)
    names = [f"part-{name}.{file_format}" for name in rng.permutation(files)]
    faults = []
    for name, begin, end in zip(names, bounds[:-1], bounds[1:], strict=True):
        part = rows[begin:end]
        _write(export / name, part, file_format)
        faults += [
            Fault(name, i, row.tag, row.fault)
            for i, row in enumerate(part)
            if row.fault is not None and row.fault != "displaced"
        ]
    spoilt = {(row.tag, row.time) for row in rows if row.fault == "contradicted"}
    sound = [row for row in rows if row.fault in (None, "displaced") and (row.tag, row.time) not in spoilt]
    archived = {
        tag: np.sort([(int(r.time) - START_NS) / SECOND for r in sound if r.tag == tag])  # type: ignore[arg-type]
        for tag in ("TI-1", "LI-2", "FV-3", "MODE")
    }
    displaced = sum(row.fault == "displaced" for row in rows)
    return FaultyLog(export if files > 1 else export / names[0], tuple(faults), len(rows), displaced, archived)


def _with_faults(clean: dict[str, Floats], rng: np.random.Generator, each: int, file_format: str) -> list[_Row]:
    kinds = [*REASONS, "displaced"]
    kinds.remove("timeless" if file_format == "csv" else "garbled")
    rows: list[_Row] = []
    for tag, seconds in clean.items():
        values = truth(tag, seconds)
        chosen: dict[int, str] = {}
        if tag in ("TI-1", "LI-2"):
            inside = np.arange(len(seconds) // 20, len(seconds) * 19 // 20, 2)
            count = each // 2 if tag == "LI-2" else each - each // 2
            places = rng.choice(inside, count * len(kinds), replace=False)
            chosen = {int(place): kinds[i % len(kinds)] for i, place in enumerate(places)}
        for i, (second, value) in enumerate(zip(seconds.tolist(), values.tolist(), strict=True)):
            time = START_NS + round(second * SECOND)
            plain = _Row(second, tag, time, value, None, 0, None)
            rows += _spoilt(plain, chosen[i], rng) if i in chosen else [plain]
    return rows


def _spoilt(row: _Row, fault: str, rng: np.random.Generator) -> list[_Row]:
    """Replacement for a row in the export."""
    value, time = float(row.value or 0.0), int(row.time or 0)
    bad = row._replace(fault=fault)
    soon = row.position + float(rng.uniform(0.5, LATE_SECONDS / 2))
    if fault == "repeated":
        return [row, bad._replace(position=soon)]
    if fault == "contradicted":
        return [bad, bad._replace(position=soon, value=value + 1.0)]
    changed: dict[str, dict[str, Any]] = {
        "digital": {"value": None, "text": str(rng.choice(STATES))},
        "bad": {"status": 0x808A0000},
        "missing": {"value": None},
        "spike": {"value": 9999.0},
        "late": {"position": row.position + LATE_SECONDS + float(rng.uniform(20, 300))},
        "displaced": {"position": row.position + LATE_SECONDS / 2},
        "astray": {"time": time + 4 * 365 * 86_400 * SECOND},
        "timeless": {"time": None},
        "garbled": {"time": "2026-01-05 at noon"},
        "nameless": {"tag": None},
        "unrated": {"status": None},
    }
    return [bad._replace(**changed[fault])]


def _write(path: Path, rows: list[_Row], file_format: str) -> None:
    texts = [row.text if row.value is None else repr(row.value) for row in rows]
    times = [row.time for row in rows]
    frame = pl.DataFrame(
        {
            "tag": pl.Series([row.tag for row in rows], dtype=pl.String),
            "value": pl.Series(texts, dtype=pl.String),
            "status": pl.Series([row.status for row in rows], dtype=pl.UInt32),
        }
    )
    if file_format == "csv":
        stamps = [f"{np.datetime64(time, 'ns')}Z" if isinstance(time, int) else time for time in times]
        frame.insert_column(1, pl.Series("timestamp", stamps, dtype=pl.String)).write_csv(path)
    else:
        stamp = pl.Series("timestamp", times, dtype=pl.Int64).cast(pl.Datetime("ns", "UTC"))
        frame.insert_column(1, stamp).write_parquet(path)
