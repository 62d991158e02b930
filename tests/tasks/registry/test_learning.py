"""Learning curves in MLflow while training runs, against a real server."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from flows.cli.main import run as neorl
from tasks.references import Learning, LearningMember, RatedMember
from tasks.registry.learning import LearningRuns, rate_members
from tasks.registry.registry import Registry
from tests.benchmark_files import walk, write_d4rl

if TYPE_CHECKING:
    from mlflow.entities import Run

    from flows.services.servers import Services

LOSS = np.asarray([[4.0, 3.0, 2.0, 1.0], [5.0, np.nan, 6.0, 7.0]])
"""Of two members over four rows; the second's has a number missing."""


@pytest.fixture(scope="module")
def registry(services: Services) -> Registry:
    """The session's MLflow server."""
    return Registry(services.mlflow.url)


@pytest.fixture
def learning(request: pytest.FixtureRequest) -> Learning:
    """Two members, in an experiment of the test's own."""
    members = tuple(LearningMember(name=f"bc seed {i}", params={"algorithm": "bc", "seed": str(i)}) for i in range(2))
    return Learning(plant=request.node.name, key="training", dataset="d" * 64, members=members)


def runs(registry: Registry, plant: str) -> list[Run]:
    found = registry.client.search_runs([registry.experiment(plant)])
    return sorted(found, key=lambda run: str(run.info.run_name))


def points(registry: Registry, run: Run, name: str = "loss") -> list[tuple[int, float]]:
    return sorted((point.step, point.value) for point in registry.client.get_metric_history(run.info.run_id, name))


def come(what: Callable[[], bool]) -> bool:
    """Whether something comes to be, with patience for a busy machine."""
    for _ in range(300):
        if what():
            return True
        time.sleep(0.2)
    return False


def so_far(rows: int) -> dict[str, np.ndarray]:
    """The curves when training has come to a row."""
    return {"loss": np.where(np.arange(4) < rows, LOSS, np.nan)}


def test_curves_grow_while_training_runs_and_end_as_it_ends(registry: Registry, learning: Learning) -> None:
    def first() -> list[tuple[int, float]]:
        found = runs(registry, learning.plant)
        return points(registry, found[0]) if found else []

    def interrupted() -> None:
        with LearningRuns(registry, learning) as log:
            log.log(so_far(2), 400)
            assert come(lambda: first() == [(100, 4.0), (200, 3.0)])
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    left = runs(registry, learning.plant)
    assert [(run.info.run_name, run.info.status) for run in left] == [("bc seed 0", "FAILED"), ("bc seed 1", "FAILED")]
    assert left[1].data.params == {"algorithm": "bc", "seed": "1"}
    # The same training, gone on with: the same runs, and no point twice.
    with LearningRuns(registry, learning) as log:
        log.log(so_far(4), 400)
        log.end(np.asarray([True, False]))
    ended = runs(registry, learning.plant)
    assert [run.info.run_id for run in ended] == [run.info.run_id for run in left]
    assert [run.info.status for run in ended] == ["FINISHED", "FAILED"]
    assert points(registry, ended[0]) == [(100, 4.0), (200, 3.0), (300, 2.0), (400, 1.0)]
    assert points(registry, ended[1]) == [(100, 5.0), (300, 6.0), (400, 7.0)]
    rated = RatedMember(key="training", row=1, composite="c" * 64, metrics={"ope/value": -1.5, "ope/cost": np.nan})
    rate_members(registry, learning.plant, [rated, rated])
    told = runs(registry, learning.plant)[1]
    assert told.data.metrics["ope/value"] == -1.5
    assert "ope/cost" not in told.data.metrics


def test_long_curves_are_thinned(registry: Registry, learning: Learning) -> None:
    values = np.arange(1000.0)[None].repeat(2, axis=0)
    with LearningRuns(registry, learning) as log:
        log.log({"loss": values}, 10_000)
        log.end(np.asarray([True, True]))
    found = points(registry, runs(registry, learning.plant)[0])
    assert len(found) == 200
    assert found[1] == (60, 5.0)


@pytest.mark.slow
def test_training_goes_on_without_a_server(learning: Learning, capsys: pytest.CaptureFixture[str]) -> None:
    with LearningRuns(Registry("http://127.0.0.1:9"), learning) as log:
        log.log(so_far(4), 400)
        log.end(np.asarray([True, True]))
    said = capsys.readouterr().err
    assert "learning curves do not reach MLflow: the MLflow server at http://127.0.0.1:9 does not answer" in said
    assert "Traceback" not in said


def test_the_command_shows_its_curves(
    services: Services, registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NEORL_HOME", str(services.home.root))
    monkeypatch.setattr(os, "environ", os.environ.copy())
    log = write_d4rl(tmp_path / "curves-v0.hdf5", walk(200), next_observations=None)
    words = ["--algorithm", "bc", "--updates", "40", "--seeds", "2", "--set", "hidden=[8]", "--batch-size", "16"]
    assert neorl(["train", str(log), *words, "--mlflow", "--out", str(tmp_path / "out")]) == 0
    found = runs(registry, "curves-v0")
    assert [(run.info.run_name, run.info.status) for run in found] == [(f"bc seed {i}", "FINISHED") for i in range(2)]
    assert found[0].data.params["hidden"] == "[8]"
    with np.load(tmp_path / "out" / "curves.npz") as curves:
        kept = dict(zip(curves["step"].tolist(), curves["actor_loss"][0].tolist(), strict=True))
    assert dict(points(registry, found[0], "actor_loss")) == pytest.approx(kept)
