"""Start, stop, find and check the services of one home."""

from __future__ import annotations

import json
import os
import sys
import time
import urllib.error
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace

from configs.environment import no_proxy_variables
from configs.errors import BadInput, ServiceMissing
from configs.home import PASSPHRASE, RESTORED, Home
from flows.services import automations, deployments, processes, rest, service_table
from flows.services.locks import dead_runs
from flows.services.service_table import SERVERS, SERVICES, TITLES, log_file
from flows.services.state import (
    MLFLOW_LOGIN,
    SECRET,
    Service,
    Services,
    ServiceStatus,
    Status,
    environment,
    home_login,
    mlflow_login,
    needing_prefect,
    read_services,
    running,
    team_service,
    write_services,
)
from flows.services.stuck_runs import release_stuck_runs
from tasks.files.canonical import exclusive, write_secret

__all__ = ["Services", "connect", "down", "environment", "mlflow_address", "reap_dead_runs", "status", "up"]

Say = Callable[[str], None]


def up(
    home: Home,
    *,
    prefect_port: int | None = None,
    mlflow_port: int | None = None,
    worker: bool = True,
    accept_restored: bool = False,
    timeout: float = 300.0,
    say: Say | None = None,
) -> Services:
    """Start the services that do not run, wait until all answer, and return them.

    Args:
        home: home of the services.
        prefect_port, mlflow_port: required port; by default the last used port, else 4200 or 5000, else a free port.
        worker: also start a worker and register the deployments of prefect.yaml.
        accept_restored: let the worker of a restored home run what the backup's Prefect database contains.
        timeout: seconds within which all services must answer.
        say: callback for progress messages.

    Raises:
        BadInput: if a required port is taken, or prefect.yaml is invalid.
        Refused: if the signing key cannot be opened.
        ServiceMissing: if a service does not answer.
    """
    wanted = {name: port for name, port in (("prefect", prefect_port), ("mlflow", mlflow_port)) if port is not None}
    worker = worker and _may_work(home, accept_restored, say or (lambda _: None))
    if not (worker or wanted):
        # A run needs only the servers, so do not wait for another command that starts a worker.
        with suppress(ServiceMissing):
            answering = connect(home)
            start_signer(home, say or (lambda _: None))
            return answering
    deployments.declared()  # rejects a malformed prefect.yaml before anything is started
    with exclusive(home.folder("locks") / "services.lock"):
        startup = _Startup(home, wanted, time.monotonic() + timeout, say or (lambda _: None))
        start_signer(home, startup.say)
        services = startup.run(worker)
        _log_in(home, services.mlflow)
        return services


def _may_work(home: Home, accepted: bool, say: Say) -> bool:
    """Return whether a worker may start; a restored home needs a person's consent once."""
    # Most homes were never restored, and the import of pydantic is slow.
    if not (home.root / RESTORED).exists():
        return True
    from tasks.maintenance.restored import accept, held

    if accepted:
        with exclusive(home.folder("locks") / "services.lock"):
            # A server that started before makes no scheduled runs.
            prefect = running(home, read_services(home).get("prefect"))
            processes.stop([prefect.process] if prefect and prefect.process else [])
            accept(home)
        return True
    if (work := held(home)) is not None:
        for line in work.found:
            say(f"held: {line}")
        say(
            f"no worker started: {home.root} was restored from a backup of {work.made}, whose work is listed above: "
            "delete unknown work in Prefect's pages, then run 'neorl up --accept-restored', which runs the rest"
        )
    return False


def start_signer(home: Home, say: Say) -> None:
    """Start the signer with the key's passphrase. Call this before servers start, so that none inherits the passphrase.

    A home without a key needs no signer, unless the environment has a passphrase for a new key. If a person must type
    the passphrase and there is no terminal, no signer is started.

    Raises:
        Refused: if the passphrase is wrong, or the key is not pinned.
    """
    given = os.environ.get(PASSPHRASE)
    if not (given or home.signing_key.exists()):
        return
    # Imported here, because the imports of pydantic and cryptography are slow.
    from tasks.evidence.ledger import client, keys

    if not given and keys.must_be_asked_for(home) and not sys.stdin.isatty():
        say(f"signer not started, because it needs the key's passphrase: set {PASSPHRASE}, or run this on a terminal")
    else:
        client.start(home)


