"""A plant operated by Prefect alone: schedules, arriving files, approvals, drift and backfills on real servers."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl
import pytest

from configs.home import Home
from flows.services.deployments import PROJECT
from flows.services.events import WORSENED
from flows.services.locks import plant_lock
from flows.services.state import environment
from tasks.evidence.audit.audit import audit
from tasks.evidence.ledger.ledger import Ledger
from tasks.metrics.quality import SHARES
from tests import small_process
from tests.flows.services.waiting import forget_deployments, register, wait_until

if TYPE_CHECKING:
    from flows.services.servers import Services
    from tasks.evidence.ledger.entry import Entry

PLANT = "operated_vessel"
ENDED = ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")
PATIENCE = 900.0
"""Seconds for a run in its own process, which may wait for another."""
DEPLOYMENTS = """\
definitions:
  one: &one
    work_pool: {{name: neorl}}
    concurrency_limit: {{limit: 1, collision_strategy: ENQUEUE}}
deployments:
  - <<: *one
    name: operated-vessel
    entrypoint: flows.retrain.retrain
    parameters: {{config: {config}}}
    triggers:
      - name: retrain operated-vessel on new logs or drift
        match: {{prefect.resource.id: neorl.plant.operated_vessel}}
        expect: [neorl.dataset.arrived, neorl.drift.detected]
        parameters: {{data: "{{{{ event.payload.data }}}}"}}
  - <<: *one
    name: misnamed-log
    entrypoint: flows.retrain.retrain
    parameters: {{config: {config}, data: [logs/nowhere.csv]}}
    schedules: [{{cron: "* * * * *", timezone: Europe/Berlin, active: false}}]
  - {{<<: *one, name: operated-vessel, entrypoint: flows.monitor.monitor, parameters: {{config: {config}}}}}
  - {{<<: *one, name: candidate, entrypoint: flows.promote.promote}}
  - {{<<: *one, name: windows, entrypoint: flows.backfill.backfill}}
  - {{<<: *one, name: champion, entrypoint: flows.promote.rollback}}
  - {{<<: *one, name: monthly, entrypoint: flows.deployed.report}}
"""
BACKFILL = """\
import sys
from flows.backfill import backfill

