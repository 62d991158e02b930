"""The Prefect server, MLflow server and Prefect worker of one home: up, down, status, and how to reach them."""

from __future__ import annotations

import json
import os
import secrets
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from configs.errors import BadInput, ServiceMissing
from configs.home import Home
from configs.telemetry import TELEMETRY_OFF
from flows.services import processes
from flows.services.deployments import POOL, register, worker_is_online
from flows.services.locks import ProcessId, dead_runs, exclusive
from flows.services.processes import HOST, TOKEN
from tasks.adapters.files.canonical import write_atomic, write_json

PORTS = {"prefect": 4200, "mlflow": 5000}
TITLES = {"prefect": "Prefect", "mlflow": "MLflow", "worker": "Prefect worker"}
Say = Callable[[str], None]


@dataclass(frozen=True)
class Service:
    """One service: ours when it has a process, a team's when it has only an address."""

    name: str
    url: str = ""
    port: int = 0
    process: ProcessId | None = None
    token: str = ""

    @property
    def probe(self) -> str:
        """An address that answers once the service can really be used (its database included)."""
        if self.name == "prefect":
            return f"{self.url}/api/health"
        return f"{self.url}/api/2.0/mlflow/experiments/search?max_results=1"


@dataclass(frozen=True)
class Services:
    """What a flow needs to know about the servers of its home."""

    home: Home
    prefect: Service
    mlflow: Service
    worker: Service | None = None
    started: tuple[str, ...] = field(default=())
    """What this call of `up` had to start."""

    @property
    def prefect_api(self) -> str:
        """The address that Prefect's clients want."""
        return f"{self.prefect.url}/api"


def environment(services: Services) -> dict[str, str]:
    """The variables of a process that talks to these services; set them before prefect or mlflow is imported."""
    home = services.home.root
    return {
        **TELEMETRY_OFF,
        "NEORL_HOME": str(home),
        # A run that goes on, or comes again, finds its programs compiled.
        "JAX_COMPILATION_CACHE_DIR": os.environ.get("JAX_COMPILATION_CACHE_DIR") or str(home / "cache" / "jax"),
        "PREFECT_HOME": str(home / "prefect"),
        "PREFECT_API_URL": services.prefect_api,
        # The default serialiser is pickle.
        "PREFECT_RESULTS_DEFAULT_SERIALIZER": "json",
        # A server that has gone is an error, never a reason to start another inside this process.
        "PREFECT_SERVER_EPHEMERAL_ENABLED": "false",
        "MLFLOW_TRACKING_URI": services.mlflow.url,
        "MLFLOW_ALLOW_PICKLE_DESERIALIZATION": "false",
        # Seven retries, the default, keep a run waiting for minutes when MLflow has gone.
        "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "3",
        # Five, the default, take a minute for each request to a server that has gone.
        "PREFECT_CLIENT_MAX_RETRIES": "2",
        "NO_PROXY": ",".join(filter(None, [os.environ.get("NO_PROXY", ""), HOST, "localhost"])),
    }


