"""Real servers of a home: started once, recognised, never confused with others, and what a killed run leaves."""

from __future__ import annotations

import http.server
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from configs.errors import BadInput, Refused, ServiceMissing
from configs.home import Home
from flows.cli.doctor import examine
from flows.services import deployments as deploy
from flows.services import processes
from flows.services import servers as services
from flows.services.locks import ProcessId, dead_runs, exclusive, holders, plant_lock, recorded_run
from flows.services.servers import Service, Services
from tasks.adapters.files.canonical import write_json

PROJECT = Path(__file__).parents[3]


def wait_until(condition: object, seconds: float = 120.0) -> None:
    """Wait for something that another process does; the limit only ends a test that has failed."""
    end = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.1)


@contextmanager
def foreign_server() -> Iterator[int]:
    """A web server that says yes to everything and belongs to nobody we know."""

    class Yes(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"true")

        def log_message(self, format: str, *args: object) -> None:
            pass

    with http.server.ThreadingHTTPServer((processes.HOST, 0), Yes) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()


def test_a_second_up_finds_the_same_servers(services: Services) -> None:
    """The first start is the fixture's; it also shows that the pinned FastAPI does not break Prefect's server."""
    from flows.services.servers import status, up

    again = up(services.home)
    assert again.started == ()
    assert (again.prefect, again.mlflow, again.worker) == (services.prefect, services.mlflow, services.worker)
    report = status(services.home)
    assert [report[name]["state"] for name in ("prefect", "mlflow", "worker")] == ["running"] * 3
    assert services.prefect.process is not None
    assert report["prefect"]["pid"] == services.prefect.process.pid


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


def test_a_port_that_was_asked_for_must_be_free(services: Services, home: Path) -> None:
    from flows.services.servers import up

    assert services.prefect.port
    with pytest.raises(BadInput, match=rf"expected port {services.prefect.port} to be free for Prefect"):
        up(Home(home), prefect_port=services.prefect.port)
    other = processes.any_free_port()
    with pytest.raises(BadInput, match=rf"MLflow on port {other}, got it at .* already: run 'neorl down' first"):
        up(services.home, mlflow_port=other)
    assert up(services.home, mlflow_port=services.mlflow.port).started == ()


def test_a_foreign_server_on_the_recorded_port_is_not_accepted(home: Path) -> None:
    with foreign_server() as port:
        me = ProcessId.current()
        entry = {"port": port, "url": f"http://127.0.0.1:{port}", "token": "t", "pid": me.pid, "created": me.created}
        write_json(Home(home).services, {"prefect": entry, "mlflow": entry})
        assert processes.answers(f"http://127.0.0.1:{port}/api/health")
        assert services.status(Home(home))["prefect"]["state"] == "stopped"
        with pytest.raises(ServiceMissing, match=r"expected Prefect to answer .* start it with 'neorl up'"):
            services.connect(Home(home))
        # `down` must not touch a process that it did not start: here that would be the test itself.
        assert services.down(Home(home)) == []
    assert json.loads(Home(home).services.read_text())["prefect"]["port"] == port


def test_down_of_another_home_leaves_these_running(services: Services, home: Path) -> None:
    from flows.services.servers import connect, down

    assert down(Home(home)) == []
    assert connect(services.home).prefect == services.prefect


