"""Servers that die during a run: one sentence, nothing lost, and the repeated command resumes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from configs.home import Home
from tasks.evidence.audit.audit import audit
from tasks.evidence.ledger.ledger import Ledger
from tests.small_data import MAPPING, PLANT

PROJECT = Path(__file__).parents[2]
CONFIG = f"""\
plant: {PLANT}
data: {{mapping: {MAPPING}}}
train:
  {{algorithm: td3_bc, updates: 400, seeds: 2, checkpoint_every: 100, hyperparameters: {{critics: 2, hidden: [16]}}}}
evaluate: {{model_updates: 40, bootstraps: 100, rollouts: 32, discount: 0.95}}
gates: {{beat_plant: false}}
approval: auto
"""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    """A home with its own servers, which the tests may kill."""
    from flows.services.servers import down, up

    home = Home(tmp_path_factory.mktemp("faults") / "home")
    up(home, worker=False)
    yield home
    down(home)


@pytest.fixture(scope="module")
def words(served: Home) -> list[str]:
    """Return (config, log) of a small retraining."""
    from tasks.data.synthetic.reactor_history import generate

    folder = served.root.parent
    log = generate(PLANT, folder / "log", 0, 0.5)
    (folder / "run.yaml").write_text(CONFIG)
    return ["retrain", str(folder / "run.yaml"), "--data", str(log.path)]


def _start(home: Home, words: list[str]) -> subprocess.Popen[str]:
    environment = {**os.environ, "NEORL_HOME": str(home.root)}
    command = [sys.executable, "-m", "flows", *words, "--json"]
    return subprocess.Popen(
        command, cwd=PROJECT, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def _answer(process: subprocess.Popen[str]) -> dict[str, Any]:
    out, err = process.communicate()
    assert "Traceback" not in err, err
    lines = out.strip().splitlines()
    return {**json.loads(lines[-1]), "exit": process.returncode, "stderr": err}


def _kill_when(home: Home, process: subprocess.Popen[str], name: str, pattern: str) -> None:
    """Kill a server as soon as a run has written a file."""
    while process.poll() is None and not next(home.root.glob(pattern), None):
        time.sleep(0.02)
    assert process.poll() is None, process.communicate()
    server = psutil.Process(json.loads(home.services.read_bytes())[name]["pid"])
    family = [server, *server.children(recursive=True)]
    for member in family:
        member.kill()
    psutil.wait_procs(family, timeout=30)


def _one_sentence(found: dict[str, Any], server: str) -> None:
    assert found["exit"] == 3, found
    # Either the probe before a task or the request itself reports it.
    assert re.search(rf"{server} .*(answer|failed)", found["error"]), found["error"]
    assert "neorl up" in found["error"]
    assert found["error"].count(". ") == 0
    assert "\n" not in found["error"]


def _promotions(home: Home) -> int:
    return len(Ledger.open(home, write=False).entries("promotion", PLANT))


@pytest.mark.slow
def test_a_run_resumes_after_its_servers_died(served: Home, words: list[str]) -> None:
    # One test, because each part continues from the previous state.
    process = _start(served, words)
    _kill_when(served, process, "prefect", f"checkpoints/{PLANT}/*/steps/[0-9]*")
    _one_sentence(_answer(process), "Prefect")
    assert _promotions(served) == 0
    assert audit(served).passed

    assert _answer(_start(served, ["up"]))["exit"] == 0
    process = _start(served, words)
    _kill_when(served, process, "mlflow", f"certificates/{PLANT}/*.json")
    _one_sentence(_answer(process), "MLflow")
    assert _promotions(served) == 0
    assert audit(served).passed

    assert _answer(_start(served, ["up"]))["exit"] == 0
    attempts = len(Ledger.open(served, write=False).entries("attempt"))
    assert attempts >= 1, "MLflow was killed once a certificate was written, so its attempt is in the ledger"
    finished = _answer(_start(served, words))
    assert finished["exit"] == 0, finished
    assert {"ingest", "validate", "train", "evaluate", "simulate"} <= set(finished["reused"])
    entries = Ledger.open(served, write=False).entries()
    # The finished attempt of the interrupted run is not spent again.
    assert attempts <= len([entry for entry in entries if entry.kind == "attempt"]) <= 2
    assert _promotions(served) == 1
    report = audit(served)
    assert report.passed, report.failures
