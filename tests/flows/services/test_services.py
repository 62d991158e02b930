"""Real servers of a home: start, recognition, isolation, and killed runs."""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from configs.errors import BadInput, ServiceMissing
from configs.home import PASSPHRASE, Home
from flows.services import processes, rest, servers, service_table
from flows.services.locks import recorded_run
from flows.services.processes import ProcessId
from flows.services.state import Service, Services
from tasks.evidence.ledger import client, keys
from tasks.files.canonical import write_json
from tests.flows.services.waiting import foreign_server, killed_process, use_as_team

PROJECT = Path(__file__).parents[3]


def test_up_is_idempotent(services: Services) -> None:
    """The fixture makes the first start, which also shows that Prefect's server works with the pinned FastAPI."""
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
    for service in (services.prefect, services.mlflow):
        assert service.process is not None
        connections = psutil.Process(service.process.pid).net_connections("tcp")
        listening = {c.laddr.ip for c in connections if c.status == psutil.CONN_LISTEN}
        assert listening == {"127.0.0.1"}


def test_concurrent_starts_share_one_set_of_servers(services: Services) -> None:
    variables = {**os.environ, "NEORL_HOME": str(services.home.root)}
    command = [sys.executable, "-m", "flows", "up", "--json"]
    both = [subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, cwd=PROJECT) for _ in range(2)]
    answers = [json.loads(process.communicate()[0].splitlines()[-1]) for process in both]
    assert [process.returncode for process in both] == [0, 0]
    for answer in answers:
        assert (answer["prefect"], answer["mlflow"]) == (services.prefect.url, services.mlflow.url)
        assert answer["started"] == []


def test_a_run_does_not_wait_for_another_commands_worker(services: Services) -> None:
    from flows.services.servers import up
    from tasks.files.canonical import exclusive

    with exclusive(services.home.folder("locks") / "services.lock"):
        found = up(services.home, worker=False)
    assert (found.prefect, found.mlflow, found.started) == (services.prefect, services.mlflow, ())


def test_a_requested_port_must_be_free(services: Services, home: Path) -> None:
    from flows.services.servers import up

    assert services.prefect.port
    with pytest.raises(BadInput, match=rf"port {services.prefect.port} for Prefect is used by another program"):
        up(Home(home), prefect_port=services.prefect.port)
    other = processes.any_free_port()
    with pytest.raises(BadInput, match=rf"MLflow runs at .*, not on port {other}: run 'neorl down' first"):
        up(services.home, mlflow_port=other)
    assert up(services.home, mlflow_port=services.mlflow.port).started == ()