def test_a_teams_servers_are_used_and_left_alone(
    services: Services, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from flows.services.servers import down, environment, up

    monkeypatch.setenv("NEORL_PREFECT_URL", services.prefect_api)
    monkeypatch.setenv("NEORL_MLFLOW_URL", services.mlflow.url + "/")
    team = up(Home(home))
    assert team.started == ()
    assert (team.prefect_api, team.mlflow.url, team.worker) == (services.prefect_api, services.mlflow.url, None)
    assert environment(team)["PREFECT_API_URL"] == services.prefect_api
    with pytest.raises(BadInput, match="unset NEORL_PREFECT_URL"):
        up(Home(home), prefect_port=processes.any_free_port())
    assert down(Home(home)) == []
    monkeypatch.setenv("NEORL_MLFLOW_URL", f"http://127.0.0.1:{processes.any_free_port()}")
    with pytest.raises(ServiceMissing, match=r"expected MLflow at .* \(NEORL_MLFLOW_URL\), got no answer"):
        up(Home(home), timeout=1.0)


def test_flow_processes_are_quiet_offline_and_without_pickle(services: Services) -> None:
    from flows.services.servers import environment

    found = environment(services)
    # The list of design.md, 'Known traps'.
    assert found["DO_NOT_TRACK"] == found["MLFLOW_DISABLE_TELEMETRY"] == "true"
    assert found["PREFECT_SERVER_ANALYTICS_ENABLED"] == found["GX_ANALYTICS_ENABLED"] == "false"
    assert found["MLFLOW_MODEL_CATALOG_URI"] == ""
    assert found["PREFECT_RESULTS_DEFAULT_SERIALIZER"] == "json"
    assert found["MLFLOW_ALLOW_PICKLE_DESERIALIZATION"] == "false"
    settings = processes.request(f"{services.prefect_api}/admin/settings")
    assert settings["server"]["analytics_enabled"] is False


def test_mlflow_keeps_artifacts_in_the_home(services: Services) -> None:
    path = "mlflow-artifacts/artifacts/probe/hello.txt"
    message = urllib.request.Request(f"{services.mlflow.url}/api/2.0/{path}", b"hello", method="PUT")
    with urllib.request.urlopen(message, timeout=60) as answer:
        assert answer.status == 200
    assert (services.home.root / "mlflow" / "artifacts" / "probe" / "hello.txt").read_bytes() == b"hello"
    assert (services.home.root / "mlflow" / "mlflow.db").exists()


def test_the_schedule_is_registered_and_yields_runs(services: Services) -> None:
    found = processes.request(f"{services.prefect_api}/deployments/name/retrain/chemical-reactor")
    assert found["work_pool_name"] == "neorl"
    assert found["global_concurrency_limit"]["limit"] == 1
    assert found["schedules"][0]["schedule"]["timezone"] == "UTC"
    runs = {"deployments": {"id": {"any_": [found["id"]]}}}
    # Fails with SQLAlchemy 2.1, under which the scheduler of Prefect 3.8 cannot insert runs.
    wait_until(lambda: len(processes.request(f"{services.prefect_api}/flow_runs/filter", runs)) >= 3)


def test_a_paused_schedule_stays_paused(services: Services) -> None:
    from flows.services.servers import up

    address = f"{services.prefect_api}/deployments"
    found = processes.request(f"{address}/name/retrain/chemical-reactor")
    processes.request(f"{address}/{found['id']}/pause_deployment", {})
    up(services.home)
    assert processes.request(f"{address}/{found['id']}")["paused"] is True
    processes.request(f"{address}/{found['id']}/resume_deployment", {})


def test_the_parameters_are_those_that_prefect_derives(tmp_path: Path) -> None:
    from prefect.utilities.callables import parameter_schema_from_entrypoint

    script = tmp_path / "flow.py"
    script.write_text(
        'def retrain(config: str = "configs/chemical_reactor.yaml", data: list[str] | None = None) -> dict: ...\n'
    )
    derived = parameter_schema_from_entrypoint(f"{script}:retrain").model_dump()
    assert derived == deploy.PARAMETERS


def test_prefect_deployment_run_works_from_the_projects_folder(services: Services, tmp_path: Path) -> None:
    """The command that design.md promises the MLOps engineer, on a small flow of the same name."""
    for name in ("prefect.yaml", "prefect.toml"):
        shutil.copy(PROJECT / name, tmp_path / name)
    (tmp_path / "flows").mkdir()
    (tmp_path / "flows" / "retrain.py").write_text(
        "import os, pathlib\nfrom prefect import flow\n\n\n@flow\n"
        'def retrain(config: str = "", data: list[str] | None = None) -> dict:\n'
        '    pathlib.Path("ran.txt").write_text(config + " " + os.environ["NEORL_HOME"])\n'
        '    return {"config": config}\n'
    )
    (tmp_path / ".neorl").symlink_to(services.home.root)
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("PREFECT_", "NEORL_"))}
    try:
        assert deploy.register(services.prefect_api, tmp_path) == ["retrain/chemical-reactor"]
        command = [sys.executable, "-m", "prefect", "deployment", "run", "retrain/chemical-reactor"]
        done = subprocess.run(command, cwd=tmp_path, env=clean, capture_output=True, text=True, timeout=200)
        assert done.returncode == 0, done.stdout + done.stderr
        wait_until((tmp_path / "ran.txt").exists, 200)
        assert (tmp_path / "ran.txt").read_text() == f"configs/chemical_reactor.yaml {services.home.root}"
    finally:
        deploy.register(services.prefect_api)


def killed_process() -> ProcessId:
    """The identity of a process that was killed with SIGKILL."""
    child = subprocess.Popen(["sleep", "600"])
    identity = ProcessId.of(child.pid)
    assert identity.alive
    child.kill()
    child.wait()
    assert not identity.alive
    return identity


def running_flow_run(services: Services) -> str:
    flow = processes.request(f"{services.prefect_api}/flows/", {"name": "probe"})
    state = {"type": "RUNNING", "name": "Running"}
    return str(processes.request(f"{services.prefect_api}/flow_runs/", {"flow_id": flow["id"], "state": state})["id"])


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
    shown = processes.request(f"{services.prefect_api}/flow_runs/{run}")
    assert shown["state_type"] == "CRASHED"
    assert str(dead.pid) in shown["state"]["message"]
    assert processes.request(f"{services.prefect_api}/flow_runs/{going_on}")["state_type"] == "RUNNING"
    assert not list((services.home.root / "locks" / "runs").iterdir())


HOLD = """
import sys, time
from configs.home import Home
from flows.services.locks import plant_lock
with plant_lock(Home.locate(), "reactor", run="first"):
    print("held", flush=True)
    time.sleep(600)
"""


