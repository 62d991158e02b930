"""The table of services: how each is started, and when it can be used."""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from configs.environment import ARTIFACTS, MLFLOW_DATABASE, PREFECT_DATABASE, REDIS, TELEMETRY_OFF, setting, with_driver
from configs.home import Home
from flows.services import deployments, processes, rest
from flows.services.asgi.guard import LOGIN, LOOPBACK, NAMES
from flows.services.deployments import POOL, Deployments, worker_is_online, worker_name
from flows.services.processes import HOST, TOKEN
from flows.services.state import Service, Services, home_login, metrics_token, mlflow_login, prefect_login

SHARED_BY_REDIS = {
    "PREFECT_MESSAGING_BROKER": "prefect_redis.messaging",
    "PREFECT_MESSAGING_CACHE": "prefect_redis.messaging",
    "PREFECT_SERVER_EVENTS_CAUSAL_ORDERING": "prefect_redis.ordering",
    "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": "prefect_redis.lease_storage",
}
"""Settings by which several Prefect servers are one."""


class Start(NamedTuple):
    """What a service's command may depend on."""

    home: Home
    port: int
    token: str
    others: Mapping[str, Service]
    """The services started before it, by name."""
    due: Deployments | None = None
    """What a worker has to register before it works."""
    login: str = ""
    """What a server asks its clients for."""
    host: str = HOST
    """The address of the interface that it listens on."""
    names: tuple[str, ...] = ()
    """What its clients call it besides loopback's names."""


class Command(NamedTuple):
    """A program with its arguments, the variables that are its own, and its working directory."""

    arguments: list[str]
    variables: dict[str, str]
    folder: Path


class Definition(NamedTuple):
    """One row of the table."""

    title: str
    command: Callable[[Start], Command]
    answers: Callable[[Home, Mapping[str, Service], float], bool]
    """Whether it can really be used, its database included, given all services by name and the seconds to wait."""
    port: int = 0
    """The port to try first; 0 for a service that listens on none."""
    needs: tuple[str, ...] = ()
    """Services that must answer before it is started; the others are started at once, for their starts take long."""


def start(home: Home, name: str, port: int, others: Mapping[str, Service], due: Deployments | None = None) -> Service:
    """Start one service in the background.

    Args:
        home: whose service.
        name: its name in `SERVICES`.
        port: where it shall listen; 0 for one that listens on no port.
        others: the services that its command may need, by name.
        due: what a worker has to register before it works.

    Returns:
        The service, which may not answer yet.
    """
    token = secrets.token_hex(16)
    command = completed(name, Start(home, port, token, others, due, home_login(home) if name in SERVERS else ""))
    process = processes.spawn(command.arguments, command.variables, log_file(home, name), command.folder)
    return Service(name, f"http://{HOST}:{port}" if port else "", port, process, token)


def completed(name: str, start: Start) -> Command:
    """The command of a service as it is executed: with the interpreter before it, and all of its environment.

    Args:
        name: its name in `SERVICES`.
        start: what the command depends on.
    """
    arguments, variables, folder = SERVICES[name].command(start)
    # Nothing of the caller's Prefect or MLflow set-up may leak into a service of this home.
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PREFECT_", "MLFLOW_", "_MLFLOW_"))}
    prefect = str(start.home.folder("prefect"))
    ours = {**TELEMETRY_OFF, "NEORL_HOME": str(start.home.root), TOKEN: start.token, "PREFECT_HOME": prefect}
    return Command([sys.executable, *arguments], kept | ours | variables, folder)


def log_file(home: Home, name: str) -> Path:
    """Where a service writes its log."""
    return home.folder("logs") / f"{name}.log"


def _server(start: Start, application: str) -> list[str]:
    # uvicorn is called directly: the servers' own commands import everything twice and keep a parent process.
    where = ["--host", start.host, "--port", str(start.port)]
    options = [*where, "--log-level", "warning", "--timeout-graceful-shutdown", "3"]
    return ["-m", "uvicorn", *options, "--factory", f"flows.services.asgi.guard:{application}"]


def _prefect(start: Start) -> Command:
    variables = {
        "PREFECT__SERVER_FINAL": "1",
        # How long a command of PostgreSQL may take; the default of 10 s is short on a busy machine. For a lock of
        # SQLite Prefect waits a minute, whatever is set here.
        "PREFECT_SERVER_DATABASE_TIMEOUT": "30",
        "PREFECT_SERVER_API_HOST": start.host,
        "PREFECT_SERVER_API_PORT": str(start.port),
        "PREFECT_SERVER_API_AUTH_STRING": start.login,
        NAMES: " ".join(start.names),
        "PREFECT_SERVER_CORS_ALLOWED_ORIGINS": f"http://{HOST}:{start.port},http://localhost:{start.port}",
        "PREFECT_UI_API_URL": f"http://{HOST}:{start.port}/api",
    }
    if database := setting(PREFECT_DATABASE):
        variables["PREFECT_SERVER_DATABASE_CONNECTION_URL"] = with_driver(database, "asyncpg")
    if redis := setting(REDIS):
        variables |= SHARED_BY_REDIS | dict.fromkeys(
            ("PREFECT_REDIS_MESSAGING_URL", "PREFECT_SERVER_DOCKET_URL"), redis
        )
    return Command(_server(start, "prefect"), variables, start.home.folder("prefect"))


