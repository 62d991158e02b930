"""A home's record of services: addresses, processes, logins, and the environment of their clients."""

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
from tasks.files.canonical import read_secret, write_json, write_secret
from tasks.files.provenance import compiling

USER = "neorl"
MLFLOW_LOGIN = ("MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD")
SECRET = frozenset({"PREFECT_API_AUTH_STRING", "MLFLOW_TRACKING_PASSWORD"})
"""Environment variables with secrets. Only `neorl status --export` prints these variables."""
REFUSED_LOGINS = (401, 403)
"""HTTP status codes of Prefect, or of a proxy in front of it, for a missing or wrong login."""


@dataclass(frozen=True)
class Service:
    """A service. The home's own service has a process; a team's service has only an address."""

    name: str
    url: str = ""
    port: int = 0
    process: ProcessId | None = None
    token: str = ""
    """Random text in the process's environment, by which the process is recognised; not a secret."""


@dataclass(frozen=True)
class Services:
    """The services of a home."""

    home: Home
    prefect: Service
    mlflow: Service
    worker: Service | None = None
    started: tuple[str, ...] = ()
    notification_block: str | None = None
    """Id of Prefect's notification block; only set by `up` with a worker."""
    metrics: Service | None = None

    @property
    def prefect_api(self) -> str:
        """Address of Prefect's API."""
        return f"{self.prefect.url}/api"

    def ask_prefect(self, path: str, body: object = None, *, method: str | None = None) -> Any:
        """Send a request with login to Prefect's API, and return the answer's JSON.

        Without `method`, a request with a body is a POST, and a request without a body is a GET.

        Raises:
            ServiceMissing: if Prefect rejects the login.
            urllib.error.HTTPError: if Prefect rejects the request for another reason.
            OSError: if Prefect does not answer in time.

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
    """One row of `neorl status`."""

    state: Literal["running", "not answering", "stopped"]
    url: str = ""
    pid: int | None = None
    team: bool | None = None
    """Whether a team runs the service; None for services that only a home has."""


@dataclass(frozen=True)
class Status:
    """Contents of `neorl status`."""

    home: str
    services: Mapping[str, ServiceStatus]
    environment: Mapping[str, str]
    """Environment variables for clients, without secrets; empty unless Prefect and MLflow run."""


def environment(services: Services) -> dict[str, str]:
    """Return environment variables for clients of these services. Set them before you import prefect or mlflow."""
    home = services.home.root
    variables = {
        **TELEMETRY_OFF,
        **no_proxy_variables(),
        "NEORL_HOME": str(home),
        # A resumed or repeated run reuses compiled programs.
        **{name: os.environ.get(name) or value for name, value in compiling(services.home).items()},
        "PREFECT_HOME": str(home / "prefect"),
        "PREFECT_API_URL": services.prefect_api,
        # The default serialiser is pickle.
        "PREFECT_RESULTS_DEFAULT_SERIALIZER": "json",
        # If the server is down, Prefect must fail instead of starting a temporary server in this process.
        "PREFECT_SERVER_EPHEMERAL_ENABLED": "false",
        "MLFLOW_TRACKING_URI": services.mlflow.url,
        "MLFLOW_ALLOW_PICKLE_DESERIALIZATION": "false",
        # An automation ends runs without heartbeats (`flows.services.automations`).
        "PREFECT_FLOWS_HEARTBEAT_FREQUENCY": "30",
        # The default of seven retries takes minutes if MLflow is down.
        "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "3",
        # The default of five retries takes a minute per request if the server is down.
        "PREFECT_CLIENT_MAX_RETRIES": "2",
    }
    if login := prefect_login(services.home, services.prefect):
        variables["PREFECT_API_AUTH_STRING"] = login
    if login := mlflow_login(services.home, services.mlflow):
        variables |= dict(zip(MLFLOW_LOGIN, login.split(":", 1), strict=True))
    return variables


def home_login(home: Home) -> str:
    """Return the login `name:password` of this home's servers. Create the login if there is none.

    Raises:
        Refused: if other users may read the file.
    """
    if not home.login.exists():
        write_secret(home.login, f"{USER}:{secrets.token_urlsafe(32)}\n".encode())
    return read_secret(home.login).decode().strip()


def metrics_token(home: Home) -> str:
    """Return the token for this home's metrics. Create the token if there is none.

    Prometheus gets this token instead of the login, because anyone with the login can run code through Prefect.

    Raises:
        Refused: if other users may read the file.
    """
    if not home.metrics_token.exists():
        write_secret(home.metrics_token, secrets.token_urlsafe(32).encode())
    return read_secret(home.metrics_token).decode().strip()


def prefect_login(home: Home, service: Service) -> str:
    """Return the login for Prefect: the home's login, or for a team's server the login in the environment."""
    return home_login(home) if service.process else os.environ.get("PREFECT_API_AUTH_STRING", "")


def login_refused(prefect: Service, status: int) -> ServiceMissing:
    """Return the error for a login that Prefect rejected with this HTTP status."""
    cure = "run 'neorl down', then 'neorl up'" if prefect.process else "set PREFECT_API_AUTH_STRING to name:password"
    return ServiceMissing(f"Prefect at {prefect.url} rejected the login (HTTP {status}): {cure}.")


@contextmanager
def needing_prefect(services: Services) -> Iterator[None]:
    """Turn a failed request to Prefect into a ServiceMissing."""
    try:
        yield
    # Other OSErrors are about files, not about Prefect.
    except (urllib.error.URLError, ConnectionError, TimeoutError, HTTPException) as error:
        log = services.home.root / "logs" / "prefect.log"
        cure = f"read {log}" if services.prefect.process else "read Prefect's log"
        raise ServiceMissing(
            f"a request to Prefect at {services.prefect.url} failed ({error}): {cure}, then repeat the command."
        ) from error


def mlflow_login(home: Home, service: Service) -> str:
    """Return the login for MLflow: the home's login, or for a team's server the login in the environment."""
    if service.process:
        return home_login(home)
    name, password = (os.environ.get(variable, "") for variable in MLFLOW_LOGIN)
    return f"{name}:{password}" if name else ""


def team_service(name: str) -> Service | None:
    """Return the team's service at NEORL_PREFECT_URL or NEORL_MLFLOW_URL, or None if the variable is not set."""
    url = os.environ.get(f"NEORL_{name.upper()}_URL", "").rstrip("/")
    return Service(name, url.removesuffix("/api") if name == "prefect" else url) if url else None


