"""Small tables from which the odd files are made."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

import numpy as np
import openpyxl
import polars as pl

ROWS = 240
BEGIN = datetime(2024, 3, 4, tzinfo=UTC)
ISO = "%Y-%m-%dT%H:%M:%SZ"
TAGS = """\
  T: {role: observation, signal: temperature, unit: degC, interpolation: sloped, limits: [null, 80]}
  P: {role: observation, signal: pressure, unit: bar, interpolation: sloped, range: [0, 50]}
  V: {role: action, signal: valve, unit: '1', interpolation: stepped, range: [0, 1]}
"""
HEAD = "process: {name: kettle, horizon: 60}\nperiod_seconds: 60\n"
REST = """\
reward: {expression: "-abs(next.temperature - quantity(60, 'degC')) / quantity(1, 'K')", unit: '1'}
episodes: {max_gap_seconds: 180}
"""
WIDE = f"{HEAD}layout: wide\ncolumns: {{timestamp: time}}\ntags:\n{TAGS}{REST}"
LONG = f"{HEAD}tags:\n{TAGS}{REST}"
LONG_PLAIN = LONG.replace("tags:\n", "columns: {status: null}\ntags:\n", 1)

Files = dict[str, bytes]


class Case(NamedTuple):
    """One file or folder, and the expected outcome."""

    name: str
    """Name of the ingested file or folder."""
    about: str
    files: Files
    mapping: str | None
    says: str
    """Regular expression that must match in the error message or in the account of rows."""
    refused: bool
    spec: str | None = None
    """File specification of a file of transitions."""


def table() -> pl.DataFrame:
    """Return a correct log: one row per minute with three changing signals."""
    k = np.arange(ROWS)
    rng = np.random.default_rng(7)
    return pl.DataFrame(
        {
            "time": [(BEGIN + timedelta(minutes=int(i))).strftime(ISO) for i in k],
            "T": np.round(60 + 15 * np.sin(k / 9), 3),
            "P": np.round(rng.uniform(1, 9, ROWS), 3),
            "V": np.round(rng.uniform(0, 1, ROWS), 3),
        }
    )


def stamped() -> pl.DataFrame:
    """Return the correct log with times as datetimes."""
    return table().with_columns(pl.col("time").str.to_datetime(ISO, time_zone="UTC", time_unit="us"))


def tall(status: object = "Good") -> pl.DataFrame:
    """Return the correct log with one row per time and tag."""
    return (
        stamped()
        .rename({"time": "timestamp"})
        .unpivot(["T", "P", "V"], index="timestamp", variable_name="tag")
        .with_columns(status=pl.lit(status))
        .sort("timestamp", maintain_order=True)
    )


def text(frame: pl.DataFrame | None = None, **how: object) -> bytes:
    """Return a table as CSV."""
    return (table() if frame is None else frame).write_csv(datetime_format=ISO, **how).encode()  # type: ignore[arg-type]


def parquet(frame: pl.DataFrame) -> bytes:
    """Return a table as Parquet."""
    image = io.BytesIO()
    frame.write_parquet(image)
    return image.getvalue()


def sheet(rows: Iterable[Iterable[object]]) -> bytes:
    """Return a workbook with one sheet."""
    book, image = openpyxl.Workbook(), io.BytesIO()
    assert book.active is not None
    for row in rows:
        book.active.append(list(row))
    book.save(image)
    return image.getvalue()


def with_row(place: int, row: str) -> bytes:
    """Return the correct log as CSV with one more line."""
    lines = text().decode().splitlines()
    lines.insert(place + 1, row)
    return ("\n".join(lines) + "\n").encode()


def with_cells(column: str, change: Callable[[int, object], object], kind: type[pl.DataType] = pl.String) -> bytes:
    """Return the correct log as CSV with changed cells in a column."""
    cells = [change(i, cell) for i, cell in enumerate(table()[column])]
    return text(table().with_columns(pl.Series(column, cells, dtype=kind, strict=False)))


def used(name: str, about: str, content: bytes | Files, mapping: str = WIDE, says: str = "control steps") -> Case:
    """Return a case that becomes a dataset."""
    files = content if isinstance(content, dict) else {name: content}
    return Case(name, about, files, mapping, says, refused=False)


def refused(name: str, about: str, content: bytes | Files, says: str, mapping: str | None = WIDE) -> Case:
    """Return a case that is refused."""
    files = content if isinstance(content, dict) else {name: content}
    return Case(name, about, files, mapping, says, refused=True)
