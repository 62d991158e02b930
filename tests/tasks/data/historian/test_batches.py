"""Batches of a wide table begin with their first row with a valid time, in any order of rows."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from configs.mapping import HistorianMapping
from configs.process import described_spec
from tasks.data.historian import export as historian
from tasks.data.historian import long_tables, tag_history, transitions
from tasks.data.historian.raw_rows import RawQuarantine
from tests.tasks.data.historian.whole import HistorianLog, read_historian

BEGIN = datetime(2024, 3, 4, tzinfo=UTC)
MAPPING: dict[str, Any] = {
    "process": {"name": "kettle", "horizon": 1000},
    "period_seconds": 600,
    "layout": "wide",
    "columns": {"timestamp": "time"},
    "tags": {
        "T": {"role": "observation", "signal": "temperature", "unit": "degC", "interpolation": "sloped"},
        "V": {"role": "action", "signal": "valve", "unit": "1", "interpolation": "stepped"},
        "B": {"role": "episode", "interpolation": "stepped"},
    },
    "reward": {"expression": "0", "unit": "1"},
    "episodes": {"max_gap_seconds": 1500},
}
Row = dict[str, str | float | None]


def stamp(i: float) -> str:
    return (BEGIN + timedelta(minutes=10 * i)).strftime("%Y-%m-%dT%H:%M:%SZ")


def two_batches() -> list[Row]:
    """Rows every ten minutes: 0, 1, ... 29 degC in batch b1, then 100, 101, ... 129 degC in b2."""
    return [
        {"time": stamp(i), "T": 100.0 * (i >= 30) + i % 30, "V": float(i % 5), "B": "b1" if i < 30 else "b2"}
        for i in range(60)
    ]


def read(path: Path, rows: list[Row], quarantine: RawQuarantine | None = None, **changed: Any) -> HistorianLog:
    frame = pl.DataFrame(rows, {"time": pl.String, "T": pl.Float64, "V": pl.Float64, "B": pl.String})
    frame.write_parquet(path) if path.suffix == ".parquet" else frame.write_csv(path)
    mapping = HistorianMapping.model_validate(MAPPING | changed)
    return read_historian(path, mapping, described_spec(mapping), None, quarantine or RawQuarantine())


def assert_two_batches(log: HistorianLog, steps: int = 58, last: int = 28) -> None:
    """Check for steps within b1 and within b2, none between them, and an end after each."""
    before, after = log.rows["observations"][:, 0], log.rows["next_observations"][:, 0]
    assert ((before < 100) == (after < 100)).all()
    assert len(before) == steps
    assert log.rows["numbers"][log.rows["timeouts"]].tolist() == [last, 58]


UNUSABLE = {
    "empty": "",
    "unreadable": "yesterday",
    "far": "1970-01-01T00:00:00Z",
    "astray": "2199-01-01T00:00:00Z",
    "late": stamp(20.5),
    "skipped": "2024-03-31T02:30:00",
}


@pytest.mark.parametrize("form", ["csv", "parquet"])
@pytest.mark.parametrize("why", UNUSABLE)
def test_batches_begin_with_their_first_valid_row(tmp_path: Path, why: str, form: str) -> None:
    assert_two_batches(read(tmp_path / f"plain.{form}", two_batches()))
    rows, quarantine = two_batches(), RawQuarantine()
    rows[30]["time"] = UNUSABLE[why]
    log = read(tmp_path / f"log.{form}", rows, quarantine, clock={"zone": "Europe/Berlin"})
    # The last value of b1 holds until b2 begins, at row 31.
    assert_two_batches(log, last=29)
    assert set(quarantine.table()["row"]) == {30}


def test_a_name_in_a_row_without_time_still_counts(tmp_path: Path) -> None:
    rows, quarantine = two_batches(), RawQuarantine()
    for i, row in enumerate(rows):
        row["B"] = {0: "b1", 30: "b2"}.get(i)
    rows[30]["time"] = None
    assert_two_batches(read(tmp_path / "log.parquet", rows, quarantine), last=29)
    assert quarantine.reasons == {"timestamp is missing": 3}


def test_unsorted_rows_belong_to_their_batches(tmp_path: Path) -> None:
    plain = read(tmp_path / "plain.csv", two_batches())
    swapped = two_batches()
    swapped[29], swapped[30] = swapped[30], swapped[29]
    for rows in (two_batches()[::-1], swapped):
        log = read(tmp_path / "log.csv", rows, clock={"late_seconds": 900.0})
        for key, values in plain.rows.items():
            np.testing.assert_array_equal(log.rows[key], values)


@pytest.mark.parametrize(("rows", "points"), [(1, 1), (7, 5)])
@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_block_sizes_do_not_move_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str, rows: int, points: int
) -> None:
    # Three rows at each batch's beginning have no time, and every other name is missing.
    lines = two_batches()
    for i, row in enumerate(lines):
        row["time"] = row["time"] if i not in (30, 31, 32) else ""
        row["B"] = row["B"] if i % 2 == 0 else None
    whole = read(tmp_path / f"log.{form}", lines, episodes={"max_gap_seconds": 3000})
    assert_two_batches(whole, steps=58, last=31)
    monkeypatch.setattr(historian, "CHUNK_ROWS", 3 * rows)
    monkeypatch.setattr(tag_history, "PORTION_ROWS", rows)
    monkeypatch.setattr(transitions, "SETTLE_ROWS", rows)
    monkeypatch.setattr(transitions, "GRID_POINTS", points)
    pieces = read(tmp_path / f"log.{form}", lines, episodes={"max_gap_seconds": 3000})
    assert pieces.account == whole.account
    for key, values in whole.rows.items():
        np.testing.assert_array_equal(pieces.rows[key], values)


def test_values_hold_through_a_long_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The valve is archived once, at the batch's first row, and holds as long as the batch lasts.
    lines = two_batches()
    for i, row in enumerate(lines):
        row["V"] = float(i) if i in (0, 30) else None
    whole = read(tmp_path / "log.csv", lines)
    assert_two_batches(whole)
    assert whole.rows["actions"][:, 0].tolist() == [0.0] * 29 + [30.0] * 29
    monkeypatch.setattr(historian, "CHUNK_ROWS", 3)
    monkeypatch.setattr(transitions, "SETTLE_ROWS", 1)
    monkeypatch.setattr(transitions, "GRID_POINTS", 2)
    pieces = read(tmp_path / "log.csv", lines)
    np.testing.assert_array_equal(pieces.rows["actions"], whole.rows["actions"])


def test_names_count_with_any_status(tmp_path: Path) -> None:
    frame = pl.DataFrame(two_batches()).with_columns(pl.lit("Good").alias("T.st"))
    names = pl.when(pl.int_range(pl.len()).is_in([0, 30]))
    frame = frame.with_columns(names.then("B").alias("B"), names.then(pl.lit("Bad")).alias("B.st"))
    frame.write_csv(tmp_path / "log.csv")
    mapping = HistorianMapping.model_validate(MAPPING | {"columns": {"timestamp": "time", "status_suffix": ".st"}})
    log = read_historian(tmp_path / "log.csv", mapping, described_spec(mapping), None)
    assert_two_batches(log)
    assert log.account.raw.rejected == 0


def test_empty_rows_belong_to_no_batch(tmp_path: Path) -> None:
    rows = two_batches()
    # Rows without a value for eight days, in which no value is held.
    empty: list[Row] = [{"time": stamp(60 + i), "T": None, "V": None, "B": None} for i in range(8 * 144)]
    later = [row | {"time": stamp(60 + 8 * 144 + i), "B": "b3"} for i, row in enumerate(two_batches()[:30])]
    log = read(tmp_path / "log.csv", [*rows, *empty, *later], tags=MAPPING["tags"])
    assert log.account.silent > 0
    assert log.account.rows == 58 + 29


def test_numbers_of_names_do_not_depend_on_blocks() -> None:
    frame = pl.DataFrame({"B": ["b1", None, " b2 ", "", "b1"], "T": [1.0, 2.0, None, 3.0, 4.0]})
    whole = long_tables.EpisodeNumbers("B", ["T", "B"]).number(frame)["B"].to_list()
    assert whole[0] == whole[1] == whole[4] != whole[2] == whole[3]
    one_by_one = long_tables.EpisodeNumbers("B", ["T", "B"])
    assert [one_by_one.number(frame[i : i + 1])["B"].item() for i in range(5)] == whole
