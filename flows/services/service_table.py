"""Table of services: for each service the command that starts it, and the check that it answers."""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from configs.environment import ARTIFACTS, MLFLOW_DATABASE, PREFECT_DATABASE, REDIS, TELEMETRY_OFF, setting, with_driver
from configs.home import RESTORED, Home
from flows.services import deployments, processes, rest
from flows.services.deployments import POOL, Deployments, worker_is_online, worker_name
from flows.services.processes import HOST, LOGIN, LOOPBACK, NAMES, TOKEN
from flows.services.state import Service, Services, home_login, metrics_token, mlflow_login, prefect_login

SHARED_BY_REDIS = {
    "PREFECT_MESSAGING_BROKER": "prefect_redis.messaging",
    "PREFECT_MESSAGING_CACHE": "prefect_redis.messaging",
    "PREFECT_SERVER_EVENTS_CAUSAL_ORDERING": "prefect_redis.ordering",
    "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": "prefect_redis.lease_storage",
}
"""Prefect settings with which several Prefect servers work together through Redis."""


HELD = {
    "PREFECT_SERVER_SERVICES_SCHEDULER_ENABLED": "false",
    # Also disables the actions of automations.
    "PREFECT_SERVER_SERVICES_TRIGGERS_ENABLED": "false",
}
"""Prefect settings for a restored home; the home's work waits for a person."""


class Start(NamedTuple):
    """Inputs from which the table builds a service's command."""

    home: Home
    port: int
    token: str
    others: Mapping[str, Service]
    due: Deployments | None = None
    login: str = ""
    host: str = HOST
    names: tuple[str, ...] = ()
    """Host names by which clients may call the server, in addition to loopback names."""


class Command(NamedTuple):
    """A program's arguments, environment variables and working directory."""

    arguments: list[str]
    variables: dict[str, str]
    folder: Path


class Definition(NamedTuple):
    """One row of the table: a service."""

    title: str
    command: Callable[[Start], Command]
    answers: Callable[[Home, Mapping[str, Service], float], bool]
    """Return whether service and database work. Arguments: home, all services, time limit in seconds."""
    port: int = 0
    """Preferred port; 0 for a service without a port."""
    needs: tuple[str, ...] = ()
    """Services that must answer before this service starts. Services without needs start in parallel."""


def start(home: Home, name: str, port: int, others: Mapping[str, Service], due: Deployments | None = None) -> Service:
    """Start one service in the background, without waiting for an answer. The arguments are those of `Start`."""
    token = secrets.token_hex(16)
    command = full_command(name, Start(home, port, token, others, due, home_login(home) if name in SERVERS else ""))
    process = processes.spawn(command.arguments, command.variables, log_file(home, name), command.folder)
    return Service(name, f"http://{HOST}:{port}" if port else "", port, process, token)


def full_command(name: str, start: Start) -> Command:
    """Return the command of a service in `SERVICES`, with interpreter and complete environment."""
    arguments, variables, folder = SERVICES[name].command(start)
    # The caller's Prefect and MLflow settings must not leak into a service of this home.
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PREFECT_", "MLFLOW_", "_MLFLOW_"))}
    prefect = str(start.home.folder("prefect"))
    ours = {**TELEMETRY_OFF, "NEORL_HOME": str(start.home.root), TOKEN: start.token, "PREFECT_HOME": prefect}
    # -P: files in the working directory, which may come from a backup, are not modules.
    return Command([sys.executable, "-P", *arguments], kept | ours | variables, folder)


def log_file(home: Home, name: str) -> Path:
    """Return the log file of a service."""
    return home.folder("logs") / f"{name}.log"


def _server(start: Start, application: str) -> list[str]:
    # The servers' own commands import everything twice and keep a parent process, so uvicorn is called directly.
    where = ["--host", start.host, "--port", str(start.port)]
    options = [
        *where,
        "--log-level",
        "warning",
        "--timeout-graceful-shutdown",
        "3",
        "--app-dir",
        str(deployments.PROJECT),
    ]
    return ["-m", "uvicorn", *options, "--factory", f"flows.services.asgi.guard:{application}"]


def _prefect(start: Start) -> Command:
    variables = {
        "PREFECT__SERVER_FINAL": "1",
        # Time limit of a PostgreSQL command; the default of 10 s is short on a busy machine. Prefect waits a minute
        # for SQLite locks regardless of this setting.
        "PREFECT_SERVER_DATABASE_TIMEOUT": "30",
        "PREFECT_SERVER_API_HOST": start.host,
        "PREFECT_SERVER_API_PORT": str(start.port),
        "PREFECT_SERVER_API_AUTH_STRING": start.login,
        NAMES: " ".join(start.names),
        "PREFECT_SERVER_CORS_ALLOWED_ORIGINS": f"http://{HOST}:{start.port},http://localhost:{start.port}",
        "PREFECT_UI_API_URL": f"http://{HOST}:{start.port}/api",
    }
    if (start.home.root / RESTORED).exists():
        variables |= HELD
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
    # Variables that `mlflow server` sets for workers in the pinned version; a test starts a real server.
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
        # MLflow checks host names, too; the guard in front of it is stricter.
        hosts = sorted({*LOOPBACK, *start.names})
        variables["MLFLOW_SERVER_ALLOWED_HOSTS"] = ",".join([*hosts, *(f"{name}:*" for name in hosts)])
    return Command(_server(start, "mlflow"), variables, folder)


def _mlflow_answers(home: Home, services: Mapping[str, Service], timeout: float) -> bool:
    url, login = services["mlflow"].url, mlflow_login(home, services["mlflow"])
    # The search needs the database. A team's server may require a login that only MLflow's own client can send.
    search = f"{url}/api/2.0/mlflow/experiments/search?max_results=1"
    return rest.answers(search, login=login, timeout=timeout) or bool(
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
        # The health check shows whether the worker still polls.
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
"""Services, in the order in which `neorl up` waits for them."""
SERVERS = ("prefect", "mlflow")
"""Services that flows need, and that a team may run on other machines."""
TITLES = {name: definition.title for name, definition in SERVICES.items()}
