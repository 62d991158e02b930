"""What a team's machines run in containers: one service in the foreground, and the registration of deployments."""

from __future__ import annotations

import os
import secrets
import time
from typing import NoReturn

from configs.errors import BadInput
from configs.home import Home
from flows.services import automations, definitions, deployments
from flows.services.asgi.guard import LOGIN
from flows.services.definitions import SERVERS, Start
from flows.services.servers import connect
from flows.services.state import home_login, needing_prefect


def serve(home: Home, name: str, host: str, port: int, names: tuple[str, ...]) -> NoReturn:
    """Become a service: the command of `neorl up` with another address, which ends when this process is ended.

    A server's login is that of `NEORL_SERVICE_LOGIN`, else the home's own. A worker takes runs from the servers that
    NEORL_PREFECT_URL and NEORL_MLFLOW_URL name, and answers on its port whether it still asks for work; metrics ask for
    the home's own token.

    Args:
        home: whose service.
        name: its name in `SERVICES`.
        host: the address of the interface to listen on.
        port: where it listens.
        names: what clients on other machines call a server.

    Raises:
        BadInput: when the login is no `name:password`.
        ServiceMissing: when a worker's servers do not answer.
    """
    if name in SERVERS:
        login = os.environ.get(LOGIN) or home_login(home)
        if not all(login.partition(":")):
            raise BadInput(f"expected {LOGIN} as name:password, got another form: correct it.")
        start = Start(home, port, secrets.token_hex(16), {}, None, login, host, names)
    else:
        found = connect(home)
        others = {"prefect": found.prefect, "mlflow": found.mlflow}
        start = Start(home, port, secrets.token_hex(16), others, None, "", host, names)
    command = definitions.completed(name, start)
    # What it writes is its owner's alone, as with `neorl up`.
    os.umask(0o077)
    os.chdir(command.folder)
    os.execve(command.arguments[0], command.arguments, command.variables)


def register(home: Home, timeout: float) -> list[str]:
    """Make the deployments of prefect.yaml and our automations known to a home's Prefect server, or its team's.

    Args:
        home: whose servers, which must answer.
        timeout: seconds to wait for Prefect to take them.

    Returns:
        Names of the deployments, none where all were known, and of the automations that were made or changed.

    Raises:
        BadInput: when prefect.yaml is malformed, or Prefect refuses one of them.
        ServiceMissing: when a server does not answer, or Prefect with an error.
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
