"""One shard: some whole episodes as flat arrays in an immutable HDF5 file, and the digest of what it holds.

The file is composed in memory and written in one go, for HDF5 itself hangs or crashes when a disk is full; so a shard's
size is the memory that writing takes. The digest is over canonical row blocks and not over the file, so that it
depends neither on chunking nor on the HDF5 library.
"""

from __future__ import annotations

import hashlib
import io
import itertools
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

from configs.errors import Refused
from tasks.adapters.canonical import canonical_json, file_sha256, write_atomic
from tasks.adapters.merkle import MerkleTree, inclusion_proof

Rows = dict[str, npt.NDArray[Any]]
"""Arrays by key with a common first axis, the rows."""

ROW_KEYS: dict[str, np.dtype[Any]] = {
    "observations": np.dtype("<f4"),
    "actions": np.dtype("<f4"),
    "rewards": np.dtype("<f4"),
    "next_observations": np.dtype("<f4"),
    "costs": np.dtype("<f4"),
    "terminals": np.dtype("?"),
    "timeouts": np.dtype("?"),
    "constraint_costs": np.dtype("<f4"),
    "timestamps": np.dtype("<i8"),
}
"""Keys per row in their canonical order; `timestamps` (ns since 1970, UTC) only where they are known."""

ALWAYS = ("observations", "actions", "rewards", "next_observations", "terminals", "timeouts")
"""The keys that every dataset has; costs are only there where a source or the plant's limits tell them."""

EPISODE_KEYS = ("episode_starts", "episode_digests")
"""Per episode: its first row (i8), and the SHA-256 of its rows (32 bytes), by which splits are drawn."""

BLOCK_ROWS = 4096
"""Rows of a canonical block, the leaf of a shard's Merkle tree."""

READ_ROWS = 16 * BLOCK_ROWS
"""Rows that are read at once for hashing."""

LIBVER = ("v110", "v110")
"""The file format is fixed, so that the same rows make the same file."""


def row_bytes(rows: Mapping[str, npt.NDArray[Any]], start: int, stop: int) -> bytes:
    """Rows [start, stop) as canonical bytes: key after key in the order of `ROW_KEYS`, little-endian, C order."""
    return b"".join(
        np.ascontiguousarray(rows[key][start:stop], dtype=dtype).tobytes()
        for key, dtype in ROW_KEYS.items()
        if key in rows
    )


def _first_leaf(shard: Mapping[str, Any]) -> bytes:
    """The record that says how to read the rest."""
    return canonical_json(
        {
            "block_rows": BLOCK_ROWS,
            "episodes": int(shard["episode_starts"].shape[0]),
            "keys": [[key, ROW_KEYS[key].str, list(shard[key].shape[1:])] for key in ROW_KEYS if key in shard],
            "rows": int(shard["rewards"].shape[0]),
        }
    )


def _last_leaf(shard: Mapping[str, Any]) -> bytes:
    """The record of the episodes."""
    return np.asarray(shard["episode_starts"][:], "<i8").tobytes() + np.asarray(shard["episode_digests"][:]).tobytes()


def leaves(shard: Mapping[str, Any]) -> Iterator[bytes]:
    """The records that a shard's content digest covers.

    The first says how to read the rest: keys, types, shapes, rows per block. Then the row blocks, then the episodes.

    Args:
        shard: arrays or open HDF5 datasets by key.
    """
    keys = [key for key in ROW_KEYS if key in shard]
    yield _first_leaf(shard)
    for start in range(0, int(shard["rewards"].shape[0]), BLOCK_ROWS):
        block = {key: shard[key][start : start + BLOCK_ROWS] for key in keys}
        yield row_bytes(block, 0, BLOCK_ROWS)
    yield _last_leaf(shard)


