"""The choice of a placement, by numbers and by a trial; `test_train.py` holds both placements to the same members."""

from __future__ import annotations

from pathlib import Path

import pytest

from configs.home import Home
from neorl_core.plants import PLANTS
from tasks.models.user_code.algorithms import opened_learner
from tasks.references import Dataset, Placement
from tasks.training.placement import _measured, faster
from tasks.training.population import training_run
from tasks.training.train import train
from tests.small_data import PLANT, reactor_dataset, reactor_run

OWN = Path(__file__).parents[2] / "own_project" / "algorithms" / "median_cloning.py"


@pytest.mark.parametrize(
    ("members", "cores", "rate", "processes"),
    # 8 members in 2 at a time are 4 rounds of 1000 s at 100 updates/s: 4010 s are less than 5000, 5010 are not.
    [(8, 2, 100.0, True), (8, 2, 80.0, False), (9, 2, 100.0, False), (8, 8, 22.0, True), (1, 1, 19.0, False)],
)
def test_the_choice_worked_by_hand(members: int, cores: int, rate: float, processes: bool) -> None:
    found = faster(members, cores, 100_000, together=5000.0, rate=rate, start=10.0)
    assert found.processes == processes
    assert f"{members} members take 5000 s in one program" in found.reason


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """A dataset of seventeen hours of the reactor's log."""
    folder = tmp_path_factory.mktemp("placement")
    return reactor_dataset(Home(folder / "home"), folder, 0.1)


@pytest.mark.slow
def test_a_run_with_a_history_is_tried_in_processes(reference: Dataset, tmp_path: Path) -> None:
    """One program of which hours are left, which processes of 40 updates end sooner."""
    run = reactor_run(history={PLANTS[PLANT].spec.observation.names[0]: 9})
    found = _measured(training_run(Home(tmp_path), run, reference), rate=1e-3, left=40)
    assert found.processes
    assert "2 members take 40000 s in one program" in found.reason


@pytest.mark.slow
def test_a_trial_that_fails_ends_no_run(reference: Dataset, tmp_path: Path) -> None:
    training = training_run(Home(tmp_path), reactor_run(), reference)
    lost = training._replace(dataset=reference.model_copy(update={"store": tmp_path / "gone"}))
    found = _measured(lost, rate=1e-3, left=40)
    assert not found.processes
    assert "the measurement of processes failed" in found.reason
    assert "exit code 1" in found.reason


@pytest.mark.slow
def test_an_algorithm_that_prints_is_trained_in_processes(
    reference: Dataset, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """What it prints goes where a member's errors go, and is not taken for its progress."""
    file = tmp_path / "project" / "algorithms" / "talkative.py"
    file.parent.mkdir(parents=True)
    file.write_text(f"{OWN.read_text()}\nprint('begins to clone')\n")
    settings = {"algorithm": "algorithms/talkative.py", "members": "processes", "hyperparameters": {"hidden": [8]}}
    run = reactor_run(train=settings)
    opened = run.model_copy(update={"train": opened_learner(run.train, tmp_path / "project")})
    told: list[int] = []
    found = train(Home(tmp_path / "home"), opened, reference, lambda done, *_: told.append(done))
    assert found.learners[0].placement == Placement(processes=True, reason="the run's configuration says so")
    assert [member.index for member in found.members] == [0, 1]
    assert set(told) <= {0, 10, 20, 30, 40}
    # This process and both members each have an isolated process.
    assert capfd.readouterr().err.count("begins to clone") == 3