def up(
    home: Home,
    *,
    prefect_port: int | None = None,
    mlflow_port: int | None = None,
    worker: bool = True,
    timeout: float = 180.0,
    say: Say | None = None,
) -> Services:
    """Start what is not running yet, and wait until all of it answers.

    Args:
        home: whose services.
        prefect_port, mlflow_port: insist on a port; otherwise the last one used, 4200/5000, or any free one.
        worker: also start a worker and register the deployments of prefect.yaml.
        timeout: seconds to wait for answers.
        say: told what happens, in words.

    Returns:
        The services; a second call returns the same ones.

    Raises:
        BadInput: when a port that was asked for is taken.
        ServiceMissing: when a service does not answer.
    """
    say = say or (lambda _: None)
    deadline = time.monotonic() + timeout
    home.folder("logs")
    with exclusive(home.folder("locks") / "services.lock"):
        known, wanted, started = _read(home), {"prefect": prefect_port, "mlflow": mlflow_port}, []
        servers = {name: _team_service(name) or _ours(home, known.get(name)) for name in PORTS}
        for name, port in wanted.items():
            _check_port(name, port, servers[name])
        for name in PORTS:
            if servers[name] is None:
                servers[name] = known[name] = _start_server(home, name, wanted[name], known.get(name))
                _write(home, known)
                say(f"starting {TITLES[name]} on {servers[name].url}")
                started.append(name)
        for name in PORTS:
            # Prefect is first: its worker can start while MLflow makes its database.
            servers[name] = known[name] = _wait(home, servers[name], wanted[name], deadline, say)
            _write(home, known)
            if name == "prefect" and worker and servers[name].process:
                ours = _ours(home, known.get("worker"))
                if ours is None:
                    say("starting a Prefect worker")
                    started.append("worker")
                    register(f"{servers[name].url}/api")
                    ours = known["worker"] = _start_worker(home, servers["prefect"], servers["mlflow"])
                    _write(home, known)
                else:
                    register(f"{servers[name].url}/api")
        if known.get("worker") and "worker" in started:
            _wait_for_worker(home, servers["prefect"], known["worker"], deadline)
        _write_profile(home, servers["prefect"])
    return Services(home, servers["prefect"], servers["mlflow"], _ours(home, known.get("worker")), tuple(started))


def connect(home: Home) -> Services:
    """The services that answer now; starts nothing.

    Raises:
        ServiceMissing: when one does not answer.
    """
    known = _read(home)
    found = {}
    for name in PORTS:
        service = _team_service(name) or _ours(home, known.get(name))
        if service is None or not processes.answers(service.probe):
            raise ServiceMissing(
                f"expected {TITLES[name]} to answer for {home.root}, got no answer: start it with 'neorl up'."
            )
        found[name] = service
    return Services(home, found["prefect"], found["mlflow"], _ours(home, known.get("worker")))


def down(home: Home) -> list[str]:
    """Stop the services of this home and nothing else; returns the names of those that ran."""
    with exclusive(home.folder("locks") / "services.lock"):
        known = _read(home)
        running = {name: s for name in known if (s := _ours(home, known[name]))}
        # A worker that outlives its server spends its grace on retries.
        for group in (["worker"], list(PORTS)):
            processes.stop([s.process for name in group if (s := running.get(name)) and s.process])
        # The ports stay known, so that addresses in reports and tags work again after the next `up`.
        _write(home, {name: replace(s, process=None, token="") for name, s in known.items() if s.port})
    return sorted(running)


def status(home: Home) -> dict[str, Any]:
    """What runs, where, and whether it answers; plain values for JSON."""
    known = _read(home)
    report: dict[str, Any] = {"home": str(home.root)}
    for name in PORTS:
        service = _team_service(name) or _ours(home, known.get(name))
        if service is None:
            report[name] = {"state": "stopped"}
            continue
        state = "running" if processes.answers(service.probe) else "not answering"
        report[name] = {"state": state, "url": service.url, "team": service.process is None}
        if service.process:
            report[name]["pid"] = service.process.pid
    worker = _ours(home, known.get("worker"))
    report["worker"] = {"state": "running", "pid": worker.process.pid} if worker and worker.process else None
    report["worker"] = report["worker"] or {"state": "stopped"}
    if all("url" in report[name] for name in PORTS):
        services = Services(home, *(_team_service(n) or _ours(home, known[n]) or Service(n) for n in PORTS))
        report["environment"] = environment(services)
    return report


def reap_dead_runs(home: Home) -> list[str]:
    """Tell Prefect that the flow runs whose process was killed have crashed; returns their ids.

    A killed process cannot report its own end, so Prefect would show its run as Running for ever.
    """
    reaped = []
    dead = dead_runs(home)
    if not dead:
        return []
    api = connect(home).prefect_api
    for path, record in dead:
        run = f"{api}/flow_runs/{record['flow_run']}"
        if processes.answers(run):
            kind = processes.request(run)["state_type"]
            if kind in {"RUNNING", "PENDING", "CANCELLING"}:
                message = f"process {record['pid']} was killed"
                state = {"type": "CRASHED", "name": "Crashed", "message": message}
                processes.request(f"{run}/set_state", {"state": state, "force": True})
                reaped.append(record["flow_run"])
        path.unlink(missing_ok=True)
    return reaped


