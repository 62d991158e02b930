"""The hour that comes twice, told by the order of rows: what tells its second pass, and what must not.

Berlin's clocks went back from 03:00 to 02:00 at 01:00 UTC on 2023-10-29 and 2024-10-27 (Directive 2000/84/EC).
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import polars as pl
import pytest

from configs.errors import BadInput
from configs.mapping import Clock, HistorianMapping
from configs.process import described_spec
from tasks.data.historian import export as historian
from tasks.data.historian.raw_rows import RawQuarantine
from tasks.data.historian.timestamps import TimestampReader
from tests.tasks.data.historian.whole import HistorianLog, read_historian

BERLIN = ZoneInfo("Europe/Berlin")
BY_ORDER = Clock(zone="Europe/Berlin", ambiguous="order")
MAPPING: dict[str, Any] = {
    "process": {"name": "kettle", "horizon": 100_000},
    "layout": "wide",
    "columns": {"timestamp": "time", "status": None},
    "clock": {"zone": "Europe/Berlin", "ambiguous": "order"},
    "tags": {
        "T": {"role": "observation", "signal": "temperature", "unit": "degC", "interpolation": "stepped"},
        "V": {"role": "action", "signal": "valve", "unit": "1", "interpolation": "stepped"},
    },
    "reward": {"expression": "0", "unit": "1"},
}


def truth(begin: datetime, until: datetime, minutes: int) -> list[datetime]:
    return [begin + timedelta(minutes=minutes * i) for i in range((until - begin) // timedelta(minutes=minutes))]


def wide(times: list[datetime]) -> list[str]:
    """Rows at given times, stamped in Berlin's local time: T is the row's number, V the last digit of it."""
    return ["time,T,V", *(f"{when.astimezone(BERLIN):%Y-%m-%d %H:%M:%S},{i},{i % 10}" for i, when in enumerate(times))]


def long(lines: list[str], by_tag: bool) -> list[str]:
    cells = [(tag, line.split(",")[0], line.split(",")[k]) for line in lines[1:] for k, tag in enumerate("TV", 1)]
    return ["tag,time,value", *map(",".join, sorted(cells, key=lambda cell: cell[0]) if by_tag else cells)]


def read(path: Path, lines: list[str], minutes: int, quarantine: RawQuarantine, **changed: Any) -> HistorianLog:
    path.write_text("\n".join([*lines, ""]))
    period = {"period_seconds": 60 * minutes, "episodes": {"max_gap_seconds": 150 * minutes}}
    mapping = HistorianMapping.model_validate(MAPPING | period | changed)
    return read_historian(path, mapping, described_spec(mapping), None, quarantine)


def assert_true(log: HistorianLog, times: list[datetime], quarantine: RawQuarantine) -> None:
    """Check that each step is at the right time with the right values, and that nothing is lost."""
    assert not quarantine.count
    expected = np.arange(len(times) - 1)
    assert log.rows["timestamps"].tolist() == [round(when.timestamp()) * 10**9 for when in times[:-1]]
    np.testing.assert_array_equal(log.rows["observations"][:, 0], expected)
    np.testing.assert_array_equal(log.rows["actions"][:, 0], expected % 10)


@pytest.mark.parametrize("rows", [1, 3, 1_000_000])
@pytest.mark.parametrize("layout", ["wide", "long"])
@pytest.mark.parametrize("minutes", [10, 15, 30, 40, 60])
def test_repeated_hour_at_any_period(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, minutes: int, layout: str, rows: int
) -> None:
    monkeypatch.setattr(historian, "CHUNK_ROWS", rows)
    times = truth(datetime(2023, 10, 28, 22, tzinfo=UTC), datetime(2023, 10, 29, 4, tzinfo=UTC), minutes)
    lines, quarantine = wide(times), RawQuarantine()
    if layout == "long":
        lines = long(lines, by_tag=False)
    assert_true(read(tmp_path / "log.csv", lines, minutes, quarantine, layout=layout), times, quarantine)


@pytest.mark.parametrize("minutes", [30, 60])
def test_each_autumn_is_resolved_separately(tmp_path: Path, minutes: int) -> None:
    times = truth(datetime(2023, 10, 28, tzinfo=UTC), datetime(2024, 10, 28, tzinfo=UTC), minutes)
    quarantine = RawQuarantine()
    assert_true(read(tmp_path / "log.csv", wide(times), minutes, quarantine), times, quarantine)


def test_unsorted_rows_of_a_repeated_hour_are_refused(tmp_path: Path) -> None:
    times = truth(datetime(2023, 10, 28, tzinfo=UTC), datetime(2023, 10, 30, tzinfo=UTC), 10)
    quarantine = RawQuarantine()
    message = r"needs rows in order of time, but 287 of 576 rows of log\.csv are earlier than a row before"
    with pytest.raises(BadInput, match=message) as error:
        read(tmp_path / "log.csv", long(wide(times), by_tag=True), 10, quarantine, layout="long")
    assert "\n" not in str(error.value)
    summer = [when - timedelta(days=90) for when in times]
    log = read(tmp_path / "log.csv", long(wide(summer), by_tag=True), 10, quarantine, layout="long")
    assert_true(log, summer, quarantine)


def clocks(*times: str) -> pl.Series:
    return pl.Series([f"2023-10-29 {time}" for time in times])


def passes(reader: TimestampReader, column: pl.Series, tags: str = "") -> str:
    """Return 1 or 2 for each row: the hour from 0:00 or from 1:00 UTC."""
    named = pl.Series([None if tag == "-" else tag for tag in tags], dtype=pl.String) if tags else None
    times, reasons = reader.read(column, "log.csv", named)
    assert reasons is None
    hours = (times - np.datetime64("2023-10-29", "ns").astype(np.int64)) // (3600 * 10**9)
    return "".join(str(hour + 1) for hour in hours)


@pytest.mark.parametrize(
    ("times", "tags", "expected"),
    [
        # A row late by less than `late_seconds`, in either pass.
        ("02:10:00 02:20:00 02:19:57 02:50:00 02:00:00 02:10:00 02:08:00", "ABABABA", "1111222"),
        # A late row of the first pass after the second has begun; the last rows of the second are not late.
        ("02:50:00 02:59:55 02:00:03 02:59:58 02:00:01 02:30:00 02:59:59", "ABBABAB", "1121222"),
        # Duplicate rows, while others come more often than every half hour.
        ("01:50:00 01:50:00 02:00:00 02:00:00 02:10:00 02:10:00 02:00:00 02:10:00", "AAAAAAAA", "00111122"),
        # Tags archived by exception: A is not decisive, but B is.
        ("02:10:00 02:40:00 02:05:00 02:40:00 02:41:00", "ABBAB", "11222"),
        # Several tags at one time, every hour; the valve was archived in the second hour only.
        ("01:00:00 01:00:00 02:00:00 02:00:00 02:00:00 02:00:00 02:00:00 03:00:00", "ABABABVA", "00112223"),
        # Rows of unmapped tags are not decisive.
        ("02:00:00 02:50:00 02:00:00 02:50:00 02:10:00", "--AAA", "11112"),
        # A duplicate row is not decisive after the first time, and a fall by less than late_seconds never is.
        ("02:00:00 02:56:00 02:56:00 02:52:00", "AAAA", "1111"),
    ],
)
def test_the_second_pass_by_hand(times: str, tags: str, expected: str) -> None:
    column = clocks(*times.split())
    whole = passes(TimestampReader(BY_ORDER), column, tags)
    if "-" in tags:
        whole = "".join("1" if tag == "-" else found for tag, found in zip(tags, whole, strict=True))
    assert whole == expected
    reader = TimestampReader(BY_ORDER)
    pieces = "".join(passes(reader, column[i : i + 1], tags[i]) for i in range(len(column)))
    assert [found for found, tag in zip(pieces, tags, strict=True) if tag != "-"] == [
        found for found, tag in zip(expected, tags, strict=True) if tag != "-"
    ]


def test_duplicate_rows_are_not_decisive_in_later_autumns() -> None:
    doubled = [f"02:{m:02d}" for m in (0, 0, 20, 20, 40, 40)]
    column = pl.concat(
        [
            clocks("01:40", *doubled, *doubled),
            clocks("01:40", *doubled, *doubled).str.replace("2023-10-29", "2024-10-27"),
        ]
    )
    times, _ = TimestampReader(BY_ORDER).read(column, "log.csv")
    firsts = np.array(["2023-10-29", "2024-10-27"], "M8[ns]").astype(np.int64)
    minutes = (times.reshape(2, 13) - firsts[:, None]) // (60 * 10**9)
    assert minutes.tolist() == [[-20, 0, 0, 20, 20, 40, 40, 60, 60, 80, 80, 100, 100]] * 2


def test_spelling_does_not_affect_the_repeated_hour() -> None:
    mixed = clocks("02:00", "2:10", "02:20", "2:40", "02:00", "2:10", "02:20")
    assert passes(TimestampReader(BY_ORDER), mixed) == "1111222"
    formatted = TimestampReader(BY_ORDER.model_copy(update={"format": "%Y-%m-%d %H:%M"}))
    assert passes(formatted, mixed) == "1111222"
    assert passes(TimestampReader(BY_ORDER), mixed.str.to_datetime("%Y-%m-%d %H:%M")) == "1111222"


def test_half_an_hour_decides_with_large_lateness(tmp_path: Path) -> None:
    reader = TimestampReader(BY_ORDER.model_copy(update={"late_seconds": 7200.0}))
    assert passes(reader, clocks("02:10", "02:40", "02:20", "02:50", "02:20", "02:30")) == "111122"
