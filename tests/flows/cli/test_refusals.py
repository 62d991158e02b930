"""Refusals before training: missing server, invalid logs, too little data."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl
import pytest

from tasks.evidence.ledger.ledger import Ledger
from tests.flows.test_retrain import CONFIG, PLANT, PROJECT

if TYPE_CHECKING:
    from flows.services.servers import Services

Neorl = Callable[..., dict[str, Any]]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def command(services: Services) -> Neorl:
    """Return a function that runs `neorl` on the session's servers and returns its JSON with the exit code."""
    environment = {**os.environ, "NEORL_HOME": str(services.home.root)}

    def run(*arguments: str, **extra: str) -> dict[str, Any]:
        words = [sys.executable, "-m", "flows", *arguments, "--json"]
        known = {**environment, **extra}
        done = subprocess.run(words, cwd=PROJECT, env=known, capture_output=True, text=True, check=False)
        assert "Traceback" not in done.stderr, done.stderr
        answer: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
        return {**answer, "exit": done.returncode}

    return run


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory, command: Neorl) -> tuple[Path, Path]:
    """Return (config, log) of a short reactor log and a small run."""
    folder = tmp_path_factory.mktemp("refused")
    assert command("generate", PLANT, "--out", str(folder), "--weeks", "0.1")["exit"] == 0
    mapping = PROJECT / "configs" / "mappings" / "chemical_reactor.yaml"
    config = folder / "run.yaml"
    config.write_text(CONFIG.format(seed=0, approval="auto", mapping=mapping))
    return config, folder / "historian.parquet"


def test_a_missing_server_is_named_with_a_cure(command: Neorl, inputs: tuple[Path, Path]) -> None:
    config, log = inputs
    gone = command("retrain", str(config), "--data", str(log), NEORL_MLFLOW_URL="http://127.0.0.1:9")
    assert gone["exit"] == 3
    assert "MLflow" in gone["error"]


def test_refused_data_leave_a_record(command: Neorl, inputs: tuple[Path, Path], services: Services) -> None:
    config, log = inputs
    unreadable = log.with_name("unreadable.parquet")
    unreadable.write_bytes(b"no log")
    before = datetime.now(UTC).isoformat()
    refused = command("retrain", str(config), "--data", str(unreadable))
    assert refused["exit"] == 2
    refusals = Ledger.open(services.home, write=False).entries("refusal", PLANT)
    assert refusals[-1].body["reason"] == refused["error"]
    # Prefect shows the same sentence in the state, and no traceback in the log.
    failed = {"state": {"type": {"any_": ["FAILED"]}}, "start_time": {"after_": before}}
    wanted = {"flows": {"name": {"any_": ["retrain"]}}, "flow_runs": failed}
    (run,) = services.ask_prefect("flow_runs/filter", wanted)
    assert run["state"]["message"] == refused["error"]
    lines = services.ask_prefect("logs/filter", {"logs": {"flow_run_id": {"any_": [run["id"]]}}, "limit": 200})
    assert not [line["message"] for line in lines if "Traceback" in line["message"]]


def test_failed_validation_stops_before_training(command: Neorl, inputs: tuple[Path, Path], services: Services) -> None:
    config, log = inputs
    few = log.with_name("few.parquet")
    soon = pl.col("timestamp") < pl.col("timestamp").min() + pl.duration(hours=1)
    pl.read_parquet(log).filter(soon).write_parquet(few)
    checkpoints = set(services.home.folder("checkpoints", PLANT).iterdir())
    refused = command("retrain", str(config), "--data", str(few))
    assert refused["exit"] == 1, refused
    assert refused["error"].startswith("the dataset failed validation: ")
    last = Ledger.open(services.home, write=False).entries()[-1]
    assert (last.kind, last.plant, last.body["reason"]) == ("refusal", PLANT, refused["error"])
    assert set(services.home.folder("checkpoints", PLANT).iterdir()) == checkpoints
