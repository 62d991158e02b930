"""Rows stamped by a wrong clock are quarantined and create no steps."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from configs.mapping import HistorianMapping
from configs.process import described_spec
from tasks.data.historian.implausible_times import Stretches
from tasks.data.historian.raw_rows import RawQuarantine
from tasks.data.historian.timestamps import FAR
from tests.tasks.data.historian.whole import HistorianLog, read_historian

BEGIN = datetime(2024, 3, 1, tzinfo=UTC)
STEPS = 120
MAPPING: dict[str, Any] = {
    "process": {"name": "kettle", "horizon": 1000},
    "period_seconds": 60,
    "layout": "wide",
    "columns": {"timestamp": "time"},
    "tags": {
        "T": {"role": "observation", "signal": "temperature", "unit": "degC", "interpolation": "stepped"},
        "V": {"role": "action", "signal": "valve", "unit": "1", "interpolation": "stepped"},
    },
    "reward": {"expression": "next.temperature / quantity(1, 'degC')", "unit": "1"},
    "episodes": {"max_gap_seconds": 300},
}


def lines(stamps: list[str]) -> list[str]:
    return [f"{stamp},{20 + i % 7},{i % 2}" for i, stamp in enumerate(stamps)]


def good() -> list[str]:
    return [(BEGIN + timedelta(minutes=i)).strftime("%Y-%m-%dT%H:%M:%SZ") for i in range(STEPS)]


def read(path: Path, rows: list[str], quarantine: RawQuarantine, **changed: Any) -> HistorianLog:
    path.write_text("\n".join(["time,T,V", *rows, ""]))
    mapping = HistorianMapping.model_validate(MAPPING | changed)
    return read_historian(path, mapping, described_spec(mapping), None, quarantine)


@pytest.mark.parametrize(
    "stray", ["1970-01-01T00:00:00Z", "2300-01-01T00:00:00Z", "9999-12-31T23:59:59Z", "1601-01-01"]
)
@pytest.mark.parametrize("place", [0, 1, STEPS // 2, STEPS])
def test_rows_of_another_century_give_no_steps(tmp_path: Path, stray: str, place: int) -> None:
    clean = read(tmp_path / "clean.csv", lines(good()), RawQuarantine())
    quarantine = RawQuarantine()
    rows = lines(good())
    rows.insert(place, f"{stray},20,0")
    log = read(tmp_path / "stray.csv", rows, quarantine)
    assert log.account.steps == clean.account.steps == STEPS - 1
    np.testing.assert_array_equal(log.rows["observations"], clean.rows["observations"])
    np.testing.assert_array_equal(log.rows["timestamps"], clean.rows["timestamps"])
    found = quarantine.table()
    assert found["row"].to_list() == [place, place]
    assert all("timestamp is" in reason for reason in found["reason"])


def test_a_far_last_row_is_quarantined(tmp_path: Path) -> None:
    quarantine = RawQuarantine()
    log = read(tmp_path / "log.csv", [*lines(good()), "2199-01-01T00:00:00Z,20,0"], quarantine)
    assert log.account.steps == STEPS - 1
    assert quarantine.reasons == {FAR: 2}


def test_a_silent_year_is_counted_as_gap(tmp_path: Path) -> None:
    later = [stamp.replace("2024-", "2025-") for stamp in good()]
    quarantine = RawQuarantine()
    log = read(tmp_path / "log.csv", lines([*good(), *later]), quarantine)
    assert not quarantine.count
    assert len(log.rows["timestamps"]) == 2 * (STEPS - 1)
    assert log.account.steps == 365 * 1440 + STEPS - 1
    assert log.account.gap == log.account.steps - log.account.rows
    # Numbers of steps include the silent ones.
    assert log.rows["numbers"][STEPS - 1] == 365 * 1440


def test_implausible_times_do_not_depend_on_the_format(tmp_path: Path) -> None:
    times = pl.Series([datetime(1970, 1, 1, tzinfo=UTC), *(BEGIN + timedelta(minutes=i) for i in range(STEPS))])
    frame = pl.DataFrame({"time": times.cast(pl.Datetime("us", "UTC")), "T": 20.0, "V": np.arange(STEPS + 1) % 2})
    path = tmp_path / "log.parquet"
    frame.write_parquet(path, row_group_size=20)
    quarantine = RawQuarantine()
    mapping = HistorianMapping.model_validate(MAPPING)
    log = read_historian(path, mapping, described_spec(mapping), None, quarantine)
    assert (log.account.steps, quarantine.reasons) == (STEPS - 1, {FAR: 2})


def test_stretches_by_hand() -> None:
    day = 86_400 * 10**9
    # 1000 rows in 2024, 5 rows six weeks later (below 1 %), and two campaigns of equal weight twenty years apart.
    main = np.arange(1000) * 10**9 + 20_000 * day
    few = main[-1] + 42 * day + np.arange(5)
    assert Stretches.of(np.concatenate([few, main])).implausible().tolist() == [False, True]
    assert Stretches.of(np.concatenate([main, main[:20] + 42 * day])).implausible().tolist() == [False, False]
    assert Stretches.of(np.concatenate([main, main + 7300 * day])).implausible().tolist() == [False, False]
    assert Stretches.of(np.concatenate([main, main[:400] + 7300 * day])).implausible().tolist() == [False, True]
    parts = [Stretches.of(part) for part in np.array_split(np.concatenate([main, few]), 7)]
    for one, other in zip(Stretches.joined(parts), Stretches.of(np.concatenate([main, few])), strict=True):
        np.testing.assert_allclose(one.astype(float), other.astype(float), rtol=1e-12)
