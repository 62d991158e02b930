"""Access control that protects the servers from other web sites and from other users of the machine.

Any web page that a user has open can send requests to the loopback interface. If the page's host name resolves to
127.0.0.1 (DNS rebinding), the page can also read the answers. The headers `Origin` and `Host` reveal such requests.
"""

from __future__ import annotations

import hmac
import os
from collections.abc import Collection, Mapping, Sequence
from importlib.resources import files
from urllib.parse import urlsplit

from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from configs.environment import PREFECT_DATABASE, setting
from flows.services.asgi.gc_thread import collect_in_thread
from flows.services.asgi.mlflow_start_page import StartPage
from flows.services.asgi.sqlite_retry import SqliteRetry
from flows.services.processes import LOGIN, LOOPBACK, NAMES
from flows.services.rest import basic

ONCE = ("host", "origin", "authorization", "sec-fetch-site", "sec-fetch-mode")
"""Headers that a request may have once only, because two readers could choose different ones."""
DESCRIPTIONS = ("/docs", "/redoc", "/openapi.json")
"""Pages of Prefect that describe the API; Prefect itself asks for no login there."""
OPEN_PATHS = ("/health", "/version")
BLOCKED_PATHS = ("/ajax-api/3.0/mlflow/assistant", "/ajax-api/3.0/jobs", "/gateway", "/ajax-api/3.0/mlflow/gateway")
"""Parts of MLflow that NeoRL does not use. For example, the assistant executes programs on this machine."""


class Guard:
    """ASGI middleware that rejects requests with a foreign Host or Origin, or without the required login.

    Args:
        application: the server.
        expected: the required Authorization header.
        behind: if given, only paths that begin with one of these texts need the header, because the application checks
            the other paths itself.
        names: host names by which API clients on other machines may call; pages in browsers need a loopback name.
        blocked: a request is always rejected if its path begins with one of these texts.
    """

    def __init__(
        self,
        application: ASGIApp,
        expected: str,
        names: Collection[str] = (),
        *,
        behind: tuple[str, ...] = ("/",),
        blocked: tuple[str, ...] = (),
    ) -> None:
        self._application, self._expected, self._hosts = application, expected, LOOPBACK.union(names)
        self._behind, self._blocked = behind, blocked

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Reject a request, or pass the request on to the server."""
        if scope["type"] in {"http", "websocket"}:
            pairs = [(name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in scope["headers"]]
            refusal = self._refusal(scope["path"], scope.get("method", ""), pairs)
            if refusal is not None:
                if scope["type"] == "websocket":
                    await send({"type": "websocket.close", "code": 1008})
                else:
                    await refusal(scope, receive, send)
                return
        await self._application(scope, receive, send)

    def _refusal(self, path: str, method: str, pairs: Sequence[tuple[str, str]]) -> PlainTextResponse | None:
        headers, names = dict(pairs), [name for name, _ in pairs]
        repeated = [name for name in ONCE if names.count(name) > 1]
        if repeated:
            return PlainTextResponse(f"{repeated[0]} must be sent once\n", 400)
        host, origin = headers.get("host", ""), headers.get("origin")
        if _hostname(host) not in self._hosts:
            return PlainTextResponse("Host is neither a loopback address nor a name given by --name\n", 403)
        if origin is not None and not _same_origin(origin, host):
            return PlainTextResponse("Origin is not a page of this server\n", 403)
        if _from_elsewhere(method, headers):
            return PlainTextResponse("the request comes from a page of another site\n", 403)
        if path not in OPEN_PATHS and path.startswith(self._behind):
            given = headers.get("authorization", "")
            if not hmac.compare_digest(given.encode(), self._expected.encode()):
                scheme = self._expected.partition(" ")[0]
                challenge = {"WWW-Authenticate": f'{scheme} realm="NeoRL", charset="UTF-8"'}
                return PlainTextResponse("login missing or wrong: 'neorl up' prints the file\n", 401, challenge)
        if path.startswith(self._blocked):
            return PlainTextResponse("this part of MLflow is disabled\n", 404)
        return None


def prefect() -> ASGIApp:
    """Return the Prefect server, which checks logins itself."""
    from prefect.server.api.server import create_app

    application: ASGIApp = create_app()
    # Only a SQLite database can be busy; a PostgreSQL server that does not answer is down.
    if not setting(PREFECT_DATABASE):
        collect_in_thread()
        application = SqliteRetry(application)
    # The page /ui-settings stays open: Prefect's own login page reads it, and it holds no secret.
    login = os.environ["PREFECT_SERVER_API_AUTH_STRING"]
    return Guard(application, basic(login), _names(), behind=DESCRIPTIONS)


def mlflow() -> ASGIApp:
    """Return the MLflow server, behind a login."""
    from uvicorn.importer import import_from_string

    application: ASGIApp = import_from_string("mlflow.server.fastapi_app:app")
    page = files("mlflow.server").joinpath("js", "build", "index.html").read_text(encoding="utf-8")
    return Guard(StartPage(application, page), basic(os.environ[LOGIN]), _names(), blocked=BLOCKED_PATHS)


def metrics() -> ASGIApp:
    """Return the metrics server, behind a token."""
    from flows.services.metrics_server import application

    return Guard(application(), f"Bearer {os.environ[LOGIN]}", _names())


def _names() -> list[str]:
    return os.environ.get(NAMES, "").split()


def _hostname(host: str) -> str:
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def _from_elsewhere(method: str, headers: Mapping[str, str]) -> bool:
    """Return whether a browser says that a page of another site sent the request; a followed link is allowed."""
    link = method in ("GET", "HEAD") and headers.get("sec-fetch-mode") == "navigate"
    return headers.get("sec-fetch-site", "none") not in ("none", "same-origin") and not link


def _same_origin(origin: str, host: str) -> bool:
    """Return whether a page's origin is this server. All loopback names are equivalent."""
    try:
        page, server = urlsplit(origin), urlsplit(f"//{host}")
        return page.scheme == "http" and page.hostname in LOOPBACK and page.port == server.port
    except ValueError:
        return False
