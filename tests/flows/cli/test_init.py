"""`neorl init --from` on realistic logs, and ingestion of its mapping without edits."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import openpyxl
import polars as pl
import pytest

from configs.mapping import HistorianMapping
from configs.yaml_files import load_yaml
from flows.cli.main import run
from tasks.data.store.reader import StoredDataset
from tests.dialect_files import MAKERS, DialectFile, batadal, numbers


def begin(made: DialectFile, folder: Path, capsys: pytest.CaptureFixture[str]) -> tuple[Path, list[str]]:
    assert run(["init", "mill", "--from", str(made.path), "--out", str(folder), "--json"]) == 0
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    return Path(told["mapping"]), told["fill_in"]


def ingested(made: DialectFile, mapping: Path, capsys: pytest.CaptureFixture[str]) -> StoredDataset:
    assert run(["ingest", str(made.path), "--mapping", str(mapping), "--json"]) == 0, capsys.readouterr().err
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert told["quarantined"] == 0
    return StoredDataset.open(Path(told["store"]), told["digest"])


def held_to_the_file(made: DialectFile, mapping: Path, held: StoredDataset) -> None:
    """Check every value: row k is values[k], the action of k, and values[k + 1]."""
    tags = load_yaml(mapping, HistorianMapping).tags
    assert set(tags) == set(made.columns)
    rows = held.arrays()
    observed = [name for name, tag in tags.items() if tag.role in ("observation", "set_point")]
    acting = [name for name, tag in tags.items() if tag.role == "action"]
    for names, key, part in (
        (observed, "observations", slice(None, -1)),
        (observed, "next_observations", slice(1, None)),
        (acting, "actions", slice(None, -1)),
    ):
        wanted = made.values[part][:, [made.columns.index(name) for name in names]]
        np.testing.assert_array_equal(rows[key], wanted.astype(np.float32))


@pytest.mark.slow
@pytest.mark.parametrize("kind", MAKERS)
def test_guessed_mapping_ingests_without_edits(
    kind: str, tmp_path: Path, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = MAKERS[kind](tmp_path)
    mapping, fill_in = begin(made, tmp_path / "mappings", capsys)
    if made.first:
        assert fill_in == []
    else:
        # The only line that cannot be guessed, found by the reported line number.
        (said,) = fill_in
        assert ", period_seconds: seconds between columns" in said
        lines = mapping.read_text().splitlines()
        at = int(said.split(",")[0].removeprefix("line ")) - 1
        assert run(["ingest", str(made.path), "--mapping", str(mapping)]) == 2
        assert f"mill.yaml, line {at + 1} must be a valid number, got a null" in capsys.readouterr().err
        lines[at] = "period_seconds: 180"
        mapping.write_text("\n".join(lines))
    held = ingested(made, mapping, capsys)
    held_to_the_file(made, mapping, held)
    assert load_yaml(mapping, HistorianMapping).period_seconds == made.period


def test_header_information_is_in_the_mapping(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mapping, _ = begin(MAKERS["turbine"](tmp_path), tmp_path, capsys)
    read = load_yaml(mapping, HistorianMapping)
    assert {tag.unit for tag in read.tags.values()} == {"m/s", "degree", "°C", "kW"}
    assert (read.dialect.delimiter, read.dialect.decimal, read.dialect.encoding, read.dialect.skip_rows) == (
        *("\t", ",", "cp1252"),
        2,
    )
    assert read.tags["Power SP [kW]"].role == "set_point"
    assert read.reward is not None
    assert read.reward.expression == "-abs(next.power - power_sp) / quantity(1, 'kW')"
    page = mapping.read_text().splitlines()
    guesses = [line for line in page if ":" in line and not line.startswith("#") and not line.endswith(":")]
    assert all("  # " in line for line in guesses), "every guess has its reason beside it"


def test_ambiguous_dates_are_asked_for(tmp_path: Path, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = batadal(tmp_path, hours=48, begin="2014-02-01T00")
    mapping, (said,) = begin(made, tmp_path, capsys)
    assert "'%d/%m/%y %H' or '%m/%d/%y %H': dates such as '01/02/14 00' fit several orders" in said
    assert run(["ingest", str(made.path), "--mapping", str(mapping)]) == 2
    assert "is not an unambiguous time: set clock.format in the mapping" in capsys.readouterr().err
    lines = mapping.read_text().splitlines()
    lines[int(said.split(",")[0].removeprefix("line ")) - 1] = "  format: '%d/%m/%y %H'"
    mapping.write_text("\n".join(lines))
    held = ingested(made, mapping, capsys)
    held_to_the_file(made, mapping, held)
    first = np.datetime64("2014-02-01T00:00:00", "ns").astype(np.int64)
    assert held.arrays()["timestamps"][0] == first


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "log.csv is empty"),
        (b"a\n1\n2\n", "is not a table of at least two columns"),
        (b"t,x\n", "has only a header"),
        (b"t,x,x\n2026-01-01 00:00,1,2\n2026-01-01 00:01,2,3\n", "has two columns 'x'"),
        (b"t,x\n2026-01-01 00:00,1\n2026-01-01 00:01,\x002\n", "is a binary file"),
        (bytes(range(256)) * 40, "is a binary file"),
        (b"\x89HDF\r\n\x1a\n" + b"\0" * 64, "is a binary file"),
        (b"t,x,y\n" + b"1" * 5_000_000, "has lines of more than 4 MB"),
        (b"t;x;y\n01/13/2014 00:00;1;2\n13/01/2014 00:00;1;2\n", "have no common order"),
        (b"t,x\n2026-01-01 00:00,1\n2026-01-01 00:01,2\n", "must have at least two usable signals"),
        (b"PAR1 is not enough", "log.csv is not a readable Parquet or CSV table"),
    ],
)
def test_non_logs_give_a_one_sentence_error(
    data: bytes, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "log.csv"
    path.write_bytes(data)
    assert run(["init", "--from", str(path), "--out", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert says in said
    assert said.count("\n") == 1
    assert not list(tmp_path.rglob("*.yaml"))


def test_too_many_columns_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names, values = (",".join(f"{sign}{i}" for i in range(30_000)) for sign in ("c", "1"))
    (tmp_path / "log.csv").write_text(f"time,{names}\n2026-01-01 00:00,{values}\n")
    assert run(["init", "--from", str(tmp_path / "log.csv"), "--out", str(tmp_path)]) == 2
    assert "log.csv has 30001 columns, the limit is 2000" in capsys.readouterr().err


def test_existing_mapping_is_kept_and_next_steps_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = MAKERS["skab"](tmp_path)
    assert run(["init", "--from", str(made.path), "--out", str(tmp_path)]) == 0
    told = capsys.readouterr().out.splitlines()
    assert f"wrote {tmp_path / 'configs' / 'mappings' / 'valve1.yaml'}" in told
    assert told[-1] == f"next: cd {tmp_path}, then neorl check configs/valve1.yaml"
    assert any(line.startswith("  check reward: a log does not show the control objective") for line in told)
    assert run(["init", "--from", str(made.path), "--out", str(tmp_path)]) == 2
    assert "exists already" in capsys.readouterr().err
    assert run(["init", "--from", str(tmp_path)]) == 2
    assert "is a folder" in capsys.readouterr().err


def test_long_tables_workbooks_and_batches(tmp_path: Path, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = 24
    values = numbers(rows, 2)
    times = np.datetime64("2026-01-05T00:00:00") + 10 * np.arange(rows)
    lines = ["Tag;Time;Value;Quality"]
    for time, row in zip(times, values, strict=True):
        lines += [f"{tag};{time};{x};Good" for tag, x in zip(("TIC-1.SP", "TIC-1.OP"), row, strict=True)]
    path = tmp_path / "long.csv"
    path.write_text("\n".join(lines))
    long = DialectFile(path, ("TIC-1.SP", "TIC-1.OP"), values, str(times[0]), 10.0)
    book = openpyxl.Workbook()
    sheet = book.active
    sheet.append(["Time", "Level [m]", "Valve.OP [%]"])
    for time, row in zip(times.astype(object), values.tolist(), strict=True):
        sheet.append([time, *row])
    book.save(tmp_path / "book.xlsx")
    workbook = DialectFile(tmp_path / "book.xlsx", ("Level [m]", "Valve.OP [%]"), values, str(times[0]), 10.0)
    for made in (long, workbook):
        mapping, fill_in = begin(made, tmp_path / made.path.stem, capsys)
        assert fill_in == []
        held_to_the_file(made, mapping, ingested(made, mapping, capsys))
    # One row per step: three batches of eight, with minutes from the start of each batch, in Parquet.
    frame = pl.DataFrame({"batch": np.arange(rows) // 8, "Level [m]": values[:, 0], "valve_op": values[:, 1]})
    frame.write_parquet(tmp_path / "batches.parquet")
    made = DialectFile(tmp_path / "batches.parquet", ("batch", "Level [m]", "valve_op"), values, "", 60.0)
    mapping, (said,) = begin(made, tmp_path / "batches", capsys)
    assert said.startswith("line 4, period_seconds: seconds between rows")
    mapping.write_text(mapping.read_text().replace("period_seconds:  #", "period_seconds: 60  #"))
    assert load_yaml(mapping, HistorianMapping).tags["batch"].role == "episode"
    held = ingested(made, mapping, capsys)
    inside = np.flatnonzero(np.arange(rows) % 8 != 7)
    assert len(held.episodes) - 1 == 3
    np.testing.assert_array_equal(held.arrays()["observations"][:, 0], values[inside, 0].astype(np.float32))
    np.testing.assert_array_equal(held.arrays()["next_observations"][:, 0], values[inside + 1, 0].astype(np.float32))
    np.testing.assert_array_equal(held.arrays()["actions"][:, 0], values[inside, 1].astype(np.float32))


def by_exception(seed: int = 0) -> pl.DataFrame:
    """Return two days of a long table: level every 20 s, temperature every ten minutes, and a moving valve."""
    rng = np.random.default_rng(seed)
    parts = []
    for tag, seconds in (("LT-1", 20.0), ("TT-2", 600.0), ("LV-1.OP", 45.0)):
        gone = np.cumsum(seconds * rng.uniform(0.5, 1.5, int(172_800 / seconds)))
        times = np.datetime64("2026-01-05", "ns") + (gone * 1e9).astype("timedelta64[ns]")
        value = np.sin(gone / 3000) + rng.normal(size=len(gone)) / 10
        parts.append(pl.DataFrame({"tag": tag, "timestamp": times, "value": value, "status": 0}))
    return pl.concat(parts).with_columns(pl.col("timestamp").dt.replace_time_zone("UTC")).sort("timestamp")


def test_log_archived_by_exception_is_ingested(tmp_path: Path, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = by_exception()
    table.write_parquet(tmp_path / "log.parquet")
    mapping, fill_in = begin(DialectFile(tmp_path / "log.parquet", (), np.zeros(0), "", 0.0), tmp_path, capsys)
    text, told = mapping.read_text(), load_yaml(mapping, HistorianMapping)
    assert fill_in == []
    assert "values come irregularly" in text
    # Each time has its zone.
    assert "no zone" not in text
    slow = table.filter(pl.col("tag") == "TT-2")["timestamp"].diff().dt.total_nanoseconds().drop_nulls().to_numpy()
    assert told.tags["TT-2"].stale_seconds == np.ceil(2.5 * np.quantile(slow, 0.99) / 1e9)
    assert told.tags["LV-1.OP"].stale_seconds is None
    assert run(["ingest", str(tmp_path / "log.parquet"), "--mapping", str(mapping), "--json"]) == 0
    (account,) = json.loads(capsys.readouterr().out.splitlines()[-1])["accounts"]
    assert account["rows"] > 0.95 * account["steps"]
    assert account["steps"] > 2 * 86_400 / told.period_seconds * 0.95
    # A laboratory value in every hundredth row of a wide table.
    wide = pl.DataFrame({"time": [f"2026-01-05T{k // 60:02d}:{k % 60:02d}:00Z" for k in range(1000)]})
    wide = wide.with_columns(a=pl.int_range(1000) % 7, valve=pl.int_range(1000) % 5, lab=pl.int_range(1000))
    wide = wide.with_columns(lab=pl.when(pl.col("lab") % 100 == 0).then("lab"))
    wide.write_csv(tmp_path / "wide.csv")
    assert run(["init", "sampled", "--from", str(tmp_path / "wide.csv"), "--out", str(tmp_path / "other")]) == 0
    text = next((tmp_path / "other").rglob("mappings/sampled.yaml")).read_text()
    assert '"lab": {role: observation, signal: lab, unit: "1", interpolation: sloped, stale_seconds: 15000}' in text
    assert "no zone" not in text


def test_deployment_joins_a_file_with_anchors(tmp_path: Path) -> None:
    """The project's prefect.yaml shares settings by anchors."""
    from configs.yaml_files import read_yaml
    from tasks.new_project.start import _deploy

    path = tmp_path / "prefect.yaml"
    path.write_text((Path(__file__).parents[3] / "prefect.yaml").read_text())
    before = read_yaml(path, aliases=True)["deployments"]
    assert _deploy(path, "", "  - name: tanks\n    entrypoint: flows/retrain.py:retrain\n")
    after = read_yaml(path, aliases=True)["deployments"]
    assert [entry["name"] for entry in after] == [*(entry["name"] for entry in before), "tanks"]
