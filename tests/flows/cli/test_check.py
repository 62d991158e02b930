"""`neorl check` on logs of plants."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest

from configs.home import Home
from flows.cli.check import Finding, examine_run
from flows.cli.main import run
from tests import small_process

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(("running", "ok"), [(400, True), (0, False)])
def test_export_may_begin_with_a_shutdown(running: int, ok: bool, tmp_path: Path) -> None:
    config = small_process.project(tmp_path)
    mode = "  RUN: {role: mode, interpolation: stepped, running: [1]}\nreward:"
    (tmp_path / "mapping.yaml").write_text(small_process.MAPPING.replace("reward:", mode, 1))
    log = small_process.export(tmp_path / "log.csv", 10_000 + running)
    table = pl.read_csv(log).with_row_index("RUN")
    table.with_columns((pl.col("RUN") >= 10_000).cast(pl.Int64)).write_csv(log)
    found = logs_of(Home(tmp_path / "home"), config, log)
    assert found.ok is ok, found
    assert ok or found.detail.startswith("log.csv has no usable rows: ")


def test_logs_in_another_home_are_found(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    place, named = Home(home), Path(".neorl/generated/double_mass/episodes.hdf5")
    there = home / "generated" / "double_mass" / "episodes.hdf5"
    config = ROOT / "configs" / "double_mass.yaml"
    missing = {found.name: found for found in examine_run(place, config, [named])}["logs"]
    cure = "put the file there, or run 'neorl generate double_mass'."
    assert missing.detail == f"no log file at {there}: {cure}"
    # Apply the cure.
    assert run(["generate", "double_mass", "--episodes", "4", "--json"]) == 0
    assert {found.name: found for found in examine_run(place, config, [named])}["logs"].detail == str(there)


def test_logs_may_be_named_by_digest(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["generate", "double_mass", "--behaviour", "expert", "--episodes", "3", "--json"]) == 0
    digest = json.loads(capsys.readouterr().out.splitlines()[-1])["digest"]
    config = ROOT / "configs" / "double_mass.yaml"
    assert run(["ingest", str(config), "--data", digest[:12], "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["rows"] == 300
    found = {found.name: found for found in examine_run(Home(home), config, [Path(digest[:12])])}
    assert found["signals"].ok, found
    assert Path(found["logs"].detail).parent == home / "datasets" / "double_mass" / "views"


def logs_of(home: Home, config: Path, log: Path) -> Finding:
    """Return the finding about signals; all earlier checks must pass."""
    return next(found for found in examine_run(home, config, [log]) if found.name == "signals" or not found.ok)
