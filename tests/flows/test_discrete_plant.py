"""A plant with switched pumps, end to end: generated logs, discrete learners, certified champion."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tasks.evidence.audit.audit import audit
from tasks.evidence.ledger.ledger import Ledger
from tasks.gates import REQUIRED
from tasks.models.bundles.bundle import load_bundle, load_examples

if TYPE_CHECKING:
    from flows.services.servers import Services

ROOT = Path(__file__).parents[2]
RUN = """\
plant: pumping_station
train: {algorithm: discrete_cql, updates: 2000, seeds: 1, hyperparameters: {hidden: [16]}}
evaluate: {model_updates: 100, bootstraps: 50, rollouts: 16}
shield: {dwell: 2}
certify: {p0: 0.1}
gates: {beat_plant: false}
approval: auto
"""

pytestmark = pytest.mark.slow


def test_a_discrete_plant_gets_a_certified_champion(services: Services, tmp_path: Path) -> None:
    environment = {**os.environ, "NEORL_HOME": str(services.home.root), "PYTHONPATH": str(ROOT)}

    def neorl(*words: str) -> dict[str, Any]:
        command = [sys.executable, "-m", "flows", *words, "--json"]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert "Traceback" not in done.stderr, done.stderr
        lines = done.stdout.strip().splitlines()
        return {**(json.loads(lines[-1]) if lines else {}), "exit": done.returncode, "stderr": done.stderr}

    config = tmp_path / "run.yaml"
    config.write_text(RUN.replace("discrete_cql", "iql"))
    refused = neorl("check", str(config))
    (detail,) = [each["detail"] for each in refused["findings"] if each["name"] == "training"]
    assert "cannot learn the discrete actions of pumping_station: choose one of discrete_bc" in detail
    config.write_text(RUN)
    made = neorl("generate", "pumping_station", "--episodes", "80", "--out", "logs.hdf5")
    assert made["exit"] == 0, made
    found = neorl("retrain", "run.yaml", "--data", "logs.hdf5")
    assert found["exit"] == 0, found
    assert tuple(gate["name"] for gate in found["gates"]) == REQUIRED
    assert found["champion"]["version"]
    ledger = Ledger.open(services.home, write=False)
    promoted = ledger.entries("promotion", "pumping_station")[-1].body["composite"]
    plant, composite = load_bundle(services.home.root / "bundles" / "pumping_station" / promoted[:24], promoted)
    assert int(composite.shield.dwell) == 2
    answers = load_examples(services.home.root / "bundles" / "pumping_station" / promoted[:24], plant.spec).actions
    assert set(np.unique(answers)) <= {0.0, 1.0, 2.0, 3.0}
    assert audit(services.home).passed
