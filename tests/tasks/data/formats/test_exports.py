"""Exports: bit-exact round trips for all shapes, episodes and costs."""

from __future__ import annotations

import json
import re
import tempfile
from pathlib import Path
from typing import Any

import h5py
import minari
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from configs.errors import BadInput
from neorl_core.types import Constraint, PlantSpec, Space
from tasks.data.formats.exports import BESIDES, FORMATS, episodes_of, export
from tasks.data.formats.sources import recognise
from tasks.data.store.reader import StoredDataset, dataset_of
from tasks.data.store.records import Provenance
from tasks.data.store.schema import ALWAYS, ROW_KEYS, Rows
from tasks.data.store.writer import DatasetWriter
from tasks.files.spec import spec_of_record, spec_record

FEW = settings(max_examples=8)


def spec_for(observations: int, actions: int, limits: int = 0) -> PlantSpec:
    """A plant with given shapes; the first observation is unbounded."""
    both = [
        Space(
            tuple(f"{name}{i}" for i in range(n)),
            ("K",) * n,
            (-np.inf,) + (-4.0,) * (n - 1) if name == "o" else (-1.0,) * n,
            (np.inf,) + (4.0,) * (n - 1) if name == "o" else (1.0,) * n,
        )
        for name, n in (("o", observations), ("a", actions))
    ]
    held = tuple(Constraint(f"limit {i}", "K", -np.inf, float(i)) for i in range(limits))
    return PlantSpec("plant", *both, held, 0.5, "min", 7, (-3.0, 11.0))


def floats(*shape: int) -> st.SearchStrategy[Any]:
    """Finite float32 numbers, with signed zeros, subnormal and largest numbers."""
    return hnp.arrays(np.float32, shape, elements=st.floats(width=32, allow_nan=False, allow_infinity=False))


@st.composite
def datasets(draw: st.DrawFn) -> tuple[PlantSpec, Rows]:
    """Rows of one to six episodes of one to five steps, with or without costs, limits and times."""
    observations, actions = draw(st.integers(1, 3)), draw(st.integers(1, 2))
    limits = draw(st.sampled_from([None, 0, 1, 2]))
    episodes = draw(st.lists(st.tuples(st.integers(1, 5), st.booleans()), min_size=1, max_size=6))
    parts = []
    for steps, terminated in episodes:
        path = draw(floats(steps + 1, observations))
        last = np.arange(steps) == steps - 1
        parts.append(
            {
                "observations": path[:-1],
                "actions": draw(floats(steps, actions)),
                "rewards": draw(floats(steps)),
                "next_observations": path[1:],
                "terminals": last & terminated,
                "timeouts": last & (not terminated),
            }
        )
    rows: Rows = {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}
    n = len(rows["rewards"])
    if limits is not None:
        rows["costs"] = draw(floats(n))
        rows["constraint_costs"] = draw(floats(n, limits))
    if draw(st.booleans()):
        rows["timestamps"] = draw(hnp.arrays(np.int64, n))
    return spec_for(observations, actions, limits or 0), {key: rows[key] for key in ROW_KEYS if key in rows}


def store(folder: Path, spec: PlantSpec, rows: Rows, shard_bytes: int = 200) -> StoredDataset:
    """A dataset in several shards."""
    with DatasetWriter(folder, spec, shard_bytes=shard_bytes) as writer:
        for start in range(0, len(rows["rewards"]), 3):
            writer.append({key: values[start : start + 3] for key, values in rows.items()})
        return StoredDataset.open(folder, writer.commit(Provenance()))


def read(path: Path) -> Rows:
    blocks = list(recognise(path).blocks())
    keys = [key for key in blocks[0] if key != "rejected"]
    return {key: np.concatenate([block[key] for block in blocks]).astype(ROW_KEYS[key]) for key in keys}


def assert_same_bits(got: Rows, expected: Rows, keys: tuple[str, ...]) -> None:
    for key in keys:
        assert (got[key].shape, got[key].tobytes()) == (expected[key].shape, expected[key].tobytes()), key


@FEW
@given(datasets())
def test_round_trips_are_bit_exact(made: tuple[PlantSpec, Rows]) -> None:
    spec, rows = made
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        dataset = store(folder / "store", spec, rows)
        carried = {
            "d4rl": ALWAYS,
            "dsrl": (*ALWAYS, "costs"),
            "neorl": ALWAYS,
            "neorl2": ALWAYS,
            "minari": tuple(rows),
        }
        for to, keys in carried.items():
            out = folder / f"{to}-v0"
            if to == "dsrl" and "costs" not in rows:
                with pytest.raises(BadInput, match="DSRL needs costs"):
                    export(dataset, to, out)
                continue
            result = export(dataset, to, out)
            assert (result.rows, result.episodes) == (len(rows["rewards"]), len(dataset.episodes) - 1)
            assert set(result.left_out) == {*(set(rows) - set(keys)), BESIDES}
            got = read(out)
            assert_same_bits(got, rows, keys)
            assert set(got) == set(keys)
        # The store's own view.
        assert_same_bits(read(dataset.view_path), rows, tuple(rows))
        assert spec_of_record(json.loads(json.dumps(spec_record(spec)))) == spec


