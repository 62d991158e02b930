"""Runs that a killed worker left behind: Prefect, which knows nothing of it, keeps their deployment's slot for them.

One that had begun has a record, or sends heartbeats that end; one that was only taken has neither, and would be
pending for ever, with every later run of its deployment behind it.
"""

from __future__ import annotations

import psutil

from flows.services.deployments import POOL, workers_elsewhere
from flows.services.state import Services

RUN = "PREFECT__FLOW_RUN_ID"
"""Variable by which Prefect tells a process which run it executes."""


def release_stranded(services: Services) -> list[str]:
    """Let runs begin anew that a worker took and no process executes, and end those that had just begun.

    To be called while no worker of the home runs; it looks at the processes of this machine alone. While a worker of
    another machine is online it changes nothing, for that one may have taken them: Prefect's automations
    (`flows.services.automations`) tell which of its runs it has begun.

    Args:
        services: whose Prefect server.

    Returns:
        What was done, a sentence for each run.
    """
    wanted = {
        "flow_runs": {"deployment_id": {"is_null_": False}, "state": {"type": {"any_": ["PENDING", "RUNNING"]}}},
        "work_pools": {"name": {"any_": [POOL]}},
    }
    found = services.ask_prefect("flow_runs/filter", wanted)
    executed = _executed() if found else frozenset()
    elsewhere = workers_elsewhere(services) if found else []
    told = []
    for run in found:
        # What has a record is told of by `reap_dead_runs`, and may be on another machine.
        if run["id"] in executed or (services.home.root / "locks" / "runs" / f"{run['id']}.json").exists():
            continue
        if elsewhere:
            names = ", ".join(elsewhere)
            told.append(f"run {run['name']} is left as it is: a worker of another machine, {names}, may have taken it")
            continue
        pending = run["state_type"] == "PENDING"
        why = "its worker was killed before it began" if pending else "its worker and its process were killed"
        kind, name = ("SCHEDULED", "Scheduled") if pending else ("CRASHED", "Crashed")
        try:
            state = {"type": kind, "name": name, "message": why}
            services.ask_prefect(f"flow_runs/{run['id']}/set_state", {"state": state})
        except OSError as error:
            # One whose deployment is gone, for example, cannot give its slot back; the servers start all the same.
            why = f"Prefect does not let it go ({error}), delete it at {services.prefect.url}/runs/flow-run/{run['id']}"
            told.append(f"run {run['name']} stays as it is: {why}")
            continue
        told.append(f"run {run['name']} {'begins anew' if pending else 'has crashed'}: {why}")
    return told


def _executed() -> frozenset[str]:
    """Ids of the runs that processes of this machine execute."""
    found = set()
    for process in psutil.process_iter():
        try:
            found.add(process.environ().get(RUN, ""))
        except (psutil.Error, OSError):
            continue  # gone meanwhile, or another user's, who has no login for this home
    return frozenset(found)