class _Startup:
    """State of one call of `up`."""

    def __init__(self, home: Home, wanted: dict[str, int], deadline: float, say: Say) -> None:
        self.home, self.wanted, self.deadline, self.say = home, wanted, deadline, say
        self.known = read_services(home)
        self.current = _find(home)
        self.started: list[str] = []
        self.block: str | None = None
        self.logged: dict[str, int] = {}
        """Bytes that each log had before its service was started."""
        for name, port in wanted.items():
            _check_port(name, port, self.current.get(name))

    def run(self, worker: bool) -> Services:
        """Start all services that do not run, and wait for them. A service starts after the services that it needs."""
        # A home's worker serves only the home's own Prefect server. A team has separate workers.
        local = team_service("prefect") is None
        names = [name for name in SERVICES if name in SERVERS or (worker and (local or name != "worker"))]
        answering: set[str] = set()
        due: deployments.Deployments | None = None
        for waited in names:
            for name in names:
                if name not in self.current and answering.issuperset(SERVICES[name].needs):
                    self._start(name, due=due)
            self._wait(waited)
            answering.add(waited)
            if waited == "prefect" and worker and local:
                with needing_prefect(self.services()):
                    due = deployments.due(self.services())
                    self.block = automations.notification_block(self.services())
                    for name in automations.install(self.services(), self.block):
                        self.say(f"updated automation '{name}'")
                    if "worker" not in self.current:
                        for line in release_stuck_runs(self.services()):
                            self.say(line)
        if due:
            registers = self.current["worker"].process if "worker" in self.started else None
            with needing_prefect(self.services()):
                deployments.finish(due, self.services(), self.deadline, registers)
            self.say(f"registered the deployments of {due.path}")
        _write_profile(self.services())
        return self.services()

    def services(self) -> Services:
        """Return the services found or started so far."""
        return Services(
            self.home,
            self.current["prefect"],
            self.current["mlflow"],
            self.current.get("worker"),
            tuple(self.started),
            self.block,
            self.current.get("metrics"),
        )

    def _start(self, name: str, *, anywhere: bool = False, due: deployments.Deployments | None = None) -> None:
        port = self.wanted.get(name, 0)
        if not port and SERVICES[name].port:
            last = self.known.get(name)
            preferred = [] if anywhere else [port for port in (last.port if last else 0, SERVICES[name].port) if port]
            port = next(filter(processes.port_is_free, preferred), None) or processes.any_free_port()
        log = log_file(self.home, name)
        self.logged[name] = log.stat().st_size if log.exists() else 0
        service = service_table.start(self.home, name, port, self.current, due)
        self.current[name] = self.known[name] = service
        try:
            write_services(self.home, self.known)
        except BaseException:
            # Without the record (full disk, Ctrl-C) 'neorl down' could not stop the process.
            processes.stop([service.process] if service.process else [])
            raise
        self.say(f"starting {TITLES[name]}{f' on {service.url}' if service.url else ''}")
        if name not in self.started:
            self.started.append(name)

    def _wait(self, name: str) -> None:
        """Wait until a service answers. If another program has taken the port, start the service on a free port."""
        for attempt in range(4):
            service = self.current[name]
            while service.process is None or service.process.alive:
                if _listens(service) and SERVICES[name].answers(self.home, self.current, rest.SOON):
                    return
                if time.monotonic() > self.deadline or service.process is None:
                    raise _missing(self.home, service)
                time.sleep(0.2)
            # The whole output, because servers can print more than a page after this error.
            output = log_file(self.home, name).read_bytes()[self.logged.get(name, 0) :]
            if attempt == 3 or name in self.wanted or b"address already in use" not in output:
                break
            self._start(name, anywhere=True)
        raise _missing(self.home, self.current[name])


def connect(home: Home) -> Services:
    """Return the running services. Wait for busy services, but start no service.

    Raises:
        ServiceMissing: if Prefect or MLflow does not answer.
    """
    current = _find(home)
    for name in SERVERS:
        if name not in current or not SERVICES[name].answers(home, current, rest.SILENT):
            raise ServiceMissing(f"{TITLES[name]} of {home.root} does not answer: start it with 'neorl up'.")
    _log_in(home, current["mlflow"])
    return Services(home, current["prefect"], current["mlflow"], current.get("worker"))


def down(home: Home) -> list[str]:
    """Stop the services, signer and witness of this home; return the names of those that ran."""
    from tasks.evidence.ledger import client
    from tasks.evidence.witness.transport import stop_own

    with exclusive(home.folder("locks") / "services.lock"):
        known = read_services(home)
        alive = {name: service for name in known if (service := running(home, known[name]))}
        # Stop the worker first: without the server it would retry until it is killed.
        for group in ([name for name in alive if name not in SERVERS], list(alive)):
            processes.stop([process for name in group if (process := alive[name].process)])
        forget_processes(home)
        signer = ["signer"] if client.stop(home) else []
        witness = ["witness"] if stop_own(home) else []
    return sorted([*alive, *signer, *witness])


def forget_processes(home: Home) -> None:
    """Remove all processes from the record of services. The ports stay, so that links in reports keep working."""
    known = read_services(home)
    write_services(home, {name: replace(s, process=None, token="") for name, s in known.items() if s.port})


def status(home: Home) -> Status:
    """Return state, address and process of each service."""
    current = _find(home)
    report = {name: _service_status(home, name, current) for name in SERVICES}
    complete = all(name in current for name in SERVERS)
    variables = environment(Services(home, current["prefect"], current["mlflow"])) if complete else {}
    return Status(str(home.root), report, {k: v for k, v in variables.items() if k not in SECRET})


