"""The restore drill: back up a running home, wipe it, and restore it at another path."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import jax
import numpy as np
import numpy.typing as npt
import pytest

from configs.home import Home
from flows.cli.main import run
from flows.decisions import rollback
from flows.services.servers import down, up
from neorl_core.safety.composite import composite_controller
from tasks.evidence.decisions.champions import champion
from tasks.evidence.ledger import client
from tasks.evidence.ledger.ledger import Ledger
from tasks.lifecycle.policy import sign
from tasks.models.bundles.bundle import load_bundle, load_examples
from tasks.promote import promote_candidate
from tasks.registry.registry import Registry
from tasks.registry.serving import load_model
from tests.evidence import PLANT, POLICY
from tests.tasks.lifecycle.served import Served


def answers(folder: Path, digest: str) -> npt.NDArray[np.float32]:
    """Return a bundle's actions on the same observations."""
    plant, composite = load_bundle(folder, digest)
    controller = composite_controller(plant)
    act = jax.jit(controller.act)
    rows, before, _ = load_examples(folder, plant.spec)
    memory, found = controller.init(composite, rows[0]), []
    for row, applied in zip(rows, before, strict=True):
        memory, action = act(composite, memory, row, applied)
        found.append(np.asarray(action))
    return np.stack(found)


@pytest.mark.slow
def test_the_restore_drill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("NEORL_PREFECT_URL", "NEORL_MLFLOW_URL", "MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD"):
        monkeypatch.delenv(name, raising=False)
    before, after = Home(tmp_path / "before"), Home(tmp_path / "elsewhere" / "after")
    monkeypatch.setenv("NEORL_HOME", str(before.root))
    try:
        served = Served(up(before, worker=False), before.root, monkeypatch)
        monkeypatch.delenv("NEORL_PREFECT_URL")
        monkeypatch.delenv("NEORL_MLFLOW_URL")
        sign(served.ledger, POLICY, "a reviewer", "first")
        first, second = (
            promote_candidate(before, served.candidate(), "a reviewer", "compared").body["version"] for _ in range(2)
        )
        rollback(before, PLANT, first, "Ben", "the second one hunts")
        page, url = served.page(first), served.registry.version(PLANT, first).url
        now = champion(served.ledger.entries(), PLANT)
        assert now is not None
        bundle = Path(next(f.path for f in now.artefacts if f.path.endswith("composite.npz"))).parent
        expected = answers(before.root / bundle, now.body["composite"])
        assert run(["audit", "verify"]) == 0
        assert run(["backup", str(tmp_path / "home.tar"), "--json"]) == 0
        told = json.loads(capsys.readouterr().out.splitlines()[-1])
        assert (told["entries"], told["damaged"]) == (len(served.ledger.entries()), [])
    finally:
        down(before)
        client.stop(before)
    shutil.rmtree(before.root)

    assert run(["restore", str(tmp_path / "home.tar"), "--home", str(after.root)]) == 0
    monkeypatch.setenv("NEORL_HOME", str(after.root))
    try:
        registry = Registry(up(after, worker=False).mlflow.url)
        assert run(["audit", "verify"]) == 0
        assert np.array_equal(answers(after.root / bundle, now.body["composite"]), expected)
        restored = registry.version(PLANT, first)
        assert (restored.tags, restored.description) == (page.tags, page.description)
        assert restored.url == url, "the address of a page stays what it was, for ports are remembered"
        assert registry.aliases(PLANT) == {"champion": first}
        assert load_model(after, registry, PLANT).metadata.get_input_schema() is not None
        # Nothing there leads back to where the home was.
        sources = _sources(registry)
        assert sources
        assert all(str(before.root) not in source for source in sources)
        # The ledger takes entries again, and a decision finds its way onto the pages.
        assert rollback(after, PLANT, second, "Ben", "it was the valve").champion == second
        assert run(["audit", "verify"]) == 0
        assert len(Ledger.open(after, write=False).entries("rollback", PLANT)) == 2
    finally:
        down(after)
        client.stop(after)


def _sources(registry: Registry) -> list[str]:
    """Return the training datasets of runs according to MLflow."""
    experiment = registry.client.get_experiment_by_name(PLANT)
    assert experiment is not None
    runs = registry.client.search_runs([experiment.experiment_id])
    return [each.dataset.source for found in runs for each in found.inputs.dataset_inputs]
