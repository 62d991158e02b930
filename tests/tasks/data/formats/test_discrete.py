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
from tasks.data.formats.sources import SourceOptions, recognise
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
    """Write a dataset by Minari with a Discrete action space; actions[i] = start + i mod 2."""
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
        warnings.simplefilter("ignore")  # missing authors and code
        patch.setenv("MINARI_DATASETS_PATH", str(folder))
        minari.create_dataset_from_buffers(
            name,
            buffers,
            data_format="hdf5",
            action_space=gymnasium.spaces.Discrete(choices, start=start),
            observation_space=gymnasium.spaces.Box(-np.inf, np.inf, (4,), np.float32),
        )
    return folder / name


def test_long_episodes_are_read(tmp_path: Path, home: Path) -> None:
    # 500 steps of CartPole have 8 kB of observations, more than a folder's own size of 4 kB.
    assert opened(ingest_file(Home(home), cart_pole(tmp_path, steps=500))).rows == EPISODES * 500


@pytest.fixture
def dataset(tmp_path: Path, home: Path) -> StoredDataset:
    return opened(ingest_file(Home(home), cart_pole(tmp_path)))


@pytest.mark.parametrize("start", [0, 5])
def test_discrete_actions_are_stored_from_0(tmp_path: Path, home: Path, start: int) -> None:
    reference = ingest_file(Home(home), cart_pole(tmp_path, start, choices=3))
    held = opened(reference)
    # The namespace is part of the name, because many datasets are called random-v0.
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


def test_card_of_a_discrete_action(tmp_path: Path, home: Path) -> None:
    held = opened(ingest_file(Home(home), cart_pole(tmp_path, choices=3)))
    card = build_card(held, held.spec)
    # Five of 0 1 0 1 0 1 0 1 0 are 0.
    assert card.choices == pytest.approx({"0": 5 / 9, "1": 4 / 9, "2": 0.0})
    assert card.actions == {}
    assert "Choice '2' is never taken: its effect cannot be learned." in card.cannot_learn
    page = card_markdown(card)
    assert "| 0 | 55.56% |" in page
    assert "| 2 | 0.00% |" in page


def check(home: Path, held: StoredDataset) -> Any:
    return validate_dataset(Home(home), held, held.spec, Data(), held.spec.name)


def test_validation_of_discrete_actions(tmp_path: Path, home: Path) -> None:
    held = opened(ingest_file(Home(home), cart_pole(tmp_path, choices=3)))
    found = check(home, held)
    assert found.passed, found.reasons
    assert "choice '2' is in none of the rows: log it, or remove it from the spec" in found.warnings
    # For a plant with only choice 0, every second action is invalid.
    fewer = held.spec._replace(choices=("0",), action=held.spec.action._replace(high=(0.0,)))
    reasons = validate_dataset(Home(home), held, fewer, Data(), "fewer").reasons
    assert any(
        f"{EPISODES * 4} rows are faulty, because actions.action_0 is not a choice of 0..0" in reason
        for reason in reasons
    )
    arrays = with_choices(walk(200), 2)
    constant = {**arrays, "actions": np.zeros_like(arrays["actions"])}
    lazy = opened(ingest_file(Home(home), write_d3rlpy(tmp_path / "lazy.h5", constant)))
    (reason,) = [reason for reason in check(home, lazy).reasons if "choice" in reason]
    assert reason.startswith("0.00% of the rows have a choice other than '0', at least 0.1% is needed")


def test_actions_outside_the_choices_are_quarantined(tmp_path: Path, home: Path) -> None:
    folder = cart_pole(tmp_path)
    metadata = folder / "data" / "metadata.json"
    record = json.loads(metadata.read_text())
    record["action_space"] = json.dumps({"type": "Discrete", "dtype": "int64", "start": 1, "n": 2})
    metadata.write_text(json.dumps(record))
    allowed = Data(max_quarantined=0.9)
    reference = ingest_file(Home(home), folder, allowed=allowed)
    # With choices from 1, the zeros become -1: 5 of 9 steps per episode.
    assert reference.reasons == {"actions.action_0 is not a choice of 0..1": 5 * EPISODES}
    assert set(opened(reference).arrays(["actions"])["actions"][:, 0]) == {0}


def test_minari_reads_exported_discrete_actions(tmp_path: Path, dataset: StoredDataset) -> None:
    root = tmp_path / "out"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MINARI_DATASETS_PATH", str(root))
        minari.namespace.create_namespace("plant/deep")
        export(dataset, "minari", root / "plant" / "deep" / "copy-v0")
        again = minari.load_dataset("plant/deep/copy-v0")
        # Namespaces are part of the id.
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
        with pytest.raises(BadInput, match=f"{to} cannot store discrete actions"):
            export(dataset, to, tmp_path / "no")


def test_discrete_actions_are_refused_by_continuous_learners(tmp_path: Path, dataset: StoredDataset) -> None:
    run = OpenedRun(plant="double_mass")
    fitting = "td3_bc cannot learn the discrete actions of classic_cartpole_random_v0: choose one of discrete_bc"
    with pytest.raises(ValueError, match=fitting):
        training_data(run, dataset, dataset.spec, ALGORITHMS["td3_bc"])
    rows = dataset.arrays()
    transitions = transitions_of({**rows, "costs": np.zeros(len(rows["rewards"]), np.float32)})
    with pytest.raises(ValueError, match=fitting):
        fit(transitions, dataset.spec)
    with pytest.raises(BadInput, match=r"double_mass has continuous actions, .* has discrete ones"):
        ingest_file(Home(tmp_path / "third"), cart_pole(tmp_path / "m"), SourceOptions("double_mass"))


@pytest.mark.parametrize(
    ("actions", "message"),
    [
        (np.zeros((STEPS, 2), np.int64), "must be floats or have a Discrete space"),
        (np.zeros(STEPS, bool), "must be floats or have a Discrete space"),
    ],
)
def test_other_integer_actions_are_refused(tmp_path: Path, actions: Any, message: str) -> None:
    folder = cart_pole(tmp_path)
    with h5py.File(folder / "data" / "main_data.hdf5", "r+") as file:
        for episode in file.values():
            del episode["actions"]
            episode["actions"] = actions
    with pytest.raises(BadInput, match=message):
        recognise(folder)
