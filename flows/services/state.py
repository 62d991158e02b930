"""What a home knows of its services: their addresses and processes, the login, and the variables of their clients."""

from __future__ import annotations

import json
import os
import secrets
import urllib.error
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from http.client import HTTPException
from typing import Any, Literal

from configs.environment import TELEMETRY_OFF, no_proxy_variables
from configs.errors import BadInput, ServiceMissing
from configs.home import Home
from flows.services import rest
from flows.services.processes import ProcessId, belongs
from tasks.files.canonical import write_json
from tasks.files.provenance import compiling
from tasks.files.secrets import read_secret, write_secret

USER = "neorl"
MLFLOW_LOGIN = ("MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD")
SECRET = frozenset({"PREFECT_API_AUTH_STRING", "MLFLOW_TRACKING_PASSWORD"})
"""The variables that are shown only to who asks for them."""
REFUSED_LOGINS = (401, 403)
"""What Prefect, or a proxy before a team's, answers to a wrong login or to none."""


@dataclass(frozen=True)
class Service:
    """One service: ours when it has a process, a team's when it has only an address."""

    name: str
    url: str = ""
    port: int = 0
    process: ProcessId | None = None
    token: str = ""
    """Tells the service's process from one that took its number; no secret."""


@dataclass(frozen=True)
class Services:
    """What a flow needs to know about the servers of its home."""

    home: Home
    prefect: Service
    mlflow: Service
    worker: Service | None = None
    started: tuple[str, ...] = ()
    """What this call of `up` had to start."""
    told: str | None = None
    """Id of the notification block by which Prefect tells of failures, as far as this call of `up` looked."""
    metrics: Service | None = None

    @property
    def prefect_api(self) -> str:
        """The address that Prefect's clients want."""
        return f"{self.prefect.url}/api"

    def ask_prefect(self, path: str, body: object = None, *, method: str | None = None) -> Any:
        """One request to Prefect's API with its login: a GET, or a POST of a body, or as named; the answer's JSON.

        Raises:
            ServiceMissing: when Prefect does not take the login.
            urllib.error.HTTPError: when it refuses for another reason.
            OSError: when it does not answer in time.

        Example:
            >>> services.ask_prefect("flow_runs/filter", {"limit": 5})  # doctest: +SKIP
        """
        login = prefect_login(self.home, self.prefect)
        address = f"{self.prefect_api}/{path}"
        try:
            return rest.request(address, body, login=login, method=method, timeout=rest.SILENT)
        except urllib.error.HTTPError as error:
            if error.code not in REFUSED_LOGINS:
                raise
            raise login_refused(self.prefect, error.code) from error


@dataclass(frozen=True)
class ServiceStatus:
    """One row of what `neorl status` shows."""

    state: Literal["running", "not answering", "stopped"]
    url: str = ""
    pid: int | None = None
    team: bool | None = None
    """Whether a team runs it; None for what only a home has."""


@dataclass(frozen=True)
class Status:
    """What `neorl status` shows."""

    home: str
    services: Mapping[str, ServiceStatus]
    environment: Mapping[str, str]
    """The variables of clients, without the secret ones; empty unless both servers are known."""


def environment(services: Services) -> dict[str, str]:
    """The variables of a process that talks to these services; set them before prefect or mlflow is imported."""
    home = services.home.root
    variables = {
        **TELEMETRY_OFF,
        **no_proxy_variables(),
        "NEORL_HOME": str(home),
        # A run that goes on, or comes again, finds its programs compiled.
        **{name: os.environ.get(name) or value for name, value in compiling(services.home).items()},
        "PREFECT_HOME": str(home / "prefect"),
        "PREFECT_API_URL": services.prefect_api,
        # The default serialiser is pickle.
        "PREFECT_RESULTS_DEFAULT_SERIALIZER": "json",
        # A server that has gone is an error, never a reason to start another inside this process.
        "PREFECT_SERVER_EPHEMERAL_ENABLED": "false",
        "MLFLOW_TRACKING_URI": services.mlflow.url,
        "MLFLOW_ALLOW_PICKLE_DESERIALIZATION": "false",
        # By its heartbeats an automation knows that a run's process lives (`flows.services.automations`).
        "PREFECT_FLOWS_HEARTBEAT_FREQUENCY": "30",
        # Seven retries, the default, keep a run waiting for minutes when MLflow has gone.
        "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "3",
        # Five, the default, take a minute for each request to a server that has gone.
        "PREFECT_CLIENT_MAX_RETRIES": "2",
    }
    if login := prefect_login(services.home, services.prefect):
        variables["PREFECT_API_AUTH_STRING"] = login
    if login := mlflow_login(services.home, services.mlflow):
        variables |= dict(zip(MLFLOW_LOGIN, login.split(":", 1), strict=True))
    return variables