def _team_service(name: str) -> Service | None:
    """A service that NEORL_PREFECT_URL or NEORL_MLFLOW_URL names: a team runs it, and this home leaves it alone."""
    url = os.environ.get(f"NEORL_{name.upper()}_URL", "").rstrip("/")
    return Service(name, url.removesuffix("/api") if name == "prefect" else url) if url else None


def _ours(home: Home, service: Service | None) -> Service | None:
    """The service if its process lives and was started for this home."""
    if service is None or service.process is None:
        return None
    return service if processes.belongs(service.process, home.root, service.token) else None


def _check_port(name: str, port: int | None, running: Service | None) -> None:
    if port is None or (running and running.port == port):
        return
    if running:
        raise BadInput(
            f"expected to start {TITLES[name]} on port {port}, got it at {running.url} already: "
            + ("run 'neorl down' first." if running.process else f"unset NEORL_{name.upper()}_URL.")
        )
    if not processes.port_is_free(port):
        raise BadInput(
            f"expected port {port} to be free for {TITLES[name]}, got it in use by another program: "
            f"leave --{name}-port out, or name another port."
        )


def _server_environment(home: Home, token: str) -> dict[str, str]:
    """Nothing of the caller's Prefect or MLflow set-up may leak into a server of this home."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PREFECT_", "MLFLOW_", "_MLFLOW_"))}
    return {
        **kept,
        **TELEMETRY_OFF,
        "NEORL_HOME": str(home.root),
        TOKEN: token,
        "PREFECT_HOME": str(home.folder("prefect")),
    }


def _start_server(home: Home, name: str, port: int | None, last: Service | None) -> Service:
    if port is None:
        preferred = [last.port] if last and last.port else []
        port = next(filter(processes.port_is_free, [*preferred, PORTS[name]]), None) or processes.any_free_port()
    token, room = secrets.token_hex(16), home.folder(name)
    # uvicorn is called directly: the servers' own commands import everything twice and keep a parent process.
    command = [sys.executable, "-m", "uvicorn", "--host", HOST, "--port", str(port), "--log-level", "warning"]
    command += ["--timeout-graceful-shutdown", "3"]
    if name == "prefect":
        command += ["--factory", "prefect.server.api.server:create_app"]
        extra = {
            "PREFECT__SERVER_FINAL": "1",
            # SQLite waits this long for a lock; the default of 10 s is short on a busy machine.
            "PREFECT_SERVER_DATABASE_TIMEOUT": "60",
            "PREFECT_SERVER_API_HOST": HOST,
            "PREFECT_SERVER_API_PORT": str(port),
            "PREFECT_UI_API_URL": f"http://{HOST}:{port}/api",
        }
    else:
        command += ["mlflow.server.fastapi_app:app"]
        database = f"sqlite:///{room / 'mlflow.db'}"
        # What `mlflow server` sets for its worker processes in the pinned version; a test starts a real one.
        extra = {
            "_MLFLOW_SERVER_FILE_STORE": database,
            "_MLFLOW_SERVER_REGISTRY_STORE": database,
            "_MLFLOW_SERVER_ARTIFACT_ROOT": "mlflow-artifacts:/",
            "_MLFLOW_SERVER_ARTIFACT_DESTINATION": str(home.folder("mlflow", "artifacts")),
            "_MLFLOW_SERVER_SERVE_ARTIFACTS": "true",
            "_MLFLOW_SGI_NAME": "uvicorn",
            "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
            "MLFLOW_ALLOW_PICKLE_DESERIALIZATION": "false",
        }
    process = processes.spawn(command, _server_environment(home, token) | extra, _log(home, name), room)
    return Service(name, f"http://{HOST}:{port}", port, process, token)


def _start_worker(home: Home, prefect: Service, mlflow: Service) -> Service:
    token = secrets.token_hex(16)
    variables = environment(Services(home, prefect, mlflow))
    extra = {"PREFECT_WORKER_QUERY_SECONDS": "3"}
    command = [sys.executable, "-m", "prefect", "worker", "start", "--pool", POOL, "--type", "process"]
    command += ["--name", f"neorl-{token[:8]}", "--limit", "1"]
    full = _server_environment(home, token) | variables | extra
    process = processes.spawn(command, full, _log(home, "worker"), home.folder("prefect"))
    return Service("worker", process=process, token=token)


def _wait(home: Home, service: Service, wanted: int | None, deadline: float, say: Say) -> Service:
    """Wait until a service answers; one that lost a race for its port is started on another."""
    for attempt in range(4):
        while service.process is None or service.process.alive:
            if (not service.process or processes.listens(service.process, service.port)) and processes.answers(
                service.probe
            ):
                return service
            if time.monotonic() > deadline or service.process is None:
                raise _missing(home, service)
            time.sleep(0.1)
        if attempt == 3 or wanted is not None or "address already in use" not in _tail(home, service.name):
            raise _missing(home, service)
        service = _start_server(home, service.name, None, None)
        say(f"starting {TITLES[service.name]} on {service.url}")
    raise _missing(home, service)


def _wait_for_worker(home: Home, prefect: Service, worker: Service, deadline: float) -> None:
    while not worker_is_online(f"{prefect.url}/api", f"neorl-{worker.token[:8]}"):
        if time.monotonic() > deadline or not (worker.process and worker.process.alive):
            raise _missing(home, worker)
        time.sleep(0.2)


def _missing(home: Home, service: Service) -> ServiceMissing:
    title = TITLES[service.name]
    if service.process is None:
        variable = f"NEORL_{service.name.upper()}_URL"
        return ServiceMissing(f"expected {title} at {service.url} ({variable}), got no answer: check the address.")
    got = "no answer in time" if service.process.alive else "a process that ended"
    last = _tail(home, service.name).strip().splitlines()
    reason = f" ({last[-1].strip()})" if last and not service.process.alive else ""
    return ServiceMissing(
        f"expected {title} to answer, got {got}{reason}: read {_log(home, service.name)}, "
        "then run 'neorl down' and 'neorl up'."
    )


def _log(home: Home, name: str) -> Path:
    return home.folder("logs") / f"{name}.log"


def _tail(home: Home, name: str) -> str:
    return _log(home, name).read_bytes()[-4000:].decode(errors="replace")


def _read(home: Home) -> dict[str, Service]:
    try:
        record = json.loads(home.services.read_bytes())
    except FileNotFoundError:
        return {}
    except json.JSONDecodeError as error:
        raise BadInput(f"expected JSON in {home.services}, got {error}: remove the file, then 'neorl up'.") from error
    found = {}
    for name, entry in record.items():
        process = ProcessId(entry["pid"], entry["created"]) if entry.get("pid") else None
        found[name] = Service(name, entry.get("url", ""), entry.get("port", 0), process, entry.get("token", ""))
    return found


def _write(home: Home, known: dict[str, Service]) -> None:
    record = {}
    for name, service in known.items():
        entry: dict[str, Any] = {"url": service.url, "port": service.port, "token": service.token}
        if service.process:
            entry |= {"pid": service.process.pid, "created": service.process.created}
        if service.port or service.process:
            record[name] = entry
    write_json(home.services, record)


def _write_profile(home: Home, prefect: Service) -> None:
    """A Prefect profile beside the server's files; prefect.toml makes the `prefect` command of this folder read it."""
    folder = home.folder("prefect")
    settings = {"PREFECT_API_URL": f"{prefect.url}/api", "PREFECT_HOME": str(folder)}
    lines = ['active = "neorl"', "", "[profiles.neorl]", *(f"{k} = {json.dumps(v)}" for k, v in settings.items())]
    text, path = "\n".join(lines) + "\n", folder / "profiles.toml"
    if not path.exists() or path.read_text() != text:
        write_atomic(path, text.encode())
