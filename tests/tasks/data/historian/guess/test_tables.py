"""Finding the column of times."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, datetime, timedelta
from pathlib import Path

import polars as pl
import pytest

from configs.errors import BadInput
from configs.mapping import HistorianMapping
from configs.yaml_files import load_yaml
from tasks.data.historian.guess.mapping import start_mapping

ROWS = 3000
"""Minutes from 4 March 2024 on: two days and two hours."""


def moments() -> pl.Series:
    begin = datetime(2024, 3, 4)
    return pl.datetime_range(begin, begin + timedelta(minutes=ROWS - 1), "1m", eager=True)


def as_texts(day: str, time: str) -> pl.DataFrame:
    return pl.DataFrame({"Date": moments().dt.strftime(day), "Time": moments().dt.strftime(time)})


def typed() -> pl.DataFrame:
    return pl.DataFrame({"Date": moments().dt.date(), "Time": moments().dt.time()})


def log(path: Path, clock: pl.DataFrame) -> Path:
    k = pl.Series(range(ROWS))
    table = clock.with_columns(T=20.0 + (k % 37) / 10, cmd=(k // 7 % 5).cast(pl.Float64))
    table.write_parquet(path) if path.suffix == ".parquet" else table.write_csv(path)
    return path


@pytest.mark.parametrize(
    "made",
    [
        lambda: as_texts("%Y-%m-%d", "%H:%M:%S"),
        lambda: as_texts("%Y-%m-%d", "%H:%M"),
        lambda: as_texts("%d.%m.%Y", "%I:%M:%S %p"),
        lambda: as_texts("%Y-%m-%d", "%H:%M:%S").select("Time", "Date"),
    ],
)
def test_separate_columns_of_date_and_time_are_refused(made: Callable[[], pl.DataFrame], tmp_path: Path) -> None:
    path = log(tmp_path / "two.csv", made())
    with pytest.raises(BadInput, match=r"two\.csv has date and time in two columns, 'Date' and 'Time': join"):
        start_mapping(path, tmp_path / "mappings")
    assert not (tmp_path / "mappings").exists()


def test_separate_typed_columns_are_refused(tmp_path: Path) -> None:
    path = log(tmp_path / "two.parquet", typed())
    with pytest.raises(BadInput, match=r"two\.parquet has date and time in two columns, 'Date' and 'Time': join"):
        start_mapping(path, tmp_path / "mappings")


def test_dates_suffice_for_daily_rows(tmp_path: Path) -> None:
    begin = date(2020, 1, 1)
    dates = pl.date_range(begin, begin + timedelta(days=ROWS - 1), eager=True).cast(pl.String)
    path = log(tmp_path / "daily.csv", pl.DataFrame({"Date": dates, "Peak": moments().dt.strftime("%H:%M:%S")}))
    found = load_yaml(start_mapping(path, tmp_path / "mappings").mapping, HistorianMapping)
    assert (found.columns.timestamp, found.period_seconds) == ("Date", 86_400)


def test_times_of_day_alone_are_not_a_clock(tmp_path: Path) -> None:
    path = log(tmp_path / "elapsed.csv", as_texts("%Y-%m-%d", "%H:%M:%S").select("Time"))
    (line,) = start_mapping(path, tmp_path / "mappings").fill_in
    assert ", period_seconds: seconds between rows" in line
