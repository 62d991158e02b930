"""Run one service in the foreground, or register deployments, in containers of a team."""

from __future__ import annotations

import os
import secrets
import time
from typing import NoReturn

from configs.errors import BadInput, Refused
from configs.home import RESTORED, Home
from flows.services import automations, deployments
from flows.services.processes import LOGIN
from flows.services.servers import connect
from flows.services.service_table import SERVERS, Start, full_command
from flows.services.state import home_login, needing_prefect


def serve(home: Home, name: str, host: str, port: int, names: tuple[str, ...]) -> NoReturn:
    """Replace this process by a service of `neorl up`. `names` are the host names that other machines may use.

    A server uses the login in NEORL_SERVICE_LOGIN, or else the login of the home. The metrics service uses the home's
    token. A worker connects to NEORL_PREFECT_URL and NEORL_MLFLOW_URL, and answers health checks on the port.

    Raises:
        BadInput: if the login is not of the form `name:password`.
        ServiceMissing: if a worker's servers do not answer.
    """
    if name in SERVERS:
        login = os.environ.get(LOGIN) or home_login(home)
        if not all(login.partition(":")):
            raise BadInput(f"{LOGIN} must have the form name:password (the value is not shown): correct it.")
        start = Start(home, port, secrets.token_hex(16), {}, None, login, host, names)
    else:
        if (home.root / RESTORED).exists():
            raise Refused(f"{home.root} was restored from a backup: accept its work with 'neorl up --accept-restored'")
        current = connect(home)
        others = {"prefect": current.prefect, "mlflow": current.mlflow}
        start = Start(home, port, secrets.token_hex(16), others, None, "", host, names)
    command = full_command(name, start)
    # Only the owner may read new files, as with `neorl up`.
    os.umask(0o077)
    os.chdir(command.folder)
    os.execve(command.arguments[0], command.arguments, command.variables)


def register(home: Home, timeout: float) -> list[str]:
    """Register the deployments of prefect.yaml and the automations with the home's or the team's Prefect server.

    Return the names of new or changed deployments and automations.

    Raises:
        BadInput: if prefect.yaml is malformed, or Prefect rejects a deployment.
        ServiceMissing: if a server does not answer, or Prefect answers with an error.
    """
    services = connect(home)
    deadline = time.monotonic() + timeout
    with needing_prefect(services):
        due = deployments.due(services)
        changed = automations.install(services, automations.notification_block(services))
        if due is None:
            return changed
        deployments.finish(due, services, deadline)
        return [*due.names, *changed]
