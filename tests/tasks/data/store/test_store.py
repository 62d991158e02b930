"""The dataset store: round trips, digests, splits, damage."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import tracemalloc
from pathlib import Path

import h5py
import numpy as np
import pytest

from benchmarks.store import validate
from configs.errors import BadInput, Refused
from neorl_core.plants import PLANTS
from neorl_core.types import Clock
from tasks.data.store.reader import StoredDataset
from tasks.data.store.records import Provenance
from tasks.data.store.schema import Rows
from tasks.data.store.statistics import summarise
from tasks.data.store.writer import DatasetWriter
from tasks.files import stored
from tasks.files.canonical import canonical_json, file_sha256, sha256_hex

SPEC = PLANTS["double_mass"].spec


def make_rows(episodes: int, steps: int = 50, seed: int = 0, timestamps: bool = True) -> Rows:
    """Complete episodes of random numbers."""
    rng = np.random.default_rng(seed)
    n = episodes * steps
    ends = np.arange(n) % steps == steps - 1
    first = np.arange(n) // steps % 2 == 0
    rows: Rows = {
        "observations": rng.normal(size=(n, 6)).astype(np.float32),
        "actions": rng.normal(size=(n, 2)).astype(np.float32),
        "rewards": rng.normal(size=n).astype(np.float32),
        "next_observations": rng.normal(size=(n, 6)).astype(np.float32),
        "costs": np.zeros(n, np.float32),
        "terminals": ends & first,
        "timeouts": ends & ~first,
        "constraint_costs": np.zeros((n, 2), np.float32),
        "timestamps": np.arange(n, dtype=np.int64) * 10**9,
    }
    return rows if timestamps else {key: values for key, values in rows.items() if key != "timestamps"}


def write(root: Path, *parts: Rows, parent: StoredDataset | None = None, shard_bytes: int = 20_000) -> StoredDataset:
    with DatasetWriter(root, SPEC, parent, shard_bytes) as writer:
        for part in parts:
            writer.append(part)
        digest = writer.commit(Provenance(format="test"))
    return StoredDataset.open(root, digest)


def test_digests_are_stable_between_versions(tmp_path: Path) -> None:
    # Recorded before actions could be integers. Other digests would orphan every dataset on disk.
    rows = {
        key: values if values.dtype.kind != "f" else (np.arange(values.size) % 97 / 8).reshape(values.shape)
        for key, values in make_rows(7, steps=30).items()
    }
    manifest = write(tmp_path, rows, shard_bytes=10**9).manifest
    assert [(shard.content, shard.sha256) for shard in manifest.shards] == [
        (
            "14b1e5fa8bc64d3b61fd92112dff77e5557af81e1909f1da0adbb7c2a234d6ad",
            "f2eb44001bffd9cf055dbb36870291024a66cdcf294438576366edebd869d583",
        )
    ]
    assert manifest.view.sha256 == "3c0021a8bd14a3efa9cecce19eb4a59d17bbf4c125a407bd2f07fccae7f9daa9"


def sliced(rows: Rows, size: int) -> list[Rows]:
    return [{k: v[i : i + size] for k, v in rows.items()} for i in range(0, len(rows["rewards"]), size)]


def test_round_trip(tmp_path: Path) -> None:
    rows = make_rows(40)
    held = write(tmp_path, *sliced(rows, 77))
    assert len(held.manifest.shards) > 3
    arrays = held.arrays()
    for key, values in rows.items():
        np.testing.assert_array_equal(arrays[key], values)
        assert arrays[key].dtype == values.dtype
    np.testing.assert_array_equal(held.episodes, np.arange(0, 2001, 50))
    np.testing.assert_array_equal(arrays["episode_starts"], np.arange(0, 2000, 50))
    assert held.rows == 2000


def test_blocks_are_consecutive_and_contain_only_the_given_keys(tmp_path: Path) -> None:
    rows = make_rows(40)
    blocks = list(write(tmp_path, rows).blocks(["rewards", "terminals"], rows=64))
    assert {frozenset(block) for block in blocks} == {frozenset(["rewards", "terminals"])}
    assert max(len(block["rewards"]) for block in blocks) <= 64
    np.testing.assert_array_equal(np.concatenate([block["rewards"] for block in blocks]), rows["rewards"])
    with pytest.raises(BadInput, match="'reward' is not a key"):
        next(write(tmp_path, rows).blocks(["reward"]))


def test_same_rows_give_same_digest_and_bytes(tmp_path: Path) -> None:
    rows = make_rows(40)
    one, two = write(tmp_path / "a", *sliced(rows, 50)), write(tmp_path / "b", *sliced(rows, 50))
    assert one.digest == two.digest
    for path in sorted((tmp_path / "a").rglob("*.*")):
        assert path.read_bytes() == (tmp_path / "b" / path.relative_to(tmp_path / "a")).read_bytes()
    rows["rewards"][7] += 1
    assert write(tmp_path / "c", *sliced(rows, 50)).digest != one.digest


@pytest.mark.parametrize("size", [1, 4095, 4096, 5000, 14_000])
def test_part_sizes_do_not_change_the_dataset(tmp_path: Path, size: int) -> None:
    rows = make_rows(1, steps=20_000)
    for end in (300, 9000, 9001):
        rows["timeouts"][end] = True
    whole = write(tmp_path / "whole", rows, shard_bytes=10**9)
    parts = (
        sliced(rows, size) if size > 1 else [*sliced({k: v[:50] for k, v in rows.items()}, 1), *sliced(rows, 50)[1:]]
    )
    assert write(tmp_path / "parts", *parts, shard_bytes=10**9).digest == whole.digest


def test_the_writer_locks_or_copies_arrays(tmp_path: Path) -> None:
    rows, base = make_rows(2), make_rows(2, seed=1)
    expected = np.concatenate([rows["rewards"], base["rewards"], base["rewards"] + 1])
    with DatasetWriter(tmp_path, SPEC) as writer:
        writer.append(rows)
        with pytest.raises(ValueError, match="read-only"):
            rows["rewards"][0] = 1
        # A reader that refills the same arrays and passes views.
        for _ in range(2):
            writer.append({key: values[:] for key, values in base.items()})
            base["rewards"] += 1
        digest = writer.commit(Provenance())
    np.testing.assert_array_equal(StoredDataset.open(tmp_path, digest).arrays()["rewards"], expected)


@pytest.mark.parametrize("size", [20, 6000])
def test_arrays_of_wrong_shape_are_refused(tmp_path: Path, size: int) -> None:
    rows = make_rows(1, steps=size)
    wrong = [{**rows, "actions": rows["actions"][:-1]}, {**rows, "observations": rows["observations"][:, :5]}]
    for other in wrong:
        with DatasetWriter(tmp_path, SPEC) as writer:
            writer.append(make_rows(1, steps=size))
            with pytest.raises(ValueError, match=r"(actions|observations) must have shape"):
                writer.append(other)


def test_an_append_reuses_old_shards(tmp_path: Path) -> None:
    old = write(tmp_path, make_rows(40))
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "shards").iterdir()}
    new = write(tmp_path, make_rows(10, seed=1), parent=old)
    assert new.manifest.shards[: len(before)] == old.manifest.shards
    assert all(path.stat().st_mtime_ns == stamp for path, stamp in before.items())
    assert new.rows == 2500
    np.testing.assert_array_equal(new.episodes, np.arange(0, 2501, 50))
    np.testing.assert_array_equal(
        StoredDataset.open(tmp_path, old.digest).arrays()["rewards"], make_rows(40)["rewards"]
    )


def test_splits_survive_appends_and_have_the_right_share(tmp_path: Path) -> None:
    old = write(tmp_path, make_rows(200, steps=5))
    new = write(tmp_path, make_rows(203, steps=5, seed=1), parent=old)
    train, held_out = new.split(0.2)
    assert sorted([*train, *held_out]) == list(range(403))
    np.testing.assert_array_equal(held_out[held_out < 200], old.split(0.2)[1])
    # The order of episodes does not matter: here the 203 new ones precede the 200 old ones.
    turned = write(tmp_path / "turned", make_rows(203, steps=5, seed=1), make_rows(200, steps=5))
    np.testing.assert_array_equal(np.sort((turned.split(0.2)[1] - 203) % 403), held_out)
    # Within 4 standard deviations of a binomial with n = 403, p = 0.2.
    assert 81 - 32 < len(held_out) < 81 + 32


@pytest.mark.parametrize("seed", range(5))
def test_splits_of_few_episodes_have_no_empty_side(tmp_path: Path, seed: int) -> None:
    train, held_out = write(tmp_path, make_rows(2, seed=seed)).split(0.01)
    assert (len(train), len(held_out)) == (1, 1)


def test_the_view_contains_all_shards(tmp_path: Path) -> None:
    rows = make_rows(40)
    held = write(tmp_path, *sliced(rows, 50))
    with h5py.File(held.view_path) as view:
        for key, values in rows.items():
            np.testing.assert_array_equal(view[key][:], values)
        np.testing.assert_array_equal(view["episode_starts"][:], held.episodes[:-1])


def test_any_changed_byte_is_refused_by_file_name(tmp_path: Path) -> None:
    held = write(tmp_path, *sliced(make_rows(20), 50))
    rng = np.random.default_rng(0)
    for path in (p for p in sorted(tmp_path.rglob("*.*")) if p.is_file()):
        whole = path.read_bytes()
        for at in rng.integers(len(whole), size=8):
            path.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << rng.integers(8)]) + whole[at + 1 :])
            with pytest.raises(Refused, match=path.name):
                StoredDataset.open(tmp_path, held.digest).verify()
        path.write_bytes(whole)
    StoredDataset.open(tmp_path, held.digest).verify()


def test_unchanged_shards_are_hashed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[Path] = []

    def count(path: Path) -> str:
        hashed.append(path)
        return file_sha256(path)

    monkeypatch.setattr(stored, "file_sha256", count)
    monkeypatch.setattr(stored, "SETTLED_NS", -(10**18))  # as if the files had been written long ago
    held = write(tmp_path, *sliced(make_rows(20), 50))
    path = held.shard_path(held.manifest.shards[0])
    for _ in range(3):
        StoredDataset.open(tmp_path, held.digest)
    assert sorted(hashed) == sorted(map(held.shard_path, held.manifest.shards))
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    before = path.stat()
    path.write_bytes(data)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_size == before.st_size
    with pytest.raises(Refused, match=path.name):
        StoredDataset.open(tmp_path, held.digest)


def test_hashes_of_fresh_shards_are_not_cached(tmp_path: Path) -> None:
    held = write(tmp_path, make_rows(4))
    path = held.shard_path(held.manifest.shards[0])
    whole = path.read_bytes()
    for at in range(0, len(whole), len(whole) // 50):
        # Both writes may fall within one tick of the file system's clock.
        path.write_bytes(whole)
        StoredDataset.open(tmp_path, held.digest)
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(Refused, match=path.name):
            StoredDataset.open(tmp_path, held.digest)


def test_truncated_and_missing_shards_are_refused(tmp_path: Path) -> None:
    held = write(tmp_path, make_rows(20))
    path = held.shard_path(held.manifest.shards[0])
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(Refused, match=path.name):
        StoredDataset.open(tmp_path, held.digest)
    with pytest.raises(Refused, match="is not a complete HDF5 file"):
        StoredDataset.open(tmp_path, held.digest, verify=False).arrays()
    path.unlink()
    with pytest.raises(Refused, match="is missing from"):
        StoredDataset.open(tmp_path, held.digest)


def test_other_schemas_are_refused(tmp_path: Path) -> None:
    held = write(tmp_path, make_rows(2))
    data = canonical_json(json.loads(held.manifest_path.read_bytes()) | {"schema": 1})
    (tmp_path / "manifests" / f"{sha256_hex(data)}.json").write_bytes(data)
    with pytest.raises(Refused, match="has schema 1, not 2: ingest"):
        StoredDataset.open(tmp_path, sha256_hex(data))


def test_unknown_digests_empty_datasets_and_open_episodes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no dataset 000000000000 in"):
        StoredDataset.open(tmp_path, "0" * 64)
    with pytest.raises(BadInput, match="there are no rows for a dataset of double_mass"):
        write(tmp_path)
    with pytest.raises(Refused, match="row 98, the last row of a shard, does not end an episode"):
        write(tmp_path, {key: values[:-1] for key, values in make_rows(2).items()})
    assert not (tmp_path / "manifests").exists()


def test_appends_need_same_plant_same_keys_and_new_rows(tmp_path: Path) -> None:
    old = write(tmp_path, make_rows(4))
    with pytest.raises(BadInput, match="given twice"):
        write(tmp_path, make_rows(4), parent=old)
    with pytest.raises(BadInput, match="timestamps"):
        write(tmp_path, make_rows(4, timestamps=False), parent=old)
    with pytest.raises(BadInput, match="with another spec of plant"):
        DatasetWriter(tmp_path, SPEC._replace(horizon=7), old)
    # A clock changes no rows, so older datasets can be extended.
    timed = SPEC._replace(clock=Clock(SPEC.observation.names[0], 1.0))
    DatasetWriter(tmp_path, timed, old)


@pytest.mark.slow
def test_memory_of_writing_does_not_grow_with_size(tmp_path: Path) -> None:
    def peak(blocks: int) -> int:
        tracemalloc.start()
        with DatasetWriter(tmp_path / str(blocks), SPEC, shard_bytes=300_000) as writer:
            for seed in range(blocks):
                writer.append(make_rows(20, seed=seed))
            writer.commit(Provenance())
        _, highest = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return highest

    peak(4)  # imports and caches
    # Five times the rows. Only the manifest's records may grow, 300 bytes per shard.
    assert peak(160) < 1.1 * peak(32) + 160 * 2000


@pytest.mark.slow
def test_memory_of_validation_does_not_grow_with_size(tmp_path: Path) -> None:
    def peak(shards: int) -> int:
        dataset = write(tmp_path / str(shards), *(make_rows(1, steps=20_000, seed=i) for i in range(shards)))
        tracemalloc.start()
        dataset.verify()
        summarise(dataset, SPEC)
        _, highest = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return highest

    # Four times the rows; both have more than the 50,000 rows sampled for quantiles.
    assert peak(12) < 1.1 * peak(3)
    assert validate(tmp_path, 128_000)["rows"] == 128_000


@pytest.mark.slow
def test_a_full_disk_leaves_no_files(tmp_path: Path) -> None:
    # A limit on file size in a child process stands in for a full disk.
    script = textwrap.dedent(
        """
        import resource, signal, sys
        from pathlib import Path
        from configs.errors import BadInput
        from tests.tasks.data.store.test_store import make_rows, write
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, 40_000))
        try:
            write(Path(sys.argv[1]), make_rows(40), shard_bytes=10**9)
        except BadInput as error:
            print(error)
        """
    )
    root = Path(__file__).parents[4]
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], cwd=root, capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("cannot write ")
    assert "free some space" in done.stdout
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