def hash_spans(rows: Rows, bounds: Sequence[int], prefix: bytes = b"") -> list[bytes]:
    """SHA-256 of a prefix and `row_bytes` of each span of rows, without making those bytes.

    Args:
        rows: arrays of the types of `ROW_KEYS`, in C order.
        bounds: first row of each span, and one past the last row.
        prefix: what comes before, as RFC 6962's 0x00 of a leaf.
    """
    flat = [memoryview(rows[key].reshape(-1).view(np.uint8)) for key in ROW_KEYS if key in rows]
    widths = [len(view) // max(len(rows["rewards"]), 1) for view in flat]
    columns = list(zip(flat, widths, strict=True))
    digests = []
    for start, stop in itertools.pairwise(bounds):
        digest = hashlib.sha256(prefix)
        for view, width in columns:
            digest.update(view[start * width : stop * width])
        digests.append(digest.digest())
    return digests


def content_digest(shard: Mapping[str, Any]) -> str:
    """RFC 6962 Merkle root over a shard's `leaves`, in hexadecimal."""
    tree = MerkleTree()
    tree.append(_first_leaf(shard))
    keys = [key for key in ROW_KEYS if key in shard]
    rows = int(shard["rewards"].shape[0])
    for first in range(0, rows, READ_ROWS):
        some = {key: np.ascontiguousarray(shard[key][first : first + READ_ROWS], ROW_KEYS[key]) for key in keys}
        count = min(READ_ROWS, rows - first)
        for node in hash_spans(some, [*range(0, count, BLOCK_ROWS), count], b"\x00"):
            tree.append_hash(node)
    tree.append(_last_leaf(shard))
    return tree.root().hex()


def prove_block(path: Path, block: int) -> dict[str, Any]:
    """What shows that a block of rows belongs to a shard, without the rest of it.

    Args:
        path: the shard's file.
        block: row block, from 0; it holds rows [4096 block, 4096 (block + 1)).

    Returns:
        leaf (hex), index, size and path (list of hex) for `tasks.adapters.merkle.verify_inclusion`.
    """
    with open_shard(path) as file:
        records = list(leaves(file))
    return {
        "leaf": records[block + 1].hex(),
        "index": block + 1,
        "size": len(records),
        "path": [node.hex() for node in inclusion_proof(records, block + 1)],
    }


def episode_bounds(terminals: npt.NDArray[Any], timeouts: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Where episodes begin, and one past the last row: (E + 1,) i8.

    Raises:
        Refused: when the last row ends no episode.
    """
    ends = np.flatnonzero(terminals | timeouts) + 1
    if len(terminals) and (len(ends) == 0 or ends[-1] != len(terminals)):
        raise Refused("expected a shard to end with an episode's last row, got an open one: mark it as a timeout.")
    return np.concatenate([[0], ends]).astype(np.int64)


def write_shard(folder: Path, parts: Sequence[Rows]) -> dict[str, Any]:
    """Write whole episodes as one immutable file, named by its SHA-256.

    Args:
        folder: where shards live.
        parts: consecutive blocks of rows, all with the same keys.

    Returns:
        The shard's record in a manifest: file, sha256, content, rows, episodes.

    Raises:
        BadInput: when the disk is full; nothing is left behind.
    """
    shard: Rows = {
        key: np.ascontiguousarray(
            parts[0][key] if len(parts) == 1 else np.concatenate([part[key] for part in parts]), dtype=dtype
        )
        for key, dtype in ROW_KEYS.items()
        if key in parts[0]
    }
    bounds = episode_bounds(shard["terminals"], shard["timeouts"])
    digests = hash_spans(shard, bounds.tolist())
    shard["episode_starts"] = bounds[:-1]
    shard["episode_digests"] = np.frombuffer(b"".join(digests), np.uint8).reshape(-1, 32)
    parts = _file_parts(shard)
    # The digest of the content is found beside that of the file and its writing: hashing and writing let go of the GIL.
    with ThreadPoolExecutor(1) as beside:
        content = beside.submit(content_digest, shard)
        digest = hashlib.sha256()
        for part in parts:
            digest.update(part)
        path = folder / f"{digest.hexdigest()}.h5"
        if not path.exists() or file_sha256(path) != path.stem:
            write_atomic(path, *parts)
        return {
            "file": path.name,
            "sha256": path.stem,
            "content": content.result(),
            "rows": len(shard["rewards"]),
            "episodes": len(digests),
        }


def _file_parts(shard: Rows) -> list[memoryview]:
    """The bytes of a shard's HDF5 file, in order: headers that HDF5 made, and the arrays' own memory.

    HDF5 gives each array its place without being given the array, which it would copy.
    """
    image, places = io.BytesIO(), {}
    plan = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plan.set_obj_track_times(False)
    plan.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    plan.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    with h5py.File(image, "w", libver=LIBVER) as file:
        for key, values in shard.items():
            kind = h5py.h5t.py_create(values.dtype, logical=True)
            made = h5py.h5d.create(file.id, key.encode(), kind, h5py.h5s.create_simple(values.shape), plan)
            if values.nbytes:
                places[made.get_offset()] = memoryview(values.reshape(-1).view(np.uint8))
        end = file.id.get_filesize()
    headers = image.getvalue().ljust(end, b"\0")
    parts, at = [], 0
    for offset, values in sorted(places.items()):
        parts += [memoryview(headers)[at:offset], values]
        at = offset + len(values)
    return [*parts, memoryview(headers)[at:]]


def open_shard(path: Path) -> h5py.File:
    """Open an immutable shard for reading; no lock is taken, so a read-only disk will do.

    Raises:
        Refused: when the file is missing, cut short or not HDF5.
    """
    try:
        return h5py.File(path, "r", locking=False)
    except OSError as error:
        raise Refused(
            f"expected a whole HDF5 file in shard {path.name}, got '{' '.join(str(error).split())}': "
            "restore it from a backup or ingest its source again."
        ) from error


def check_file(path: Path, record: Mapping[str, Any]) -> None:
    """Hold a shard's file against its record in the manifest, byte for byte.

    Raises:
        Refused: when it is missing or differs, naming the shard.
    """
    cure = "restore it from a backup or ingest its source again."
    if not path.exists():
        raise Refused(f"expected shard {path.name} in {path.parent}, got no such file: {cure}")
    if (got := file_sha256(path)) != record["sha256"]:
        raise Refused(f"expected shard {path.name} to have SHA-256 {record['sha256']}, got {got}: {cure}")


def check_content(path: Path, record: Mapping[str, Any]) -> None:
    """Hold what a shard says against its content digest.

    Raises:
        Refused: when it differs, naming the shard.
    """
    with open_shard(path) as file:
        got = content_digest(file)
    if got != record["content"]:
        raise Refused(
            f"expected shard {path.name} to hold content {record['content']}, got {got}: "
            "restore it from a backup or ingest its source again."
        )