@contextmanager
def holder(home: Path) -> Iterator[subprocess.Popen[str]]:
    variables = {**os.environ, "NEORL_HOME": str(home)}
    command = [sys.executable, "-c", HOLD]
    with subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, text=True, cwd=PROJECT) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_a_second_run_is_refused_until_the_first_is_gone(home: Path) -> None:
    with holder(home) as first:
        who = rf"expected no other run of reactor, got run first, process {first.pid}, going on since"
        with pytest.raises(Refused, match=who), plant_lock(Home(home), "reactor"):
            pass
        with plant_lock(Home(home), "another"):
            assert {h["plant"]: h["alive"] for h in holders(Home(home))} == {"another": True, "reactor": True}
        first.send_signal(signal.SIGKILL)
        first.wait()
        assert [h["alive"] for h in holders(Home(home))] == [False]
        with plant_lock(Home(home), "reactor", run="second"):
            assert [h["run"] for h in holders(Home(home))] == ["second"]
    assert holders(Home(home)) == []


def test_a_second_run_may_wait(home: Path) -> None:
    said: list[str] = []
    with holder(home) as first:

        def told(words: str) -> None:
            said.append(words)
            first.kill()

        with plant_lock(Home(home), "reactor", "wait", on_wait=told):
            first.wait()
    assert said
    assert f"waiting for run first, process {first.pid}" in said[0]


def test_a_run_that_ends_leaves_no_record(home: Path) -> None:
    record = home / "locks" / "runs" / "abc.json"
    with recorded_run(Home(home), "abc", "p"):
        assert record.exists()
        assert dead_runs(Home(home)) == []
    assert not record.exists()
    with pytest.raises(FileExistsError), recorded_run(Home(home), "abc", "p"):
        record.touch(exist_ok=False)
    assert not record.exists()


def test_exclusive_is_exclusive(home: Path) -> None:
    order: list[str] = []

    def second() -> None:
        with exclusive(home / "lock"):
            order.append("second")

    with exclusive(home / "lock"):
        thread = threading.Thread(target=second)
        thread.start()
        thread.join(0.2)
        order.append("first")
    thread.join()
    assert order == ["first", "second"]


def test_stop_ends_a_whole_family_even_a_stubborn_one(tmp_path: Path) -> None:
    script = "trap '' TERM; sleep 600 & echo $! > child; while true; do sleep 0.1; done"
    leader = processes.spawn(["sh", "-c", script], os.environ, tmp_path / "log", tmp_path)
    wait_until(lambda: (tmp_path / "child").exists() and (tmp_path / "child").read_text().strip())
    child = ProcessId.of(int((tmp_path / "child").read_text()))
    assert leader.alive
    assert child.alive
    processes.stop([leader], grace=0.5)
    assert not leader.alive
    assert not child.alive
    processes.stop([leader])


def test_a_server_that_ends_is_reported_with_its_last_words(home: Path, tmp_path: Path) -> None:
    place = Home(home)
    process = processes.spawn(
        ["sh", "-c", "echo out of luck"], os.environ, place.folder("logs") / "mlflow.log", tmp_path
    )
    service = Service("mlflow", "http://127.0.0.1:1", 1, process, "t")
    with pytest.raises(ServiceMissing, match=r"got a process that ended \(out of luck\): read .*mlflow\.log"):
        services._wait(place, service, None, time.monotonic() + 60, lambda _: None)
    processes.stop([process])


def test_a_broken_record_of_services_is_named(home: Path) -> None:
    home.mkdir()
    Home(home).services.write_text("{")
    with pytest.raises(BadInput, match=r"expected JSON in .*services\.json"):
        services.status(Home(home))


def test_requests_do_not_hide_errors(services: Services) -> None:
    with pytest.raises(urllib.error.HTTPError):
        processes.request(f"{services.prefect_api}/flow_runs/none")
    assert not processes.answers(f"http://127.0.0.1:{processes.any_free_port()}/")


def test_registering_needs_a_project(tmp_path: Path) -> None:
    assert deploy.register("http://127.0.0.1:1/api", tmp_path) == []


def test_the_doctor_names_what_is_wrong_with_a_cure(home: Path) -> None:
    place = Home(home)
    assert all(finding.ok for finding in examine(place) if finding.name != "packages")
    key = place.folder("keys") / "signing.pem"
    key.write_text("secret")
    key.chmod(0o644)
    dead = killed_process()
    record = {"created": dead.created, "flow_run": "r", "pid": dead.pid, "plant": "reactor", "started": "now"}
    write_json(place.folder("locks", "runs") / "r.json", record)
    write_json(place.folder("locks") / "reactor.lock", {**record, "run": "r"})
    found = {finding.name: finding for finding in examine(place)}
    assert not found["keys"].ok
    assert found["keys"].cure == f"chmod 600 {key}"
    assert not found["runs"].ok
    assert "killed run" in found["lock reactor"].detail
    key.unlink()
    place.ledger.touch()
    assert "restore" in next(f for f in examine(place) if f.name == "keys").cure
