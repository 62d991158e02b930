"""What a retraining's command says of a server that fails it."""

from __future__ import annotations

import httpx
import pytest

from flows.cli.launch import _cure


def test_a_server_that_answers_with_an_error_of_its_own_is_not_to_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    request = httpx.Request("GET", "http://127.0.0.1:4200/api/flow_runs")
    refused = httpx.ConnectError("refused", request=request)
    failed = httpx.HTTPStatusError("failed", request=request, response=httpx.Response(503, request=request))
    assert _cure(refused) == _cure(failed) == "start it with 'neorl up'"
    monkeypatch.setenv("NEORL_PREFECT_DATABASE_URL", "postgresql://db.plant.local/prefect")
    assert _cure(refused) == "start it with 'neorl up'"
    assert _cure(failed) == "check its database (NEORL_PREFECT_DATABASE_URL)"
