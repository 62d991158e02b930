"""Generated episodes: scores of the qualities, plant equations, reproducible bytes."""

from __future__ import annotations

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs.errors import BadInput
from neorl_core.control.behaviour import Behaviour, BehaviourParams, blended
from neorl_core.plants import LOGGED, PLANTS
from neorl_core.plants.base import rollout
from neorl_core.plants.double_mass import NOMINAL, PLANT, SPEC, advance
from neorl_core.types import Controller
from tasks.data.formats.sources import recognise
from tasks.data.store.reader import StoredDataset
from tasks.data.store.schema import Rows
from tasks.data.synthetic.behaviours import BEHAVIOURS, EARLY, MEDIUM, policy_of
from tasks.data.synthetic.episodes import GeneratedEpisodes, generate

EPISODES = 64


def make(folder: Path, behaviour: str, seed: int = 3) -> GeneratedEpisodes:
    return generate("double_mass", behaviour, EPISODES, seed, folder / behaviour)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, GeneratedEpisodes]:
    """A dataset of each quality."""
    folder = tmp_path_factory.mktemp("made")
    return {behaviour: make(folder, behaviour) for behaviour in BEHAVIOURS}


def rows_of(result: GeneratedEpisodes) -> Rows:
    dataset = StoredDataset.open(result.path, result.digest or "")
    dataset.verify()
    return dataset.arrays()


@pytest.mark.slow
def test_scores_match_field_and_paper(made: dict[str, GeneratedEpisodes]) -> None:
    # The saturated LQR with the true model scores 97.8. Medium scores a third to a half.
    assert made["expert"].score == pytest.approx(97.8, abs=2.0)
    assert MEDIUM[0] < made["medium"].score < MEDIUM[1]
    # Zero action scores 9.8. Random forces are no better, and violate the travel limits in one of three episodes.
    assert made["random"].score < 9.8
    assert 0.15 < made["random"].violating < 0.5
    assert made["medium"].score < made["pid"].score < made["expert"].score
    parts = made["mixed"].parts
    assert list(parts) == ["early", "medium", "expert"]
    assert EARLY[0] < parts["early"].score < EARLY[1] < parts["medium"].score < parts["expert"].score
    # Badly tuned controllers do not violate the travel limits.
    assert made["medium"].violating == made["mixed"].violating == 0.0


def test_scores_match_the_stored_rows(made: dict[str, GeneratedEpisodes]) -> None:
    rows = rows_of(made["expert"])
    worst, best = SPEC.score_range
    returns = rows["rewards"].reshape(EPISODES, 100).sum(axis=1, dtype=np.float64)
    assert 100 * (returns.mean() - worst) / (best - worst) == pytest.approx(made["expert"].score, abs=1e-3)
    # Episode i of a mixture belongs to part i modulo three, and each part acts as in a dataset of its own.
    mixed = rows_of(made["mixed"])["actions"].reshape(EPISODES, 100, 2)
    expert = rows["actions"].reshape(EPISODES, 100, 2)
    np.testing.assert_allclose(mixed[2::3], expert[2::3], atol=1e-5)
    assert np.abs(mixed[1::3] - expert[1::3]).max() > 0.1


def test_rows_follow_the_plants_equations(made: dict[str, GeneratedEpisodes]) -> None:
    rows = rows_of(made["medium"])
    step = jax.jit(jax.vmap(lambda motion, action: advance(motion, action, NOMINAL)))
    after = np.asarray(step(rows["observations"][:, :4], rows["actions"]))
    np.testing.assert_allclose(rows["next_observations"][:, :4], after, atol=1e-5)
    logged = LOGGED["double_mass"]
    reward = np.asarray(logged.reward(rows["observations"], rows["actions"], rows["next_observations"]))
    np.testing.assert_allclose(rows["rewards"], reward, atol=1e-4)
    margins = np.asarray(logged.margins(rows["next_observations"]))
    np.testing.assert_allclose(rows["constraint_costs"], np.maximum(-margins, 0), atol=1e-6)
    np.testing.assert_array_equal(rows["costs"], (rows["constraint_costs"] > 0).any(axis=1))
    assert not rows["terminals"].any()
    np.testing.assert_array_equal(np.flatnonzero(rows["timeouts"]), np.arange(99, 100 * EPISODES, 100))
    inside = ~rows["timeouts"][:-1]
    np.testing.assert_array_equal(rows["next_observations"][:-1][inside], rows["observations"][1:][inside])