def wanted(home: Home) -> list[str]:
    """Return the names of services that this home has started or that a team runs, whether they run now or not."""
    known = read_services(home)
    return [name for name in SERVICES if name in known or (name in SERVERS and team_service(name))]


def answers(home: Home, name: str) -> bool:
    """Return whether a service runs and answers."""
    current = _find(home)
    return name in current and SERVICES[name].answers(home, current, rest.SOON)


def _service_status(home: Home, name: str, current: Mapping[str, Service]) -> ServiceStatus:
    service = current.get(name)
    if service is None:
        return ServiceStatus("stopped")
    answers = name not in SERVERS or SERVICES[name].answers(home, current, rest.SOON)
    pid = service.process.pid if service.process else None
    team = service.process is None if name in SERVERS else None
    return ServiceStatus("running" if answers else "not answering", service.url, pid, team)


def mlflow_address(home: Home) -> str | None:
    """Return the address of the home's or team's MLflow, or None if MLflow does not answer."""
    current = _find(home)
    if "mlflow" not in current or not SERVICES["mlflow"].answers(home, current, rest.SOON):
        return None
    _log_in(home, current["mlflow"])
    return current["mlflow"].url


def reap_dead_runs(home: Home) -> list[str]:
    """Mark the flow runs of killed processes as crashed in Prefect, and return the ids of these runs."""
    reaped = []
    dead = dead_runs(home)
    if not dead:
        return []
    services = connect(home)
    for path, record in dead:
        run = f"flow_runs/{record.flow_run}"
        try:
            if services.ask_prefect(run)["state_type"] in {"RUNNING", "PENDING", "CANCELLING"}:
                state = {"type": "CRASHED", "name": "Crashed", "message": f"process {record.pid} was killed"}
                services.ask_prefect(f"{run}/set_state", {"state": state, "force": True})
                reaped.append(record.flow_run)
        except (OSError, ValueError) as error:
            # After an error other than 404 the run's state is unknown, so keep the record for the next call.
            if not (isinstance(error, urllib.error.HTTPError) and error.code == 404):
                continue
        path.unlink(missing_ok=True)
    return reaped


def _find(home: Home) -> dict[str, Service]:
    """Return the running services by name. A team's services are assumed to run."""
    known = read_services(home)
    current = {name: team_service(name) if name in SERVERS else None for name in SERVICES}
    chosen = {name: service or running(home, known.get(name)) for name, service in current.items()}
    return {name: service for name, service in chosen.items() if service}


def _log_in(home: Home, mlflow: Service) -> None:
    """Set login and proxies in the environment, because MLflow's client reads them only there."""
    os.environ.update(no_proxy_variables())
    if login := mlflow_login(home, mlflow):
        os.environ.update(zip(MLFLOW_LOGIN, login.split(":", 1), strict=True))


def _check_port(name: str, port: int, current: Service | None) -> None:
    if current and current.port == port:
        return
    if current:
        cure = "run 'neorl down' first" if current.process else f"unset NEORL_{name.upper()}_URL"
        raise BadInput(f"{TITLES[name]} runs at {current.url}, not on port {port}: {cure}.")
    if not processes.port_is_free(port):
        raise BadInput(
            f"port {port} for {TITLES[name]} is used by another program: omit --{name}-port, or name another port."
        )


def _listens(service: Service) -> bool:
    """Return whether the service's own process listens on the port; True for a service without process or port."""
    return not (service.process and service.port) or processes.listens(service.process, service.port)


def _missing(home: Home, service: Service) -> ServiceMissing:
    title = TITLES[service.name]
    if service.process is None:
        variable = f"NEORL_{service.name.upper()}_URL"
        return ServiceMissing(f"{title} at {service.url} ({variable}) does not answer: check the address.")
    problem = "did not answer in time" if service.process.alive else "ended by itself"
    last = _tail(home, service.name).strip().splitlines()
    reason = f" ({last[-1].strip()})" if last and not service.process.alive else ""
    return ServiceMissing(
        f"{title} {problem}{reason}: read {log_file(home, service.name)}, then run 'neorl down' and 'neorl up'."
    )


def _tail(home: Home, name: str) -> str:
    return log_file(home, name).read_bytes()[-4000:].decode(errors="replace")


def _write_profile(services: Services) -> None:
    """Write the Prefect profile that prefect.toml names, for the `prefect` command."""
    folder = services.home.folder("prefect")
    settings = {"PREFECT_API_URL": services.prefect_api, "PREFECT_HOME": str(folder)}
    if services.prefect.process:  # never store a team's login
        settings["PREFECT_API_AUTH_STRING"] = home_login(services.home)
    lines = ['active = "neorl"', "", "[profiles.neorl]", *(f"{k} = {json.dumps(v)}" for k, v in settings.items())]
    text, path = "\n".join(lines) + "\n", folder / "profiles.toml"
    if not path.exists() or path.read_text() != text or path.stat().st_mode & 0o077:
        write_secret(path, text.encode())
