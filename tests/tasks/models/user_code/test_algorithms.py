"""Algorithms of a user's own: a file of the project or an installed package's, held against the contract."""

from __future__ import annotations

import shutil
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from configs.errors import BadInput
from configs.home import Home
from configs.run import OpenedRun, Train
from flows.cli.main import run as neorl
from neorl_core.fit import fit
from neorl_core.networks import policy_act
from neorl_core.types import Transition
from tasks.models.plants.opening import opened_learners
from tasks.models.user_code.algorithms import KnownAlgorithm, algorithm_at, opened_learner
from tasks.models.user_code.contract import TRIED
from tasks.models.user_code.loading import find_code, import_code
from tasks.training.population import learning_sources, training_run
from tasks.training.train import train
from tests.benchmark_files import walk, write_d4rl
from tests.small_data import reactor_dataset, reactor_run

FILE = "algorithms/median_cloning.py"
DOCS = Path(__file__).parents[4] / "docs" / "how-to" / "own-algorithm.md"


def load(project: Path, old: str = "", new: str = "") -> KnownAlgorithm:
    path = project / FILE
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    return algorithm_at(FILE, project)


@pytest.mark.slow
def test_absolute_differences_clone_the_median_and_squares_the_mean(project: Path) -> None:
    """The least sum of absolute differences lies at the median, that of squares at the mean (Laplace, Gauss)."""
    action = np.repeat(np.asarray([-0.5, -0.5, -0.4, -0.4, -0.4, 0.9, 1.0]), 40)[:, None] * np.ones(2)
    still = np.zeros((len(action), 3))
    nothing = np.zeros(len(action))
    logged = Transition(*(jnp.asarray(x, jnp.float32) for x in (still, action, nothing, nothing, still, nothing)))
    settings = {"updates": 1500, "overrides": {"hidden": [8], "actor_lr": 0.01}, "batch_size": 128}
    own = fit(logged, TRIED, load(project).algorithm, **settings)
    squares = fit(logged, TRIED, "bc", **settings)
    np.testing.assert_allclose(policy_act(own.policies[0], jnp.zeros(3)), np.median(action, axis=0), atol=0.05)
    np.testing.assert_allclose(policy_act(squares.policies[0], jnp.zeros(3)), np.mean(action, axis=0), atol=0.05)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("ALGORITHM = Algorithm(", "THE_ALGORITHM = Algorithm(", r": ALGORITHM must be .*Algorithm, got NoneType"),
        ('"median_cloning"', '"Median Cloning"', "a name of lower-case letters.*got 'Median Cloning'"),
        ('"median_cloning"', '"td3_bc"', "the name of the built-in algorithm 'td3_bc'"),
        ("return State(actor, optimiser, state.hyper), {", "return State(actor, optimiser, {}), {", "the same arrays"),
        ('{"actor_loss": value}', "{}", "numeric metrics, got no metrics"),
        ('{"actor_loss": value}', '{"actor_loss": batch.reward}', "numeric metrics, got actor_loss"),
        (
            "    return actor_apply(state.actor, observation)",
            "    return 2 + actor_apply(state.actor, observation)",
            "finite actions",
        ),
        (
            "    return actor_apply(state.actor, observation)",
            "    return actor_apply(state.actor, observation)[:, :1]",
            r"shape \(5, 2\)",
        ),
        (
            "    return actor_apply(state.actor, observation)",
            "    return actor_apply(state.actor, -observation)",
            "must return the actions of act",
        ),
        ("batch.observation) - batch.action", "batch.observation) - batch.reward", "Incompatible shapes"),
    ],
)
def test_what_is_wrong_is_one_sentence(project: Path, old: str, new: str, said: str) -> None:
    with pytest.raises(BadInput, match=said) as refused:
        load(project, old, new)
    assert "\n" not in str(refused.value)
    assert "median_cloning.py" in str(refused.value)


def test_an_unknown_name_is_told_what_there_is(project: Path) -> None:
    with pytest.raises(BadInput, match=r"unknown algorithm 'td3bc'.*did you mean 'td3_bc'"):
        algorithm_at("td3bc", project)


