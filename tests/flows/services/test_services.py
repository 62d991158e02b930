"""Real servers of a home: started once, recognised, never confused with others, and what a killed run leaves."""

from __future__ import annotations

import errno
import json
import os
import signal
import stat
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from configs.errors import BadInput, ServiceMissing
from configs.home import PASSPHRASE, Home
from flows.services import processes, rest, servers
from flows.services.locks import recorded_run
from flows.services.processes import ProcessId
from flows.services.state import Service, Services
from tasks.evidence.ledger import client, keys
from tasks.files.canonical import write_json
from tests.flows.services.waiting import foreign_server, killed_process, use_as_team

PROJECT = Path(__file__).parents[3]


def test_a_second_up_finds_the_same_servers(services: Services) -> None:
    """The first start is the fixture's; it also shows that the pinned FastAPI does not break Prefect's server."""
    from flows.services.servers import status, up

    again = up(services.home)
    assert again.started == ()
    assert (again.prefect, again.mlflow, again.worker) == (services.prefect, services.mlflow, services.worker)
    report = status(services.home)
    assert {name: row.state for name, row in report.services.items()} == dict.fromkeys(report.services, "running")
    assert set(report.services) == {"prefect", "mlflow", "metrics", "worker"}
    assert services.prefect.process is not None
    assert report.services["prefect"].pid == services.prefect.process.pid


def test_servers_listen_on_loopback_only(services: Services) -> None:
    import psutil

    for service in (services.prefect, services.mlflow):
        assert service.process is not None
        connections = psutil.Process(service.process.pid).net_connections("tcp")
        listening = {c.laddr.ip for c in connections if c.status == psutil.CONN_LISTEN}
        assert listening == {"127.0.0.1"}


def test_two_at_once_end_with_one_set(services: Services) -> None:
    variables = {**os.environ, "NEORL_HOME": str(services.home.root)}
    command = [sys.executable, "-m", "flows", "up", "--json"]
    both = [subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, cwd=PROJECT) for _ in range(2)]
    answers = [json.loads(process.communicate()[0].splitlines()[-1]) for process in both]
    assert [process.returncode for process in both] == [0, 0]
    for answer in answers:
        assert (answer["prefect"], answer["mlflow"]) == (services.prefect.url, services.mlflow.url)
        assert answer["started"] == []


def test_a_run_does_not_wait_for_a_worker_that_another_command_starts(services: Services) -> None:
    from flows.services.servers import up
    from tasks.files.locks import exclusive

    with exclusive(services.home.folder("locks") / "services.lock"):
        found = up(services.home, worker=False)
    assert (found.prefect, found.mlflow, found.started) == (services.prefect, services.mlflow, ())


def test_a_port_that_was_asked_for_must_be_free(services: Services, home: Path) -> None:
    from flows.services.servers import up

    assert services.prefect.port
    with pytest.raises(BadInput, match=rf"port {services.prefect.port} for Prefect is used by another program"):
        up(Home(home), prefect_port=services.prefect.port)
    other = processes.any_free_port()
    with pytest.raises(BadInput, match=rf"MLflow runs at .*, not on port {other}: run 'neorl down' first"):
        up(services.home, mlflow_port=other)
    assert up(services.home, mlflow_port=services.mlflow.port).started == ()


