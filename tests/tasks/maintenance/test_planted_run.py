"""A run that was planted in a backup's Prefect database waits for a person, on real servers."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from configs.home import RESTORED, Home
from flows.cli.main import run
from flows.services.deployments import POOL
from flows.services.servers import down, up
from flows.services.state import Services
from tests.flows.services.waiting import wait_until

HELD = 15.0
"""Seconds in which a worker and the automation would have started the planted work several times."""


def plant(services: Services, touched: Path) -> None:
    """Plant a deployment with a shell step, an active schedule, a run that is due, and an automation that starts it."""
    services.ask_prefect("work_pools/", {"name": POOL, "type": "process"})
    flow = services.ask_prefect("flows/", {"name": "planted-flow"})["id"]
    deployment = services.ask_prefect(
        "deployments/",
        {
            "name": "planted",
            "flow_id": flow,
            "entrypoint": "flow.py:none",
            "work_pool_name": POOL,
            "pull_steps": [{"prefect.deployments.steps.run_shell_script": {"script": f"touch {touched}"}}],
            "schedules": [{"active": True, "schedule": {"interval": 5}}],
        },
    )["id"]
    now = {"state": {"type": "SCHEDULED"}, "name": "planted-run"}
    services.ask_prefect(f"deployments/{deployment}/create_flow_run", now)
    trigger = {"type": "event", "posture": "Proactive", "expect": ["never"], "threshold": 1, "within": 10}
    action = {"type": "run-deployment", "source": "selected", "deployment_id": deployment, "parameters": {}}
    services.ask_prefect("automations/", {"name": "planted-automation", "trigger": trigger, "actions": [action]})


def runs(services: Services) -> set[str]:
    return {found["id"] for found in services.ask_prefect("flow_runs/filter", {"limit": 200})}


@pytest.mark.slow
def test_a_planted_run_waits_until_a_person_accepts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("NEORL_PREFECT_URL", "NEORL_MLFLOW_URL"):
        monkeypatch.delenv(name, raising=False)
    before, after, touched = Home(tmp_path / "before"), Home(tmp_path / "after"), tmp_path / "touched"
    # Modules in the working directory of a server would be executed, too.
    executed = tmp_path / "executed"
    code = f"open({str(executed)!r}, 'w').close()\n"
    try:
        plant(up(before, worker=False), touched)
    finally:
        down(before)
    for folder in ("prefect", "mlflow"):
        for name in ("uvicorn.py", "sqlalchemy.py"):
            (before.root / folder / name).write_text(code)
    (before.root / "uvicorn.py").write_text(code)
    logging = f"version: 1\nhandlers: {{x: {{'()': pathlib.Path.touch, self: {executed}}}}}\n"
    (before.root / "prefect" / "logging.yml").write_text(logging)
    monkeypatch.setenv("NEORL_HOME", str(before.root))
    assert run(["backup", str(tmp_path / "home.tar")]) == 0
    assert run(["restore", str(tmp_path / "home.tar"), "--home", str(after.root)]) == 0
    out = capsys.readouterr().out
    assert "held: waiting run: planted-run, deployment planted" in out

    told: list[str] = []
    try:
        services = up(after, say=told.append)
        assert services.worker is None
        text = "\n".join(told)
        assert "held: deployment: planted, flow planted-flow" in text
        assert f"touch {touched}" in text
        assert "held: automation: planted-automation, actions" in text
        assert "delete unknown work in Prefect's pages, then run 'neorl up --accept-restored'" in text
        planned = runs(services)
        time.sleep(HELD)
        assert runs(services) == planned
        assert not touched.exists()

        # Accepted, the same work runs: it was held back by nothing else.
        assert up(after, accept_restored=True, say=told.append).worker is not None
        assert not (after.root / RESTORED).exists()
        wait_until(touched.exists)
        wait_until(lambda: runs(services) > planned)
        assert not executed.exists()
    finally:
        down(after)