@FEW
@given(datasets())
def test_minari_reads_the_export(made: tuple[PlantSpec, Rows]) -> None:
    spec, rows = made
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        folder = Path(name)
        dataset = store(folder / "store", spec, rows)
        export(dataset, "minari", folder / "plant-v0")
        patch.setenv("MINARI_DATASETS_PATH", str(folder))
        opened = minari.load_dataset("plant-v0")
        assert (opened.total_episodes, opened.total_steps) == (len(dataset.episodes) - 1, len(rows["rewards"]))
        for space, own in ((opened.observation_space, spec.observation), (opened.action_space, spec.action)):
            assert (space.shape, space.dtype) == ((own.size,), np.float32)
            np.testing.assert_array_equal([space.low, space.high], [own.low, own.high])
        for episode, own_rows in zip(opened.iterate_episodes(), episodes_of(dataset), strict=True):
            path = np.concatenate([own_rows["observations"], own_rows["next_observations"][-1:]])
            assert episode.observations.tobytes() == path.tobytes()
            names = {"actions": "actions", "rewards": "rewards", "terminals": "terminations", "timeouts": "truncations"}
            for key, theirs in names.items():
                assert getattr(episode, theirs).tobytes() == own_rows[key].tobytes()
            for key in ("costs", "constraint_costs", "timestamps"):
                assert (key in (episode.infos or {})) == (key in rows)
                if key in rows:
                    assert episode.infos[key][1:].tobytes() == own_rows[key].tobytes()


def small(folder: Path, **changed: Any) -> StoredDataset:
    """Two episodes of three and one steps, the second cut by time."""
    path = np.arange(6, dtype=np.float32)[:, None]
    rows: Rows = {
        "observations": path[[0, 1, 2, 4]],
        "actions": np.float32([[1], [-1], [0], [0.5]]),
        "rewards": np.float32([1, 2, 3, 4]),
        "next_observations": path[[1, 2, 3, 5]],
        "costs": np.float32([0, 1, 0, 1]),
        "terminals": np.array([False, False, True, False]),
        "timeouts": np.array([False, False, False, True]),
        "constraint_costs": np.float32([[0], [0.5], [0], [2]]),
    } | changed
    return store(folder, spec_for(1, 1, 1), rows)


def test_neorl_index_divides_the_trajectories(tmp_path: Path) -> None:
    # neorl/utils.py of polixir/NeoRL: `sample_dataset` prepends a 0 to the index, `sample_by_num` cuts by it.
    export(small(tmp_path / "store"), "neorl", tmp_path / "a.npz")
    with np.load(tmp_path / "a.npz") as file:
        data = dict(file)
    assert {key: values.shape for key, values in data.items()} == {
        **{"obs": (4, 1), "action": (4, 1), "next_obs": (4, 1), "reward": (4, 1), "done": (4, 1), "index": (2,)}
    }
    index = np.insert(data["index"], 0, 0)
    first = data["obs"][0 : int(index[1])]
    np.testing.assert_array_equal(first[:, 0], [0, 1, 2])
    np.testing.assert_array_equal(data["obs"][index[1] : int(index[2])][:, 0], [4])
    # Starts, as in NeoRL's documentation, give the same trajectories.
    np.savez(tmp_path / "starts.npz", **{**data, "index": np.array([0, 3])})
    assert_same_bits(read(tmp_path / "starts.npz"), read(tmp_path / "a.npz"), ALWAYS)


def test_neorl2_exports_match_the_official_file(dmsd_train: Path, tmp_path: Path) -> None:
    export(small(tmp_path / "store"), "neorl2", tmp_path / "a.npz")
    with np.load(tmp_path / "a.npz") as ours, np.load(dmsd_train) as official:
        assert set(ours) == set(official)
        for key in official:
            assert (ours[key].dtype, ours[key].ndim) == (official[key].dtype, official[key].ndim)


def test_d4rl_and_dsrl_names_and_types(tmp_path: Path) -> None:
    # D4RL's wiki: float32 observations, actions, rewards; bool terminals, timeouts. DSRL adds costs.
    dataset = small(tmp_path / "store")
    export(dataset, "d4rl", tmp_path / "a.hdf5")
    export(dataset, "dsrl", tmp_path / "b.hdf5")
    with h5py.File(tmp_path / "a.hdf5") as d4rl, h5py.File(tmp_path / "b.hdf5") as dsrl:
        assert set(dsrl) == {*d4rl, "costs"}
        for file in (d4rl, dsrl):
            assert "".join(file[key].dtype.kind for key in ("observations", "actions", "rewards")) == "fff"
            assert (file["terminals"].dtype, file["timeouts"].dtype) == (bool, bool)
            assert file["rewards"].shape == (4,)


def test_left_out_contents_are_listed(tmp_path: Path) -> None:
    jump = np.float32([[1], [2.25], [3], [5]])  # the second step is not continued by the third
    dataset = small(tmp_path / "store", next_observations=jump)
    left = export(dataset, "minari", tmp_path / "a-v0").left_out
    assert left[0] == "the next observations of 1 rows, which differ from the following observation"
    assert export(dataset, "d4rl", tmp_path / "a.hdf5").left_out == ("costs", "constraint_costs", BESIDES)


def test_refused_exports_leave_no_files(tmp_path: Path) -> None:
    dataset = small(tmp_path / "store")
    out = tmp_path / "out"
    for to, path, message in (
        ("rlds", out / "a", "'rlds' is not an export format: choose from d4rl, dsrl, minari, neorl, neorl2"),
        ("minari", out / "plant", "'plant' is not a Minari id"),
        ("d4rl", tmp_path / "store", "exists already"),
    ):
        with pytest.raises(BadInput, match=re.escape(message)):
            export(dataset, to, path)
    assert not out.exists() or not list(out.iterdir())
    assert set(FORMATS) == {"d4rl", "dsrl", "minari", "neorl", "neorl2"}


def test_datasets_are_found_by_first_digits(tmp_path: Path) -> None:
    dataset = small(tmp_path / "store")
    assert dataset_of([tmp_path / "none", tmp_path / "store"], dataset.digest[:6]).digest == dataset.digest
    with pytest.raises(BadInput, match=r"no datasets have a digest that begins with 0+: ingest the sources first"):
        dataset_of([tmp_path / "store"], "0" * 64)
