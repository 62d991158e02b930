"""What a retraining's command says before it starts servers, and of a server that fails it."""

from __future__ import annotations

import re
from pathlib import Path

import httpx
import pytest

from configs.errors import BadInput
from flows.cli.launch import _cure, run_retrain

CONFIGS = Path(__file__).resolve().parents[3] / "configs"


def test_a_server_that_answers_with_an_error_of_its_own_is_not_to_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    request = httpx.Request("GET", "http://127.0.0.1:4200/api/flow_runs")
    refused = httpx.ConnectError("refused", request=request)
    failed = httpx.HTTPStatusError("failed", request=request, response=httpx.Response(503, request=request))
    assert _cure(refused) == _cure(failed) == "start it with 'neorl up'"
    monkeypatch.setenv("NEORL_PREFECT_DATABASE_URL", "postgresql://db.plant.local/prefect")
    assert _cure(refused) == "start it with 'neorl up'"
    assert _cure(failed) == "check its database (NEORL_PREFECT_DATABASE_URL)"


def test_logs_that_are_not_there_start_no_server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def started(*_: object, **__: object) -> None:
        raise AssertionError

    monkeypatch.setenv("NEORL_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("flows.cli.launch.up", started)
    gone = tmp_path / "gone.hdf5"
    with pytest.raises(BadInput, match=f"expected a source at {re.escape(str(gone))}, got none: check the path"):
        run_retrain(CONFIGS / "chemical_reactor.yaml", [gone])
