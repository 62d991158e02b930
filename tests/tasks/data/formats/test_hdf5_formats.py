"""Readers of D4RL and DSRL: ends of episodes, block sizes, invalid files."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import tracemalloc
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from configs.errors import BadInput
from tasks.data.formats.hdf5.flat_files import read_blocks, read_layout
from tasks.data.formats.hdf5.guard import open_guarded
from tasks.data.store.schema import NO_SUCCESSOR, Rows
from tests.benchmark_files import Arrays, walk, write_d4rl, write_dsrl


def read(path: Path, horizon: int | None = None, block_rows: int = 65536) -> Rows:
    blocks = list(read_blocks(path, horizon, block_rows))
    return {key: np.concatenate([block[key] for block in blocks]) for key in blocks[0]}


def by_hand() -> Arrays:
    """Eight rows: an episode terminated after 3, one cut after 2, one both after 1, and an open one."""
    flags = {"terminals": [0, 0, 1, 0, 0, 1, 0, 0], "timeouts": [0, 0, 0, 0, 1, 1, 0, 0]}
    return {
        "observations": np.array([[1], [2], [3], [10], [11], [20], [30], [31]], np.float32),
        "actions": np.linspace(-1, 1, 8, dtype=np.float32)[:, None],
        "rewards": np.arange(8, dtype=np.float32),
        **{key: np.array(values, bool) for key, values in flags.items()},
    }


@pytest.mark.parametrize("block_rows", [1, 2, 3, 5, 8, 65536])
def test_next_observations_are_derived_within_episodes(tmp_path: Path, block_rows: int) -> None:
    rows = read(write_d4rl(tmp_path / "a.hdf5", by_hand()), block_rows=block_rows)
    # Rows 2 and 5 terminate, so that their next observations do not matter. Row 4 is cut and row 7 ends the file, so
    # that their next observations are unknown.
    assert rows["rejected"].tolist() == ["", "", "", "", NO_SUCCESSOR, "", "", NO_SUCCESSOR]
    sound = rows["rejected"] == ""
    assert rows["next_observations"][sound, 0].tolist() == [2, 3, 3, 11, 20, 31]
    for key, values in by_hand().items():
        np.testing.assert_array_equal(rows[key], values, err_msg=key)
    assert not rows["costs"].any()


@pytest.mark.parametrize("block_rows", [1, 3, 65536])
def test_next_observations_of_the_file_are_kept(tmp_path: Path, block_rows: int) -> None:
    following = np.arange(100, 108, dtype=np.float32)[:, None]
    path = write_d4rl(tmp_path / "a.hdf5", by_hand(), next_observations=following)
    rows = read(path, block_rows=block_rows)
    assert set(rows["rejected"]) == {""}
    np.testing.assert_array_equal(rows["next_observations"], following)
    assert rows["timeouts"].tolist() == by_hand()["timeouts"].tolist()


@pytest.mark.parametrize("block_rows", [1, 2, 3, 65536])
def test_a_horizon_replaces_timeouts(tmp_path: Path, block_rows: int) -> None:
    terminals = np.array([0, 0, 0, 1, 0, 0, 0, 0], bool)
    path = write_d4rl(tmp_path / "a.hdf5", by_hand(), timeouts=None, terminals=terminals)
    rows = read(path, horizon=3, block_rows=block_rows)
    # Steps of the episodes: 0 1 2 | 0, terminated | 0 1 2 | 0.
    assert np.flatnonzero(rows["timeouts"]).tolist() == [2, 6]
    assert np.flatnonzero(rows["rejected"] == NO_SUCCESSOR).tolist() == [2, 6, 7]


def naive(arrays: Arrays) -> list[tuple[int, np.ndarray[Any, Any]]]:
    """Return the rows with a next observation, by a loop over rows."""
    found, n = [], len(arrays["rewards"])
    for i in range(n):
        if arrays["terminals"][i]:
            found.append((i, arrays["observations"][i]))
        elif not arrays["timeouts"][i] and i + 1 < n:
            found.append((i, arrays["observations"][i + 1]))
    return found


@pytest.mark.parametrize("seed", range(5))
def test_blocks_agree_with_a_loop_over_rows(tmp_path: Path, seed: int) -> None:
    arrays = walk(300, seed)
    rows = read(write_d4rl(tmp_path / "a.hdf5", arrays, next_observations=None), block_rows=17 + seed)
    kept = np.flatnonzero(rows["rejected"] == "")
    expected = naive(arrays)
    assert kept.tolist() == [i for i, _ in expected]
    np.testing.assert_array_equal(rows["next_observations"][kept], [x for _, x in expected])


@pytest.mark.parametrize("actions", [1, 2])
def test_dsrl_round_trip(tmp_path: Path, actions: int) -> None:
    arrays = walk(200, actions=actions)
    path = write_dsrl(tmp_path / "a.hdf5", arrays)
    assert read_layout(path).family == "DSRL"
    rows = read(path, block_rows=64)
    for key, values in arrays.items():
        np.testing.assert_array_equal(rows[key], values, err_msg=key)
    np.testing.assert_array_equal(rows["costs"], arrays["observations"][:, 0] > 1)
    assert rows["costs"].any()
    assert set(rows["rejected"]) == {""}


@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.int64])
def test_flags_and_rewards_of_other_shapes_and_types(tmp_path: Path, dtype: Any) -> None:
    # D4RL's medium-replay files, from rlkit's replay buffers, have columns (N, 1).
    arrays = walk(50)
    columns = {key: arrays[key].astype(dtype)[:, None] for key in ("terminals", "timeouts")}
    columns["rewards"] = arrays["rewards"].astype(np.float64)[:, None]
    rows = read(write_d4rl(tmp_path / "a.hdf5", arrays, **columns))
    for key in ("terminals", "timeouts", "rewards"):
        np.testing.assert_array_equal(rows[key], arrays[key], err_msg=key)
    assert rows["rewards"].dtype == np.float32


def test_keys_identify_the_format(tmp_path: Path) -> None:
    arrays = walk(50)
    assert read_layout(write_d4rl(tmp_path / "a.hdf5", arrays)).family == "D4RL"
    # Costs alone do not identify DSRL, which always has time limits.
    partial = write_d4rl(tmp_path / "b.hdf5", arrays, timeouts=None, costs=np.ones(50, np.float32))
    assert read_layout(partial).family == "D4RL"
    assert read(partial)["costs"].all()


def test_rows_with_nan_and_their_predecessors_are_rejected(tmp_path: Path) -> None:
    arrays = by_hand()
    arrays["observations"][1] = np.nan
    rewards = np.arange(8.0)
    rewards[3] = 1e300  # beyond single precision
    rows = read(write_d4rl(tmp_path / "a.hdf5", arrays, rewards=rewards), block_rows=2)
    assert rows["rejected"].tolist() == [
        *("NaN or infinity in next_observations", "NaN or infinity in observations", "", "NaN or infinity in rewards"),
        *(NO_SUCCESSOR, "", "", NO_SUCCESSOR),
    ]


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    n, wide, block = 40_000, 16, 500
    x = np.zeros((n, wide), np.float32)
    flags = np.zeros(n, bool)
    small = {"rewards": x[:, 0], "terminals": flags, "timeouts": flags}
    path = write_d4rl(tmp_path / "a.hdf5", {"observations": x, "actions": x[:, :2], **small})
    tracemalloc.start()
    try:
        for _ in read_blocks(path, block_rows=block):
            pass
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    # The observations of a block have 32 kB, those of the file 2.6 MB.
    assert peak < 0.25 * x.nbytes


def test_infos_and_metadata_are_ignored(tmp_path: Path) -> None:
    assert "infos" not in " ".join(read(write_d4rl(tmp_path / "a.hdf5", by_hand())))


N = 8
BAD: list[tuple[dict[str, Any], str]] = [
    ({"rewards": None}, r"a\.hdf5 has no array 'rewards', only actions, infos, metadata"),
    ({"actions": np.zeros((N - 1, 1), np.float32)}, r"'actions' of a\.hdf5 must have shape \(8, n\), got \(7, 1\)"),
    ({"rewards": np.zeros((N, 2), np.float32)}, r"'rewards' .* \(8,\) or \(8, 1\), got \(8, 2\)"),
    ({"observations": np.zeros((N, 4, 4, 3), np.float32)}, r"'observations' .* got \(8, 4, 4, 3\)"),
    ({"observations": np.float32(1)}, "'observations'"),
    ({"next_observations": np.zeros((N, 2), np.float32)}, "has 2 columns, 'observations' has 1"),
    ({"rewards": np.array([b"no"] * N)}, r"'rewards' of a\.hdf5 must be numeric, got \|S2"),
    ({"actions": np.zeros((N, 2), np.int64)}, r"must be floats, or one integer .* got int64 \(8, 2\)"),
    ({"actions": np.zeros((N, 1), bool)}, "must be floats, or one integer .* got bool"),
    (dict.fromkeys(by_hand()), r"is not an HDF5 file of D4RL, .* it contains infos, metadata: .*'neorl init"),
    ({"terminals": np.full(N, 2.0)}, r"'terminals' of a\.hdf5 must be 0 or 1, got 2\.0 in row 0"),
    ({"timeouts": np.array([0, 0, 0, np.nan] * 2)}, "'timeouts' .* got nan in row 3"),
    ({"timeouts": None}, "neither 'timeouts' nor 'next_observations', .*--horizon 1000"),
    ({key: values[:0] for key, values in by_hand().items()}, "has no rows"),
]


@pytest.mark.parametrize(("changed", "message"), BAD)
def test_invalid_files_are_refused(tmp_path: Path, changed: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput, match=message) as error:
        read(write_d4rl(tmp_path / "a.hdf5", by_hand(), **changed), block_rows=3)
    assert "\n" not in str(error.value)


def test_an_unneeded_horizon_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"a\.hdf5 has 'timeouts', which give the ends of episodes: omit --horizon"):
        read(write_d4rl(tmp_path / "a.hdf5", by_hand()), horizon=1000)
    path = write_d4rl(tmp_path / "b.hdf5", by_hand(), timeouts=None)
    with pytest.raises(BadInput, match="at least one step, got 0"):
        read(path, horizon=0)


def test_missing_and_damaged_hdf5_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"none\.hdf5 does not exist: give the path of a D4RL or DSRL file"):
        read(tmp_path / "none.hdf5")
    (tmp_path / "text.hdf5").write_text("observations,actions\n")
    with pytest.raises(BadInput, match=r"text\.hdf5 is not HDF5"):
        read(tmp_path / "text.hdf5")
    whole = write_d4rl(tmp_path / "a.hdf5", walk(2000)).read_bytes()
    (tmp_path / "cut.hdf5").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(BadInput, match=r"cut\.hdf5 is not a complete HDF5 file \(.*truncated.*\): copy"):
        read(tmp_path / "cut.hdf5")
    with h5py.File(tmp_path / "a.hdf5") as file:
        chunk = file["observations"].id.get_chunk_info(0)
    damaged = bytearray(whole)
    middle = chunk.byte_offset + chunk.size // 2
    damaged[middle : middle + 64] = bytes(64)
    (tmp_path / "damaged.hdf5").write_bytes(damaged)
    with pytest.raises(BadInput, match=r"damaged\.hdf5 is not a complete HDF5 file"):
        read(tmp_path / "damaged.hdf5")


def test_a_group_is_not_an_array(tmp_path: Path) -> None:
    # As in Minari: a group per episode.
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        file["episode_0/observations"] = np.zeros((3, 1))
        file["observations/agent"] = np.zeros((3, 1))
    with pytest.raises(BadInput, match=r"a\.hdf5 is not an HDF5 file of D4RL, .* contains episode_0, observations: "):
        read(tmp_path / "a.hdf5")


def test_only_errors_of_h5py_count_as_damage(tmp_path: Path) -> None:
    path = tmp_path / "some.h5"
    with h5py.File(path, "w") as file:
        file["some"] = np.zeros(3)
    with pytest.raises(BadInput, match=r"some\.h5 is not a complete HDF5 file"), open_guarded(path) as file:
        file["other"]
    with pytest.raises(KeyError, match="ours"), open_guarded(path):
        {}["ours"]


def test_the_worker_imports_no_slow_libraries() -> None:
    script = """
        import sys
        import tasks.data.formats.hdf5.worker
        slow = ("jax", "pydantic", "polars", "pandas", "pyarrow", "prefect", "mlflow", "scipy")
        print([name for name in slow if name in sys.modules])
    """
    root = Path(__file__).parents[4]
    command = [sys.executable, "-c", textwrap.dedent(script)]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
