"""Runs of a killed worker on a real server: pending runs are rescheduled, executed runs are left alone."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from urllib.error import HTTPError

import pytest

from flows.services.deployments import POOL, PROJECT
from flows.services.locks import recorded_run
from flows.services.state import Services
from flows.services.stuck_runs import RUN, release_stuck_runs
from tests.flows.services.waiting import forget_deployments, register, wait_until

FLOW = """\
import pathlib
from prefect import flow


@flow
def begin(path: str) -> None:
    pathlib.Path(path).touch()
"""
FILE = """\
deployments:
  - name: stranded
    entrypoint: flow.py:begin
    work_pool: {name: neorl}
    concurrency_limit: {limit: 1, collision_strategy: ENQUEUE}
"""
Enter = Callable[..., str]


@pytest.fixture
def enter(services: Services, tmp_path: Path) -> Iterator[Enter]:
    """Return a function that creates a run in a given state, of a deployment with a concurrency limit of one."""
    (tmp_path / "flow.py").write_text(FLOW)
    (tmp_path / "prefect.yaml").write_text(FILE)
    shutil.copy(PROJECT / "prefect.toml", tmp_path)
    register(services, tmp_path)
    deployment = services.ask_prefect("deployments/name/begin/stranded")["id"]

    def run(*states: str, path: Path = tmp_path / "begun") -> str:
        # In the far future, so that no worker takes it.
        later = {"type": "SCHEDULED", "state_details": {"scheduled_time": "2100-01-01T00:00:00Z"}}
        body = {"parameters": {"path": str(path)}, "state": later}
        found = str(services.ask_prefect(f"deployments/{deployment}/create_flow_run", body)["id"])
        for name in states:
            state = {"type": name, "name": name.capitalize()}
            answer = services.ask_prefect(f"flow_runs/{found}/set_state", {"state": state, "force": name == "RUNNING"})
            assert answer["status"] == "ACCEPT"
        return found

    yield run
    with suppress(HTTPError):  # a test may have deleted it
        services.ask_prefect(f"deployments/{deployment}", method="DELETE")
    forget_deployments(services)


def state_of(services: Services, run: str) -> str:
    return str(services.ask_prefect(f"flow_runs/{run}")["state_type"])


def test_a_pending_run_is_rescheduled_and_frees_its_slot(services: Services, enter: Enter, tmp_path: Path) -> None:
    taken = enter("PENDING")
    state = services.ask_prefect(f"flow_runs/{taken}")["state"]
    assert state["state_details"]["deployment_concurrency_lease_id"]
    (said,) = release_stuck_runs(services)
    assert "is rescheduled: the worker was killed before the start" in said
    wait_until(lambda: state_of(services, taken) == "COMPLETED")
    assert (tmp_path / "begun").exists()
    assert release_stuck_runs(services) == []
    # The slot is free: another run can be taken.
    another = enter("PENDING")
    # A run that cannot be released does not prevent a start.
    deployment = services.ask_prefect(f"flow_runs/{another}")["deployment_id"]
    services.ask_prefect(f"deployments/{deployment}", method="DELETE")
    (said,) = release_stuck_runs(services)
    assert "is stuck (Prefect: HTTP Error 500" in said
    services.ask_prefect(f"flow_runs/{another}", method="DELETE")


def test_runs_of_other_machines_are_left_alone(services: Services, enter: Enter) -> None:
    taken = enter("PENDING")
    workers = f"work_pools/{POOL}/workers"
    services.ask_prefect(f"{workers}/heartbeat", {"name": "neorl-another-0123abcd", "heartbeat_interval_seconds": 30})
    (said,) = release_stuck_runs(services)
    assert said.endswith("is unchanged: a worker of another machine (neorl-another-0123abcd) may execute it")
    assert state_of(services, taken) == "PENDING"
    services.ask_prefect(f"{workers}/neorl-another-0123abcd", method="DELETE")
    (said,) = release_stuck_runs(services)
    assert "is rescheduled" in said
    services.ask_prefect(f"flow_runs/{taken}", method="DELETE")


def test_started_runs_crash_unless_executed_or_recorded(services: Services, enter: Enter) -> None:
    begun, recorded, executed = enter("RUNNING"), enter("RUNNING"), enter("RUNNING")
    process = subprocess.Popen(["sleep", "600"], env={**os.environ, RUN: executed})
    try:
        with recorded_run(services.home, recorded, "p"):
            (said,) = release_stuck_runs(services)
    finally:
        process.kill()
        process.wait()
    assert "has crashed: worker and process were killed" in said
    assert [state_of(services, run) for run in (begun, recorded, executed)] == ["CRASHED", "RUNNING", "RUNNING"]
    for run in (recorded, executed):
        services.ask_prefect(f"flow_runs/{run}", method="DELETE")
