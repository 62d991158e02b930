"""Discrete actions: Minari's CartPole form through ingestion, card, validation and export."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import gymnasium
import h5py
import minari
import numpy as np
import pytest
from minari.data_collector.episode_buffer import EpisodeBuffer

from configs.errors import BadInput
from configs.home import Home
from configs.run import Data, OpenedRun
from neorl_core.algorithms import ALGORITHMS
from neorl_core.fit import fit
from tasks.data.formats.exports import export
from tasks.data.formats.options import SourceOptions
from tasks.data.formats.sources import recognise
from tasks.data.store.cards.card import build_card
from tasks.data.store.cards.markdown import card_markdown
from tasks.data.store.episodes import action_vectors, transitions_of, vector_space
from tasks.data.store.reader import StoredDataset
from tasks.files.spec import spec_of_record, spec_record
from tasks.ingest import ingest_file
from tasks.training.data import training_data
from tasks.validate import validate_dataset
from tests.benchmark_files import walk, with_choices, write_d3rlpy
from tests.small_archives import opened

EPISODES, STEPS = 12, 9


def cart_pole(
    folder: Path, start: int = 0, choices: int = 2, name: str = "classic/cartpole/random-v0", steps: int = STEPS
) -> Path:
    """A dataset that Minari itself writes, with a Discrete action space of its own; actions[i] = start + i mod 2."""
    rng = np.random.default_rng(0)
    buffers = []
    for i in range(EPISODES):
        observations = rng.uniform(-1, 1, (steps + 1, 4)).astype(np.float32)
        terminations = np.zeros(steps, bool)
        terminations[-1] = i % 2 == 0
        truncations = np.zeros(steps, bool)
        truncations[-1] = i % 2 == 1
        buffers.append(
            EpisodeBuffer(
                id=i,
                observations=list(observations),
                actions=list(start + np.arange(steps, dtype=np.int64) % 2),
                rewards=list(rng.normal(size=steps)),
                terminations=list(terminations),
                truncations=list(truncations),
            )
        )
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of authors and code, which belong to a dataset that is published
        patch.setenv("MINARI_DATASETS_PATH", str(folder))
        minari.create_dataset_from_buffers(
            name,
            buffers,
            data_format="hdf5",
            action_space=gymnasium.spaces.Discrete(choices, start=start),
            observation_space=gymnasium.spaces.Box(-np.inf, np.inf, (4,), np.float32),
        )
    return folder / name


def test_episodes_may_be_longer_than_a_folder_is_large(tmp_path: Path, home: Path) -> None:
    # 500 steps of CartPole are 8 kB of observations, where a folder itself counts as 4 kB.
    assert opened(ingest_file(Home(home), cart_pole(tmp_path, steps=500))).rows == EPISODES * 500


@pytest.fixture
def dataset(tmp_path: Path, home: Path) -> StoredDataset:
    return opened(ingest_file(Home(home), cart_pole(tmp_path)))


@pytest.mark.parametrize("start", [0, 5])
def test_minaris_discrete_space_is_stored_as_integers_from_0(tmp_path: Path, home: Path, start: int) -> None:
    reference = ingest_file(Home(home), cart_pole(tmp_path, start, choices=3))
    held = opened(reference)
    # The namespace stays in the name, for many datasets are called random-v0.
    assert reference.plant == "classic_cartpole_random_v0"
    assert "the Minari dataset classic/cartpole/random-v0, 12 episode(s)" in reference.notes[0]
    assert held.spec.choices == ("0", "1", "2")
    assert spec_of_record(json.loads(json.dumps(spec_record(held.spec)))) == held.spec
    actions = held.arrays(["actions"])["actions"]
    assert (actions.dtype, actions.shape) == (np.int32, (EPISODES * STEPS, 1))
    np.testing.assert_array_equal(actions[:, 0], np.tile(np.arange(STEPS) % 2, EPISODES))
    vectors = action_vectors(actions, held.spec)
    np.testing.assert_array_equal(vectors[:3], [[1, 0, 0], [0, 1, 0], [1, 0, 0]])
    assert vectors.dtype == np.float32
    assert (vectors.sum(axis=1) == 1).all()
    assert vector_space(held.spec).names == ("0", "1", "2")
    held.verify()


def test_the_card_shows_the_share_of_each_choice(tmp_path: Path, home: Path) -> None:
    held = opened(ingest_file(Home(home), cart_pole(tmp_path, choices=3)))
    card = build_card(held, held.spec)
    # By hand: of 0 1 0 1 0 1 0 1 0 five are 0.
    assert card.choices == pytest.approx({"0": 5 / 9, "1": 4 / 9, "2": 0.0})
    assert card.actions == {}
    assert "Choice '2' is never taken: its effect cannot be learned." in card.cannot_learn
    page = card_markdown(card)
    assert "| 0 | 55.56% |" in page
    assert "| 2 | 0.00% |" in page


def check(home: Path, held: StoredDataset) -> Any:
    return validate_dataset(Home(home), held, held.spec, Data(), held.spec.name)


def test_validation_checks_the_range_and_that_the_action_varies(tmp_path: Path, home: Path) -> None:
    held = opened(ingest_file(Home(home), cart_pole(tmp_path, choices=3)))
    found = check(home, held)
    assert found.passed, found.reasons
    assert "expected choice '2' in some rows, got none: nothing can be learned of it." in found.warnings
    # The same rows as of a plant with fewer choices: each second action is none of them.
    fewer = held.spec._replace(choices=("0",), action=held.spec.action._replace(high=(0.0,)))
    reasons = validate_dataset(Home(home), held, fewer, Data(), "fewer").reasons
    assert any(f"got {EPISODES * 4} where actions.action_0 is not a choice of 0..0" in reason for reason in reasons)
    arrays = with_choices(walk(200), 2)
    constant = {**arrays, "actions": np.zeros_like(arrays["actions"])}
    lazy = opened(ingest_file(Home(home), write_d3rlpy(tmp_path / "lazy.h5", constant)))
    (reason,) = [reason for reason in check(home, lazy).reasons if "choice" in reason]
    assert reason.startswith("expected other choices than '0' in at least 0.1% of the rows, got 0.00%")


def test_actions_that_are_no_choice_are_quarantined(tmp_path: Path, home: Path) -> None:
    folder = cart_pole(tmp_path)
    metadata = folder / "data" / "metadata.json"
    told = json.loads(metadata.read_text())
    told["action_space"] = json.dumps({"type": "Discrete", "dtype": "int64", "start": 1, "n": 2})
    metadata.write_text(json.dumps(told))
    allowed = Data(max_quarantined=0.9)
    reference = ingest_file(Home(home), folder, allowed=allowed)
    # Counted from 1, the zeros are -1: 5 of 9 steps of every episode.
    assert reference.reasons == {"actions.action_0 is not a choice of 0..1": 5 * EPISODES}
    assert set(opened(reference).arrays(["actions"])["actions"][:, 0]) == {0}


def test_minari_reads_the_export_of_what_it_wrote(tmp_path: Path, dataset: StoredDataset) -> None:
    root = tmp_path / "out"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MINARI_DATASETS_PATH", str(root))
        minari.namespace.create_namespace("plant/deep")
        export(dataset, "minari", root / "plant" / "deep" / "copy-v0")
        again = minari.load_dataset("plant/deep/copy-v0")
        # The namespaces are part of the id, as Minari's own are.
        assert again.spec.dataset_id == "plant/deep/copy-v0"
    assert again.action_space == gymnasium.spaces.Discrete(2)
    for episode in again.iterate_episodes():
        assert episode.actions.dtype == np.int64
        np.testing.assert_array_equal(episode.actions, np.arange(STEPS) % 2)
    home = Home(tmp_path / "other")
    back = opened(ingest_file(home, root / "plant" / "deep" / "copy-v0"))
    assert [shard.content for shard in back.manifest.shards] == [s.content for s in dataset.manifest.shards]
    view = opened(ingest_file(home, dataset.view_path))
    assert [shard.content for shard in view.manifest.shards] == [s.content for s in dataset.manifest.shards]
    assert view.spec.choices == ("0", "1")
    for to in ("d4rl", "dsrl", "neorl", "neorl2"):
        with pytest.raises(BadInput, match=f"expected continuous actions for {to}, got discrete ones"):
            export(dataset, to, tmp_path / "no")


def test_what_needs_continuous_actions_refuses_before_it_computes(tmp_path: Path, dataset: StoredDataset) -> None:
    run = OpenedRun(plant="double_mass")
    fitting = "td3_bc cannot learn the discrete actions of classic_cartpole_random_v0: choose one of discrete_bc"
    with pytest.raises(ValueError, match=fitting):
        training_data(run, dataset, dataset.spec, ALGORITHMS["td3_bc"])
    rows = dataset.arrays()
    transitions = transitions_of({**rows, "costs": np.zeros(len(rows["rewards"]), np.float32)})
    with pytest.raises(ValueError, match=fitting):
        fit(transitions, dataset.spec)
    with pytest.raises(BadInput, match="expected continuous actions of double_mass"):
        ingest_file(Home(tmp_path / "third"), cart_pole(tmp_path / "m"), SourceOptions("double_mass"))


@pytest.mark.parametrize(
    ("actions", "says"),
    [
        (np.zeros((STEPS, 2), np.int64), "those of a Discrete space"),
        (np.zeros(STEPS, bool), "those of a Discrete space"),
    ],
)
def test_other_spaces_of_integers_are_refused(tmp_path: Path, actions: Any, says: str) -> None:
    folder = cart_pole(tmp_path)
    with h5py.File(folder / "data" / "main_data.hdf5", "r+") as file:
        for episode in file.values():
            del episode["actions"]
            episode["actions"] = actions
    with pytest.raises(BadInput, match=says):
        recognise(folder)
