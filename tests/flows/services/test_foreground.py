"""Errors of `neorl serve` and `neorl register`; `tests/infra/test_commands.py` runs them successfully."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from configs.errors import ServiceMissing
from configs.home import Home
from flows.cli.main import run
from flows.services.processes import ProcessId
from flows.services.servers import _Startup, down
from flows.services.service_table import SERVERS
from flows.services.state import Service
from tests.flows.services.waiting import foreign_server, use_as_team

NO_LOGIN = "no-colon-in-it"


def test_wrong_service_login_or_servers_are_one_sentence(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["serve", "ledger"]) == 2
    said = capsys.readouterr().err
    assert "unknown service 'ledger': choose from prefect, mlflow, metrics, worker." in said
    monkeypatch.setenv("NEORL_SERVICE_LOGIN", NO_LOGIN)
    assert run(["serve", "prefect", "--port", "4200"]) == 2
    said = capsys.readouterr().err
    assert "NEORL_SERVICE_LOGIN must have the form name:password" in said
    assert NO_LOGIN not in said
    for command in (["serve", "worker"], ["register"]):
        assert run(command) == 3
        assert "does not answer: start it" in capsys.readouterr().err


@pytest.mark.parametrize("status", [401, 403])
def test_a_rejected_login_is_one_sentence(
    status: int, home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with foreign_server(status) as port:
        use_as_team(port, monkeypatch)
        assert run(["register"]) == 3
    said = capsys.readouterr().err
    assert f"rejected the login (HTTP {status}): set PREFECT_API_AUTH_STRING to name:password." in said
    assert said.count("\n") == 1


def test_an_error_of_prefect_is_one_sentence(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with foreign_server(500) as port:
        with monkeypatch.context() as team:
            use_as_team(port, team)
            assert run(["register"]) == 3
            said = capsys.readouterr().err
            assert f"a request to Prefect at http://127.0.0.1:{port} failed (HTTP Error 500: Inter" in said
            assert said.endswith("): read Prefect's log, then repeat the command.\n")
            assert said.count("\n") == 1
        startup = _Startup(Home(home), {}, time.monotonic() + 60, lambda _: None)
        for name in SERVERS:
            startup.current[name] = Service(name, f"http://127.0.0.1:{port}", port, ProcessId.current(), "t")
        with pytest.raises(ServiceMissing, match=r"failed \(HTTP Error 500.*\): read .*/logs/prefect\.log"):
            startup.run(worker=True)
        # Started services keep running for the repeated command.
        assert down(Home(home)) == ["metrics"]
