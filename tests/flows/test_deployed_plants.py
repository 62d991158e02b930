"""Every plant has a run, a deployment and a generated log, and a run on it ends in words."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from ruamel.yaml import YAML

from flows.checks import checked_run
from flows.cli.data import usual_log
from neorl_core.plants import NAMES
from tasks.adapters.plants.known import plant_named
from tasks.gates import REQUIRED

if TYPE_CHECKING:
    from flows.services.servers import Services

PROJECT = Path(__file__).parents[2]
SMALL = """\
train: {algorithm: td3_bc, updates: 40, batch_size: 64, hyperparameters: {critics: 2, hidden: [8]}}
evaluate: {fqe_updates: 40, model_updates: 40, bootstraps: 50, rollouts: 8}
"""
"""What a test adds to a plant's own YAML, in place of the defaults that it leaves alone."""


@pytest.fixture(scope="module")
def deployments() -> dict[str, dict[str, Any]]:
    """What prefect.yaml declares, by name."""
    declared = YAML(typ="safe", pure=True).load((PROJECT / "prefect.yaml").read_text())["deployments"]
    return {entry["name"]: entry for entry in declared}


@pytest.mark.parametrize("plant", NAMES)
def test_every_plant_has_a_run_and_a_deployment_that_reads_its_generated_log(
    home: Path, deployments: dict[str, dict[str, Any]], plant: str
) -> None:
    from flows.retrain import retrain

    parameters = deployments[plant.replace("_", "-")]["parameters"]
    assert parameters["config"] == f"configs/{plant}.yaml"
    # All that can be wrong with a run's file: its names, its mapping, its limits' buffers.
    assert checked_run(PROJECT / parameters["config"]).plant == plant
    assert retrain.validate_parameters(parameters) == parameters
    behaviour, out, _ = usual_log(plant_named(plant), None, None, None)
    log = out / "historian.parquet" if behaviour == "historian" else out
    assert parameters["data"] == [f".neorl/{log.relative_to(home)}"]


def test_no_two_deployments_start_together(deployments: dict[str, dict[str, Any]]) -> None:
    starts = [entry["schedules"][0]["cron"] for entry in deployments.values()]
    assert len(set(starts)) == len(starts) == len(NAMES)


@pytest.mark.slow
@pytest.mark.parametrize("plant", ["double_mass", "supply_chain"])
def test_a_small_run_on_generated_logs_ends_in_words(services: Services, tmp_path: Path, plant: str) -> None:
    def neorl(*words: str) -> dict[str, Any]:
        command = [sys.executable, "-m", "flows", *words, "--json"]
        environment = {**os.environ, "NEORL_HOME": str(services.home.root)}
        done = subprocess.run(command, cwd=PROJECT, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert "Traceback" not in done.stderr, done.stderr
        answer: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
        return answer

    log, config = tmp_path / "episodes.hdf5", tmp_path / f"{plant}.yaml"
    config.write_text((PROJECT / "configs" / f"{plant}.yaml").read_text() + SMALL)
    neorl("generate", plant, "--episodes", "60", "--out", str(log))
    found = neorl("retrain", str(config), "--data", str(log))
    assert found["verdict"] in ("promoted", "fallback")
    assert found["headline"]
    assert tuple(gate["name"] for gate in found["gates"]) == REQUIRED
    verdicts = {gate["name"]: gate["passed"] for gate in found["gates"]}
    # Its own logs are those of a plant of its domain, and its own controller keeps the limits there.
    assert (verdicts["simulator"], verdicts["fallback"]) == (True, True), found["gates"]
    assert found["champion"]["composite"]
