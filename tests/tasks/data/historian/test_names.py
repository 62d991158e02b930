"""Names of tags: patterns, unknown tags, missing tags."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from configs.errors import BadInput
from tests.small_tank import STEPS, long, read, wide


def with_more(names: list[str]) -> pl.DataFrame:
    extra = [long().filter(pl.col("tag") == "FI-2").with_columns(tag=pl.lit(name)) for name in names]
    return pl.concat([long(), *extra]).sort("timestamp")


@pytest.mark.parametrize("ending", ["parquet", "csv"])
def test_patterns_ignore_tags(tmp_path: Path, ending: str) -> None:
    frame = with_more(["PI[1].PV", "PI[2].PV", "XV-1"])
    path = tmp_path / f"log.{ending}"
    frame.write_parquet(path) if ending == "parquet" else frame.write_csv(path, datetime_format="%Y-%m-%dT%H:%M:%SZ")
    log = read(path, ignore=["PI[?].*", "XV-1"])
    assert log.account.raw.ignored == 3 * STEPS
    assert log.account.raw.rows == 6 * STEPS
    assert len(log.rows["numbers"]) == STEPS - 1
    with pytest.raises(BadInput, match=r"mapping lacks: 'PI\[1\]\.PV', 'PI\[2\]\.PV': add each tag to 'tags'"):
        read(path, ignore=["PI[12].*", "X*"])


@pytest.mark.parametrize("layout", ["long", "wide"])
def test_all_unknown_tags_are_listed_at_once(tmp_path: Path, layout: str) -> None:
    names = [f"AI-{i}" for i in range(60)]
    table = with_more(names) if layout == "long" else wide().with_columns(pl.lit(1.0).alias(name) for name in names)
    table.write_parquet(tmp_path / "log.parquet")
    with pytest.raises(BadInput, match=r"lacks: 'AI-0', 'AI-1', .*'AI-9' and 10 more|'AI-53' and 10 more: add each"):
        read(tmp_path / "log.parquet", layout=layout)
    assert len(read(tmp_path / "log.parquet", layout=layout, ignore=["AI-*"]).rows["numbers"]) == STEPS - 1


def test_empty_columns_and_missing_tags_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "months"
    folder.mkdir()
    wide().write_csv(folder / "january.csv", datetime_format="%Y-%m-%dT%H:%M:%SZ")
    renamed = wide().rename({"FI-2": "FI-2.PV"})
    renamed.write_csv(folder / "february.csv", datetime_format="%Y-%m-%dT%H:%M:%SZ")
    with pytest.raises(BadInput, match=r"tag 'FI-2' of the mapping is not in february\.csv: .*mean 'FI-2\.PV'"):
        read(folder, layout="wide")
    for tag in ("LI-1", "FV-3"):
        silent = wide().with_columns(pl.lit(None, pl.Float64).alias(tag))
        silent.write_csv(tmp_path / "log.csv", datetime_format="%Y-%m-%dT%H:%M:%SZ")
        with pytest.raises(BadInput, match=f"tag '{tag}' (in log.csv is empty|has no value with a time in log.csv)"):
            read(tmp_path / "log.csv", layout="wide")
