"""What a shard holds, as canonical blocks of rows: its content digest and its episodes' digests.

A block is at most `BLOCK_ROWS` rows of one episode. Its hash is a leaf of the shard's Merkle tree (RFC 6962) and of its
episode's, so that rows are hashed once for both; neither depends on the chunking of a file or on the HDF5 library.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from configs.errors import Refused
from tasks.data.store.schema import ROW_KEYS, kept_as
from tasks.files.canonical import canonical_json
from tasks.files.merkle import leaf_hash, root_of_hashes

Columns = Mapping[str, Sequence[npt.NDArray[Any]]]
"""Consecutive arrays by key, of the types of `kept_as` and in C order; a key's arrays are as long as another's."""


class Stored(Protocol):
    """One key of a shard: an array, or an open HDF5 dataset."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Rows first."""
        ...

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of its values."""
        ...

    def __getitem__(self, rows: slice, /) -> npt.NDArray[Any]:
        """Some of its rows."""
        ...


BLOCK_ROWS = 4096
READ_ROWS = 16 * BLOCK_ROWS
"""Rows that are read at once for hashing."""


def episode_bounds(terminals: npt.NDArray[Any], timeouts: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Where episodes begin, and one past the last row: (E + 1,).

    Raises:
        Refused: when the last row ends no episode.
    """
    ends = np.flatnonzero(terminals | timeouts) + 1
    if len(terminals) and (len(ends) == 0 or ends[-1] != len(terminals)):
        raise Refused("expected a shard to end with an episode's last row, got an open one: mark it as a timeout.")
    return np.concatenate([[0], ends]).astype(np.int64)


def block_bounds(episodes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Where the blocks of episodes begin, and one past the last row: (B + 1,), B >= E.

    Args:
        episodes: `episode_bounds`, (E + 1,).

    Example:
        >>> block_bounds(np.array([0, 10, 5000]))
        array([   0,   10, 4106, 5000])
    """
    blocks = _blocks_each(episodes)
    within = np.arange(blocks.sum()) - np.repeat(np.cumsum(blocks) - blocks, blocks)
    return np.append(np.repeat(episodes[:-1], blocks) + BLOCK_ROWS * within, episodes[-1])


def _blocks_each(episodes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """How many blocks each episode has: (E,)."""
    return -(-np.diff(episodes) // BLOCK_ROWS)


def block_hashes(columns: Columns, bounds: Iterable[int]) -> list[bytes]:
    """The leaf hash of each block: SHA-256(0x00 || block), the block's bytes key after key in the order of `ROW_KEYS`.

    Args:
        columns: rows; a block may reach over several arrays of a key.
        bounds: first row of each block, and one past the last row.

    Returns:
        (B,) hashes of 32 bytes. RFC 6962, section 2.1.
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
    """A C-ordered array's own bytes, not copied."""
    return values.reshape(-1).view(np.uint8).data


def episode_digests(hashes: Sequence[bytes], episodes: npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
    """The Merkle root over each episode's blocks: (E, 32).

    Args:
        hashes: `block_hashes` of all blocks.
        episodes: `episode_bounds`, (E + 1,).
    """
    blocks = _blocks_each(episodes).tolist()
    lasts = itertools.accumulate(blocks)
    roots = [root_of_hashes(hashes[last - count : last]) for last, count in zip(lasts, blocks, strict=True)]
    return np.frombuffer(b"".join(roots), np.uint8).reshape(-1, 32)


def content_root(
    shard: Mapping[str, Stored], hashes: Sequence[bytes], episodes: npt.NDArray[Any], digests: npt.NDArray[Any]
) -> str:
    """RFC 6962 Merkle root, in hexadecimal, over how to read the rest, the blocks, and the episodes.

    Args:
        shard: an array of each key, of any number of rows: types and shapes are taken of them.
        hashes: `block_hashes` of all blocks.
        episodes: `episode_bounds`, (E + 1,).
        digests: `episode_digests`, (E, 32).
    """
    first, last = _first_leaf(shard, episodes), _last_leaf(episodes, digests)
    return root_of_hashes([leaf_hash(first), *hashes, leaf_hash(last)]).hex()


def _first_leaf(shard: Mapping[str, Stored], episodes: npt.NDArray[Any]) -> bytes:
    return canonical_json(
        {
            "block_rows": BLOCK_ROWS,
            "episodes": len(episodes) - 1,
            "keys": [
                [key, kept_as(key, shard[key].dtype).str, list(shard[key].shape[1:])]
                for key in ROW_KEYS
                if key in shard
            ],
            "rows": int(episodes[-1]),
        }
    )


def _last_leaf(episodes: npt.NDArray[Any], digests: npt.NDArray[Any]) -> bytes:
    return np.asarray(episodes[:-1], "<i8").tobytes() + np.asarray(digests).tobytes()


def content_digest(shard: Mapping[str, Stored]) -> str:
    """The `content_root` of a shard as it stands in a file; rows are read as they are needed.

    Args:
        shard: arrays or open HDF5 datasets by key.

    Raises:
        Refused: when the last row ends no episode.
    """
    hashes: list[bytes] = []
    for bounds, rows in _read(shard):
        hashes += block_hashes({key: [values] for key, values in rows.items()}, bounds)
    return content_root(shard, hashes, _held_episodes(shard), shard["episode_digests"][:])


def _read(shard: Mapping[str, Stored]) -> Iterator[tuple[list[int], dict[str, npt.NDArray[Any]]]]:
    """Whole blocks, some at a time: their bounds among the rows that come with them."""
    bounds = block_bounds(episode_bounds(shard["terminals"][:], shard["timeouts"][:]))
    first = 0
    while first < len(bounds) - 1:
        last = int(np.searchsorted(bounds, bounds[first] + READ_ROWS, "right")) - 1
        start, stop = int(bounds[first]), int(bounds[last])
        rows = {
            key: np.ascontiguousarray(shard[key][start:stop], kept_as(key, shard[key].dtype))
            for key in ROW_KEYS
            if key in shard
        }
        yield (bounds[first : last + 1] - start).tolist(), rows
        first = last


def _held_episodes(shard: Mapping[str, Stored]) -> npt.NDArray[Any]:
    """The episodes that a shard says it has, which its flags need not bear out."""
    return np.append(shard["episode_starts"][:], shard["rewards"].shape[0])
