"""Every row that was read is used or lost for a reason, and the terminal, the card and validation say so alike."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from typer.testing import CliRunner

from configs.errors import BadInput, Refused
from configs.home import Home
from configs.run import Data, OpenedRun
from flows.cli.main import app
from tasks.data.store.cards.card import read_card
from tasks.data.store.reader import StoredDataset
from tasks.data.store.records import SampleCounts
from tasks.ingest import ingest
from tasks.references import Dataset
from tasks.validate import validate

STEPS = 1000
MAPPING = """
process: {name: kettle, horizon: 100}
period_seconds: 60
layout: wide
columns: {timestamp: time}
tags:
  T: {role: observation, signal: temperature, unit: degC, interpolation: sloped, limits: [null, 80], alarms: [null, 60]}
  P: {role: observation, signal: pressure, unit: bar, interpolation: sloped}
  V: {role: action, signal: valve, unit: '1', interpolation: stepped, range: [0, 1]}
reward: {expression: "next.temperature / quantity(1, 'degC')", unit: '1'}
episodes: {max_gap_seconds: 120}
"""


def frame() -> pl.DataFrame:
    """Return a log with 90 degC in 73 % of the minutes, 70 in a further 10 % and 50 in the rest."""
    k = np.arange(STEPS + 1)
    ten = np.where(k % 100 < 73, 90.0, np.where(k % 100 < 83, 70.0, 50.0))
    begin = np.datetime64("2024-05-01T00:00:00", "us").astype(np.int64)
    rng = np.random.default_rng(0)
    return pl.DataFrame(
        {
            "time": pl.Series(begin + k * 60_000_000).cast(pl.Datetime("us", "UTC")),
            "T": ten,
            "P": rng.uniform(1, 2, len(k)),
            "V": rng.uniform(0, 1, len(k)),
        }
    )


def made(folder: Path, table: pl.DataFrame, allowed: float = 0.05, text: str = MAPPING) -> tuple[Dataset, OpenedRun]:
    (folder / "mapping.yaml").write_text(text)
    table.write_parquet(folder / "log.parquet")
    run = OpenedRun(plant="kettle", data=Data(mapping=folder / "mapping.yaml", max_quarantined=allowed))
    return ingest(Home(folder / "home"), run, [folder / "log.parquet"]), run


def test_steps_beyond_a_limit_are_kept_and_counted(tmp_path: Path) -> None:
    dataset, run = made(tmp_path, frame())
    held = StoredDataset.open(dataset.store, dataset.digest)
    assert (dataset.rows, dataset.quarantined, dataset.quarantine) == (STEPS, 0, None)
    beyond = (frame()["T"].to_numpy()[1:] > 80).sum()
    rows = held.arrays()
    assert beyond == 730  # 73 of every 100 minutes
    assert rows["costs"].sum() == (rows["constraint_costs"][:, 0] > 0).sum() == beyond
    np.testing.assert_allclose(rows["constraint_costs"].max(), 10.0, atol=1e-4)
    assert not rows["terminals"].any()
    (account,) = dataset.accounts
    assert account is not None
    assert (account.beyond_limits, account.trips, account.outside_limits) == (beyond, 0, 0)
    assert account.alarms == {"temperature": (frame()["T"].to_numpy()[1:] > 60).sum()}
    assert read_card(dataset.store, dataset.digest).limits["temperature"].violated_rows == beyond
    line = "730 steps end beyond a limit (73.0%)"
    assert line in dataset.accounted
    assert line in dataset.card.read_text()
    result = validate(Home(tmp_path / "home"), run, dataset)
    assert any("73.0% of rows violate a limit" in warning for warning in result.warnings)
    assert line in result.data_docs.read_text()


def test_trip_ends_episode_only_if_mapping_says_so(tmp_path: Path) -> None:
    text = MAPPING.replace("max_gap_seconds: 120", "max_gap_seconds: 120, end_at_trip: true")
    dataset, _ = made(tmp_path, frame(), text=text)
    (account,) = dataset.accounts
    assert account is not None
    # Each of the nine later crossings is one row; what begins above 80 degC is left out.
    assert (account.trips, account.beyond_limits, account.outside_limits) == (10, 10, 730)
    assert any("outside the limits after a trip (730)" in line for line in dataset.accounted)


def test_lost_rows_and_steps_add_up_and_obey_the_threshold(tmp_path: Path) -> None:
    k = np.arange(STEPS + 1)
    # A transmitter fails in 5 % of all rows.
    broken = frame().with_columns(P=pl.Series(np.where(k % 200 < 10, np.nan, frame()["P"].to_numpy())))
    with pytest.raises(
        Refused,
        match=r"1\.70% of the raw rows are lost .*at most 0\.50% are allowed: value is missing or not a number \(51\)",
    ):
        made(tmp_path, broken, 0.005)
    with pytest.raises(Refused, match=r"of the control steps.* are lost .*at most 2\.00% are allowed"):
        made(tmp_path, broken, 0.02)
    dataset, run = made(tmp_path, broken, 0.2)
    (account,) = dataset.accounts
    assert account is not None
    raw = account.raw
    assert raw.rows == 3 * (STEPS + 1)
    assert dataset.accounted[0] == (
        f"{raw.rows:,} raw rows read: {raw.rows - 51:,} used, 51 lost: value is missing or not a number (51)"
    )
    lost = account.gap + account.not_running + account.outside_limits + dataset.quarantined
    assert dataset.rows + lost == account.steps
    assert f"{account.steps:,} control steps: {dataset.rows:,} used, {lost:,} lost" in dataset.accounted[1]
    # The named quarantine exists even for raw rows alone.
    assert dataset.quarantine is not None
    assert dataset.quarantine.is_dir()
    result = validate(Home(tmp_path / "home"), run, dataset)
    assert any("of the raw rows are lost, at most 1% is usual" in warning for warning in result.warnings)
    assert dataset.accounted[0] in result.data_docs.read_text()


def test_repeated_rows_are_counted_but_not_lost(tmp_path: Path) -> None:
    # Enough late rows to be sorted; fewer would count as late.
    table = pl.concat([frame(), frame()[-STEPS // 5 :]])
    dataset, run = made(tmp_path, table, allowed=0.0)
    assert dataset.accounts[0].raw.reasons == {"repeats an earlier row": 600}
    result = validate(Home(tmp_path / "home"), run, dataset)
    assert not any("are lost" in warning for warning in result.warnings)


def test_overlapping_sources_warn(tmp_path: Path) -> None:
    home, table = Home(tmp_path / "home"), frame()
    (tmp_path / "mapping.yaml").write_text(MAPPING)
    run = OpenedRun(plant="kettle", data=Data(mapping=tmp_path / "mapping.yaml"))
    logs = {"one": table[:701], "next": table[700:], "other": table[600:]}
    paths = {name: tmp_path / f"{name}.parquet" for name in logs}
    for name, part in logs.items():
        part.write_parquet(paths[name])
    apart = validate(home, run, ingest(home, run, [paths["one"], paths["next"]]))
    assert not any("of the time" in warning for warning in apart.warnings)
    both = validate(home, run, ingest(home, run, [paths["one"], paths["other"]]))
    (overlap,) = [warning for warning in both.warnings if "of the time" in warning]
    # 100 of 700 and 400 steps.
    assert "several episodes cover 9.1% of the time" in overlap


def test_last_terminal_lines_account_for_all_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEORL_HOME", str(tmp_path / "home"))
    (tmp_path / "mapping.yaml").write_text(MAPPING)
    frame().write_csv(tmp_path / "log.csv")
    ran = CliRunner().invoke(app, ["ingest", str(tmp_path / "log.csv"), "--mapping", str(tmp_path / "mapping.yaml")])
    assert ran.exit_code == 0, ran.output
    assert "3,003 raw rows read: 3,003 used, 0 lost\n1,000 control steps: 1,000 used, 0 lost\n" in ran.output


def with_statuses(codes: list[int]) -> pl.DataFrame:
    """Return a long table with pressure -999 where the quality is not 192."""
    wide = frame()
    quality = np.resize(codes, len(wide))
    long = wide.unpivot(["T", "P", "V"], index="time", variable_name="tag").with_columns(
        status=pl.when(pl.col("tag") == "P").then(pl.lit(pl.Series(np.tile(quality, 3)))).otherwise(pl.lit(192))
    )
    bad = (pl.col("tag") == "P") & (pl.col("status") != 192)
    return (
        long.with_columns(value=pl.when(bad).then(-999.0).otherwise("value"))
        .rename({"time": "timestamp"})
        .sort("timestamp")
    )


@pytest.mark.parametrize("codes", [[192], [192, 0, 192, 24, 192, 8]])
@pytest.mark.parametrize("kind", [pl.Int64, pl.String])
def test_opc_da_qualities_are_refused_until_declared(tmp_path: Path, codes: list[int], kind: type[pl.DataType]) -> None:
    text = MAPPING.replace("layout: wide\ncolumns: {timestamp: time}\n", "")
    table = with_statuses(codes).with_columns(pl.col("status").cast(kind))
    with pytest.raises(BadInput, match=r"the status \d+ in log\.parquet is ambiguous: set"):
        made(tmp_path, table, text=text)
    dataset, _ = made(tmp_path, table, 0.9, text=f"status_codes: opc_da\n{text}")
    rows = StoredDataset.open(dataset.store, dataset.digest).arrays()
    assert rows["observations"].min() > 0  # no -999 among them
    bad = sum(code != 192 for code in np.resize(codes, STEPS + 1))
    (account,) = dataset.accounts
    assert account is not None
    assert account.samples["P"] == SampleCounts(good=STEPS + 1 - bad, uncertain=0, bad=bad)
    share = bad / (STEPS + 1)
    assert f"| P | {1 - share:.2%} | 0.00% | {share:.2%} |" in dataset.card.read_text()


def test_dataset_is_validated_from_the_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEORL_HOME", str(tmp_path / "home"))
    dataset, _ = made(tmp_path, frame())
    ran = CliRunner().invoke(app, ["validate", dataset.digest[:12]])
    assert ran.exit_code == 0, ran.output
    assert f"dataset {dataset.digest}: fit for training\n" in ran.output
    assert "  warning: 73.0% of rows violate a limit, at most 5% is usual" in ran.output
    assert "730 steps end beyond a limit (73.0%)" in ran.output
    still, _ = made(tmp_path, frame().with_columns(V=0.5))
    ran = CliRunner().invoke(app, ["validate", still.digest])
    assert ran.exit_code == 1
    assert "  reason: the standard deviation of action valve is 0.00% of the range" in ran.output
