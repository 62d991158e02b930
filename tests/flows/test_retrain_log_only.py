"""A log-only plant end to end on real servers: from its log to its shadow."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tasks.evidence.audit.audit import audit
from tasks.evidence.ledger.ledger import Ledger
from tasks.gates import ABSENT_LOG_ONLY, REQUIRED_LOG_ONLY
from tests import small_process
from tests.flows.services.waiting import shown_graph, wait_until
from tests.small_process import NAME

if TYPE_CHECKING:
    from flows.services.servers import Services

PROJECT = Path(__file__).parents[2]
Neorl = Callable[..., dict[str, Any]]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def command(services: Services) -> Neorl:
    """Return a function that runs `neorl` on the session's servers and returns its JSON with the exit code."""
    environment = {**os.environ, "NEORL_HOME": str(services.home.root)}

    def run(*arguments: str) -> dict[str, Any]:
        words = [sys.executable, "-m", "flows", *arguments, "--json"]
        done = subprocess.run(words, cwd=PROJECT, env=environment, capture_output=True, text=True, check=False)
        assert "Traceback" not in done.stderr, done.stderr
        answer: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
        return {**answer, "exit": done.returncode, "stderr": done.stderr}

    return run


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return (config, log)."""
    folder = tmp_path_factory.mktemp("project")
    slower = small_process.SLOWER
    return small_process.project(folder, period=slower), small_process.export(folder / "log.csv", 7200, period=slower)


@pytest.fixture(scope="module")
def first(command: Neorl, project: tuple[Path, Path]) -> dict[str, Any]:
    """The first retraining of the plant."""
    config, log = project
    result = command("retrain", str(config), "--data", str(log))
    assert result["exit"] == 0, result
    return result


def test_a_log_alone_becomes_a_shadow_only(first: dict[str, Any], services: Services, tmp_path: Path) -> None:
    from tasks.models.bundles.bundle import load_bundle
    from tasks.registry.registry import Registry

    assert first["verdict"] == "shadow"
    assert first["champion"] is None
    assert first["certificate"] is None
    assert tuple(gate["name"] for gate in first["gates"]) == REQUIRED_LOG_ONLY
    assert all(gate["passed"] for gate in first["gates"])
    registry = Registry(services.mlflow.url)
    assert registry.aliases(NAME) == {"shadow": first["shadow"]["version"]}
    version = registry.version(NAME, first["shadow"]["version"])
    page = Path(first["links"]["report"]).read_text()
    for text in (page, version.description):
        # The first claim, and the gates that need a simulator.
        assert "No statistical safety claim" in text
        assert all(why in text.replace("&#39;", "'") for why in ABSENT_LOG_ONLY.values())
        assert "certificate verify" not in text
    assert "persistence" in page
    assert "Errors of predictions against their horizon" in page
    model = registry.fetch_model(NAME, version.version, tmp_path)
    plant, composite = load_bundle(model / "artifacts" / "bundle", first["shadow"]["composite"])
    assert plant.spec.name == NAME
    assert composite.policy is not None
    assert audit(services.home).passed


def test_prefect_shows_exactly_the_dependencies(first: dict[str, Any], services: Services) -> None:
    from infra.reference import nodes

    wanted = sorted((node.stage, sorted(node.takes)) for node in nodes("process"))
    wait_until(lambda: len(shown_graph(services, first["run"])) >= len(wanted))  # tasks are written some seconds later
    assert shown_graph(services, first["run"]) == wanted


def test_unchanged_inputs_change_nothing(
    command: Neorl, first: dict[str, Any], project: tuple[Path, Path], services: Services
) -> None:
    before = len(Ledger.open(services.home, write=False).entries())
    config, log = project
    second = command("retrain", str(config), "--data", str(log))
    assert second["exit"] == 0, second
    assert second["verdict"] == "unchanged"
    assert second["shadow"] == first["shadow"]
    assert {"ingest", "train", "fallback", "fit_model", "examine", "estimate"} <= set(second["reused"])
    assert len(Ledger.open(services.home, write=False).entries()) == before


def test_a_shadow_comparison_finds_drift(
    command: Neorl, first: dict[str, Any], project: tuple[Path, Path], services: Services
) -> None:
    from tasks.registry.registry import Registry

    config, log = project
    own = command("shadow", NAME, "--data", str(log), "--config", str(config))
    assert (own["exit"], "name newer logs" in own["error"]) == (1, True)
    calm = small_process.export(log.parent / "calm.csv", 1200, seed=1, start="2026-03-05", period=small_process.SLOWER)
    worn = small_process.export(
        log.parent / "worn.csv", 1200, seed=2, gain=0.7, start="2026-04-05", period=small_process.SLOWER
    )
    alarms = []
    for newer in (calm, worn):
        found = command("shadow", NAME, "--data", str(newer), "--config", str(config))
        assert found["exit"] == 0, found
        told = found["comparison"]
        assert 0.0 <= told["agreement"] <= 1.0
        assert told["support"] > 0.8
        assert Path(found["picture"]).is_file()
        alarms.append(told["drift"]["alarm"] is not None)
    assert alarms == [False, True]
    description = Registry(services.mlflow.url).version(NAME, first["shadow"]["version"]).description
    assert description.count("### In shadow") == 1
    assert "Drift alarm** at episode" in description
    assert "The return of the proposed actions is unknown" in description
    entries = Ledger.open(services.home, write=False).entries("comparison", NAME)
    assert len(entries) == 2
    # The same logs give the same entry.
    command("shadow", NAME, "--data", str(worn), "--config", str(config))
    assert len(Ledger.open(services.home, write=False).entries("comparison", NAME)) == 2
    assert audit(services.home).passed


def test_a_person_extends_a_shadow(command: Neorl, first: dict[str, Any]) -> None:
    found = command("extend", NAME, "--days", "14", "--by", "shift engineer", "--note", "the summer is to come")
    assert found["exit"] == 0, found
    assert found["until"][:10] > first["shadow"]["until"][:10]
    told = command("history", NAME)
    assert (told["champions"], [row["approved_by"] for row in told["shadows"]]) == ([], ["rule: auto"])
    assert command("audit", "verify")["exit"] == 0


def test_an_approved_candidate_becomes_a_shadow(
    command: Neorl, first: dict[str, Any], project: tuple[Path, Path]
) -> None:
    _, log = project
    waits = small_process.project(log.parent / "waits", approval="required", period=small_process.SLOWER)
    waits.write_text(waits.read_text().replace("seed: 0", "seed: 5"))
    found = command("retrain", str(waits), "--data", str(log))
    assert found["exit"] == 0, found
    if found["verdict"] == "shadow_waiting":
        approved = command("approve", NAME, found["candidate"]["version"], "--by", "shift engineer")
        assert (approved["exit"], approved["champion"]) == (0, None)
        assert approved["shadow"] == found["candidate"]["version"]
    else:
        assert found["verdict"] == "refused"


def test_failed_validation_stops_before_training(
    command: Neorl, project: tuple[Path, Path], services: Services
) -> None:
    config, log = project
    few = small_process.export(log.parent / "few.csv", 120, period=small_process.SLOWER)
    refused = command("retrain", str(config), "--data", str(few))
    assert refused["exit"] == 1, refused
    assert refused["error"].startswith("the dataset failed validation: at least 2 training")
    last = Ledger.open(services.home, write=False).entries()[-1]
    assert (last.kind, last.plant, last.body["reason"]) == ("refusal", NAME, refused["error"])


def test_a_kill_after_registration_is_repaired(
    command: Neorl, first: dict[str, Any], project: tuple[Path, Path], services: Services
) -> None:
    _, log = project
    config = small_process.project(log.parent / "killed", period=small_process.SLOWER)
    config.write_text(config.read_text().replace("seed: 0", "seed: 7"))

    def candidates() -> int:
        return len(Ledger.open(services.home, write=False).entries("candidate", NAME))

    before = candidates()
    words = [sys.executable, "-m", "flows", "retrain", str(config), "--data", str(log)]
    environment = {**os.environ, "NEORL_HOME": str(services.home.root)}
    process = subprocess.Popen(words, cwd=PROJECT, env=environment, start_new_session=True, stderr=subprocess.DEVNULL)
    # Wait for an event, not a time: the candidate's entry.
    while process.poll() is None and candidates() == before:
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    finished = command("retrain", str(config), "--data", str(log))
    assert finished["exit"] == 0, finished
    assert candidates() == before + 1
    assert {"ingest", "fallback", "train", "evaluate", "fit_model", "examine", "estimate"} <= set(finished["reused"])
    assert audit(services.home).passed