def running(home: Home, service: Service | None) -> Service | None:
    """Return the service if its process runs and was started for this home, else None."""
    if service is None or service.process is None:
        return None
    return service if belongs(service.process, home.root, service.token) else None


def read_services(home: Home) -> dict[str, Service]:
    """Return the services that this home has started, by name, running or not.

    Raises:
        BadInput: if the record is unreadable.
    """
    try:
        record = json.loads(home.services.read_bytes())
        return {name: _service(name, entry) for name, entry in record.items()}
    except FileNotFoundError:
        return {}
    except (ValueError, TypeError, AttributeError, LookupError) as error:
        raise BadInput(f"{home.services} is damaged ({error}): remove the file, then run 'neorl up'.") from error


def write_services(home: Home, known: dict[str, Service]) -> None:
    """Write the record of services, including the ports of stopped ones."""
    record = {}
    for name, service in known.items():
        if service.port or service.process:
            process = asdict(service.process) if service.process else {}
            record[name] = {"url": service.url, "port": service.port, "token": service.token, **process}
    write_json(home.services, record)


def _service(name: str, entry: dict[str, Any]) -> Service:
    process = ProcessId(entry["pid"], entry["created"]) if entry.get("pid") else None
    return Service(name, entry["url"], entry["port"], process, entry["token"])