state = backfill(sys.argv[1], [sys.argv[2]], sys.argv[3:], return_state=True)
print(f"{state.type.value}: {state.message}")
"""
"""A script for a backfill: config, log and windows."""

pytestmark = pytest.mark.slow


class Operated:
    """The plant's project on the session's servers."""

    def __init__(self, services: Services, folder: Path) -> None:
        self.services, self.folder = services, folder
        self.config = small_process.project(folder, approval="required", period=small_process.SLOWER)
        for path in (self.config, folder / "mapping.yaml"):
            path.write_text(path.read_text().replace(small_process.NAME, PLANT))
        self.log = small_process.export(folder / "log.csv", 7200, period=small_process.SLOWER)
        (folder / "prefect.yaml").write_text(DEPLOYMENTS.format(config=self.config))
        self.incoming = services.home.folder("incoming", PLANT)

    def register(self) -> None:
        assert register(self.services, self.folder)

    def deployment(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.services.ask_prefect(f"deployments/name/{name}")
        return found

    def start(self, name: str, **parameters: object) -> dict[str, Any]:
        """Start `prefect deployment run NAME --params` and wait for its end."""
        path = f"deployments/{self.deployment(name)['id']}/create_flow_run"
        return self.end(self.services.ask_prefect(path, {"parameters": parameters}))

    def runs(self, name: str, started_by: str) -> list[dict[str, Any]]:
        """Return the automatic runs of a deployment, oldest first."""
        query = {"deployments": {"id": {"any_": [self.deployment(name)["id"]]}}, "sort": "EXPECTED_START_TIME_ASC"}
        found = self.services.ask_prefect("flow_runs/filter", query)
        return [run for run in found if (run["created_by"] or {}).get("type") == started_by]

    def end(self, run: dict[str, Any]) -> dict[str, Any]:
        def now() -> dict[str, Any]:
            found: dict[str, Any] = self.services.ask_prefect(f"flow_runs/{run['id']}")
            return found

        wait_until(lambda: now()["state_type"] in ENDED, PATIENCE)
        return now()

    def lines(self, run: dict[str, Any]) -> list[str]:
        query = {"logs": {"flow_run_id": {"any_": [run["id"]]}}, "limit": 200, "sort": "TIMESTAMP_ASC"}
        return [entry["message"] for entry in self.services.ask_prefect("logs/filter", query)]

    def entries(self, kind: str) -> list[Entry]:
        return Ledger.open(self.services.home, write=False).entries(kind, PLANT)


@pytest.fixture(scope="module")
def plant(services: Services, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operated]:
    found = Operated(services, tmp_path_factory.mktemp("operated"))
    found.register()
    yield found
    shutil.rmtree(found.incoming)
    for each in services.ask_prefect("automations/filter", {}):
        if "operated-vessel" in each["name"]:
            services.ask_prefect(f"automations/{each['id']}", method="DELETE")
    for name in ("retrain/operated-vessel", "retrain/misnamed-log", "monitor/operated-vessel"):
        services.ask_prefect(f"deployments/{found.deployment(name)['id']}", method="DELETE")
    forget_deployments(services)


@pytest.fixture(scope="module")
def neorl(services: Services) -> Callable[..., dict[str, Any]]:
    def run(*words: str) -> dict[str, Any]:
        command = [sys.executable, "-m", "flows", *words, "--json"]
        environment = {**os.environ, "NEORL_HOME": str(services.home.root)}
        done = subprocess.run(command, cwd=PROJECT, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        answer: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
        return answer

    return run


@pytest.fixture(scope="module")
def arrived(plant: Operated) -> dict[str, Any]:
    """The run that the first arriving file started."""
    shutil.copy(plant.log, plant.incoming / "january.csv")
    wait_until(lambda: plant.runs("retrain/operated-vessel", "AUTOMATION"), PATIENCE)
    return plant.end(plant.runs("retrain/operated-vessel", "AUTOMATION")[0])


@pytest.fixture(scope="module")
def approved(plant: Operated, arrived: dict[str, Any]) -> dict[str, Any]:
    """The run that approves the candidate."""
    (candidate,) = plant.entries("candidate")
    words = {"plant": PLANT, "version": candidate.body["version"], "by": "Ada Lovelace", "note": "compared proposals"}
    return plant.start("promote/candidate", **words)


def test_a_schedule_fires_and_a_wrong_path_is_one_sentence(plant: Operated) -> None:
    found = plant.deployment("retrain/misnamed-log")
    (schedule,) = found["schedules"]
    assert schedule["schedule"]["timezone"] == "Europe/Berlin"
    switch = f"deployments/{found['id']}/schedules/{schedule['id']}"
    plant.services.ask_prefect(f"deployments/{found['id']}/resume_deployment", {})
    plant.services.ask_prefect(switch, {"active": True}, method="PATCH")
    wait_until(lambda: plant.runs("retrain/misnamed-log", "SCHEDULE"), PATIENCE)
    run = plant.end(plant.runs("retrain/misnamed-log", "SCHEDULE")[0])
    plant.services.ask_prefect(switch, {"active": False}, method="PATCH")
    sentence = "there is no source logs/nowhere.csv: check the path"
    assert (run["state_type"], run["state"]["message"]) == ("FAILED", sentence)
    # The last log lines arrive after the state.
    wait_until(lambda: plant.lines(run)[-1:] == [sentence])
    assert [line for line in plant.lines(run) if "Traceback" in line or line.count("\n") > 1] == []
    assert sentence in [entry.body["reason"] for entry in plant.entries("refusal")]


def test_monthly_report_and_invalid_rollback(plant: Operated) -> None:
    today = f"{datetime.now(UTC):%Y-%m-%d}"
    told = plant.start("report/monthly", first=f"{today[:8]}01", last=today)
    assert told["state_type"] == "COMPLETED", told["state"]["message"]
    assert f"{today[:8]}01 to {today}: " in told["state"]["message"]
    assert Path(told["state"]["message"].rpartition(" in ")[2]).is_file()
    back = plant.start("rollback/champion", plant=PLANT, version="99", by="Ada Lovelace", why="offset since Monday")
    assert (back["state_type"], back["state"]["message"].count("\n")) == ("FAILED", 0)
    assert back["state"]["message"].startswith(f"version 99 of {PLANT} never was champion")


def test_an_arriving_file_starts_a_run(plant: Operated, arrived: dict[str, Any]) -> None:
    assert arrived["parameters"]["data"] == [str(plant.incoming / "january.csv")]
    assert arrived["state_type"] == "COMPLETED", arrived["state"]["message"]
    (candidate,) = plant.entries("candidate")
    assert candidate.body["dataset"]["sources"][0]["path"] == str(plant.incoming / "january.csv")
    assert [entry.body["verdict"] for entry in plant.entries("decision")] == ["shadow_waiting"]
    # Equal content gives no second event.
    assert len(plant.runs("retrain/operated-vessel", "AUTOMATION")) == 1


def test_a_deployment_approves_in_a_persons_name(plant: Operated, approved: dict[str, Any]) -> None:
    assert approved["state_type"] == "COMPLETED", approved["state"]["message"]
    (approval,) = plant.entries("approval")
    assert (approval.body["by"], approval.body["note"]) == ("Ada Lovelace", "compared proposals")
    (shadow,) = plant.entries("shadow")
    assert approved["state"]["message"].endswith(f"in shadow: {shadow.body['version']}")
    again = plant.start("promote/candidate", plant=PLANT, version="99", by="Ada Lovelace", note="once more")
    assert again["state_type"] == "FAILED"
    assert "has no version '99'" in again["state"]["message"]


def test_a_deployed_run_waits_for_the_plant(plant: Operated, approved: dict[str, Any]) -> None:
    log = plant.services.home.root / "logs" / "worker.log"
    before = len(log.read_bytes())
    path = f"deployments/{plant.deployment('retrain/operated-vessel')['id']}/create_flow_run"
    with plant_lock(plant.services.home, PLANT):
        run = plant.services.ask_prefect(path, {"parameters": {"data": [str(plant.incoming / "january.csv")]}})
        wait_until(lambda: b"waiting for" in log.read_bytes()[before:], PATIENCE)
    ended = plant.end(run)
    assert ended["state_type"] == "COMPLETED", ended["state"]["message"]


def test_a_drift_starts_a_retraining(
    plant: Operated, approved: dict[str, Any], neorl: Callable[..., dict[str, Any]]
) -> None:
    quiet = plant.start("monitor/operated-vessel")
    assert (quiet["state_type"], quiet["state"]["message"]) == (
        "COMPLETED",
        f"no newer logs of {PLANT}: the champion was trained on all of them",
    )
    calm = small_process.export(
        plant.folder / "calm.csv", 1200, seed=1, start="2026-03-05", period=small_process.SLOWER
    )
    worn = small_process.export(
        plant.folder / "worn.csv", 1200, seed=2, gain=0.7, start="2026-04-05", period=small_process.SLOWER
    )
    words = ("--config", str(plant.config))
    before = len(plant.runs("retrain/operated-vessel", "AUTOMATION"))
    found = neorl("monitor", PLANT, "--data", str(calm), *words)
    assert found["finding"]["alarm"] is None
    found = neorl("monitor", PLANT, "--data", str(worn), *words)
    assert found["finding"]["alarm"] is not None
    assert (found["worse"], set(found["quality"]["shares"])) == ([], set(SHARES))
    assert [entry.body["alarm"] is not None for entry in plant.entries("drift")] == [False, True]
    # The same logs give the same entry and event.
    assert neorl("monitor", PLANT, "--data", str(worn), *words)["entry"] == found["entry"]
    wait_until(lambda: len(plant.runs("retrain/operated-vessel", "AUTOMATION")) > before, PATIENCE)
    run = plant.end(plant.runs("retrain/operated-vessel", "AUTOMATION")[-1])
    assert run["parameters"]["data"] == [str(worn)]
    assert len(plant.runs("retrain/operated-vessel", "AUTOMATION")) == before + 1
    # The result is in the ledger, as decision or refusal.
    last = [*plant.entries("decision"), *plant.entries("refusal")]
    assert max(last, key=lambda entry: entry.sequence).sequence > plant.entries("drift")[-1].sequence
    assert audit(plant.services.home).passed


def test_worse_data_are_reported_and_start_nothing(
    plant: Operated, approved: dict[str, Any], neorl: Callable[..., dict[str, Any]]
) -> None:
    whole = pl.read_csv(
        small_process.export(plant.folder / "whole.csv", 1200, seed=3, start="2026-05-05", period=small_process.SLOWER)
    )
    # The level's transmitter is silent for ten minutes of every two hours.
    silent = pl.int_range(pl.len()) % 720 < 60
    whole.with_columns(pl.when(~silent).then("LI-1").alias("LI-1")).write_csv(plant.folder / "silent.csv")
    before = len(plant.runs("retrain/operated-vessel", "AUTOMATION"))
    found = neorl("monitor", PLANT, "--data", str(plant.folder / "silent.csv"), "--config", str(plant.config))
    # 120 of 1199 steps begin without a level, and one more ends without it.
    assert [(rise["share"], rise["now"]) for rise in found["worse"]] == [("gaps", 121 / 1199)]
    query = {"filter": {"event": {"name": [WORSENED]}}, "limit": 5}
    wait_until(lambda: plant.services.ask_prefect("events/filter", query)["events"])  # written every five seconds
    (event,) = plant.services.ask_prefect("events/filter", query)["events"]
    assert event["resource"]["prefect.resource.id"] == f"neorl.plant.{PLANT}"
    assert event["payload"]["found"].startswith(f"data of {PLANT} are worse: ")
    assert found["finding"]["alarm"] is None
    assert len(plant.runs("retrain/operated-vessel", "AUTOMATION")) == before


def test_a_backfill_continues_after_a_refused_window(plant: Operated, arrived: dict[str, Any]) -> None:
    run = plant.start(
        "backfill/windows",
        config=str(plant.config),
        data=[str(plant.log)],
        windows=["2025-01-01/2025-01-02", "2026-01-05T00:00/2026-01-05T00:10", "2026-01-05/2026-02-05"],
    )
    assert run["state_type"] == "COMPLETED", run["state"]["message"]
    assert run["state"]["message"] == f"3 windows of {PLANT}, 2 of them refused"
    wait_until(lambda: any(line.startswith("2026-01-05T00:00Z/2026-02-05") for line in plant.lines(run)))
    told = plant.lines(run)
    assert any(line.startswith("2025-01-01T00:00Z/2025-01-02T00:00Z: refused: the logs have no row") for line in told)
    assert any(line.startswith("2026-01-05T00:00Z/2026-02-05T00:00Z: ") and "refused" not in line for line in told)
    unusable = plant.start("backfill/windows", config=str(plant.config), data=[str(plant.log)], windows=["January"])
    assert (unusable["state_type"], "2026-01-05/2026-01-12" in unusable["state"]["message"]) == ("FAILED", True)


def test_a_failing_backfill_is_not_completed(services: Services, tmp_path: Path) -> None:
    config, home = small_process.project(tmp_path), tmp_path / "home"
    # In the home, not in the working directory of the deployment.
    small_process.export(Home(home).folder("generated") / "log.csv", 360)
    script = tmp_path / "backfill.py"
    script.write_text(BACKFILL)
    # A home with the session's Prefect and a missing MLflow.
    known = {
        **os.environ,
        **environment(services),
        "NEORL_HOME": str(home),
        "NEORL_PREFECT_URL": services.prefect.url,
        "NEORL_MLFLOW_URL": "http://127.0.0.1:9",
        "PYTHONPATH": str(PROJECT),
    }

    def told(*windows: str) -> str:
        words = [sys.executable, str(script), str(config), ".neorl/generated/log.csv", *windows]
        done = subprocess.run(words, env=known, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()[-1]

    gone = told("2026-01-05T00:00/2026-01-05T00:30", "2026-01-05T00:30/2026-01-05T01:00")
    assert gone.startswith("FAILED: MLflow of "), gone
    nothing = told("2025-01-01/2025-01-02")
    assert nothing == ("FAILED: every window of buffer_vessel was refused (1): read the reasons in the flow's log.")