def test_random_actions_are_uniform_over_the_box(made: dict[str, GeneratedEpisodes]) -> None:
    actions = np.sort(rows_of(made["random"])["actions"].ravel())
    # Kolmogorov-Smirnov test: D sqrt(n) exceeds 1.63 with probability 1 %.
    distance = np.abs(np.arange(1, len(actions) + 1) / len(actions) - (actions + 1) / 2).max()
    assert distance * np.sqrt(len(actions)) < 1.63


def test_the_seed_determines_the_digest(made: dict[str, GeneratedEpisodes], tmp_path: Path) -> None:
    assert make(tmp_path, "medium").digest == made["medium"].digest
    other = make(tmp_path, "medium", seed=4)
    assert other.digest != made["medium"].digest
    # The medium policy does not depend on the seed.
    assert other.detuned == made["medium"].detuned


def test_d4rl_files_have_the_same_rows(made: dict[str, GeneratedEpisodes], tmp_path: Path) -> None:
    path = tmp_path / "double_mass-random.hdf5"
    result = generate("double_mass", "random", EPISODES, 3, path)
    blocks = list(recognise(path).blocks())
    rows = rows_of(made["random"])
    assert result.rows == len(rows["rewards"])
    for key in ("observations", "actions", "rewards", "next_observations", "terminals", "timeouts", "costs"):
        np.testing.assert_array_equal(np.concatenate([block[key] for block in blocks]), rows[key])
    with pytest.raises(BadInput, match="exists already"):
        generate("double_mass", "random", EPISODES, 3, path)


@pytest.mark.slow
def test_terminated_episodes_end_in_a_terminal_row(tmp_path: Path) -> None:
    # Random coolant temperatures up to 310 K cause a runaway, which terminates the episode.
    result = generate("chemical_reactor", "random", 16, 0, tmp_path)
    rows = rows_of(result)
    ends = np.flatnonzero(rows["terminals"] | rows["timeouts"])
    assert len(ends) == 16
    assert rows["terminals"].sum() >= 15
    assert np.diff(ends).max() <= PLANTS["chemical_reactor"].spec.horizon
    np.testing.assert_array_equal(rows["costs"][rows["terminals"]], 1)


def test_the_controller_does_not_see_the_added_noise() -> None:
    # A controller that repeats the applied action is constant if it sees its own output, otherwise a random walk.
    echo = Controller(lambda params, observation: (), lambda params, memory, observation, applied: (memory, applied))
    behaviour = Behaviour(jnp.float32(0), jnp.float32(0), jnp.float32(0.01))
    params = BehaviourParams((), behaviour, jax.random.key(1))
    actions = np.asarray(rollout(PLANT, blended(echo, PLANT), params, jax.random.key(0), NOMINAL).actions)
    # The standard error of a deviation from 200 numbers is 5 %.
    assert actions.std() == pytest.approx(0.01, rel=0.2)
    assert np.abs(actions).max() < 0.05


def test_the_result_is_described(made: dict[str, GeneratedEpisodes]) -> None:
    lines = made["mixed"].lines()
    assert lines[0] == "double_mass, mixed: episodes in turn of early, medium, expert"
    assert lines[1].startswith(f"  mean score {made['mixed'].score:.1f} (deviation ")
    assert lines[-1] == f"dataset {made['mixed'].digest}"


def test_unknown_behaviours_and_unbounded_actions_are_refused() -> None:
    with pytest.raises(BadInput, match="'best' is not a behaviour: choose from random, pid, medium, expert, mixed"):
        policy_of(PLANT, "best")
    box = SPEC.action._replace(high=(1.0, np.inf))
    with pytest.raises(BadInput, match="have no finite bounds"):
        policy_of(PLANT._replace(spec=SPEC._replace(action=box)), "random")
