"""Checks before servers start, and messages about failing servers."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from configs.errors import BadInput
from configs.home import Home
from flows.cli.run_flow import _lost, run_fleet, run_retrain
from flows.services.processes import ProcessId
from flows.services.state import Service

CONFIGS = Path(__file__).resolve().parents[3] / "configs"


def test_a_failing_server_is_not_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    request = httpx.Request("GET", "http://127.0.0.1:4200/api/flow_runs")
    refused = httpx.ConnectError("refused", request=request)
    failed = httpx.HTTPStatusError("failed", request=request, response=httpx.Response(503, request=request))
    team = Service("prefect", "http://127.0.0.1:4200")
    for error in (refused, failed):
        assert "start it with 'neorl up'" in str(_lost(team, error))
    monkeypatch.setenv("NEORL_PREFECT_DATABASE_URL", "postgresql://db.plant.local/prefect")
    assert "start it with 'neorl up'" in str(_lost(team, refused))
    assert "check the database (NEORL_PREFECT_DATABASE_URL)" in str(_lost(team, failed))


def test_a_rejected_login_is_named_with_its_source() -> None:
    request = httpx.Request("POST", "http://127.0.0.1:4200/api/flow_runs")
    error = httpx.HTTPStatusError("refused", request=request, response=httpx.Response(401, request=request))
    team = Service("prefect", "http://127.0.0.1:4200")
    began = "Prefect at http://127.0.0.1:4200 rejected the login (HTTP 401): "
    assert str(_lost(team, error)) == f"{began}set PREFECT_API_AUTH_STRING to name:password."
    own = replace(team, process=ProcessId.current())
    assert str(_lost(own, error)) == f"{began}run 'neorl down', then 'neorl up'."


class Started(Exception):
    """Raised instead of starting servers."""


@pytest.fixture
def no_servers(home: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    """A home where starting servers raises Started."""

    def started(*_: object, **__: object) -> None:
        raise Started

    monkeypatch.setattr("flows.cli.run_flow.up", started)
    # Outside the checkout, which has a home of its own.
    monkeypatch.chdir(home.parent)
    return Home(home)


def test_missing_logs_start_no_server(no_servers: Home, tmp_path: Path) -> None:
    gone = tmp_path / "gone.hdf5"
    with pytest.raises(BadInput, match=f"there is no source {re.escape(str(gone))}: check the path"):
        run_retrain(CONFIGS / "chemical_reactor.yaml", [gone])


def test_home_paths_are_resolved_and_usual_log_generated(no_servers: Home) -> None:
    config = CONFIGS / "double_mass.yaml"
    with pytest.raises(Started):
        run_retrain(config, [Path(".neorl/generated/double_mass/episodes.hdf5")])
    own = Path(".neorl/logs.hdf5")
    with pytest.raises(BadInput, match=f"there is no source {re.escape(str(no_servers.root / 'logs.hdf5'))}"):
        run_retrain(config, [own])
    (no_servers.folder() / "logs.hdf5").touch()
    with pytest.raises(Started):
        run_retrain(config, [own])


def test_fleet_without_logs_starts_no_server(no_servers: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = tmp_path / "fleet.yaml"
    fleet.write_text("fleet: masses\nplant: double_mass\nlogs: ['{site}.hdf5']\nsites: {east: , west: }\n")
    with pytest.raises(BadInput, match=f"there is no source {re.escape(str(tmp_path / 'east.hdf5'))}"):
        run_fleet(fleet, None)
    (tmp_path / "west.hdf5").touch()
    with pytest.raises(BadInput, match=r"east\.hdf5"):
        run_fleet(fleet, ["east"])
    # The flow itself refuses a single site without logs.
    with pytest.raises(Started):
        run_fleet(fleet, None)
    # An unencrypted Dask address of another machine starts no server either.
    monkeypatch.setenv("NEORL_DASK_SCHEDULER", "tcp://10.0.0.7:8786")
    with pytest.raises(BadInput, match="must begin with tls://"):
        run_fleet(fleet, None)
