"""Every plant has a run, deployments and a generated log, and a small run succeeds."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from ruamel.yaml import YAML

from configs.home import Home
from flows.preflight import checked_run
from flows.services.events import ARRIVED, DRIFTED, resource_of
from neorl_core.plants import NAMES
from tasks.data.synthetic.default_log import default_log
from tasks.evidence.ledger.ledger import Ledger
from tasks.gates import REQUIRED
from tasks.models.plants.known import plant_named
from tasks.registry.registry import Registry

if TYPE_CHECKING:
    from flows.services.servers import Services

PROJECT = Path(__file__).parents[2]
SMALL = """\
train: {algorithm: td3_bc, updates: 40, batch_size: 64, hyperparameters: {critics: 2, hidden: [8]}}
evaluate: {model_updates: 40, bootstraps: 50, rollouts: 8}
"""
"""Overrides for tests; other defaults stay."""


Deployments = dict[tuple[str, str], dict[str, Any]]


@pytest.fixture(scope="module")
def deployments() -> Deployments:
    """Return the entries of prefect.yaml by flow and deployment name."""
    declared = YAML(typ="safe", pure=True).load((PROJECT / "prefect.yaml").read_text())["deployments"]
    found = {(entry["entrypoint"].rpartition(":")[2], entry["name"]): entry for entry in declared}
    assert len(found) == len(declared)
    return found


def test_documented_commands_have_valid_parameters(deployments: Deployments) -> None:
    from flows import deployed
    from flows.retrain import retrain

    flows = {"retrain": retrain} | {name: getattr(deployed, name) for name, _ in deployments if name != "retrain"}
    page = (PROJECT / "docs" / "how-to" / "operate.md").read_text()
    commands = re.findall(r"^prefect deployment run (.+)$", page, re.MULTILINE)
    assert len(commands) > 5
    for command in commands:
        name, *words = shlex.split(command)
        flow, deployment = name.split("/")
        given = json.loads(words[1]) if words[:1] == ["--params"] else {}
        assert len(words) == 2 * bool(given)
        flows[flow].validate_parameters((deployments[flow, deployment].get("parameters") or {}) | given)


@pytest.mark.parametrize("plant", NAMES)
def test_every_plant_has_a_run_and_a_deployment(home: Path, deployments: Deployments, plant: str) -> None:
    from flows.retrain import retrain

    found = deployments["retrain", plant.replace("_", "-")]
    parameters = found["parameters"]
    assert parameters["config"] == f"configs/{plant}.yaml"
    # Checks names, mapping and limits of the run's file.
    assert checked_run(PROJECT / parameters["config"]).plant == plant
    assert retrain.validate_parameters(parameters) == parameters
    log = default_log(Home(home), plant_named(plant)).log
    assert parameters["data"] == [f".neorl/{log.relative_to(home)}"]
    (trigger,) = found["triggers"]
    assert trigger["match"] == {"prefect.resource.id": resource_of(plant)}
    assert set(trigger["expect"]) == {ARRIVED, DRIFTED}


@pytest.mark.parametrize("plant", NAMES)
def test_every_plant_is_monitored(deployments: Deployments, plant: str) -> None:
    from flows.monitor import monitor

    found = deployments["monitor", plant.replace("_", "-")]
    assert found["parameters"] == {"config": f"configs/{plant}.yaml"}
    assert monitor.validate_parameters(found["parameters"])["config"] == f"configs/{plant}.yaml"


def test_deployments_match_their_flows_and_run_one_at_a_time(deployments: Deployments) -> None:
    """Prefect calls a deployment FLOW/NAME, so function and flow must share a name."""
    from importlib import import_module

    for (function, _), entry in deployments.items():
        module = entry["entrypoint"].partition(":")[0].removesuffix(".py").replace("/", ".")
        assert getattr(import_module(module), function).name == function
        assert entry["concurrency_limit"]["limit"] == 1
        assert entry["work_pool"] == {"name": "neorl"}


def test_no_two_deployments_start_together(deployments: Deployments) -> None:
    scheduled = [entry["schedules"] for entry in deployments.values() if "schedules" in entry]
    starts = [schedule[0]["cron"] for schedule in scheduled]
    assert len(set(starts)) == len(starts) == 2 * len(NAMES) + 1
    assert {schedule[0]["timezone"] for schedule in scheduled} == {"UTC"}


@pytest.mark.slow
@pytest.mark.parametrize("plant", ["supply_chain"])
def test_a_small_run_on_generated_logs_succeeds(services: Services, tmp_path: Path, plant: str) -> None:
    def neorl(*words: str) -> dict[str, Any]:
        command = [sys.executable, "-m", "flows", *words, "--json"]
        environment = {**os.environ, "NEORL_HOME": str(services.home.root)}
        done = subprocess.run(command, cwd=PROJECT, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert "Traceback" not in done.stderr, done.stderr
        answer: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
        return answer

    log, config = tmp_path / "episodes.hdf5", tmp_path / f"{plant}.yaml"
    yaml = YAML(typ="safe")
    yaml.dump(yaml.load((PROJECT / "configs" / f"{plant}.yaml").read_text()) | yaml.load(SMALL), config)
    neorl("generate", plant, "--episodes", "60", "--out", str(log))
    found = neorl("retrain", str(config), "--data", str(log))
    assert found["verdict"] in ("promoted", "fallback")
    assert found["headline"]
    assert tuple(gate["name"] for gate in found["gates"]) == REQUIRED
    verdicts = {gate["name"]: gate["passed"] for gate in found["gates"]}
    # The logs are of a plant in its domain, where its own controller keeps the limits.
    assert (verdicts["simulator"], verdicts["fallback"]) == (True, True), found["gates"]
    assert found["champion"]["composite"]
    # Another log of the same plant shows no drift.
    newer = tmp_path / "newer.hdf5"
    neorl("generate", plant, "--episodes", "40", "--seed", "1", "--out", str(newer))
    watched = neorl("monitor", plant, "--data", str(newer), "--config", str(config))
    assert (watched["finding"]["alarm"], watched["finding"]["model"]) == (None, "linear model")
    assert {signal["group"] for signal in watched["finding"]["signals"]} == {
        *("observations", "actions", "rewards", "model")
    }
    entries = Ledger.open(services.home, write=False).entries("drift", plant)
    assert [entry.digest for entry in entries] == [watched["entry"]]
    registry = Registry(services.mlflow.url)
    run = registry.version(plant, watched["version"]).run_id
    numbers = registry.client.get_run(run).data.metrics
    assert numbers["drift/alarm"] == 0.0
    assert {name: numbers[f"data/{name}"] for name in watched["quality"]["shares"]} == watched["quality"]["shares"]
    assert numbers["drift/evidence"] == pytest.approx(
        watched["finding"]["log_evidence"] / watched["finding"]["log_threshold"]
    )
