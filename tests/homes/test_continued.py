"""Homes of earlier versions go on under later code: servers, retraining and rollback, with a gate added and removed."""

from __future__ import annotations

import json
import lzma
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tasks.versions.versions import newest

pytestmark = pytest.mark.slow

PROJECT = Path(__file__).parents[2]
TWIN = Path(__file__).with_name("2026-11-28.tar.xz")
SHARED = PROJECT.parent / "shared" / "homes" / "2026-11-28"
PLANT = "chemical_reactor"
RUN = """\
plant: chemical_reactor
data: {{mapping: {mapping}}}
train:
  {{algorithm: bc, updates: {updates}, seeds: 2, checkpoint_every: 400, hyperparameters: {{hidden: [16]}}}}
evaluate: {{model_updates: 40, bootstraps: 100, rollouts: 32, discount: 0.95}}
gates: {{beat_plant: {beat_plant}}}
approval: auto
"""
ADDED = "\nVERSIONS[newest() + 1] = current()._replace(simulated={**current().simulated, 'noise': verdicts.data})\n"
REMOVED = "\nVERSIONS[newest() + 1] = V1._replace(texts=current().texts)\n"
LOAD = """
import sys
from configs.home import Home
from flows.services.servers import mlflow_address
from tasks.registry.registry import Registry
from tasks.registry.serving import load_model
home = Home.locate()
model = load_model(home, Registry(mlflow_address(home)), "chemical_reactor", sys.argv[1])
print(model.predict(model.input_example).to_numpy().ravel()[0])
"""


class Later:
    """A copy of the project that works on a home of an earlier version."""

    def __init__(self, folder: Path, home: Path) -> None:
        self.tree, self.home = folder / "project", home
        self.tree.mkdir()
        for name in ("neorl_core", "configs", "tasks", "flows"):
            shutil.copytree(PROJECT / name, self.tree / name, ignore=shutil.ignore_patterns("__pycache__"))
        for name in ("prefect.yaml", "pyproject.toml", "requirements.lock"):
            shutil.copy(PROJECT / name, self.tree / name)
        self.environment = {
            **os.environ,
            "NEORL_HOME": str(home),
            "PYTHONPATH": str(self.tree),
            "XDG_CONFIG_HOME": str(folder / "config"),
        }

    def change(self, lines: str) -> None:
        """Append a version of the rules, as a developer would."""
        path = self.tree / "tasks" / "versions" / "versions.py"
        path.write_text(path.read_text() + lines)
        gates = self.tree / "tasks" / "gates.py"
        gates.write_text(gates.read_text() + '\nDETAILS["noise"] = _data\n')

    def python(self, *words: str) -> str:
        done = subprocess.run(
            [sys.executable, *words], cwd=self.tree, env=self.environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, (words, done.stdout[-3000:], done.stderr[-3000:])
        return done.stdout

    def neorl(self, *words: str) -> dict[str, Any]:
        """Run a command, which must succeed, and return its JSON."""
        answer: dict[str, Any] = json.loads(self.python("-m", "flows", *words, "--json").strip().splitlines()[-1])
        return answer

    def audit(self) -> str:
        """Audit with servers up, and return the versions that it met."""
        checks = self.neorl("audit", "verify")["checks"]
        return next(str(check["detail"]) for check in checks if check["name"] == "versions")

    def retrain(self, updates: int, beat_plant: bool) -> dict[str, Any]:
        """A small retraining of behaviour cloning."""
        path, data = self.tree / "run.yaml", self.tree / "data"
        if not data.exists():
            self.neorl("generate", PLANT, "--out", str(data), "--weeks", "0.12")
        mapping = PROJECT / "configs" / "mappings" / f"{PLANT}.yaml"
        path.write_text(RUN.format(mapping=mapping, updates=updates, beat_plant=str(beat_plant).lower()))
        return self.neorl("retrain", str(path), "--data", str(data / "historian.parquet"))


@pytest.fixture(params=["twin", "shared"])
def later(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, Later]]:
    """The committed home of 89a12a2, or the full one beside the repository."""
    home = tmp_path / "home"
    if request.param == "twin":
        with tarfile.open(TWIN) as archive:
            archive.extractall(tmp_path, filter="data")
    elif SHARED.is_dir():
        (tmp_path / "config" / "neorl").mkdir(parents=True)
        for file in SHARED.glob("*.passphrase"):
            Path(shutil.copy(file, tmp_path / "config" / "neorl")).chmod(0o600)
    else:
        pytest.skip(f"no home of an earlier version in {SHARED}")
    continued = Later(tmp_path, home)
    if request.param == "shared":
        (tmp_path / "home.tar").write_bytes(lzma.decompress((SHARED / "home.tar.xz").read_bytes()))
        continued.neorl("restore", str(tmp_path / "home.tar"), "--home", str(home))
    yield request.param, continued
    continued.neorl("down")


def test_a_home_goes_on_while_gates_come_and_go(later: tuple[str, Later]) -> None:
    kind, home = later
    beat_plant = kind == "shared"  # by the home's safety policy
    home.neorl("up", "--accept-restored")
    assert home.audit().endswith(f"entries by version 1; this NeoRL writes version {newest()}")
    home.neorl("history", PLANT)
    assert float(home.python("-c", LOAD, "1")) > 0

    home.change(ADDED)
    assert home.audit().endswith(f"entries by version 1; this NeoRL writes version {newest() + 1}")
    first = home.retrain(850, beat_plant)
    assert first["gates"][-1]["name"] == "noise"
    assert "entries by version 1, " in home.audit()

    home.change(REMOVED)
    second = home.retrain(950, beat_plant)
    assert "noise" not in [gate["name"] for gate in second["gates"]]
    home.audit()
    if second["champion"]["version"] != "1":
        home.neorl("rollback", PLANT, "--to", "1", "--by", "shift engineer", "--why", "a test")
    home.audit()
    home.neorl("report", PLANT)
    home.neorl("report", "--from", "2026-11-01", "--to", "2026-12-31")
    assert float(home.python("-c", LOAD, "1")) > 0
