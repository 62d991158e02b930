"""Access control on real servers: foreign pages, foreign host names, missing logins."""

from __future__ import annotations

import http.client
import json
import os
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from flows.services import rest
from flows.services.state import Services, environment

FOREIGN = [
    {"Origin": "http://evil.example"},
    {"Origin": "null"},
    # A page of another program on this machine.
    {"Origin": "http://127.0.0.1:1"},
    {"Origin": "http://["},
    {"Host": "evil.example"},
    {"Host": "127.0.0.1.evil.example"},
    {"Host": "evil.example:4200", "Origin": "http://evil.example:4200"},
    # Requests without Origin, which browsers mark.
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "no-cors"},
]
OUT = Path("pwned.txt")


def send(url: str, headers: dict[str, str], body: object = None, method: str | None = None) -> int:
    """Return the status of a request; a `Host` header replaces the address's host."""
    data = None if body is None else json.dumps(body).encode()
    message = urllib.request.Request(url, data, {"Content-Type": "application/json", **headers}, method=method)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    for patience in rest.BUSY_SECONDS:
        try:
            with opener.open(message, timeout=30) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            error.close()
            # Prefect answers 503 while its database is locked.
            if error.code != 503 or not patience:
                return error.code
            time.sleep(patience)
    raise AssertionError("the last try returns")


def login(services: Services) -> dict[str, str]:
    return {"Authorization": rest.basic(services.home.login.read_text().strip())}


def malicious(services: Services, name: str) -> dict[str, object]:
    """Return a deployment that runs a shell command as the worker's user."""
    flow = services.ask_prefect("flows/", {"name": "probe"})["id"]
    steps = [{"prefect.deployments.steps.run_shell_script": {"script": f"touch {OUT}"}}]
    return {"name": name, "flow_id": flow, "pull_steps": steps, "work_pool_name": "neorl", "entrypoint": "x.py:x"}


def known(services: Services, name: str) -> bool:
    wanted = {"deployments": {"name": {"any_": [name]}}}
    return bool(services.ask_prefect("deployments/filter", wanted))


@pytest.mark.parametrize("headers", [{}, {"Authorization": rest.basic("neorl:guess")}, {"Authorization": "Basic"}])
def test_no_deployment_without_login(services: Services, headers: dict[str, str]) -> None:
    assert send(f"{services.prefect_api}/deployments/", headers, malicious(services, "stranger")) == 401
    assert not known(services, "stranger")
    assert send(f"{services.prefect_api}/flow_runs/filter", headers, {}) == 401


def test_a_header_that_is_sent_twice_is_refused(services: Services) -> None:
    address = urlsplit(services.prefect_api)
    for repeated in ("Origin", "Authorization", "Sec-Fetch-Site"):
        connection = http.client.HTTPConnection(str(address.hostname), address.port, timeout=30)
        connection.putrequest("POST", "/api/flow_runs/filter", skip_host=True)
        own = {"Host": address.netloc, "Origin": f"http://{address.netloc}", "Sec-Fetch-Site": "same-origin"}
        for name, value in {**own, **login(services)}.items():
            for _ in range(1 + (name == repeated)):
                connection.putheader(name, value)
        connection.putheader("Content-Length", "0")
        connection.endheaders()
        answer = connection.getresponse()
        assert (answer.status, answer.read()) == (400, f"{repeated.lower()} must be sent once\n".encode())
        connection.close()


def test_descriptions_of_the_api_need_the_login(services: Services) -> None:
    server = services.prefect_api.removesuffix("/api")
    for path in ("/docs", "/redoc", "/openapi.json"):
        assert send(f"{server}{path}", {}) == 401
        assert send(f"{server}{path}", login(services)) in (200, 404)


def test_a_link_from_another_site_opens_a_page(services: Services) -> None:
    followed = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
    assert send(services.prefect_api.removesuffix("/api"), followed) == 200
    assert send(f"{services.prefect_api}/flow_runs/filter", {**login(services), **followed}, {}) == 403


@pytest.mark.parametrize("headers", FOREIGN)
def test_foreign_pages_and_names_are_refused_with_login(services: Services, headers: dict[str, str]) -> None:
    body = malicious(services, "page")
    assert send(f"{services.prefect_api}/deployments/", {**login(services), **headers}, body) == 403
    assert not known(services, "page")
    assert send(f"{services.prefect_api}/admin/version", {**login(services), **headers}) == 403
    assert send(f"{services.mlflow.url}/api/2.0/mlflow/experiments/create", login(services) | headers, {}) == 403
    assert send(f"{services.mlflow.url}/health", headers) == 403