def home_login(home: Home) -> str:
    """The `name:password` of this home's own servers, made when absent.

    Raises:
        Refused: when others than its owner may read the file.
    """
    if not home.login.exists():
        write_secret(home.login, f"{USER}:{secrets.token_urlsafe(32)}\n".encode())
    return read_secret(home.login).decode().strip()


def metrics_token(home: Home) -> str:
    """What a reader of this home's metrics sends, made when absent: it opens nothing but them.

    The login would let Prometheus run code by way of Prefect.

    Raises:
        Refused: when others than its owner may read the file.
    """
    if not home.metrics_token.exists():
        write_secret(home.metrics_token, secrets.token_urlsafe(32).encode())
    return read_secret(home.metrics_token).decode().strip()


def prefect_login(home: Home, service: Service) -> str:
    """What Prefect's clients send: this home's login, or the one that the environment has for a team's server."""
    return home_login(home) if service.process else os.environ.get("PREFECT_API_AUTH_STRING", "")


def login_refused(prefect: Service, status: int) -> ServiceMissing:
    """What a person is told where Prefect does not take the login.

    Args:
        prefect: the server.
        status: what it answered.
    """
    cure = "'neorl down', then 'neorl up'" if prefect.process else "set PREFECT_API_AUTH_STRING to its name:password"
    return ServiceMissing(f"expected Prefect at {prefect.url} to take the login, got it refused ({status}): {cure}.")


@contextmanager
def needing_prefect(services: Services) -> Iterator[None]:
    """Tell of a Prefect that fails a request, in a sentence, where nothing goes on without its answer.

    Args:
        services: whose Prefect server is asked.

    Raises:
        ServiceMissing: when it answers with an error, or does not answer in time.
    """
    try:
        yield
    # No other OSError, for one of a file has a cure of its own.
    except (urllib.error.URLError, ConnectionError, TimeoutError, HTTPException) as error:
        log = services.home.root / "logs" / "prefect.log"
        cure = f"read {log}" if services.prefect.process else "look into its log"
        raise ServiceMissing(
            f"expected Prefect at {services.prefect.url} to do as asked, got '{error}': {cure}, then give the same "
            "command again."
        ) from error


def mlflow_login(home: Home, service: Service) -> str:
    """What MLflow's clients send: this home's login, or the one that the environment has for a team's server."""
    if service.process:
        return home_login(home)
    name, password = (os.environ.get(variable, "") for variable in MLFLOW_LOGIN)
    return f"{name}:{password}" if name else ""


def team_service(name: str) -> Service | None:
    """A service that NEORL_PREFECT_URL or NEORL_MLFLOW_URL names: a team runs it, and this home leaves it alone."""
    url = os.environ.get(f"NEORL_{name.upper()}_URL", "").rstrip("/")
    return Service(name, url.removesuffix("/api") if name == "prefect" else url) if url else None


def running(home: Home, service: Service | None) -> Service | None:
    """The service if its process lives and was started for this home."""
    if service is None or service.process is None:
        return None
    return service if belongs(service.process, home.root, service.token) else None


def read_services(home: Home) -> dict[str, Service]:
    """The services that this home has started, by name, whether they still run or not.

    Raises:
        BadInput: when the record cannot be read.
    """
    try:
        record = json.loads(home.services.read_bytes())
        return {name: _service(name, entry) for name, entry in record.items()}
    except FileNotFoundError:
        return {}
    except (ValueError, TypeError, AttributeError, LookupError) as error:
        raise BadInput(
            f"expected JSON in {home.services} as 'neorl up' writes it, got {error}: remove the file, then 'neorl up'."
        ) from error


def write_services(home: Home, known: dict[str, Service]) -> None:
    """Keep which services this home has, and the ports of those that were stopped."""
    record = {}
    for name, service in known.items():
        if service.port or service.process:
            process = asdict(service.process) if service.process else {}
            record[name] = {"url": service.url, "port": service.port, "token": service.token, **process}
    write_json(home.services, record)


def _service(name: str, entry: dict[str, Any]) -> Service:
    process = ProcessId(entry["pid"], entry["created"]) if entry.get("pid") else None
    return Service(name, entry["url"], entry["port"], process, entry["token"])
