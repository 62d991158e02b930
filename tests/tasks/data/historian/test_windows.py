"""Cutting time windows out of exports."""

from __future__ import annotations

import os
from datetime import datetime, timedelta
from pathlib import Path

import polars as pl
import pytest

from configs.errors import BadInput
from tasks.data.historian.windows import Window, cut
from tests.small_tank import long, mapping, read, wide


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("2026-01-05", "such as"),
        ("a/b", "such as"),
        ("2026-01-06/2026-01-05", "must end after it begins"),
        ("a/b/c", "such as"),
    ],
)
def test_invalid_windows_are_refused(text: str, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        Window.parse(text)


def test_windows_are_converted_to_utc() -> None:
    assert str(Window.parse("2026-01-05/2026-01-06")) == "2026-01-05T00:00Z/2026-01-06T00:00Z"
    assert str(Window.parse("2026-01-05T01:00+01:00/2026-01-05T12:30Z")) == "2026-01-05T00:00Z/2026-01-05T12:30Z"


@pytest.mark.parametrize("ending", ["parquet", "csv"])
def test_windows_contain_their_rows(tmp_path: Path, ending: str) -> None:
    """The tank has 30 rows, every 10 s from midnight on."""
    table, path = wide(), tmp_path / f"log.{ending}"
    if ending == "csv":
        table.with_columns(pl.col("timestamp").dt.strftime("%Y-%m-%dT%H:%M:%SZ")).write_csv(path)
    else:
        table.write_parquet(path)
    windows = [
        Window.parse(f"2026-01-05T{a}Z/2026-01-05T{b}Z")
        for a, b in (("00:00", "00:02"), ("00:02", "00:05"), ("07:00", "08:00"))
    ]
    wanted = mapping(layout="wide", columns={"status": None})
    first, second, none = cut([path], wanted, windows, tmp_path / "cut")
    assert none == []
    levels = [
        read(own[0], layout="wide", columns={"status": None}).rows["observations"][:, 0] for own in (first, second)
    ]
    # 12 and 18 rows give 11 and 17 steps; the level starts at 100 cm and rises by 1 cm per row.
    assert [(len(rows), round(float(rows[0]), 2)) for rows in levels] == [(11, 1.0), (17, 1.12)]
    # Existing files are reused, and their time is that of the last use.
    before = first[0].stat().st_ino
    os.utime(first[0], (0, 0))
    assert cut([path], wanted, windows, tmp_path / "cut") == [first, second, []]
    assert first[0].stat().st_ino == before
    assert first[0].stat().st_mtime > 0


def test_folders_are_cut_file_by_file(tmp_path: Path) -> None:
    (tmp_path / "export").mkdir()
    rows = long()
    rows.head(45).write_parquet(tmp_path / "export" / "a.parquet")
    rows.tail(45).write_parquet(tmp_path / "export" / "b.parquet")
    (own,) = cut(
        [tmp_path / "export"], mapping(), [Window.parse("2026-01-05T00:02/2026-01-05T00:03")], tmp_path / "cut"
    )
    times = pl.concat([pl.read_parquet(path) for path in own])["timestamp"]
    assert len(own) == 2
    assert len(times) == 3 * 6
    assert (str(times.min()), str(times.max())) == ("2026-01-05 00:02:00+00:00", "2026-01-05 00:02:50+00:00")


def test_windows_depend_on_clock_and_column(tmp_path: Path) -> None:
    """Midnight in Tokyo is 15:00 UTC of the day before."""
    written, begin = "%Y-%m-%d %H:%M", datetime(2026, 1, 5)
    hours = pl.datetime_range(begin, begin + timedelta(hours=23), "1h", eager=True)
    texts = hours.dt.strftime(written)
    pl.DataFrame({"timestamp": texts, "made": texts.reverse(), "LI-1": range(24)}).write_csv(tmp_path / "log.csv")
    window = [Window.parse("2026-01-05T12:00Z/2026-01-05T14:00Z")]

    def levels(zone: str, column: str = "timestamp") -> list[int]:
        wanted = mapping(
            layout="wide",
            columns={"status": None, "timestamp": column},
            clock={"zone": zone, "format": written},
        )
        (own,) = cut([tmp_path / "log.csv"], wanted, window, tmp_path / "cut")
        return pl.concat([pl.read_csv(path) for path in own])["LI-1"].to_list()

    assert levels("UTC") == [12, 13]
    assert levels("Asia/Tokyo") == [21, 22]
    assert levels("UTC", "made") == [10, 11]


def test_tables_without_times_cannot_be_cut(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="windows cannot be cut out of layout"):
        cut([tmp_path], mapping(dialect={"delimiter": ";"}), [Window.parse("2026-01-05/2026-01-06")], tmp_path)