def test_own_pages_work_with_login(services: Services) -> None:
    port = urlsplit(services.prefect.url).port
    for headers in ({}, {"Origin": f"http://localhost:{port}"}, {"Origin": services.prefect.url}):
        body = malicious(services, "ours")
        assert send(f"{services.prefect_api}/deployments/", {**login(services), **headers}, body) in {200, 201}
    assert known(services, "ours")
    found = services.ask_prefect("deployments/filter", {"deployments": {"name": {"any_": ["ours"]}}})
    address = f"{services.prefect_api}/deployments/{found[0]['id']}"
    assert send(address, login(services), method="DELETE") == 204


def test_login_page_is_open(services: Services) -> None:
    with urllib.request.urlopen(f"{services.prefect.url}/ui-settings", timeout=30) as answer:
        assert json.loads(answer.read())["auth"] == "BASIC"
    assert send(f"{services.prefect.url}/", {"Accept": "text/html"}) == 200
    # MLflow has no login page, so the browser asks.
    with pytest.raises(urllib.error.HTTPError, match="401") as refused:
        urllib.request.urlopen(services.mlflow.url, timeout=30)
    with refused.value as answer:
        assert answer.headers["WWW-Authenticate"].startswith("Basic")
    assert send(services.mlflow.url, login(services)) == 200


@pytest.mark.parametrize("origin", ["http://evil.example", None])
def test_foreign_websocket_is_refused(services: Services, origin: str | None) -> None:
    """A foreign page fails before the handshake, a stranger after it."""
    address = urlsplit(services.prefect.url)
    lines = [
        "GET /api/events/in HTTP/1.1",
        f"Host: {address.netloc}",
        *("Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Version: 13"),
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
        *([f"Origin: {origin}"] if origin else []),
    ]
    with socket.create_connection((address.hostname, address.port), timeout=30) as connection:
        connection.sendall("\r\n".join([*lines, "", ""]).encode())
        answer = connection.recv(4096).decode()
    assert answer.startswith("HTTP/1.1 403")


@pytest.mark.slow
def test_mlflow_clients_log_in_by_environment(services: Services, tmp_path: Path) -> None:
    code = (
        "import mlflow\n"
        "client = mlflow.MlflowClient()\n"
        "run = client.create_run(client.create_experiment('guarded'))\n"
        "client.log_text(run.info.run_id, 'hello', 'a.txt')\n"
        "print(mlflow.artifacts.load_text(f'{run.info.artifact_uri}/a.txt'))\n"
    )
    clean = {k: v for k, v in os.environ.items() if not k.startswith("MLFLOW_")}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**clean, **environment(services)},
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    assert done.stdout.split()[-1:] == ["hello"], done.stderr
    stranger = {k: v for k, v in environment(services).items() if not k.startswith("MLFLOW_TRACKING_P")}
    done = subprocess.run(
        [sys.executable, "-c", "import mlflow; mlflow.MlflowClient().search_experiments()"],
        env={**clean, **stranger},
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode
    assert "401" in done.stderr


@pytest.mark.parametrize("excepted", [{}, {"no_proxy": "plant.example"}, {"NO_PROXY": "plant.example"}])
def test_proxies_never_get_the_login_of_local_mlflow(
    services: Services, monkeypatch: pytest.MonkeyPatch, excepted: dict[str, str]
) -> None:
    import mlflow

    from flows.services.servers import connect
    from tasks.registry import reading

    asked: list[str] = []

    class Proxy(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_error(502)

        do_POST = do_GET

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Proxy) as proxy:
        threading.Thread(target=proxy.serve_forever, daemon=True).start()
        for name in ("http_proxy", "HTTP_PROXY"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.server_port}")
        for name in ("no_proxy", "NO_PROXY"):
            monkeypatch.setenv(name, excepted.get(name, ""))
        url = connect(services.home).mlflow.url
        assert reading.pages(url, "no_plant") == {}
        assert mlflow.MlflowClient(url).search_registered_models("name = 'no_plant'") == []
        # Requests to a team's server use the configured proxy.
        assert reading.pages("http://mlflow.example", "no_plant") is None
        proxy.shutdown()
    assert [path.partition("/api")[0] for path in asked] == ["http://mlflow.example"]


@pytest.mark.parametrize("path", ["assistant/message", "assistant/config", "assistant/providers"])
def test_mlflow_assistant_is_disabled(services: Services, path: str) -> None:
    """It executes programs on this machine, so it is disabled even with the login."""
    where = f"{services.mlflow.url}/ajax-api/3.0/mlflow/{path}"
    assert send(where, login(services), {"message": "touch pwned.txt"}) == 404
    assert send(where, login(services)) == 404
    # MLflow's own path.
    from mlflow.server.assistant.api import assistant_router

    assert f"/ajax-api/3.0/mlflow/{path}" in {getattr(route, "path", "") for route in assistant_router.routes}
