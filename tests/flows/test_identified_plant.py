"""A plant with a wrong constant, from logs of the true plant to a certificate over the posterior."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tasks.evidence.audit.audit import audit
from tasks.evidence.certificate import read_certificate
from tasks.evidence.ledger.ledger import Ledger

if TYPE_CHECKING:
    from flows.services.servers import Services

ROOT = Path(__file__).parents[2]
RUN = """\
plant: plants/vat.py
identify:
  constants:
    hole: {deviation: 0.1}
train:
  {algorithm: td3_bc, updates: 200, seeds: 1, checkpoint_every: 100, hyperparameters: {critics: 2, hidden: [16]}}
evaluate: {model_updates: 40, bootstraps: 50, rollouts: 16, discount: 0.95}
certify: {p0: 0.1}
gates: {beat_plant: false}
approval: auto
"""
TRUE, WRONG = 1e-3, 1.06e-3

pytestmark = pytest.mark.slow


def test_the_certificate_covers_the_posterior(services: Services, tmp_path: Path) -> None:
    project = tmp_path / "project"
    shutil.copytree(ROOT / "tests" / "own_project", project, ignore=shutil.ignore_patterns("__pycache__"))
    text = (project / "plants" / "tank.py").read_text().replace('name="tank"', 'name="vat"')
    plant = project / "plants" / "vat.py"
    plant.write_text(text)
    (project / "run.yaml").write_text(RUN)
    environment = {**os.environ, "NEORL_HOME": str(services.home.root), "PYTHONPATH": str(ROOT)}

    def neorl(*words: str) -> dict[str, Any]:
        command = [sys.executable, "-m", "flows", *words, "--json"]
        done = subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, check=False)
        assert "Traceback" not in done.stderr, done.stderr
        lines = done.stdout.strip().splitlines()
        return {**(json.loads(lines[-1]) if lines else {}), "exit": done.returncode, "stderr": done.stderr}

    made = neorl("generate", "plants/vat.py", "--behaviour", "pid", "--episodes", "60", "--out", "logs.hdf5")
    assert made["exit"] == 0, made
    plant.write_text(text.replace("hole: float = 1e-3", f"hole: float = {WRONG:g}"))
    assert plant.read_text() != text
    found = neorl("retrain", "run.yaml", "--data", "logs.hdf5")
    assert found["exit"] == 0, found
    simulator = next(gate for gate in found["gates"] if gate["name"] == "simulator")
    assert simulator["passed"], simulator
    told = f"under domain vat/standard identified from dataset {found['dataset'][:12]}"
    assert told in found["champion"]["claim"]
    ledger = Ledger.open(services.home, write=False)
    files = [file.path for entry in ledger.entries("result", "vat") for file in entry.artefacts]
    certificates = [services.home.root / path for path in files if path.endswith(".dsse.json")]
    for path in certificates:
        scope = read_certificate(path, ledger.trust).predicate.scope
        assert scope.identified is not None
        assert scope.identified.dataset == found["dataset"]
        # The constant was 6 % wrong; the logs' constants scatter around the true one.
        assert abs(scope.domain["identified_hole"] / TRUE - 1) < 0.015
        assert 0 < scope.domain["identified_hole_1"] < 0.02
        assert neorl("certificate", "verify", str(path), "--rerun", "--plant", "plants/vat.py")["exit"] == 0
    assert certificates
    assert audit(services.home).passed
    page = Path(found["links"]["report"].removeprefix("file://")).read_text()
    assert "Constants identified from the logs" in page
    again = neorl("retrain", "run.yaml", "--data", "logs.hdf5")
    assert (again["exit"], again["verdict"]) == (0, "unchanged")
    assert "identify" in again["reused"]
    # An unknown name is reported before anything starts.
    (project / "run.yaml").write_text(RUN.replace("hole:", "whole:"))
    refused = neorl("check", "run.yaml", "--data", "logs.hdf5")
    detail = next(each["detail"] for each in refused["findings"] if each["name"] == "constants")
    assert detail.startswith("identify.constants names 'whole', which is not a constant of vat")
