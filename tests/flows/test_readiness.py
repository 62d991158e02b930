"""What `neorl check` says of logs as plants have them."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from configs.home import Home
from flows.readiness import Finding, examine_run
from tests import small_process


@pytest.mark.parametrize(("running", "ok"), [(400, True), (0, False)])
def test_an_export_may_begin_with_a_shutdown_that_fills_a_block(running: int, ok: bool, tmp_path: Path) -> None:
    config = small_process.project(tmp_path)
    mode = "  RUN: {role: mode, interpolation: stepped, running: [1]}\nreward:"
    (tmp_path / "mapping.yaml").write_text(small_process.MAPPING.replace("reward:", mode, 1))
    log = small_process.export(tmp_path / "log.csv", 10_000 + running)
    table = pl.read_csv(log).with_row_index("RUN")
    table.with_columns((pl.col("RUN") >= 10_000).cast(pl.Int64)).write_csv(log)
    found = logs_of(Home(tmp_path / "home"), config, log)
    assert found.ok is ok, found
    assert ok or found.detail.startswith("expected rows in log.csv, got none: ")


def logs_of(home: Home, config: Path, log: Path) -> Finding:
    """What is said of the signals in a log; what comes before must be in order."""
    return next(found for found in examine_run(home, config, [log]) if found.name == "signals" or not found.ok)
