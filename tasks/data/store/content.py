"""Compute digests of the rows of shards and episodes. The digests do not depend on HDF5 or on a file's layout.

Rows are hashed in blocks of at most `BLOCK_ROWS` rows of one episode. The hash of a block is a leaf of two Merkle trees
(RFC 6962): one for the shard, one for the episode. So each row is hashed only once.
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
"""For each key an array, or an open HDF5 dataset, with one entry per row."""
Columns = Mapping[str, Sequence[npt.NDArray[Any]]]
"""For each key a list of arrays with consecutive rows, in C order, with the types of `stored_dtype`."""


BLOCK_ROWS = 4096
READ_ROWS = 16 * BLOCK_ROWS


def episode_bounds(terminals: npt.NDArray[Any], timeouts: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Return the first row of each of E episodes and the number of rows (E + 1,); the last row must end an episode."""
    ends = np.flatnonzero(terminals | timeouts) + 1
    if len(terminals) and (len(ends) == 0 or ends[-1] != len(terminals)):
        raise Refused(
            f"row {len(terminals) - 1}, the last row of a shard, does not end an episode: mark this row as a timeout."
        )
    return np.concatenate([[0], ends]).astype(np.int64)


def block_bounds(episodes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the first row of each of B blocks and the number of rows (B + 1,), from `episode_bounds` (E + 1,).

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
    """Return the `leaf_hash` (32 bytes) of each block of rows. A block is its keys' bytes in the order of `ROW_KEYS`.

    A block may extend over several arrays of a key. `bounds` is the result of `block_bounds`.
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
    return values.reshape(-1).view(np.uint8).data


def episode_digests(hashes: Sequence[bytes], episodes: npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
    """Return the Merkle root of each episode's blocks as bytes (E, 32), given `block_hashes` and `episode_bounds`."""
    blocks = _blocks_each(episodes).tolist()
    lasts = itertools.accumulate(blocks)
    roots = [root_of_hashes(hashes[last - count : last]) for last, count in zip(lasts, blocks, strict=True)]
    return np.frombuffer(b"".join(roots), np.uint8).reshape(-1, 32)


def content_root(shard: Shard, hashes: Sequence[bytes], episodes: npt.NDArray[Any], digests: npt.NDArray[Any]) -> str:
    """Return the content digest of a shard: the Merkle root, in hexadecimal, over header, blocks and episodes.

    Args:
        shard: an array for each key; only types and shapes are used, so any number of rows will do.
        hashes: result of `block_hashes` for all blocks.
        episodes: result of `episode_bounds` (E + 1,).
        digests: result of `episode_digests` (E, 32).
    """
    keys = [
        [key, stored_dtype(key, shard[key].dtype).str, list(shard[key].shape[1:])] for key in ROW_KEYS if key in shard
    ]
    header = {"block_rows": BLOCK_ROWS, "episodes": len(episodes) - 1, "keys": keys, "rows": int(episodes[-1])}
    last = np.asarray(episodes[:-1], "<i8").tobytes() + np.asarray(digests).tobytes()
    return root_of_hashes([leaf_hash(canonical_json(header)), *hashes, leaf_hash(last)]).hex()


def content_digest(shard: Shard) -> str:
    """Read a stored shard in parts and return its `content_root`; raise Refused if the last row ends no episode."""
    hashes: list[bytes] = []
    for bounds, rows in _read(shard):
        hashes += block_hashes({key: [values] for key, values in rows.items()}, bounds)
    # Hash the stored starts of episodes, even if they contradict the flags of the rows.
    episodes = np.append(shard["episode_starts"][:], shard["rewards"].shape[0])
    return content_root(shard, hashes, episodes, shard["episode_digests"][:])


def _read(shard: Shard) -> Iterator[tuple[list[int], dict[str, npt.NDArray[Any]]]]:
    """Yield (bounds, rows) for some whole blocks at a time; `bounds` count from the first of these rows."""
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
