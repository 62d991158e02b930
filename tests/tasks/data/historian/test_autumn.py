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
from tasks.data.historian.raw_times import TimestampReader
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
    """A row at each time, as a clock on Berlin's wall shows it: T is its number, V the last digit of that."""
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
    """Each step is at its time, with the values of it, and nothing was lost."""
    assert not quarantine.count
    expected = np.arange(len(times) - 1)
    assert log.rows["timestamps"].tolist() == [round(when.timestamp()) * 10**9 for when in times[:-1]]
    np.testing.assert_array_equal(log.rows["observations"][:, 0], expected)
    np.testing.assert_array_equal(log.rows["actions"][:, 0], expected % 10)


@pytest.mark.parametrize("rows", [1, 3, 1_000_000])
@pytest.mark.parametrize("layout", ["wide", "long"])
@pytest.mark.parametrize("minutes", [10, 15, 30, 40, 60])
def test_rows_at_any_period_are_at_their_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, minutes: int, layout: str, rows: int
) -> None:
    monkeypatch.setattr(historian, "CHUNK_ROWS", rows)
    times = truth(datetime(2023, 10, 28, 22, tzinfo=UTC), datetime(2023, 10, 29, 4, tzinfo=UTC), minutes)
    lines, quarantine = wide(times), RawQuarantine()
    if layout == "long":
        lines = long(lines, by_tag=False)
    assert_true(read(tmp_path / "log.csv", lines, minutes, quarantine, layout=layout), times, quarantine)


@pytest.mark.parametrize("minutes", [30, 60])
def test_every_autumn_of_a_log_begins_anew(tmp_path: Path, minutes: int) -> None:
    times = truth(datetime(2023, 10, 28, tzinfo=UTC), datetime(2024, 10, 28, tzinfo=UTC), minutes)
    quarantine = RawQuarantine()
    assert_true(read(tmp_path / "log.csv", wide(times), minutes, quarantine), times, quarantine)


def test_rows_that_are_not_in_order_of_time_are_refused_where_the_hour_is_among_them(tmp_path: Path) -> None:
    times = truth(datetime(2023, 10, 28, tzinfo=UTC), datetime(2023, 10, 30, tzinfo=UTC), 10)
    quarantine = RawQuarantine()
    says = r"expected the rows of log\.csv in order of time .* got 287 of 576 behind younger ones: sort them, or"
    with pytest.raises(BadInput, match=says) as caught:
        read(tmp_path / "log.csv", long(wide(times), by_tag=True), 10, quarantine, layout="long")
    assert "\n" not in str(caught.value)
    summer = [when - timedelta(days=90) for when in times]
    log = read(tmp_path / "log.csv", long(wide(summer), by_tag=True), 10, quarantine, layout="long")
    assert_true(log, summer, quarantine)


def clocks(*times: str) -> pl.Series:
    return pl.Series([f"2023-10-29 {time}" for time in times])


def passes(reader: TimestampReader, column: pl.Series, tags: str = "") -> str:
    """1 or 2 for each row: the hour from midnight or from one o'clock UTC."""
    named = pl.Series([None if tag == "-" else tag for tag in tags], dtype=pl.String) if tags else None
    times, reasons = reader.read(column, "log.csv", named)
    assert reasons is None
    hours = (times - np.datetime64("2023-10-29", "ns").astype(np.int64)) // (3600 * 10**9)
    return "".join(str(hour + 1) for hour in hours)


@pytest.mark.parametrize(
    ("times", "tags", "expected"),
    [
        # A row that comes late by less than `late_seconds`, in either pass.
        ("02:10:00 02:20:00 02:19:57 02:50:00 02:00:00 02:10:00 02:08:00", "ABABABA", "1111222"),
        # A row of the first pass that comes late when the second has begun; what ends the second one is not late.
        ("02:50:00 02:59:55 02:00:03 02:59:58 02:00:01 02:30:00 02:59:59", "ABBABAB", "1121222"),
        # Rows that come twice, where others come more often than every half hour.
        ("01:50:00 01:50:00 02:00:00 02:00:00 02:10:00 02:10:00 02:00:00 02:10:00", "AAAAAAAA", "00111122"),
        # Tags that were archived by exception: A alone does not tell, but B does.
        ("02:10:00 02:40:00 02:05:00 02:40:00 02:41:00", "ABBAB", "11222"),
        # Several tags of one moment, every hour; the valve was archived in the second one only.
        ("01:00:00 01:00:00 02:00:00 02:00:00 02:00:00 02:00:00 02:00:00 03:00:00", "ABABABVA", "00112223"),
        # What another column's table would be: rows of tags that do not count say nothing.
        ("02:00:00 02:50:00 02:00:00 02:50:00 02:10:00", "--AAA", "11112"),
        # A row that comes twice tells nothing after the first moment, a fall by less than late_seconds never.
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


def test_rows_that_come_twice_tell_nothing_in_another_autumn_either() -> None:
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


def test_how_an_hour_is_spelt_is_no_matter_of_its_order() -> None:
    mixed = clocks("02:00", "2:10", "02:20", "2:40", "02:00", "2:10", "02:20")
    assert passes(TimestampReader(BY_ORDER), mixed) == "1111222"
    formatted = TimestampReader(BY_ORDER.model_copy(update={"format": "%Y-%m-%d %H:%M"}))
    assert passes(formatted, mixed) == "1111222"
    assert passes(TimestampReader(BY_ORDER), mixed.str.to_datetime("%Y-%m-%d %H:%M")) == "1111222"


def test_where_rows_may_be_an_hour_late_half_an_hour_tells(tmp_path: Path) -> None:
    reader = TimestampReader(BY_ORDER.model_copy(update={"late_seconds": 7200.0}))
    assert passes(reader, clocks("02:10", "02:40", "02:20", "02:50", "02:20", "02:30")) == "111122"
