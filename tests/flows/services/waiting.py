"""What the tests of services share."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from flows.services.deployments import PROJECT, due, finish
from flows.services.processes import ProcessId
from flows.services.state import Services


def wait_until(condition: Callable[[], object], seconds: float = 120.0) -> None:
    """Wait for something that another process does; the limit only ends a test that has failed."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.1)


def register(services: Services, project: Path = PROJECT) -> bool:
    """Make a project's deployments known; whether anything had to be done."""
    found = due(services, project)
    if found is None:
        return False
    finish(found, services, time.monotonic() + 600)
    return True


def forget_deployments(services: Services) -> None:
    """Let whoever needs this project's own deployments register them again."""
    (services.home.root / "prefect" / "deployments.json").unlink(missing_ok=True)


def shown_graph(services: Services, run: str) -> list[tuple[str, list[str]]]:
    """The tasks of a flow run that Prefect shows, each with those whose results it takes."""
    graph = services.ask_prefect(f"flow_runs/{run}/graph-v2")
    labels = {node["id"]: node["label"] for _, node in graph["nodes"]}
    return sorted(
        (node["label"], sorted({labels[parent["id"]] for parent in node["parents"]})) for _, node in graph["nodes"]
    )


def killed_process() -> ProcessId:
    """The identity of a process that was killed with SIGKILL."""
    child = subprocess.Popen(["sleep", "600"])
    identity = ProcessId.of(child.pid)
    assert identity.alive
    child.kill()
    child.wait()
    assert not identity.alive
    return identity