@pytest.mark.slow
def test_the_passphrase_goes_to_the_signer_and_to_no_server(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import psutil

    place, passphrase = Home(home), "known to one person"
    with foreign_server() as port:
        # A team's Prefect, so that there are only MLflow and the metrics to start.
        monkeypatch.setenv("NEORL_PREFECT_URL", f"http://127.0.0.1:{port}")
        monkeypatch.setenv(PASSPHRASE, passphrase)
        found = servers.up(place)
        try:
            assert found.started == ("mlflow", "metrics")
            assert found.mlflow.process is not None
            # One that has ended has no environment left, however long its parent waits to look.
            ours = psutil.Process().children(recursive=True)
            children = [child for child in ours if child.status() != psutil.STATUS_ZOMBIE]
            assert found.mlflow.process.pid in [child.pid for child in children]
            assert [child.pid for child in children if passphrase in child.environ().values()] == []
            assert PASSPHRASE not in os.environ
            # It opened the key that was made with this passphrase, and no file holds that.
            assert keys.must_be_asked_for(place)
            assert client.public_key(place)
        finally:
            stopped = servers.down(place)
    assert stopped == ["metrics", "mlflow", "signer"]
    assert not client.stop(place)


def test_a_home_that_signs_nothing_gets_no_signer_and_no_terminal_no_question(home: Path) -> None:
    place = Home(home)
    said: list[str] = []
    servers.start_signer(place, said.append)
    assert (said, client.stop(place)) == ([], False)
    assert not place.signing_key.exists()
    # A key whose passphrase no file holds, and nobody to ask.
    keys.open_keys(place, first_use=True, passphrase=b"known to one person")
    servers.start_signer(place, said.append)
    assert not client.stop(place)
    assert len(said) == 1
    assert f"set {PASSPHRASE} or run this on a terminal" in said[0]


def test_a_foreign_server_on_the_recorded_port_is_not_accepted(home: Path) -> None:
    with foreign_server() as port:
        me = ProcessId.current()
        entry = {"port": port, "url": f"http://127.0.0.1:{port}", "token": "t", "pid": me.pid, "created": me.created}
        write_json(Home(home).services, {"prefect": entry, "mlflow": entry})
        assert rest.answers(f"http://127.0.0.1:{port}/api/health")
        assert servers.status(Home(home)).services["prefect"].state == "stopped"
        with pytest.raises(ServiceMissing, match=r"expected Prefect to answer .* start it with 'neorl up'"):
            servers.connect(Home(home))
        # `down` must not touch a process that it did not start: here that would be the test itself.
        assert servers.down(Home(home)) == []
    assert json.loads(Home(home).services.read_text())["prefect"]["port"] == port


def test_down_of_another_home_leaves_these_running(services: Services, home: Path) -> None:
    from flows.services.servers import connect, down

    assert down(Home(home)) == []
    assert connect(services.home).prefect == services.prefect


def test_a_teams_servers_are_used_and_left_alone(
    services: Services, home: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    from flows.services.servers import down, environment, up

    monkeypatch.setenv("NEORL_PREFECT_URL", services.prefect_api)
    monkeypatch.setenv("NEORL_MLFLOW_URL", services.mlflow.url + "/")
    # A team hands its login out by environment; this home has none, and makes none.
    for name, value in environment(services).items():
        if name in {"PREFECT_API_AUTH_STRING", "MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD"}:
            monkeypatch.setenv(name, value)
    request.addfinalizer(lambda: down(Home(home)))
    team = up(Home(home))
    # The numbers of a home are its own, whoever runs the servers.
    assert team.started == ("metrics",)
    assert (team.prefect_api, team.mlflow.url, team.worker) == (services.prefect_api, services.mlflow.url, None)
    assert environment(team)["PREFECT_API_URL"] == services.prefect_api
    assert environment(team)["PREFECT_API_AUTH_STRING"] == environment(services)["PREFECT_API_AUTH_STRING"]
    assert team.ask_prefect("flows/filter", {"limit": 1}) is not None
    assert not Home(home).login.exists()
    with pytest.raises(BadInput, match="unset NEORL_PREFECT_URL"):
        up(Home(home), prefect_port=processes.any_free_port())
    assert down(Home(home)) == ["metrics"]
    monkeypatch.setenv("NEORL_MLFLOW_URL", f"http://127.0.0.1:{processes.any_free_port()}")
    with pytest.raises(ServiceMissing, match=r"expected MLflow at .* \(NEORL_MLFLOW_URL\), got no answer"):
        up(Home(home), timeout=1.0)


def test_flow_processes_send_no_telemetry_and_use_no_pickle(services: Services) -> None:
    from flows.services.servers import environment

    found = environment(services)
    # The list of design.md, 'Known traps'.
    assert found["DO_NOT_TRACK"] == found["MLFLOW_DISABLE_TELEMETRY"] == "true"
    assert found["PREFECT_SERVER_ANALYTICS_ENABLED"] == found["GX_ANALYTICS_ENABLED"] == "false"
    assert found["MLFLOW_MODEL_CATALOG_URI"] == ""
    assert found["PREFECT_RESULTS_DEFAULT_SERIALIZER"] == "json"
    assert found["MLFLOW_ALLOW_PICKLE_DESERIALIZATION"] == "false"
    settings = services.ask_prefect("admin/settings")
    assert settings["server"]["analytics_enabled"] is False


def test_mlflow_keeps_artifacts_in_the_home(services: Services) -> None:
    path = "mlflow-artifacts/artifacts/probe/hello.txt"
    login = {"Authorization": rest.basic(services.home.login.read_text().strip())}
    message = urllib.request.Request(f"{services.mlflow.url}/api/2.0/{path}", b"hello", login, method="PUT")
    with urllib.request.urlopen(message, timeout=60) as answer:
        assert answer.status == 200
    assert (services.home.root / "mlflow" / "artifacts" / "probe" / "hello.txt").read_bytes() == b"hello"
    assert (services.home.root / "mlflow" / "mlflow.db").exists()


def running_flow_run(services: Services) -> str:
    flow = services.ask_prefect("flows/", {"name": "probe"})
    state = {"type": "RUNNING", "name": "Running"}
    return str(services.ask_prefect("flow_runs/", {"flow_id": flow["id"], "state": state})["id"])


def test_a_killed_run_is_shown_as_crashed(services: Services) -> None:
    from flows.services.servers import reap_dead_runs

    run, going_on = running_flow_run(services), running_flow_run(services)
    dead = killed_process()
    record = {"created": dead.created, "flow_run": run, "pid": dead.pid, "plant": "p", "started": "now"}
    write_json(services.home.folder("locks", "runs") / f"{run}.json", record)
    unknown = {**record, "flow_run": "00000000-0000-4000-8000-000000000000"}
    write_json(services.home.folder("locks", "runs") / "unknown.json", unknown)
    with recorded_run(services.home, going_on, "p"):
        assert reap_dead_runs(services.home) == [run]
        assert reap_dead_runs(services.home) == []
    shown = services.ask_prefect(f"flow_runs/{run}")
    assert shown["state_type"] == "CRASHED"
    assert str(dead.pid) in shown["state"]["message"]
    assert services.ask_prefect(f"flow_runs/{going_on}")["state_type"] == "RUNNING"
    assert not list((services.home.root / "locks" / "runs").iterdir())


@pytest.mark.parametrize(("status", "kept"), [(500, True), (404, False)])
def test_a_killed_run_is_forgotten_only_where_prefect_knows_it_no_more(
    status: int, kept: bool, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead = killed_process()
    record = {"created": dead.created, "flow_run": "f", "pid": dead.pid, "plant": "p", "started": "now"}
    path = write_json(Home(home).folder("locks", "runs") / "f.json", record)
    with foreign_server(status) as port:
        use_as_team(port, monkeypatch)
        assert servers.reap_dead_runs(Home(home)) == []
    assert path.exists() is kept


@pytest.mark.slow
def test_a_run_waits_for_a_server_that_is_silent_for_a_while(services: Services) -> None:
    """As Prefect's is while it waits for a lock of its database: longer than a question alone bears."""
    assert services.prefect.process is not None
    pid = services.prefect.process.pid
    os.kill(pid, signal.SIGSTOP)
    going_on = threading.Timer(rest.SOON + 4, os.kill, (pid, signal.SIGCONT))
    going_on.start()
    try:
        assert not rest.answers(f"{services.prefect.url}/api/health", timeout=1.0)
        assert servers.connect(services.home).prefect == services.prefect
    finally:
        os.kill(pid, signal.SIGCONT)
        going_on.cancel()


def test_a_server_that_ends_is_reported_with_its_last_words(home: Path, tmp_path: Path) -> None:
    place = Home(home)
    process = processes.spawn(
        ["sh", "-c", "echo out of luck"], os.environ, place.folder("logs") / "mlflow.log", tmp_path
    )
    startup = servers._Startup(place, {"mlflow": processes.any_free_port()}, time.monotonic() + 60, lambda _: None)
    startup.found["mlflow"] = Service("mlflow", "http://127.0.0.1:1", 1, process, "t")
    with pytest.raises(ServiceMissing, match=r"got a process that ended \(out of luck\): read .*mlflow\.log"):
        startup._wait("mlflow")
    processes.stop([process])


def test_a_server_whose_record_cannot_be_written_is_not_left_behind(home: Path) -> None:
    """Nobody could stop what no record names: a file system that does not take the record ends the server, too."""
    import psutil

    record, before = Home(home).services, {child.pid for child in psutil.Process().children()}
    write_json(record, {})
    # What is mounted cannot be replaced, but by root alone.
    if subprocess.run(["mount", "--bind", str(record), str(record)], capture_output=True, check=False).returncode:
        pytest.skip("this account may not mount")
    try:
        with pytest.raises(OSError, match="services"):
            servers.up(Home(home), worker=False)
    finally:
        subprocess.run(["umount", "-l", str(record)], check=True, capture_output=True)
    assert not {child.pid for child in psutil.Process().children()} - before


@pytest.mark.parametrize(("number", "told"), [(errno.ENOSPC, "expected room"), (errno.EROFS, "expected to be allowed")])
def test_a_server_is_not_left_behind_on_a_disk_that_takes_no_more(
    number: int, told: str, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import psutil

    record, before = Home(home).services, {child.pid for child in psutil.Process().children()}
    put = os.replace

    def full(source: Path, target: Path) -> None:
        if target == record:
            raise OSError(number, os.strerror(number))
        put(source, target)

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(BadInput, match=told):
        servers.up(Home(home), worker=False)
    assert not {child.pid for child in psutil.Process().children()} - before


def test_a_broken_record_of_services_is_named(home: Path) -> None:
    home.mkdir()
    for broken in ("{", "[]", '{"mlflow": {"port": 1}}', '{"mlflow": 5}'):
        Home(home).services.write_text(broken)
        with pytest.raises(BadInput, match=r"expected JSON in .*services\.json"):
            servers.status(Home(home))


def test_requests_do_not_hide_errors(services: Services) -> None:
    with pytest.raises(urllib.error.HTTPError):
        services.ask_prefect("flow_runs/none")
    assert not rest.answers(f"http://127.0.0.1:{processes.any_free_port()}/")


def test_a_request_without_the_login_is_refused(services: Services) -> None:
    with pytest.raises(urllib.error.HTTPError, match="401"):
        rest.request(f"{services.prefect_api}/flows/filter", {})


def test_only_the_owner_can_look_into_the_home_and_read_the_login(services: Services) -> None:
    root = services.home.root
    folders = [path for path in [root, *root.iterdir()] if path.is_dir()]
    assert {path.name: stat.S_IMODE(path.stat().st_mode) for path in folders} == {p.name: 0o700 for p in folders}
    # Databases and logs are made by the servers themselves.
    files = [path for path in root.rglob("*") if path.is_file() and path.suffix in {".db", ".log", ".toml"}]
    assert {"mlflow.db", "prefect.db", "prefect.log", "profiles.toml"} <= {path.name for path in files}
    assert not [path for path in [*files, services.home.login] if stat.S_IMODE(path.stat().st_mode) & 0o077]


def test_the_login_is_on_no_command_line_in_no_log_and_in_no_status(
    services: Services, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import psutil

    from flows.cli.main import run

    monkeypatch.setenv("NEORL_HOME", str(services.home.root))
    password = services.home.login.read_text().strip().partition(":")[2]
    assert len(password) >= 32
    assert run(["up"]) == 0
    said = capsys.readouterr().out
    assert str(services.home.login) in said
    for words in (["up", "--json"], ["status"], ["status", "--json"], ["doctor", "--json"]):
        run(words)
        said += "".join(capsys.readouterr())
    assert password not in said
    ours = [service.process for service in (services.prefect, services.mlflow, services.worker) if service]
    commands = [" ".join(psutil.Process(process.pid).cmdline()) for process in ours if process]
    assert len(commands) == 3
    logs = [path.read_text(errors="replace") for path in (services.home.root / "logs").iterdir()]
    assert logs
    assert not [text for text in [*commands, *logs] if password in text]
    assert password not in services.home.services.read_text()
    settings = json.dumps(services.ask_prefect("admin/settings"))
    assert password not in settings
    assert run(["status", "--export"]) == 0
    assert password in capsys.readouterr().out