def test_an_installed_package_offers_one_by_name(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = project.parent / "site"
    (site / "median_package").mkdir(parents=True)
    shutil.copy(project / FILE, site / "median_package" / "__init__.py")
    about = site / "median_package-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: median-package\nVersion: 1\n")
    (about / "entry_points.txt").write_text("[neorl.algorithms]\nmedian_cloning = median_package:ALGORITHM\n")
    monkeypatch.syspath_prepend(str(site))
    found = algorithm_at("median_cloning", project)
    assert found.algorithm.name == "median_cloning"
    assert found.source is not None
    assert (found.source.module, found.source.project) == ("median_package", None)


def test_a_plant_and_an_algorithm_of_one_project_share_its_modules(project: Path) -> None:
    (project / "shared.py").write_text("KEPT = []\n")
    (project / "plants" / "one.py").write_text(
        "def late() -> list[int]:\n    from shared import KEPT\n    return KEPT\n\nPLANT = 'one'\n"
    )
    (project / "algorithms" / "two.py").write_text("from shared import KEPT\nKEPT.append(2)\n")
    plant = import_code(find_code("plants/one.py", project))
    import_code(find_code("algorithms/two.py", project))
    assert plant.late() == [2]


def test_code_counts_by_what_it_says_and_not_by_where_it_lies(project: Path, tmp_path: Path) -> None:
    def sources(folder: Path) -> str:
        learner = opened_learner(Train(algorithm=FILE), folder)
        return learning_sources(OpenedRun(plant="chemical_reactor", train=learner))

    before = sources(project)
    assert sources(Path(shutil.copytree(project, tmp_path / "moved"))) == before
    (project / "plants" / "tank.py").write_text("")
    assert sources(project) == before
    (project / FILE).write_text((project / FILE).read_text().replace("1e-3", "2e-3"))
    assert sources(project) != before


@pytest.mark.slow
def test_it_trains_beside_one_of_ours(project: Path, tmp_path: Path) -> None:
    home = Home(tmp_path / "trained")
    dataset = reactor_dataset(home, tmp_path, 0.1)
    beside = [{"algorithm": "td3_bc", "updates": 40, "seeds": 1, "hyperparameters": {"hidden": [8]}}]
    given = {"algorithm": FILE, "updates": 40, "seeds": 1, "hyperparameters": {"hidden": [8]}, "beside": beside}
    run = reactor_run()
    opened = opened_learners(run.model_copy(update={"train": Train.model_validate(given)}), project)
    assert opened_learners(opened, project) == opened
    found = train(home, opened, dataset)
    assert [member.algorithm for member in found.members] == ["median_cloning", "td3_bc"]
    # Where the project lies is no part of what was trained.
    identity = training_run(home, opened, dataset).identity.model_dump_json()
    assert str(project) not in identity


@pytest.mark.slow
def test_the_command_takes_a_file(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project)
    log = write_d4rl(tmp_path / "toy-v0.hdf5", walk(200), next_observations=None)
    words = ["--updates", "20", "--set", "hidden=[8]", "--batch-size", "16"]
    assert neorl(["train", str(log), "--algorithm", FILE, *words]) == 0
    assert (project / "toy-v0-median_cloning" / "policy.npz").is_file()


def test_the_page_shows_the_file_that_is_tested(project: Path) -> None:
    assert f"```python\n{(project / FILE).read_text()}```" in DOCS.read_text()


def test_one_that_chooses_is_tried_on_choices(project: Path) -> None:
    path = project / FILE
    text = path.read_text().replace("actor_apply", "mlp_apply").replace("spec.action.size", "spec.acting")
    path.write_text(text.replace("actor=lambda state: state.actor)", "actor=lambda state: state.actor, discrete=True)"))
    assert algorithm_at(FILE, project).algorithm.discrete
    # Outputs behind a tanh are not those of the weights that ship.
    acted = "    return mlp_apply(state.actor, observation)"
    with pytest.raises(BadInput, match="mlp_apply with actor's weights must return the actions of act"):
        load(project, acted, acted.replace("return ", "return jnp.tanh(") + ")")
