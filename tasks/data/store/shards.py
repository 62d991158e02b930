"""Write and read shards: immutable HDF5 files of whole episodes, with one array per key.

A shard is composed in memory and then written at once, because HDF5 hangs or crashes when a disk is full.
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
"""Version of the HDF5 format; the version is fixed, so that equal rows give equal bytes."""


def write_shard(folder: Path, parts: Sequence[Rows]) -> ShardRecord:
    """Write E whole episodes as one immutable file, named by its SHA-256, and return the record for a manifest.

    The file also has `episode_starts` (E,), the first row of each episode, and `episode_digests` (E, 32), which decide
    the held-out split. If the disk is full, BadInput is raised and no file remains.

    Args:
        parts: blocks of consecutive rows with the same keys; arrays in C order with the types of `stored_dtype`.
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
    """Return the bytes of a shard's HDF5 file in pieces: headers made by HDF5, and the arrays themselves.

    HDF5 only decides the place of each array. It does not receive the arrays, because it would copy them.
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
    """Open a shard for reading; raise Refused if it is damaged. No lock is taken, so that read-only disks work."""
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
    """Close open files before Python ends, because HDF5 would crash later when it closes files from a bucket."""
    for file in list(_open):
        file.close()


def check_file(path: Path, record: ShardRecord) -> None:
    """Check a shard's file against the SHA-256 in the manifest; raise Refused if it is missing or differs.

    A file that this process has checked before is read again only if it changed.
    """
    cure = "restore it from a backup or ingest its source again."
    if not is_stored(path) and not setting(DATASETS):
        cure = f"restore it from a backup, ingest its source again, or set {DATASETS} to the bucket that contains it."
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
    """A binary file in memory that stores only the written parts; all other bytes are zero.

    Use it only for a few writes, because each read goes through all writes.

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
        """Return the bytes from `start` up to, but not including, `stop`; bytes beyond the end are zero."""
        result = bytearray(max(stop - start, 0))
        # Apply the writes in their order, so that later writes replace earlier ones.
        for at, data in self._written:
            first, last = max(at, start), min(at + len(data), stop)
            if first < last:
                result[first - start : last - start] = data[first - at : last - at]
        return bytes(result)