@pytest.mark.slow
def test_only_the_signer_gets_the_passphrase(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place, passphrase = Home(home), "known to one person"
    with foreign_server() as port:
        # With a team's Prefect, only MLflow and metrics start.
        monkeypatch.setenv("NEORL_PREFECT_URL", f"http://127.0.0.1:{port}")
        monkeypatch.setenv(PASSPHRASE, passphrase)
        found = servers.up(place)
        try:
            assert found.started == ("mlflow", "metrics")
            assert found.mlflow.process is not None
            # Ended processes have no environment, even before their parent collects them.
            ours = psutil.Process().children(recursive=True)
            children = [child for child in ours if child.status() != psutil.STATUS_ZOMBIE]
            assert found.mlflow.process.pid in [child.pid for child in children]
            assert [child.pid for child in children if passphrase in child.environ().values()] == []
            assert PASSPHRASE not in os.environ
            # It opened the key, and no file has its passphrase.
            assert keys.must_be_asked_for(place)
            assert client.public_key(place)
        finally:
            stopped = servers.down(place)
    assert stopped == ["metrics", "mlflow", "signer"]
    assert not client.stop(place)


def test_a_home_without_key_starts_no_signer(home: Path) -> None:
    place = Home(home)
    said: list[str] = []
    servers.start_signer(place, said.append)
    assert (said, client.stop(place)) == ([], False)
    assert not place.signing_key.exists()
    # A key without a stored passphrase, and no terminal.
    keys.open_keys(place, first_use=True, passphrase=b"known to one person")
    servers.start_signer(place, said.append)
    assert not client.stop(place)
    assert len(said) == 1
    assert f"set {PASSPHRASE}, or run this on a terminal" in said[0]


def test_a_foreign_server_on_the_port_is_not_accepted(home: Path) -> None:
    with foreign_server() as port:
        me = ProcessId.current()
        entry = {"port": port, "url": f"http://127.0.0.1:{port}", "token": "t", "pid": me.pid, "created": me.created}
        write_json(Home(home).services, {"prefect": entry, "mlflow": entry})
        assert rest.answers(f"http://127.0.0.1:{port}/api/health")
        assert servers.status(Home(home)).services["prefect"].state == "stopped"
        with pytest.raises(ServiceMissing, match=r"Prefect of .* does not answer: start it with 'neorl up'"):
            servers.connect(Home(home))
        # `down` must not touch foreign processes, here the test itself.
        assert servers.down(Home(home)) == []
    assert json.loads(Home(home).services.read_text())["prefect"]["port"] == port


def test_down_leaves_other_homes_running(services: Services, home: Path) -> None:
    from flows.services.servers import connect, down

    assert down(Home(home)) == []
    assert connect(services.home).prefect == services.prefect


def test_a_teams_servers_are_used_and_left_alone(
    services: Services, home: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    from flows.services.servers import down, environment, up

    monkeypatch.setenv("NEORL_PREFECT_URL", services.prefect_api)
    monkeypatch.setenv("NEORL_MLFLOW_URL", services.mlflow.url + "/")
    # A team sets its login in the environment; no home login is created.
    for name, value in environment(services).items():
        if name in {"PREFECT_API_AUTH_STRING", "MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD"}:
            monkeypatch.setenv(name, value)
    request.addfinalizer(lambda: down(Home(home)))
    team = up(Home(home))
    # A home has metrics even with a team's servers.
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
    with pytest.raises(ServiceMissing, match=r"MLflow at .* \(NEORL_MLFLOW_URL\) does not answer"):
        up(Home(home), timeout=1.0)


def test_flow_processes_send_no_telemetry_and_use_no_pickle(services: Services) -> None:
    from flows.services.servers import environment

    found = environment(services)
    # The list in design.md, 'Known traps'.
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
def test_records_are_kept_until_prefect_answers(
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
def test_a_run_waits_for_a_silent_server(services: Services) -> None:
    """Prefect is silent while it waits for a lock of its database."""
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


def test_an_ended_server_is_reported_with_its_log(home: Path, tmp_path: Path) -> None:
    place = Home(home)
    process = processes.spawn(
        ["sh", "-c", "echo out of luck"], os.environ, place.folder("logs") / "mlflow.log", tmp_path
    )
    startup = servers._Startup(place, {"mlflow": processes.any_free_port()}, time.monotonic() + 60, lambda _: None)
    startup.current["mlflow"] = Service("mlflow", "http://127.0.0.1:1", 1, process, "t")
    with pytest.raises(ServiceMissing, match=r"MLflow ended by itself \(out of luck\): read .*mlflow\.log"):
        startup._wait("mlflow")
    processes.stop([process])


def test_a_server_whose_port_was_taken_starts_on_a_free_port(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another program can take a port after the check that the port is free."""
    place, true_start = Home(tmp_path), service_table.start
    taken = socket.create_server(("127.0.0.1", 0))
    ports: list[int] = []

    def late(home: Home, name: str, port: int, *rest: Any) -> Service:
        """Start the service on the taken port first, and let it print a long report after the error."""
        service = true_start(home, name, port if ports else taken.getsockname()[1], *rest)
        ports.append(service.port)
        if len(ports) == 1:
            with suppress(psutil.TimeoutExpired):
                psutil.Process(service.process.pid).wait(60) if service.process else None
            with processes.private_log(place.folder("logs") / "prefect.log") as log:
                log.write(b"Traceback\n" * 1000)
        return service

    monkeypatch.setattr(service_table, "start", late)
    startup = servers._Startup(place, {}, time.monotonic() + 120, lambda _: None)
    try:
        startup._start("prefect")
        startup._wait("prefect")
        assert len(ports) == 2
        assert startup.current["prefect"].port == ports[1] != ports[0]
    finally:
        taken.close()
        servers.down(place)


def test_a_server_without_a_record_is_stopped(home: Path) -> None:
    """`neorl down` finds only recorded servers, so a failed write of the record must stop the server."""
    record, before = Home(home).services, {child.pid for child in psutil.Process().children()}
    write_json(record, {})
    # Only root can mount over the file.
    if subprocess.run(["mount", "--bind", str(record), str(record)], capture_output=True, check=False).returncode:
        pytest.skip("this account may not mount")
    try:
        with pytest.raises(OSError, match="services"):
            servers.up(Home(home), worker=False)
    finally:
        subprocess.run(["umount", "-l", str(record)], check=True, capture_output=True)
    assert not {child.pid for child in psutil.Process().children()} - before


@pytest.mark.parametrize(
    ("number", "told"), [(errno.ENOSPC, "no room|free"), (errno.EROFS, "cannot write services.json")]
)
def test_a_full_disk_leaves_no_server_behind(
    number: int, told: str, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_a_damaged_record_is_named(home: Path) -> None:
    home.mkdir()
    for broken in ("{", "[]", '{"mlflow": {"port": 1}}', '{"mlflow": 5}'):
        Home(home).services.write_text(broken)
        with pytest.raises(BadInput, match=r"services\.json is damaged"):
            servers.status(Home(home))


def test_requests_raise_errors(services: Services) -> None:
    with pytest.raises(urllib.error.HTTPError):
        services.ask_prefect("flow_runs/none")
    assert not rest.answers(f"http://127.0.0.1:{processes.any_free_port()}/")


def test_a_request_without_login_is_refused(services: Services) -> None:
    with pytest.raises(urllib.error.HTTPError, match="401"):
        rest.request(f"{services.prefect_api}/flows/filter", {})


def test_only_the_owner_can_read_home_and_login(services: Services) -> None:
    root = services.home.root
    folders = [path for path in [root, *root.iterdir()] if path.is_dir()]
    assert {path.name: stat.S_IMODE(path.stat().st_mode) for path in folders} == {p.name: 0o700 for p in folders}
    # The servers create databases and logs themselves.
    files = [path for path in root.rglob("*") if path.is_file() and path.suffix in {".db", ".log", ".toml"}]
    assert {"mlflow.db", "prefect.db", "prefect.log", "profiles.toml"} <= {path.name for path in files}
    assert not [path for path in [*files, services.home.login] if stat.S_IMODE(path.stat().st_mode) & 0o077]


def test_the_login_is_in_no_command_line_log_or_status(
    services: Services, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
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
