"""User plants (a file, a feeder with a graph policy, the template of `neorl init`, a package) become champions."""

from __future__ import annotations

import functools
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
import pytest

from neorl_core.networks import policy_act
from neorl_core.plants.power_grid.feeder33 import FEEDER
from neorl_core.plants.power_grid.radial import radial
from neorl_core.safety.composite import composite_controller
from neorl_core.types import Plant
from tasks.evidence.audit.audit import audit
from tasks.evidence.ledger.ledger import Ledger
from tasks.models.bundles.bundle import load_bundle, load_examples
from tasks.models.user_code.loading import find_code
from tests.installed_plant import install

if TYPE_CHECKING:
    from flows.services.servers import Services

ROOT = Path(__file__).parents[2]
SMALL = """\
train:
  {algorithm: td3_bc, updates: 200, seeds: 1, checkpoint_every: 100, hyperparameters: {critics: 2, hidden: [16]}}
evaluate:
  model_updates: 40
  bootstraps: 50
  rollouts: 16
"""
"""Budgets for tests."""
RUN = f"""\
{SMALL}  discount: 0.95
certify: {{p0: 0.1}}
gates: {{beat_plant: false}}
approval: auto
"""
Neorl = Callable[..., dict[str, Any]]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("own") / "project"
    shutil.copytree(ROOT / "tests" / "own_project", folder, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "run.yaml").write_text(f"plant: plants/tank.py\n{RUN}")
    return folder


