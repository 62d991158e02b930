"""Content digests of shards and episodes, over canonical blocks of rows.

A block is at most `BLOCK_ROWS` rows of one episode. Each block hash is a leaf of the shard's Merkle tree (RFC 6962) and
of the episode's tree, so that rows are hashed once. The digests do not depend on HDF5 or on a file's chunking.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from configs.errors import Refused
from tasks.data.store.schema import ROW_KEYS, stored_dtype
from tasks.files.canonical import canonical_json
from tasks.files.merkle import leaf_hash, root_of_hashes

Shard = Mapping[str, npt.NDArray[Any]]
"""Arrays, or open HDF5 datasets, by key; the first axis is rows."""
Columns = Mapping[str, Sequence[npt.NDArray[Any]]]
"""Consecutive arrays by key, with the dtypes of `stored_dtype`, in C order; all keys have equally long arrays."""


BLOCK_ROWS = 4096
READ_ROWS = 16 * BLOCK_ROWS
"""Rows to read at once for hashing."""


def episode_bounds(terminals: npt.NDArray[Any], timeouts: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Return the first row of each episode, and one past the last row, (E + 1,); raise Refused if one is open."""
    ends = np.flatnonzero(terminals | timeouts) + 1
    if len(terminals) and (len(ends) == 0 or ends[-1] != len(terminals)):
        raise Refused(
            f"the last episode of a shard is open at row {len(terminals) - 1}: mark the last row as a timeout."
        )
    return np.concatenate([[0], ends]).astype(np.int64)


def block_bounds(episodes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the first row of each block, and one past the last row, (B + 1,), from `episode_bounds` (E + 1,).

    Example:
        >>> block_bounds(np.array([0, 10, 5000]))
        array([   0,   10, 4106, 5000])
    """
    blocks = _blocks_each(episodes)
    within = np.arange(blocks.sum()) - np.repeat(np.cumsum(blocks) - blocks, blocks)
    return np.append(np.repeat(episodes[:-1], blocks) + BLOCK_ROWS * within, episodes[-1])


def _blocks_each(episodes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    return -(-np.diff(episodes) // BLOCK_ROWS)


def block_hashes(columns: Columns, bounds: Iterable[int]) -> list[bytes]:
    """Return the leaf hash (32 bytes) of each of B blocks: SHA-256(0x00 || block), its keys in the order of `ROW_KEYS`.

    RFC 6962, section 2.1. A block may extend over several arrays of a key. `bounds` are as of `block_bounds`.
    """
    firsts = [0, *itertools.accumulate(map(len, columns["rewards"]))]
    pieces = [
        [(byte_view(values), values[:1].nbytes, first) for values, first in zip(columns[key], firsts, strict=False)]
        for key in ROW_KEYS
        if key in columns
    ]
    hashes, low, high = [], 0, 0
    for start, stop in itertools.pairwise(bounds):
        while firsts[low + 1] <= start:
            low += 1
        while firsts[high + 1] < stop:
            high += 1
        block = [
            view[max(start - first, 0) * width : (stop - first) * width]
            for column in pieces
            for view, width, first in column[low : high + 1]
        ]
        hashes.append(leaf_hash(*block))
    return hashes


def byte_view(values: npt.NDArray[Any]) -> memoryview:
    """Return a C-ordered array's bytes without copying."""
    return values.reshape(-1).view(np.uint8).data


def episode_digests(hashes: Sequence[bytes], episodes: npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
    """Return the Merkle root (E, 32) over each episode's blocks, from all `block_hashes` and `episode_bounds`."""
    blocks = _blocks_each(episodes).tolist()
    lasts = itertools.accumulate(blocks)
    roots = [root_of_hashes(hashes[last - count : last]) for last, count in zip(lasts, blocks, strict=True)]
    return np.frombuffer(b"".join(roots), np.uint8).reshape(-1, 32)


def content_root(shard: Shard, hashes: Sequence[bytes], episodes: npt.NDArray[Any], digests: npt.NDArray[Any]) -> str:
    """Return the RFC 6962 Merkle root, in hexadecimal, over the header, the blocks, and the episodes.

    Args:
        shard: an array of each key, with any number of rows: only types and shapes are used.
        hashes: `block_hashes` of all blocks.
        episodes: `episode_bounds`, (E + 1,).
        digests: `episode_digests`, (E, 32).
    """
    keys = [
        [key, stored_dtype(key, shard[key].dtype).str, list(shard[key].shape[1:])] for key in ROW_KEYS if key in shard
    ]
    header = {"block_rows": BLOCK_ROWS, "episodes": len(episodes) - 1, "keys": keys, "rows": int(episodes[-1])}
    last = np.asarray(episodes[:-1], "<i8").tobytes() + np.asarray(digests).tobytes()
    return root_of_hashes([leaf_hash(canonical_json(header)), *hashes, leaf_hash(last)]).hex()


def content_digest(shard: Shard) -> str:
    """Return the `content_root` of a stored shard, reading rows in parts; raise Refused if an episode is open."""
    hashes: list[bytes] = []
    for bounds, rows in _read(shard):
        hashes += block_hashes({key: [values] for key, values in rows.items()}, bounds)
    # The stored episodes are digested, even if they contradict the rows' flags.
    episodes = np.append(shard["episode_starts"][:], shard["rewards"].shape[0])
    return content_root(shard, hashes, episodes, shard["episode_digests"][:])


def _read(shard: Shard) -> Iterator[tuple[list[int], dict[str, npt.NDArray[Any]]]]:
    """Yield whole blocks, some at a time: their bounds, relative to the rows that come with them."""
    bounds = block_bounds(episode_bounds(shard["terminals"][:], shard["timeouts"][:]))
    first = 0
    while first < len(bounds) - 1:
        last = int(np.searchsorted(bounds, bounds[first] + READ_ROWS, "right")) - 1
        start, stop = int(bounds[first]), int(bounds[last])
        rows = {
            key: np.ascontiguousarray(shard[key][start:stop], stored_dtype(key, shard[key].dtype))
            for key in ROW_KEYS
            if key in shard
        }
        yield (bounds[first : last + 1] - start).tolist(), rows
        first = last
