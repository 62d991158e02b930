"""A plant in a file of a user's project, from its YAML to a certified champion, by the commands on real servers."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tasks.adapters.ledger.audit import audit
from tasks.adapters.ledger.ledger import Ledger
from tasks.adapters.plants.code import find_code

if TYPE_CHECKING:
    from flows.services.servers import Services

ROOT = Path(__file__).parents[2]
RUN = """\
plant: plants/tank.py
train:
  {algorithm: td3_bc, updates: 200, seeds: 1, checkpoint_every: 100, hyperparameters: {critics: 2, hidden: [16]}}
evaluate: {fqe_updates: 100, model_updates: 40, bootstraps: 50, rollouts: 16, discount: 0.95}
certify: {p0: 0.1}
gates: {beat_plant: false}
approval: auto
"""
Neorl = Callable[..., dict[str, Any]]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("own") / "project"
    shutil.copytree(ROOT / "tests" / "own_project", folder, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "run.yaml").write_text(RUN)
    return folder


@pytest.fixture(scope="module")
def command(services: Services, project: Path) -> Neorl:
    """Runs `neorl` in the user's project against the session's servers; returns its JSON with the exit code."""
    environment = {**os.environ, "NEORL_HOME": str(services.home.root), "PYTHONPATH": str(ROOT)}

    def run(*words: str) -> dict[str, Any]:
        done = subprocess.run(
            [sys.executable, "-m", "flows", *words, "--json"],
            cwd=project,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert "Traceback" not in done.stderr, done.stderr
        lines = done.stdout.strip().splitlines()
        return {**(json.loads(lines[-1]) if lines else {}), "exit": done.returncode, "stderr": done.stderr}

    return run


@pytest.fixture(scope="module")
def outcome(command: Neorl) -> dict[str, Any]:
    """The first retraining of the tank."""
    made = command("generate", "plants/tank.py", "--behaviour", "pid", "--episodes", "60", "--out", "logs.hdf5")
    assert (made["exit"], made["plant"]) == (0, "tank")
    found = command("retrain", "run.yaml", "--data", "logs.hdf5")
    assert found["exit"] == 0, found
    return found


def test_a_users_own_plant_gets_a_certified_champion(
    services: Services, project: Path, command: Neorl, outcome: dict[str, Any]
) -> None:
    assert outcome["plant"] == "tank"
    assert outcome["champion"]["version"]
    assert audit(services.home).passed
    ledger = Ledger.open(services.home, write=False)
    results = ledger.entries("result", "tank")
    assert any(entry.body["passed"] for entry in results)
    promoted = ledger.entries("promotion", "tank")[-1].body["composite"]
    bundle = services.home.root / "bundles" / "tank" / promoted[:24]
    manifest = json.loads((bundle / "composite.json").read_bytes())
    assert manifest["code"] == find_code("plants/tank.py", project).digest
    certified = next(e for e in results if e.body["composite"] == promoted and e.body["passed"])
    certificate = next(file.path for file in certified.artefacts if file.path.endswith(".dsse.json"))
    words = ("certificate", "verify", str(services.home.root / certificate))
    assert command(*words)["exit"] == 0  # nothing of the plant is executed for this
    assert command(*words, "--rerun", "--plant", "plants/tank.py")["exit"] == 0
    refused = command(*words, "--rerun")
    assert "expected the code of plant 'tank'" in refused["stderr"]
    assert command("history", "tank")["champions"][-1]["composite"] == promoted
    again = command("retrain", "run.yaml", "--data", "logs.hdf5")
    assert (again["exit"], again["verdict"]) == (0, "unchanged")


def test_changed_physics_are_another_simulator(
    services: Services, project: Path, command: Neorl, outcome: dict[str, Any]
) -> None:
    assert outcome["exit"] == 0
    ledger = Ledger.open(services.home, write=False)
    entry = next(e for e in ledger.entries("result", "tank") if e.body["passed"])
    certificate = next(file.path for file in entry.artefacts if file.path.endswith(".dsse.json"))
    helper = project / "plants" / "physics" / "outflow.py"
    text = helper.read_text()
    helper.write_text(text.replace("9.81", "9.80"))
    try:
        words = ("certificate", "verify", str(services.home.root / certificate))
        refused = command(*words, "--rerun", "--plant", "plants/tank.py")
        assert refused["exit"] == 1
        assert "expected the code of plant tank with the digest" in refused["stderr"]
    finally:
        helper.write_text(text)