def _prefect_answers(home: Home, services: Mapping[str, Service], timeout: float) -> bool:
    return rest.answers(f"{services['prefect'].url}/api/health", timeout=timeout)


def _mlflow(start: Start) -> Command:
    folder = start.home.folder("mlflow")
    database = with_driver(setting(MLFLOW_DATABASE), "psycopg") or f"sqlite:///{folder / 'mlflow.db'}"
    kept = setting(ARTIFACTS) or str(start.home.folder("mlflow", "artifacts"))
    # What `mlflow server` sets for its worker processes in the pinned version; a test starts a real one.
    variables = {
        LOGIN: start.login,
        NAMES: " ".join(start.names),
        "_MLFLOW_SERVER_FILE_STORE": database,
        "_MLFLOW_SERVER_REGISTRY_STORE": database,
        "_MLFLOW_SERVER_ARTIFACT_ROOT": "mlflow-artifacts:/",
        "_MLFLOW_SERVER_ARTIFACT_DESTINATION": kept,
        "_MLFLOW_SERVER_SERVE_ARTIFACTS": "true",
        "_MLFLOW_SGI_NAME": "uvicorn",
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        "MLFLOW_ALLOW_PICKLE_DESERIALIZATION": "false",
    }
    if start.names:
        # MLflow compares names too; the guard before it is the stricter of the two.
        hosts = sorted({*LOOPBACK, *start.names})
        variables["MLFLOW_SERVER_ALLOWED_HOSTS"] = ",".join([*hosts, *(f"{name}:*" for name in hosts)])
    return Command(_server(start, "mlflow"), variables, folder)


def _mlflow_answers(home: Home, services: Mapping[str, Service], timeout: float) -> bool:
    url, login = services["mlflow"].url, mlflow_login(home, services["mlflow"])
    # A request that needs the database; but a team's server may want a login that only MLflow's own client knows.
    searched = f"{url}/api/2.0/mlflow/experiments/search?max_results=1"
    return rest.answers(searched, login=login, timeout=timeout) or bool(
        services["mlflow"].process is None and rest.answers(f"{url}/health", timeout=timeout)
    )


def _metrics(start: Start) -> Command:
    variables = {LOGIN: metrics_token(start.home), NAMES: " ".join(start.names)}
    return Command(_server(start, "metrics"), variables, start.home.root)


def _metrics_answers(home: Home, services: Mapping[str, Service], timeout: float) -> bool:
    return rest.answers(f"{services['metrics'].url}/health", timeout=timeout)


def _worker(start: Start) -> Command:
    first = deployments.arguments(start.home, start.due) if start.due else []
    work = ["--worker", "--pool", POOL, "--type", "process", "--name", worker_name(start.token), "--limit", "1"]
    variables = deployments.variables(Services(start.home, start.others["prefect"], start.others["mlflow"]))
    if start.port:
        # It answers there whether it still asks for work.
        work.append("--with-healthcheck")
        variables |= {"PREFECT_WORKER_WEBSERVER_HOST": start.host, "PREFECT_WORKER_WEBSERVER_PORT": str(start.port)}
    return Command(
        ["-m", "flows.services.worker", *first, *work],
        variables | {"PREFECT_WORKER_QUERY_SECONDS": "3"},
        start.home.folder("prefect"),
    )


def _worker_answers(home: Home, services: Mapping[str, Service], timeout: float) -> bool:
    prefect = services["prefect"]
    login = prefect_login(home, prefect)
    return worker_is_online(f"{prefect.url}/api", services["worker"].token, login, timeout)


SERVICES: Mapping[str, Definition] = {
    "prefect": Definition("Prefect", _prefect, _prefect_answers, port=4200),
    "mlflow": Definition("MLflow", _mlflow, _mlflow_answers, port=5000),
    "metrics": Definition("Metrics", _metrics, _metrics_answers, port=9847),
    "worker": Definition("Prefect worker", _worker, _worker_answers, needs=("prefect",)),
}
"""The services in the order in which they are waited for."""
SERVERS = ("prefect", "mlflow")
"""Services that flows need, and that a team may run elsewhere."""
TITLES = {name: definition.title for name, definition in SERVICES.items()}
