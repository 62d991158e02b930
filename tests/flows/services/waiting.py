"""Helpers for tests of services."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from flows.services import processes
from flows.services.deployments import PROJECT, due, finish
from flows.services.processes import ProcessId
from flows.services.state import Services


def wait_until(condition: Callable[[], object], seconds: float = 120.0) -> None:
    """Wait for another process; the time limit only ends a failed test."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.1)


def register(services: Services, project: Path = PROJECT) -> bool:
    """Register a project's deployments with paused schedules; return whether anything changed."""
    found = due(services, project)
    if found is None:
        return False
    finish(found, services, time.monotonic() + 600)
    pause_schedules(services)
    return True


def pause_schedules(services: Services) -> None:
    """Pause all schedules, so that tests do not depend on the time of day."""
    for found in services.ask_prefect("deployments/filter", {"limit": 200}):
        services.ask_prefect(f"deployments/{found['id']}/pause_deployment", {})


def forget_deployments(services: Services) -> None:
    """Register this project's own deployments again."""
    (services.home.root / "prefect" / "deployments.json").unlink(missing_ok=True)


def shown_graph(services: Services, run: str) -> list[tuple[str, list[str]]]:
    """Return the tasks of a flow run with the tasks that they depend on, as Prefect shows them."""
    graph = services.ask_prefect(f"flow_runs/{run}/graph-v2")
    labels = {node["id"]: node["label"] for _, node in graph["nodes"]}
    return sorted(
        (node["label"], sorted({labels[parent["id"]] for parent in node["parents"]})) for _, node in graph["nodes"]
    )


def killed_process() -> ProcessId:
    """Return the identity of a process killed by SIGKILL."""
    child = subprocess.Popen(["sleep", "600"])
    identity = ProcessId.of(child.pid)
    assert identity.alive
    child.kill()
    child.wait()
    assert not identity.alive
    return identity


@contextmanager
def foreign_server(status: int = 200) -> Iterator[int]:
    """Run a foreign web server; yield its port. `status` is its answer to Prefect's API, except health checks."""

    class Answers(BaseHTTPRequestHandler):
        def answer(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            asked = self.path.startswith("/api/") and not self.path.startswith(("/api/health", "/api/2.0/mlflow/"))
            self.send_response(status if asked else 200)
            self.end_headers()
            self.wfile.write(b"true")

        do_GET = do_POST = answer

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer((processes.HOST, 0), Answers) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()


def use_as_team(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use a server at this port as the team's Prefect and MLflow."""
    for name in ("NEORL_PREFECT_URL", "NEORL_MLFLOW_URL"):
        monkeypatch.setenv(name, f"http://{processes.HOST}:{port}")
