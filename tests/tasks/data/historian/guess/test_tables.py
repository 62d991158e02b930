"""Which column of a log tells the time, or why none does."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, datetime, timedelta
from pathlib import Path

import polars as pl
import pytest

from configs.errors import BadInput
from configs.mapping import HistorianMapping
from configs.yaml_files import load_yaml
from tasks.data.historian.guess.start import start_mapping

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
def test_a_date_and_a_time_in_columns_of_their_own_are_refused(
    made: Callable[[], pl.DataFrame], tmp_path: Path
) -> None:
    path = log(tmp_path / "two.csv", made())
    with pytest.raises(
        BadInput, match=r"expected one column with date and time in two\.csv, got 'Date' and 'Time': join"
    ):
        start_mapping(path, tmp_path / "mappings")
    assert not (tmp_path / "mappings").exists()


def test_so_they_are_where_a_table_has_types(tmp_path: Path) -> None:
    path = log(tmp_path / "two.parquet", typed())
    with pytest.raises(BadInput, match=r"date and time in two\.parquet, got 'Date' and 'Time': join them into one"):
        start_mapping(path, tmp_path / "mappings")


def test_a_column_of_dates_is_a_clock_where_every_day_has_one_row(tmp_path: Path) -> None:
    begin = date(2020, 1, 1)
    dates = pl.date_range(begin, begin + timedelta(days=ROWS - 1), eager=True).cast(pl.String)
    path = log(tmp_path / "daily.csv", pl.DataFrame({"Date": dates, "Peak": moments().dt.strftime("%H:%M:%S")}))
    found = load_yaml(start_mapping(path, tmp_path / "mappings").mapping, HistorianMapping)
    assert (found.columns.timestamp, found.period_seconds) == ("Date", 86_400)


def test_times_of_day_alone_are_no_clock_and_the_period_is_asked_for(tmp_path: Path) -> None:
    path = log(tmp_path / "elapsed.csv", as_texts("%Y-%m-%d", "%H:%M:%S").select("Time"))
    (said,) = start_mapping(path, tmp_path / "mappings").fill_in
    assert ", period_seconds: seconds from one of the rows to the next" in said
