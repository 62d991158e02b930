"""Content digests of shards."""

from __future__ import annotations

import hashlib
import itertools
from pathlib import Path

import h5py
import numpy as np
import pytest

from configs.errors import Refused
from tasks.data.store.content import content_digest
from tasks.data.store.reader import StoredDataset
from tasks.data.store.records import Provenance
from tasks.data.store.shards import check_content, open_shard
from tasks.data.store.writer import DatasetWriter
from tests.tasks.data.store.test_store import SPEC, make_rows, sliced, write


def test_content_digest_ignores_the_file_layout(tmp_path: Path) -> None:
    held = write(tmp_path, make_rows(40))
    record = held.manifest.shards[0]
    with h5py.File(held.shard_path(record)) as file, h5py.File(tmp_path / "other.h5", "w") as other:
        for key in file:
            other.create_dataset(key, data=file[key][:], chunks=True, compression="gzip", track_times=True)
    with h5py.File(tmp_path / "other.h5") as other:
        assert content_digest(other) == record.content


def test_content_digest_follows_rfc_6962(tmp_path: Path) -> None:
    # Second implementation: the recursive definition of RFC 6962, section 2.1.
    def tree(records: list[bytes]) -> bytes:
        if len(records) == 1:
            return hashlib.sha256(b"\0" + records[0]).digest()
        k = 1
        while k * 2 < len(records):
            k *= 2
        return hashlib.sha256(b"\1" + tree(records[:k]) + tree(records[k:])).digest()

    # Episodes of 10, 20, 10,000 and 4,096 rows: less than a block, more than two, and exactly one.
    parts = [make_rows(1, steps=10), make_rows(1, steps=20), make_rows(1, steps=10_000), make_rows(1, steps=4096)]
    bounds = [0, 10, 30, 10_030, 14_126]
    held = write(tmp_path, *parts, shard_bytes=10**9)
    arrays = held.arrays()
    keys = ["observations", "actions", "rewards", "next_observations", "costs", "terminals", "timeouts"]
    keys += ["constraint_costs", "timestamps"]
    kinds = ["<f4"] * 5 + ["|b1"] * 2 + ["<f4", "<i8"]
    shapes = {"observations": [6], "actions": [2], "next_observations": [6], "constraint_costs": [2]}
    header = [f'["{k}","{t}",{str(shapes.get(k, [])).replace(" ", "")}]' for k, t in zip(keys, kinds, strict=True)]
    cut = [0, 10, 30, 4126, 8222, 10_030, 14_126]
    blocks = [b"".join(arrays[key][i:j].tobytes() for key in keys) for i, j in itertools.pairwise(cut)]
    digests = [tree(some) for some in (blocks[:1], blocks[1:2], blocks[2:5], blocks[5:])]
    header_leaf = f'{{"block_rows":4096,"episodes":4,"keys":[{",".join(header)}],"rows":14126}}'.encode()
    records = [header_leaf, *blocks, np.array(bounds[:-1], "<i8").tobytes() + b"".join(digests)]
    with open_shard(held.shard_path(held.manifest.shards[0])) as file:
        assert [row.tobytes() for row in file["episode_digests"][:]] == digests
    assert held.manifest.shards[0].content == tree(records).hex()


def test_appending_does_not_read_old_blocks(tmp_path: Path) -> None:
    old, new = make_rows(12), make_rows(4, seed=1)
    digests = []
    for name in ("whole", "spoilt"):
        first = write(tmp_path / name, *sliced(old, 100))
        if name == "spoilt":
            for record in first.manifest.shards:
                path = first.shard_path(record)
                data = bytearray(path.read_bytes())
                with open_shard(path) as file:
                    begin, size = file["observations"].id.get_offset(), file["observations"].id.get_storage_size()
                data[begin : begin + size] = bytes(size)
                path.write_bytes(data)
        with DatasetWriter(tmp_path / name, SPEC, first) as writer:
            writer.append(new)
            digests.append(writer.commit(Provenance()))
    # Reading old blocks would have changed the digest of the damaged store. Verification finds the damage.
    assert digests[0] == digests[1]
    with pytest.raises(Refused, match="has SHA-256"):
        StoredDataset.open(tmp_path / "spoilt", digests[1])


def test_rows_that_differ_from_the_content_digest_are_refused(tmp_path: Path) -> None:
    held = write(tmp_path, make_rows(20))
    record = held.manifest.shards[0]
    check_content(held.shard_path(record), record)
    with pytest.raises(Refused, match=record.file):
        check_content(held.shard_path(record), record.model_copy(update={"content": "0" * 64}))
