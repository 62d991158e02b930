"""Shards in an S3-like bucket: same datasets as in the home, read by ranges, checked against digests."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import obstore
import pytest
from obstore.store import S3Store

from configs.errors import BadInput, Refused, ServiceMissing
from configs.home import Home
from tasks.data.store.reader import StoredDataset
from tasks.evidence.ledger.ledger import artefact
from tasks.files import stored
from tasks.maintenance.retention import Ages, prune
from tests.servers import free_port, storage
from tests.tasks.data.store.test_store import make_rows, write

BUCKET = "plant"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    with storage(tmp_path_factory.mktemp("storage") / "server", BUCKET) as variables:
        yield variables


@pytest.fixture
def bucket(server: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> S3Store:
    """The part of the bucket for this test's home."""
    url = f"s3://{BUCKET}/{tmp_path.name}"
    for name, value in {**server, "NEORL_DATASETS_URL": url}.items():
        monkeypatch.setenv(name, value)
    return S3Store.from_url(url, client_options={"allow_http": True})


def datasets_of(folder: Path) -> Path:
    """A plant's folder of datasets in a new home."""
    return Home(folder / "home").folder("datasets", "double_mass")


def objects(bucket: S3Store) -> list[str]:
    return sorted(found["path"] for some in obstore.list(bucket) for found in some)


def test_datasets_are_the_same_as_in_the_home(bucket: S3Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = [make_rows(10, seed=seed) for seed in range(4)]
    there = write(datasets_of(tmp_path), *parts)
    assert len(there.manifest.shards) == 4
    assert objects(bucket) == sorted(f"double_mass/{shard.file}" for shard in there.manifest.shards)
    assert not list((there.root / "shards").iterdir())
    monkeypatch.delenv("NEORL_DATASETS_URL")
    here = write(datasets_of(tmp_path / "other"), *parts)
    assert there.digest == here.digest
    monkeypatch.setenv("NEORL_DATASETS_URL", f"s3://{BUCKET}/{tmp_path.name}")
    there.verify()
    for read in (
        StoredDataset.arrays,
        lambda dataset: dataset.read(130, 777, ["rewards"]),
        lambda dataset: next(dataset.episode_blocks(np.array([7, 21]), ["actions"])),
    ):
        for key, values in read(here).items():
            np.testing.assert_array_equal(read(there)[key], values, strict=True)
    # Appending works for shards in either place; existing shards are not uploaded again.
    more = make_rows(3, seed=9)
    assert write(there.root, more, parent=there).digest == write(here.root, more, parent=here).digest
    assert write(here.root, *parts).digest == here.digest
    assert not set(objects(bucket)) & {shard.file for shard in here.manifest.shards}


def test_reading_rows_fetches_a_range(bucket: S3Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held = write(datasets_of(tmp_path), make_rows(2000), shard_bytes=10**9)
    (shard,) = held.manifest.shards
    whole, fetched = stored.stored_size(held.shard_path(shard)), []
    get = obstore.get_range

    def counted(*arguments: object, start: int, length: int) -> object:
        fetched.append(length)
        return get(*arguments, start=start, length=length)

    monkeypatch.setattr(obstore, "get_range", counted)
    assert len(held.read(50_000, 50_100, ["rewards"])["rewards"]) == 100
    assert sum(fetched) < whole / 2


def test_altered_and_missing_shards_are_refused(bucket: S3Store, tmp_path: Path) -> None:
    parts = [make_rows(10, seed=seed) for seed in range(2)]
    held = write(datasets_of(tmp_path), *parts)
    first, second = held.manifest.shards
    entry = artefact(Home(tmp_path / "home"), held.shard_path(first), "dataset shard")
    assert (entry.path, entry.sha256) == (f"datasets/double_mass/shards/{first.file}", first.sha256)
    data = bytearray(obstore.get(bucket, f"double_mass/{first.file}").bytes())
    data[len(data) // 2] ^= 1
    obstore.put(bucket, f"double_mass/{first.file}", bytes(data))
    with pytest.raises(Refused, match=f"shard {first.file} has SHA-256 .*, not {first.sha256}"):
        StoredDataset.open(held.root, held.digest)
    # Writing the same rows again restores the shard, as in the home.
    assert write(held.root, *parts).digest == held.digest
    obstore.delete(bucket, f"double_mass/{second.file}")
    with pytest.raises(Refused, match=f"shard {second.file} is missing from .*: restore"):
        StoredDataset.open(held.root, held.digest)
    assert not stored.is_stored(held.shard_path(second))


def test_without_the_setting_the_error_names_it(
    bucket: S3Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = write(datasets_of(tmp_path), make_rows(3))
    monkeypatch.delenv("NEORL_DATASETS_URL")
    with pytest.raises(Refused, match=r"set NEORL_DATASETS_URL to the bucket that contains it\.$"):
        StoredDataset.open(held.root, held.digest)


def test_folders_outside_a_home_keep_their_shards(bucket: S3Store, tmp_path: Path) -> None:
    held = write(tmp_path / "datasets" / "double_mass", make_rows(3))
    assert objects(bucket) == []
    assert len(list((held.root / "shards").iterdir())) == len(held.manifest.shards)


def test_errors_of_the_storage_do_not_show_keys(
    bucket: S3Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = write(datasets_of(tmp_path), make_rows(3))
    monkeypatch.setattr(stored, "TRIES", 0)
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{free_port()}")
    actions: list[Callable[[], object]] = [held.check_files, held.arrays, lambda: write(held.root, make_rows(4))]
    for act in actions:
        with pytest.raises(ServiceMissing, match="storage of NEORL_DATASETS_URL does not answer") as error:
            act()
        assert os.environ["AWS_SECRET_ACCESS_KEY"] not in str(error.value)
    monkeypatch.setenv("NEORL_DATASETS_URL", "/mnt/shards")
    with pytest.raises(BadInput, match="NEORL_DATASETS_URL must have the form s3://BUCKET/PREFIX"):
        held.check_files()


def test_old_unused_objects_are_pruned(bucket: S3Store, tmp_path: Path) -> None:
    write(datasets_of(tmp_path), make_rows(3))
    obstore.put(bucket, f"double_mass/{'0' * 64}.h5", b"left by a killed writer")
    obstore.put(bucket, "double_mass/notes.txt", b"another owner's")
    home = Home(tmp_path / "home")
    kept = objects(bucket)
    assert not prune(home, Ages(datasets=1.0), remove=True).pieces
    found = prune(home, Ages(datasets=-1.0), remove=False)
    assert sorted(piece.path.rpartition("/")[2] for piece in found.pieces if piece.bucket) == [
        path.rpartition("/")[2] for path in kept if path.endswith(".h5")
    ]
    assert objects(bucket) == kept
    prune(home, Ages(datasets=-1.0), remove=True)
    assert objects(bucket) == ["double_mass/notes.txt"]


def test_a_process_with_an_open_shard_exits_cleanly(bucket: S3Store, tmp_path: Path) -> None:
    held = write(datasets_of(tmp_path), make_rows(30))
    script = (
        "import sys; from pathlib import Path; from tasks.data.store.reader import StoredDataset\n"
        "found = StoredDataset.open(Path(sys.argv[1]), sys.argv[2])\n"
        "print(len(next(found.blocks(['rewards'], 10))['rewards']))\n"
        "blocks = found.blocks(['rewards'], 10); next(blocks); sys.exit(3)"
    )
    done = subprocess.run([sys.executable, "-c", script, str(held.root), held.digest], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (3, "10\n", "")
