"""Read the npz archives of the benchmarks NeoRL and NeoRL-2.

NeoRL-2 (arXiv 2503.19267) has obs, action, next_obs, reward, done and truncated, with one row per step. NeoRL (arXiv
2102.00714) has `index` instead of truncated: the numbers of the rows at which one episode ends and the next begins.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from configs.errors import BadInput
from tasks.data.formats.reading import Blocks, Source
from tasks.data.store.schema import ALWAYS, BLOCK_ROWS, Rows
from tasks.files.arrays import Member, NpzReader, open_npz

KEYS = ("obs", "action", "next_obs", "reward")
MAX_ROW_BYTES = 2**20
BLOCK_BYTES = 2**26


def open_archive(path: Path) -> Source:
    """Open an archive of the benchmark NeoRL or NeoRL-2; raise BadInput if an array is missing or invalid."""
    with open_npz(path) as archive:
        names = set(archive.names)
        if {"states", "actions"} <= names and "reward" not in names:
            raise BadInput(
                f"{path.name} has no rewards and next observations, only {', '.join(sorted(names))}: give a log with "
                "rewards. A recorded simulation can only be used to check a plant's equations."
            )
        first = "index" in names and "truncated" not in names
        flags = ("done",) if first else ("done", "truncated")
        members = {name: _member(archive, path, name) for name in (*KEYS, *flags)}
    widths = {name: member.width if name in KEYS[:3] else 1 for name, member in members.items()}
    return Source(
        path,
        "NeoRL" if first else "NeoRL-2",
        f"an npz archive with {', '.join(widths)}{', index' if first else ''}",
        members["obs"].shape[0] if members["obs"].shape else 0,
        widths["obs"],
        widths["action"],
        ALWAYS,
        (f"episodes cut by time: from '{'index' if first else 'truncated'}'", "costs: none in the file"),
        lambda: read_archive(path, widths),
    )


def read_archive(path: Path, widths: Mapping[str, int], block_rows: int = BLOCK_ROWS) -> Blocks:
    """Yield an archive's rows in blocks; raise BadInput if a shape or length is wrong. Values are not checked.

    Args:
        widths: values per row for each key. If `truncated` is missing, ends of episodes are read from `index`.
    """
    with open_npz(path) as archive:
        members = {name: _member(archive, path, name) for name in widths}
        count = members["obs"].shape[0] if members["obs"].shape else 0
        for name, width in widths.items():
            _check_shape(path, members[name], count, width)
        if count == 0:
            raise BadInput(f"{path.name} has no rows: export it again.")
        ends = None if "truncated" in widths else _read_index(archive, path, count)
        row_bytes = sum(member.width * member.dtype.itemsize for member in members.values())
        block_rows = min(block_rows, max(BLOCK_BYTES // row_bytes, 1))
        with ExitStack() as stack:
            streams = {name: stack.enter_context(archive.open(member)) for name, member in members.items()}
            for start in range(0, count, block_rows):
                n = min(block_rows, count - start)
                raw = {name: _read_rows(streams[name], members[name], n, path) for name in widths}
                if ends is not None:
                    raw["truncated"] = (np.isin(np.arange(start, start + n), ends)[:, None] & (raw["done"] == 0)) * 1.0
                yield _named(raw)
            for name, stream in streams.items():
                # zipfile checks the member's checksum when reading past the end.
                if stream.read(1):
                    raise BadInput(f"'{name}' in {path.name} has more than {count} rows: export it again.")


def _read_index(archive: NpzReader, path: Path, count: int) -> npt.NDArray[np.int64]:
    """Return the number of each episode's last row from the array `index`."""
    member = archive.member("index")
    if len(member.shape) != 1 or member.dtype.kind not in "iu" or member.shape[0] > count + 1:
        raise BadInput(
            f"'index' of {path.name} must be a vector of at most {count + 1} row numbers, got {member.dtype} "
            f"{member.shape}: export it again."
        )
    index = [int(i) for i in archive.read(member)]
    if any(a >= b for a, b in itertools.pairwise(index)) or any(not 0 <= i <= count for i in index):
        raise BadInput(f"'index' of {path.name} must increase from 0 to {count}, got {index[:5]}: export it again.")
    return np.unique([*(i - 1 for i in index if i > 0), count - 1]).astype(np.int64)


def _named(raw: dict[str, npt.NDArray[Any]]) -> Rows:
    return {
        "observations": raw["obs"],
        "actions": raw["action"],
        "rewards": raw["reward"][:, 0],
        "next_observations": raw["next_obs"],
        "terminals": raw["done"][:, 0],
        "timeouts": raw["truncated"][:, 0],
    }


def _member(archive: NpzReader, path: Path, name: str) -> Member:
    member = archive.member(name)
    if member.width * member.dtype.itemsize > MAX_ROW_BYTES:
        raise BadInput(
            f"rows of '{name}' in {path.name} have more than {MAX_ROW_BYTES} bytes, shape {member.shape}: export "
            "fewer values."
        )
    return member


def _check_shape(path: Path, member: Member, count: int, width: int) -> None:
    vector = width > 1
    if len(member.shape) not in ((2,) if vector else (1, 2)) or member.shape[0] != count or member.width != width:
        expected = f"({count}, {width})" if vector else f"({count},) or ({count}, 1)"
        raise BadInput(
            f"'{member.name}' of {path.name} must have shape {expected}, got {member.shape}: check that the file "
            "belongs to this plant."
        )


def _read_rows(stream: IO[bytes], member: Member, count: int, path: Path) -> npt.NDArray[Any]:
    size = count * member.width * member.dtype.itemsize
    data = stream.read(size)
    if len(data) != size:
        raise BadInput(f"'{member.name}' in {path.name} ends {size - len(data)} bytes too early: copy the file again.")
    values = np.frombuffer(data, member.dtype).reshape(count, member.width)
    with np.errstate(over="ignore"):  # values beyond float32 become inf, which the row checks find
        return values.astype(np.float32)
