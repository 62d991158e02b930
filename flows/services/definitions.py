"""The table of services: how each is started, and when it can be used."""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from configs.home import Home
from configs.telemetry import TELEMETRY_OFF
from flows.services import deployments, processes, rest
from flows.services.deployments import POOL, Deployments, worker_is_online
from flows.services.guard import LOGIN
from flows.services.processes import HOST, TOKEN
from flows.services.state import Service, Services, home_login, mlflow_login, prefect_login


class Start(NamedTuple):
    """What a service's command may depend on."""

    home: Home
    port: int
    token: str
    others: Mapping[str, Service]
    """The services started before it, by name."""
    due: Deployments | None = None
    """What a worker has to register before it works."""


class Command(NamedTuple):
    """A program with its arguments, the variables that are its own, and its working directory."""

    arguments: list[str]
    variables: dict[str, str]
    folder: Path


class Definition(NamedTuple):
    """One row of the table."""

    title: str
    command: Callable[[Start], Command]
    answers: Callable[[Home, Mapping[str, Service]], bool]
    """Whether it can really be used, its database included, given all services by name."""
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
    arguments, variables, folder = SERVICES[name].command(Start(home, port, token, others, due))
    # Nothing of the caller's Prefect or MLflow set-up may leak into a service of this home.
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PREFECT_", "MLFLOW_", "_MLFLOW_"))}
    ours = {**TELEMETRY_OFF, "NEORL_HOME": str(home.root), TOKEN: token, "PREFECT_HOME": str(home.folder("prefect"))}
    process = processes.spawn([sys.executable, *arguments], kept | ours | variables, log_file(home, name), folder)
    return Service(name, f"http://{HOST}:{port}" if port else "", port, process, token)


def log_file(home: Home, name: str) -> Path:
    """Where a service writes its log."""
    return home.folder("logs") / f"{name}.log"


def _server(port: int, application: str) -> list[str]:
    # uvicorn is called directly: the servers' own commands import everything twice and keep a parent process.
    options = ["--host", HOST, "--port", str(port), "--log-level", "warning", "--timeout-graceful-shutdown", "3"]
    return ["-m", "uvicorn", *options, "--factory", f"flows.services.guard:{application}"]


def _prefect(start: Start) -> Command:
    variables = {
        "PREFECT__SERVER_FINAL": "1",
        # SQLite waits this long for a lock; the default of 10 s is short on a busy machine.
        "PREFECT_SERVER_DATABASE_TIMEOUT": "60",
        "PREFECT_SERVER_API_HOST": HOST,
        "PREFECT_SERVER_API_PORT": str(start.port),
        "PREFECT_SERVER_API_AUTH_STRING": home_login(start.home),
        "PREFECT_SERVER_CORS_ALLOWED_ORIGINS": f"http://{HOST}:{start.port},http://localhost:{start.port}",
        "PREFECT_UI_API_URL": f"http://{HOST}:{start.port}/api",
    }
    return Command(_server(start.port, "prefect"), variables, start.home.folder("prefect"))


def _prefect_answers(home: Home, services: Mapping[str, Service]) -> bool:
    return rest.answers(f"{services['prefect'].url}/api/health")


def _mlflow(start: Start) -> Command:
    folder = start.home.folder("mlflow")
    database = f"sqlite:///{folder / 'mlflow.db'}"
    # What `mlflow server` sets for its worker processes in the pinned version; a test starts a real one.
    variables = {
        LOGIN: home_login(start.home),
        "_MLFLOW_SERVER_FILE_STORE": database,
        "_MLFLOW_SERVER_REGISTRY_STORE": database,
        "_MLFLOW_SERVER_ARTIFACT_ROOT": "mlflow-artifacts:/",
        "_MLFLOW_SERVER_ARTIFACT_DESTINATION": str(start.home.folder("mlflow", "artifacts")),
        "_MLFLOW_SERVER_SERVE_ARTIFACTS": "true",
        "_MLFLOW_SGI_NAME": "uvicorn",
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        "MLFLOW_ALLOW_PICKLE_DESERIALIZATION": "false",
    }
    return Command(_server(start.port, "mlflow"), variables, folder)


def _mlflow_answers(home: Home, services: Mapping[str, Service]) -> bool:
    url, login = services["mlflow"].url, mlflow_login(home, services["mlflow"])
    # A request that needs the database; but a team's server may want a login that only MLflow's own client knows.
    return rest.answers(f"{url}/api/2.0/mlflow/experiments/search?max_results=1", login=login) or bool(
        services["mlflow"].process is None and rest.answers(f"{url}/health")
    )


def _worker(start: Start) -> Command:
    first = deployments.arguments(start.home, start.due) if start.due else []
    work = ["--worker", "--pool", POOL, "--type", "process", "--name", _worker_name(start.token), "--limit", "1"]
    variables = deployments.variables(Services(start.home, start.others["prefect"], start.others["mlflow"]))
    return Command(
        ["-m", "flows.services.worker", *first, *work],
        variables | {"PREFECT_WORKER_QUERY_SECONDS": "3"},
        start.home.folder("prefect"),
    )


def _worker_answers(home: Home, services: Mapping[str, Service]) -> bool:
    prefect = services["prefect"]
    return worker_is_online(f"{prefect.url}/api", _worker_name(services["worker"].token), prefect_login(home, prefect))


def _worker_name(token: str) -> str:
    return f"neorl-{token[:8]}"


SERVICES: Mapping[str, Definition] = {
    "prefect": Definition("Prefect", _prefect, _prefect_answers, port=4200),
    "mlflow": Definition("MLflow", _mlflow, _mlflow_answers, port=5000),
    "worker": Definition("Prefect worker", _worker, _worker_answers, needs=("prefect",)),
}
"""The services in the order in which they are waited for."""
SERVERS = ("prefect", "mlflow")
"""Services that flows need, and that a team may run elsewhere."""
TITLES = {name: definition.title for name, definition in SERVICES.items()}
