"""Import of d3rlpy files: episodes, discrete actions, invalid files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from configs.errors import BadInput
from configs.home import Home
from tasks.data.formats.hdf5.d3rlpy import open_d3rlpy, read_d3rlpy
from tasks.data.formats.recordings import read as read_recording
from tasks.data.formats.sources import recognise
from tasks.data.store.schema import NO_SUCCESSOR, Rows
from tasks.ingest import ingest_file
from tests.benchmark_files import Arrays, walk, with_choices, write_d3rlpy, write_d3rlpy_1, write_d4rl
from tests.small_archives import opened


def by_hand() -> Arrays:
    """Episodes terminated after 3 steps, cut after 2, and terminated after 1."""
    return {
        "observations": np.array([[1], [2], [3], [10], [11], [20]], np.float32),
        "actions": np.linspace(-1, 1, 6, dtype=np.float32)[:, None],
        "rewards": np.arange(6, dtype=np.float32),
        "terminals": np.array([0, 0, 1, 0, 0, 1], bool),
        "timeouts": np.array([0, 0, 0, 0, 1, 0], bool),
    }


@pytest.mark.parametrize("block_rows", [1, 4, 65536])
def test_episodes_by_hand(tmp_path: Path, block_rows: int) -> None:
    path = write_d3rlpy(tmp_path / "buffer.h5", by_hand())
    source = open_d3rlpy(path)
    assert (source.rows, source.observations, source.actions, source.choices) == (6, 1, 1, None)
    assert "3 episode(s)" in source.content
    blocks = list(read_d3rlpy(path, 3, block_rows))
    assert len(blocks) == {1: 3, 4: 2, 65536: 1}[block_rows]
    rows: Rows = {key: np.concatenate([block[key] for block in blocks]) for key in blocks[0]}
    for key, values in by_hand().items():
        np.testing.assert_array_equal(rows[key], values, err_msg=key)
    # Row 4 is cut, so that its next observation is unknown. Rows 2 and 5 terminate and do not need one.
    assert rows["rejected"].tolist() == ["", "", "", "", NO_SUCCESSOR, ""]
    assert rows["next_observations"][:, 0].tolist() == [2, 3, 3, 11, 11, 20]


def test_d3rlpy_versions_and_d4rl_give_the_same_rows(tmp_path: Path, home: Path) -> None:
    arrays = walk(200)
    arrays["timeouts"][-1] = True
    files = {
        "2": write_d3rlpy(tmp_path / "two.h5", arrays),
        "1": write_d3rlpy_1(tmp_path / "one.h5", arrays),
        "D4RL": write_d4rl(tmp_path / "flat.hdf5", arrays, next_observations=None),
    }
    made = {name: ingest_file(Home(home), path) for name, path in files.items()}
    content = {name: [shard.content for shard in opened(one).manifest.shards] for name, one in made.items()}
    assert content["1"] == content["2"] == content["D4RL"]
    cut = int((arrays["timeouts"] & ~arrays["terminals"]).sum())
    assert [one.reasons for one in made.values()] == [{NO_SUCCESSOR: cut}] * 3
    assert [one.format for one in made.values()] == ["d3rlpy", "d3rlpy", "D4RL"]
    dumped = int((arrays["timeouts"] | arrays["terminals"]).sum())
    assert made["2"].notes[0] == f"two.h5: d3rlpy, recognised as a dumped ReplayBuffer of {dumped} episode(s)"


@pytest.mark.parametrize("write", [write_d3rlpy, write_d3rlpy_1])
def test_discrete_actions_stay_integers(tmp_path: Path, home: Path, write: Any) -> None:
    arrays = with_choices(walk(200), 3)
    reference = ingest_file(Home(home), write(tmp_path / "a.h5", arrays))
    held = opened(reference)
    assert held.spec.choices == ("0", "1", "2")
    assert (held.spec.action.low, held.spec.action.high) == ((0.0,), (2.0,))
    assert f"  200 rows of {held.spec.observation.size} observations, a discrete action of 3 choices" in reference.notes
    kept = arrays["terminals"] | ~arrays["timeouts"]
    kept[-1] = arrays["terminals"][-1]
    stored = held.arrays(["actions"])["actions"]
    assert (stored.dtype, stored.shape) == (np.int32, (int(kept.sum()), 1))
    np.testing.assert_array_equal(stored, arrays["actions"][kept])


N = 6
BAD: list[tuple[dict[str, Any], str]] = [
    ({"num_episodes": 0}, r"'num_episodes' of a\.h5 must be between 1 and 15"),
    ({"num_episodes": 10**9}, "got 1000000000: dump the buffer again"),
    ({"num_episodes": 4}, r"a\.h5 has no numeric array observations_3"),
    ({"rewards_1": None}, r"a\.h5 has no numeric array rewards_1: dump the buffer again"),
    (
        {"observations_0": None, "observations_0_0": np.zeros((3, 1))},
        "join the parts of an observation into one vector",
    ),
    ({"observations_0": np.zeros((3, 4, 4, 1), np.uint8)}, r"one row for each of 3 steps, got shape \(3, 4, 4, 1\)"),
    (
        {"observations_1": np.zeros((2, 5), np.float32)},
        r"observations of episode 1 in a\.h5 are float32 \(5,\), but those of episode 0",
    ),
    ({"actions_1": np.zeros((2, 1), np.int64)}, "actions of episode 1 .* are int64"),
    ({"actions_0": np.zeros((2, 1), np.float32)}, r"for each of 3 steps, got shape \(2, 1\)"),
    ({f"actions_{i}": np.zeros((n, 2), np.int64) for i, n in enumerate((3, 2, 1))}, "one integer per row, got int64"),
    ({"terminated_2": np.zeros(3, bool)}, "terminated_2"),
    ({"actions_2": "left"}, "has no numeric array actions_2"),
]


@pytest.mark.parametrize(("changed", "message"), BAD)
def test_invalid_files_are_refused(tmp_path: Path, changed: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput, match=message) as error:
        recognise(write_d3rlpy(tmp_path / "a.h5", by_hand(), **changed))
    assert "\n" not in str(error.value)


def test_too_many_choices_are_refused(tmp_path: Path, home: Path) -> None:
    arrays = with_choices(walk(100))
    arrays["actions"][5] = 70_000
    with pytest.raises(BadInput, match=r"with 70,001 choices, allowed are 1 to 1,000: .* save it as float32"):
        ingest_file(Home(home), write_d3rlpy(tmp_path / "a.h5", arrays))


def test_recordings_refuse_discrete_actions(tmp_path: Path) -> None:
    path = write_d3rlpy_1(tmp_path / "a.h5", with_choices(walk(100)))
    with pytest.raises(BadInput, match=r"a\.h5 has discrete actions"):
        read_recording(path)
