"""Keeps other web sites, and other users of the machine, out of the servers: an ASGI application around each.

A page of any web site that a user has open may send requests to the loopback interface, and one whose host name an
attacker lets point there (DNS rebinding) may read the answers too. Browsers tell both: in `Origin`, the page's own
address, and in `Host`, the name they were given.
"""

from __future__ import annotations

import hmac
import os
from collections.abc import Collection, Mapping
from importlib.resources import files
from typing import Final
from urllib.parse import urlsplit

from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from configs.environment import PREFECT_DATABASE, setting
from flows.services.asgi.garbage import collect_beside
from flows.services.asgi.mlflow_start_page import FirstPage
from flows.services.asgi.patience import Patience
from flows.services.rest import basic

LOOPBACK: Final = frozenset({"127.0.0.1", "localhost", "::1"})
LOGIN = "NEORL_SERVICE_LOGIN"
NAMES = "NEORL_SERVICE_NAMES"
"""Names, apart by blanks, by which a server's clients on other machines call it; loopback's need no mention."""
OPEN_PATHS = ("/health", "/version")
"""Addresses that tell nothing but that the server is there."""
UNUSED_PARTS = ("/ajax-api/3.0/mlflow/assistant", "/ajax-api/3.0/jobs", "/gateway", "/ajax-api/3.0/mlflow/gateway")
"""What MLflow serves besides, and nobody here needs: its assistant executes programs on this machine for its pages."""


class Guard:
    """Refuses requests with a foreign Host, a foreign Origin, or without the login that the application needs.

    Args:
        application: the server behind it.
        expected: the Authorization header that it takes; empty where the application asks for a login itself.
        names: what clients on other machines call the server. Pages are shown under loopback's names alone.
        unused: beginnings of paths that are never handed on.
    """

    def __init__(
        self, application: ASGIApp, expected: str = "", names: Collection[str] = (), unused: tuple[str, ...] = ()
    ) -> None:
        self._application, self._expected, self._hosts = application, expected, LOOPBACK.union(names)
        self._unused = unused

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or hand it on."""
        if scope["type"] in {"http", "websocket"}:
            headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
            refusal = self._refusal(scope["path"], headers)
            if refusal is not None:
                if scope["type"] == "websocket":
                    await send({"type": "websocket.close", "code": 1008})
                else:
                    await refusal(scope, receive, send)
                return
        await self._application(scope, receive, send)

    def _refusal(self, path: str, headers: Mapping[str, str]) -> PlainTextResponse | None:
        host, origin = headers.get("host", ""), headers.get("origin")
        if _name_of(host) not in self._hosts:
            return PlainTextResponse("expected this machine's loopback address, or a name of --name, as Host\n", 403)
        if origin is not None and not _same_origin(origin, host):
            return PlainTextResponse("expected a request from this server's own pages\n", 403)
        if self._expected and path not in OPEN_PATHS:
            given = headers.get("authorization", "")
            if not hmac.compare_digest(given.encode(), self._expected.encode()):
                basic_or_bearer = self._expected.partition(" ")[0]
                ask = {"WWW-Authenticate": f'{basic_or_bearer} realm="NeoRL", charset="UTF-8"'}
                return PlainTextResponse("expected the login that 'neorl up' tells of\n", 401, ask)
        if path.startswith(self._unused):
            return PlainTextResponse("expected a part of MLflow that this server offers\n", 404)
        return None


def prefect() -> ASGIApp:
    """The Prefect server, which asks for its login itself."""
    from prefect.server.api.server import create_app

    application: ASGIApp = create_app()
    # A PostgreSQL that does not answer is gone, which no further try at once would mend.
    if not setting(PREFECT_DATABASE):
        collect_beside()
        application = Patience(application)
    return Guard(application, names=_names())


def mlflow() -> ASGIApp:
    """The MLflow server, behind a login."""
    from uvicorn.importer import import_from_string

    application: ASGIApp = import_from_string("mlflow.server.fastapi_app:app")
    page = files("mlflow.server").joinpath("js", "build", "index.html").read_text(encoding="utf-8")
    return Guard(FirstPage(application, page), basic(os.environ[LOGIN]), _names(), UNUSED_PARTS)


def metrics() -> ASGIApp:
    """The metrics of a home, behind a token of their own."""
    from flows.metrics import application

    return Guard(application(), f"Bearer {os.environ[LOGIN]}", _names())


def _names() -> list[str]:
    return os.environ.get(NAMES, "").split()


def _name_of(host: str) -> str:
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def _same_origin(origin: str, host: str) -> bool:
    """Whether a page lies on the server that it speaks to; 127.0.0.1 and localhost are the same server."""
    try:
        page, server = urlsplit(origin), urlsplit(f"//{host}")
        return page.scheme == "http" and page.hostname in LOOPBACK and page.port == server.port
    except ValueError:
        return False
