"""Restart runs that are stuck in Prefect because their worker was killed.

A started run has a record and sends heartbeats, so a killed run is noticed. A run that the worker has taken but not
started has neither record nor heartbeats. Such a run would stay pending and block all later runs of the deployment.
"""

from __future__ import annotations

import psutil

from flows.services.deployments import POOL, workers_elsewhere
from flows.services.state import Services

RUN = "PREFECT__FLOW_RUN_ID"
"""Variable with the run's id in a process that executes a run."""


def release_stuck_runs(services: Services) -> list[str]:
    """Handle runs that no process executes: reschedule pending runs, mark running runs as crashed, return messages.

    Call this while no worker of the home runs. Only processes of this machine are examined. If a worker of another
    machine is online, nothing is changed, because that worker may execute the runs. An automation then handles the runs
    (`flows.services.automations`).
    """
    query = {
        "flow_runs": {"deployment_id": {"is_null_": False}, "state": {"type": {"any_": ["PENDING", "RUNNING"]}}},
        "work_pools": {"name": {"any_": [POOL]}},
    }
    runs = services.ask_prefect("flow_runs/filter", query)
    executed = _executed() if runs else frozenset()
    elsewhere = workers_elsewhere(services) if runs else []
    messages = []
    for run in runs:
        # `reap_dead_runs` handles runs with a record. The process of such a run may be on another machine.
        if run["id"] in executed or (services.home.root / "locks" / "runs" / f"{run['id']}.json").exists():
            continue
        if elsewhere:
            names = ", ".join(elsewhere)
            messages.append(f"run {run['name']} is unchanged: a worker of another machine ({names}) may execute it")
            continue
        pending = run["state_type"] == "PENDING"
        reason = "the worker was killed before the start" if pending else "worker and process were killed"
        kind, name = ("SCHEDULED", "Scheduled") if pending else ("CRASHED", "Crashed")
        try:
            state = {"type": kind, "name": name, "message": reason}
            services.ask_prefect(f"flow_runs/{run['id']}/set_state", {"state": state})
        except OSError as error:
            # For example, the deployment was deleted. This must not stop the start of the servers.
            address = f"{services.prefect.url}/runs/flow-run/{run['id']}"
            messages.append(f"run {run['name']} is stuck (Prefect: {error}): delete it at {address}")
            continue
        messages.append(f"run {run['name']} {'is rescheduled' if pending else 'has crashed'}: {reason}")
    return messages


def _executed() -> frozenset[str]:
    """Return the ids of runs that processes of this machine execute."""
    ids = set()
    for process in psutil.process_iter():
        try:
            ids.add(process.environ().get(RUN, ""))
        except (psutil.Error, OSError):
            continue  # the process has ended, or belongs to another user, who has no login for this home
    return frozenset(ids)
