"""Shards: immutable HDF5 files of whole episodes as flat arrays.

A file is composed in memory and written at once, because HDF5 hangs or crashes when a disk is full. Writing therefore
takes as much memory as a shard.
"""

from __future__ import annotations

import atexit
import hashlib
import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import WeakSet

import h5py
import numpy as np

from configs.environment import DATASETS, setting
from configs.errors import Refused
from tasks.data.store.content import (
    Columns,
    block_bounds,
    block_hashes,
    byte_view,
    content_digest,
    content_root,
    episode_bounds,
    episode_digests,
)
from tasks.data.store.records import ShardRecord
from tasks.data.store.schema import ROW_KEYS, Rows
from tasks.files.stored import SeekableFile, is_stored, open_stored, put_stored, sha256_while_unchanged

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer

LIBVER = ("v110", "v110")
"""HDF5 file format, fixed so that the same rows give the same bytes."""


def write_shard(folder: Path, parts: Sequence[Rows]) -> ShardRecord:
    """Write whole episodes as one immutable file, named by its SHA-256, and return the record for a manifest.

    Besides the rows, the file contains `episode_starts` (E,), i8, and `episode_digests` (E, 32), which decide splits.
    If the disk is full, no file remains, and BadInput is raised.

    Args:
        folder: the folder of shards.
        parts: consecutive rows, all with the same keys, with the dtypes of `stored_dtype`, in C order.
    """
    columns = {key: [part[key] for part in parts] for key in ROW_KEYS if key in parts[0]}
    episodes = episode_bounds(np.concatenate(columns["terminals"]), np.concatenate(columns["timeouts"]))
    hashes = block_hashes(columns, block_bounds(episodes).tolist())
    digests = episode_digests(hashes, episodes)
    pieces = _file_pieces(columns | {"episode_starts": [episodes[:-1]], "episode_digests": [digests]})
    sha256 = hashlib.sha256()
    for piece in pieces:
        sha256.update(piece)
    path = folder / f"{sha256.hexdigest()}.h5"
    if not is_stored(path) or sha256_while_unchanged(path) != path.stem:
        put_stored(path, *pieces)
    return ShardRecord(
        file=path.name,
        sha256=path.stem,
        content=content_root(parts[0], hashes, episodes, digests),
        rows=int(episodes[-1]),
        episodes=len(digests),
    )


def _file_pieces(columns: Columns) -> list[memoryview]:
    """Return a shard's HDF5 file in pieces: headers made by HDF5, and the arrays' own memory.

    HDF5 assigns each key a place without receiving the arrays, which it would copy.
    """
    image = SparseFile()
    places: dict[int, list[memoryview]] = {}
    plan = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plan.set_obj_track_times(False)
    plan.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    plan.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    with h5py.File(image, "w", libver=LIBVER) as file:
        for key, values in columns.items():
            kind = h5py.h5t.py_create(values[0].dtype, logical=True)
            space = h5py.h5s.create_simple((sum(map(len, values)), *values[0].shape[1:]))
            made = h5py.h5d.create(file.id, key.encode(), kind, space, plan)
            if any(block.nbytes for block in values):
                places[made.get_offset()] = [byte_view(block) for block in values]
    pieces, at = list[memoryview](), 0
    for offset, views in sorted(places.items()):
        pieces += [memoryview(image.stretch(at, offset)), *views]
        at = offset + sum(map(len, views))
    return [*pieces, memoryview(image.stretch(at, image.seek(0, io.SEEK_END)))]


def open_shard(path: Path) -> h5py.File:
    """Open a shard for reading, without a lock, so that read-only disks work; raise Refused if it is damaged."""
    try:
        file = h5py.File(path if path.exists() else open_stored(path), "r", locking=False)
    except OSError as error:
        raise Refused(
            f"shard {path.name} is not a complete HDF5 file ({' '.join(str(error).split())}): restore it from a backup "
            "or ingest its source again."
        ) from error
    _open.add(file)
    return file


_open: WeakSet[h5py.File] = WeakSet()


@atexit.register
def _close_all() -> None:
    """Close open files before the interpreter ends: HDF5 would crash closing a file that is a Python object."""
    for file in list(_open):
        file.close()


def check_file(path: Path, record: ShardRecord) -> None:
    """Check a shard's file against the SHA-256 in the manifest; raise Refused if it is missing or differs.

    A file that this process has checked before is read again only if it changed.
    """
    cure = "restore it from a backup or ingest its source again."
    if not is_stored(path) and not setting(DATASETS):
        cure = f"restore it from a backup, ingest its source again, or name the bucket that contains it by {DATASETS}."
    if not is_stored(path):
        raise Refused(f"shard {path.name} is missing from {path.parent}: {cure}")
    if (got := sha256_while_unchanged(path)) != record.sha256:
        raise Refused(f"shard {path.name} has SHA-256 {got}, not {record.sha256}: {cure}")


def check_content(path: Path, record: ShardRecord) -> None:
    """Check a shard's rows against the content digest in the manifest; raise Refused if they differ."""
    with open_shard(path) as file:
        got = content_digest(file)
    if got != record.content:
        raise Refused(
            f"shard {path.name} has content {got}, not {record.content}: restore it from a backup or ingest its source "
            "again."
        )


class SparseFile(SeekableFile):
    """A seekable binary file that stores only the written parts; the rest reads as zeros.

    Suited to a few small writes far apart, as when HDF5 lays out arrays: each read goes through all writes.

    Example:
        >>> file = SparseFile()
        >>> _ = file.seek(10**12), file.write(b"end")
        >>> file.stretch(10**12 - 2, 10**12 + 2)
        b'\\x00\\x00en'
    """

    def __init__(self) -> None:
        super().__init__()
        self._written: list[tuple[int, bytes]] = []

    def writable(self) -> bool:
        return True

    def write(self, data: ReadableBuffer) -> int:
        if written := bytes(data):
            self._written.append((self._at, written))
            self._at += len(written)
            self._size = max(self._size, self._at)
        return len(written)

    def truncate(self, size: int | None = None) -> int:
        self._size = self._at if size is None else size
        self._written = [(at, data[: self._size - at]) for at, data in self._written if at < self._size]
        return self._size

    def readinto(self, buffer: WriteableBuffer) -> int:
        into = memoryview(buffer).cast("B")
        data = self.stretch(self._at, min(self._at + len(into), self._size))
        into[: len(data)] = data
        self._at += len(data)
        return len(data)

    def stretch(self, start: int, stop: int) -> bytes:
        """Return bytes [start, stop), beyond the end as zeros."""
        result = bytearray(max(stop - start, 0))
        # In the order of writing, so that later writes win.
        for at, data in self._written:
            first, last = max(at, start), min(at + len(data), stop)
            if first < last:
                result[first - start : last - start] = data[first - at : last - at]
        return bytes(result)