def run_in(services: Services, folder: Path, *words: str, site: Path | None = None) -> dict[str, Any]:
    """Run `neorl` in a folder on the session's servers, with the packages in `site`; return its JSON with the exit
    code."""
    path = os.pathsep.join(str(each) for each in (ROOT, site) if each)
    environment = {**os.environ, "NEORL_HOME": str(services.home.root), "PYTHONPATH": path}
    done = subprocess.run(
        [sys.executable, "-m", "flows", *words, "--json"],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Traceback" not in done.stderr, done.stderr
    lines = done.stdout.strip().splitlines()
    return {**(json.loads(lines[-1]) if lines else {}), "exit": done.returncode, "stderr": done.stderr}


@pytest.fixture(scope="module")
def command(services: Services, project: Path) -> Neorl:
    """Return a function that runs `neorl` in the user's project."""
    return functools.partial(run_in, services, project)


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
    promoted = ledger.entries("promotion", "tank")[-1].body["composite"]
    bundle = services.home.root / "bundles" / "tank" / promoted[:24]
    manifest = json.loads((bundle / "composite.json").read_bytes())
    assert manifest["code"] == find_code("plants/tank.py", project).digest
    words = ("certificate", "verify", str(certificate_of(services, "tank")))
    assert command(*words)["exit"] == 0  # needs no execution of the plant's code
    assert command(*words, "--rerun", "--plant", "plants/tank.py")["exit"] == 0
    refused = command(*words, "--rerun")
    assert "the code of plant 'tank', which" in refused["stderr"]
    assert command("history", "tank")["champions"][-1]["composite"] == promoted
    again = command("retrain", "run.yaml", "--data", "logs.hdf5")
    assert (again["exit"], again["verdict"]) == (0, "unchanged")
    assert again["headline"].startswith("Nothing new to promote"), "it compares with the champion before its own"


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
        assert "the code of plant tank has digest" in refused["stderr"]
    finally:
        helper.write_text(text)


def certificate_of(services: Services, plant: str) -> Path:
    """Return the champion's certificate."""
    ledger = Ledger.open(services.home, write=False)
    promoted = ledger.entries("promotion", plant)[-1].body["composite"]
    results = ledger.entries("result", plant)
    entry = next(e for e in results if e.body["composite"] == promoted and e.body["passed"])
    return services.home.root / next(file.path for file in entry.artefacts if file.path.endswith(".dsse.json"))


def test_the_template_project_leads_to_a_champion(services: Services, tmp_path: Path) -> None:
    neorl = functools.partial(run_in, services)
    assert neorl(tmp_path, "init", "vessel")["exit"] == 0
    project = tmp_path / "vessel"
    made = neorl(project, "generate", "plants/vessel.py", "--episodes", "60", "--out", "logs.hdf5")
    assert made["exit"] == 0, made
    config = project / "configs" / "vessel.yaml"
    # The template's certification and approval settings stay.
    small = "evaluate:\n  rollouts: 64\n"
    config.write_text(
        config.read_text().replace("updates: 600", "updates: 100").replace("8_000", "100").replace("evaluate:\n", small)
    )
    ready = neorl(project, "check", "--data", "logs.hdf5")
    assert ready["exit"] == 0, ready
    found = neorl(project, "retrain", "configs/vessel.yaml", "--data", "logs.hdf5")
    assert (found["exit"], found["champion"]) == (0, None), found
    (version,) = found["waiting"]
    assert [row["version"] for row in neorl(project, "candidates", "vessel")["candidates"]] == [version]
    approved = neorl(project, "approve", "vessel", version, "--by", "shift engineer", "--note", "the first")
    assert (approved["exit"], approved["champion"]) == (0, version), approved
    assert [row["approved_by"] for row in neorl(project, "history", "vessel")["champions"]] == ["shift engineer"]
    assert neorl(project, "report", "vessel")["exit"] == 0
    certificate = str(certificate_of(services, "vessel"))
    again = neorl(project, "certificate", "verify", certificate, "--rerun", "--plant", "plants/vessel.py")
    assert again["exit"] == 0, again
    assert audit(services.home).passed


def test_a_packaged_plant_gets_a_champion(services: Services, tmp_path: Path) -> None:
    neorl = functools.partial(run_in, services, tmp_path, site=install(tmp_path / "site", "cistern"))
    made = neorl("generate", "cistern", "--behaviour", "pid", "--episodes", "60", "--out", "logs.hdf5")
    assert (made["exit"], made["plant"]) == (0, "cistern"), made
    (tmp_path / "run.yaml").write_text(f"plant: cistern\n{RUN}")
    found = neorl("retrain", "run.yaml", "--data", "logs.hdf5")
    assert found["exit"] == 0, found
    assert found["champion"]["version"]
    words = ("certificate", "verify", str(certificate_of(services, "cistern")), "--rerun")
    assert neorl(*words)["exit"] == 0
    # Without the package the plant is unknown, and nothing runs.
    assert "cistern" in run_in(services, tmp_path, *words)["stderr"]
    assert audit(services.home).passed


FEEDER_NAME = "switching_case33bw"
FEEDER_SMALL = "evaluate:\n  model_updates: 20\n  bootstraps: 50\n  rollouts: 32\n"
"""Budgets for tests; the rest is the example's."""


def test_a_graph_policy_becomes_a_certified_champion(services: Services, tmp_path: Path) -> None:
    project = tmp_path / "feeder"
    shutil.copytree(ROOT / "docs" / "examples" / "feeder", project, ignore=shutil.ignore_patterns("__pycache__"))
    config = project / "feeder.yaml"
    config.write_text(config.read_text().replace("evaluate:\n", FEEDER_SMALL).replace("updates: 1_200", "updates: 600"))
    neorl = functools.partial(run_in, services, project)
    made = neorl("generate", "plants/feeder.py", "--behaviour", "pid", "--episodes", "120", "--out", "logs.hdf5")
    assert (made["exit"], made["plant"]) == (0, FEEDER_NAME), made
    found = neorl("retrain", "feeder.yaml", "--data", "logs.hdf5")
    assert (found["exit"], found["verdict"]) == (0, "promoted"), found
    assert {gate["name"]: gate["passed"] for gate in found["gates"]} == dict.fromkeys(
        ("data", "simulator", "ope", "rollouts", "champion", "fallback", "statistical", "servability"), True
    )
    # Its return on the simulator exceeds the plant's own controller, although the run does not require it.
    assert found["difference"]["lower"] > 0
    assert found["champion"]["composite"] == found["candidate"]["digest"]

    promoted = Ledger.open(services.home, write=False).entries("promotion", FEEDER_NAME)[-1].body["composite"]
    folder = services.home.root / "bundles" / FEEDER_NAME / promoted[:24]
    plant, composite = load_bundle(folder, promoted, find_code("plants/feeder.py", project))
    assert isinstance(plant, Plant)
    assert composite.policy is not None
    assert composite.policy.params["graph"]["layout"] == plant.spec.layout
    assert json.loads((folder / "composite.json").read_bytes())["structure"]
    rows, before, recorded = load_examples(folder, plant.spec)
    controller = composite_controller(plant)
    memory, act, agree = jax.jit(controller.init)(composite, rows[0]), jax.jit(controller.act), 0
    for row, applied, then in zip(rows, before, recorded, strict=True):
        memory, action = act(composite, memory, row, applied)
        np.testing.assert_allclose(action, then, atol=1e-4)
        said = policy_act(composite.policy, row)
        if not bool(memory.handed_over) and np.isfinite(row).all():
            np.testing.assert_allclose(action, said, atol=1e-5)
            np.testing.assert_array_equal(radial(action, FEEDER).opened, radial(said, FEEDER).opened)
            agree += 1
    assert agree > len(rows) / 2

    words = "certificate", "verify", str(certificate_of(services, FEEDER_NAME))
    assert neorl(*words)["exit"] == 0
    assert neorl(*words, "--rerun", "--plant", "plants/feeder.py")["exit"] == 0
    assert neorl("audit", "verify")["exit"] == 0
    assert neorl("retrain", "feeder.yaml", "--data", "logs.hdf5")["verdict"] == "unchanged"


LEARNER = "{algorithm: analytic_gradient, updates: 100, seeds: 1, hyperparameters: {episodes: 16, hidden: [16]}}"
LEARNING = "evaluate: {rollouts: 64}\ncertify: {p0: 0.1}\napproval: auto\n"


@pytest.fixture(scope="module")
def vessel(services: Services, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with a tank of a different name, its logs, and a run that learns in the simulator."""
    folder = tmp_path_factory.mktemp("vessel") / "project"
    shutil.copytree(ROOT / "tests" / "own_project", folder, ignore=shutil.ignore_patterns("__pycache__"))
    plant = folder / "plants" / "tank.py"
    plant.write_text(plant.read_text().replace('name="tank"', 'name="basin"'))
    (folder / "run.yaml").write_text(f"plant: plants/tank.py\ntrain: {LEARNER}\n{LEARNING}")
    words = ("generate", "plants/tank.py", "--behaviour", "pid", "--episodes", "60", "--out", "logs.hdf5")
    made = run_in(services, folder, *words)
    assert (made["exit"], made["plant"]) == (0, "basin")
    return folder


def departure_of(found: dict[str, Any]) -> float:
    """Return the percentage of the candidate's steps that are unlike the logs."""
    detail = next(gate["detail"] for gate in found["gates"] if gate["name"] == "rollouts")
    percentage = re.search(r"([0-9.]+)% of its steps are unlike the logs", detail)
    assert percentage is not None, detail
    return float(percentage[1])


def test_a_policy_that_learns_in_a_users_simulator_becomes_champion(services: Services, vessel: Path) -> None:
    """The next candidate is compared with it by rollouts, because logs cannot estimate it."""
    command = functools.partial(run_in, services, vessel)
    found = command("retrain", "run.yaml", "--data", "logs.hdf5")
    assert (found["exit"], found["verdict"]) == (0, "promoted"), found
    gates = {gate["name"]: gate["detail"] for gate in found["gates"]}
    assert "not supported by the held-out logs: the policy corrects the plant's controller" in gates["ope"]
    digest = found["champion"]["composite"]
    bundle = services.home.root / "bundles" / "basin" / digest[:24]
    assert load_bundle(bundle, digest, find_code("plants/tank.py", vessel))[1].correction is not None
    again = command("retrain", "run.yaml", "--data", "logs.hdf5")
    assert again["candidate"]["version"] == found["candidate"]["version"]
    (vessel / "next.yaml").write_text(f"plant: plants/tank.py\nseed: 1\ntrain: {LEARNER}\n{LEARNING}")
    second = command("retrain", "next.yaml", "--data", "logs.hdf5")
    assert second["exit"] == 0, second
    gate = next(gate for gate in second["gates"] if gate["name"] == "champion")
    assert gate["detail"].startswith("return per episode on the simulator against the champion")
    assert gate["detail"].endswith("whose state is not in the logs")
    assert audit(services.home).passed


def test_a_simulator_that_rewards_what_no_log_shows_is_told_by_the_departure(
    services: Services, vessel: Path, tmp_path: Path
) -> None:
    """The simulator wrongly rewards an open valve; its predictions are right, so its own gate passes."""
    folder = shutil.copytree(vessel, tmp_path / "project", ignore=shutil.ignore_patterns("__pycache__", ".neorl"))
    plant = folder / "plants" / "tank.py"
    source = plant.read_text()
    wrong = source
    for reward, bonus in (
        ("reward=-jnp.abs(level - state.set_point)", "valve"),
        ("return -jnp.abs(next_observation[..., 0] - observation[..., 2])", "action[..., 0]"),
    ):
        assert reward in wrong
        wrong = wrong.replace(reward, f"{reward} + 10.0 * {bonus}")
    found = {}
    for name, code in (("honest", source), ("wrong", wrong)):
        # A policy binds a plant's name to its simulator.
        plant.write_text(code.replace('name="basin"', f'name="{name}_basin"'))
        config = f"plant: plants/tank.py\ntrain: {LEARNER}\n{LEARNING}"
        (folder / f"{name}.yaml").write_text(config)
        words = ("generate", "plants/tank.py", "--behaviour", "pid", "--episodes", "60", "--out", f"{name}.hdf5")
        assert run_in(services, folder, *words)["exit"] == 0
        found[name] = run_in(services, folder, "retrain", f"{name}.yaml", "--data", f"{name}.hdf5")
        assert found[name]["exit"] == 0, found[name]
        assert next(gate for gate in found[name]["gates"] if gate["name"] == "simulator")["passed"]
    assert departure_of(found["wrong"]) > 50 > 25 > departure_of(found["honest"])
