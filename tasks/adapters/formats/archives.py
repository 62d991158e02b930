"""The npz archives of NeoRL and NeoRL-2 as blocks of rows, as the row checks take them.

NeoRL-2 (arXiv 2503.19267): obs, action, next_obs, reward, done, truncated, one row per step. NeoRL (arXiv 2102.00714):
the same without truncated, but with `index`, the rows at which trajectories are divided: its own reader takes them for
the ends and puts a 0 before them, its documentation speaks of starts; both say the same boundaries.
"""

from __future__ import annotations

import itertools
import lzma
import math
import struct
import tokenize
import warnings
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from configs.errors import BadInput
from tasks.adapters.store.schema import Rows
from tasks.adapters.store.scoring import BLOCK_ROWS

KEYS = ("obs", "action", "next_obs", "reward")
MAX_RATIO = 1100
"""Bytes that one compressed byte may stand for: deflate reaches 1032."""
MAX_ROW_BYTES = 2**20
BLOCK_BYTES = 2**26
"""What is read at once: fewer rows where they are very wide."""


@dataclass(frozen=True)
class Member:
    """An array inside an npz archive, known by its header alone."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def width(self) -> int:
        """Numbers per row."""
        return math.prod(self.shape[1:])


class NpzLayout(NamedTuple):
    """What an archive holds, known from its headers alone."""

    family: str
    """"NeoRL-2", or "NeoRL" where `index` stands in for `truncated`."""
    rows: int
    widths: dict[str, int]
    """Numbers per row of each key."""


def read_npz_layout(path: Path) -> NpzLayout:
    """Which of the two an archive is, and its widths, whatever plant it is of.

    Raises:
        BadInput: when it is neither.
    """
    with reading_archive(path), zipfile.ZipFile(path) as archive:
        names = [name.removesuffix(".npy") for name in archive.namelist()]
        family = "NeoRL-2" if "truncated" in names or "index" not in names else "NeoRL"
        members = {name: _read_header(archive, path, name) for name in (*KEYS, "done")}
        members |= {"truncated": _read_header(archive, path, "truncated")} if family == "NeoRL-2" else {}
    return NpzLayout(
        family,
        members["obs"].shape[0] if members["obs"].shape else 0,
        {name: member.width if name in KEYS[:3] else 1 for name, member in members.items()},
    )


def read_npz(path: Path, widths: Mapping[str, int], block_rows: int = BLOCK_ROWS) -> Iterator[Rows]:
    """The archive's rows, block after block, as they stand.

    Args:
        path: the .npz file.
        widths: numbers per row of each key; without `truncated`, `index` divides the rows into trajectories.
        block_rows: rows per block.
    """
    with reading_archive(path):
        yield from _read_blocks(path, widths, block_rows)


def _read_blocks(path: Path, widths: Mapping[str, int], block_rows: int) -> Iterator[Rows]:
    with zipfile.ZipFile(path) as archive:
        members = {name: _read_header(archive, path, name) for name in widths}
        count = members["obs"].shape[0] if members["obs"].shape else 0
        for name, width in widths.items():
            _check_shape(path, members[name], count, width)
        if count == 0:
            raise BadInput(f"expected at least one row in {path.name}, got an empty dataset: export it again.")
        ends = None if "truncated" in widths else _read_index(archive, path, count)
        row_bytes = sum(member.width * member.dtype.itemsize for member in members.values())
        block_rows = min(block_rows, max(BLOCK_BYTES // row_bytes, 1))
        with ExitStack() as stack:
            streams = {name: stack.enter_context(archive.open(f"{name}.npy")) for name in widths}
            for name, stream in streams.items():
                _parse_header(stream, path, name)
            for start in range(0, count, block_rows):
                n = min(block_rows, count - start)
                raw = {name: _read_rows(streams[name], members[name], n, path) for name in widths}
                if ends is not None:
                    raw["truncated"] = (np.isin(np.arange(start, start + n), ends)[:, None] & (raw["done"] == 0)) * 1.0
                yield _named(raw)
            for name, stream in streams.items():
                # Reading past the end is what makes zipfile compare the member's checksum.
                if stream.read(1):
                    raise BadInput(f"expected {count} rows of '{name}' in {path.name}, got more: export it again.")


def _read_index(archive: zipfile.ZipFile, path: Path, count: int) -> npt.NDArray[np.int64]:
    """The last row of each of NeoRL's trajectories."""
    member = _read_header(archive, path, "index")
    if len(member.shape) != 1 or member.dtype.kind not in "iu" or member.shape[0] > count + 1:
        raise BadInput(
            f"expected 'index' of {path.name} to be rows at which trajectories are divided, got {member.dtype} "
            f"{member.shape}: export it again."
        )
    with archive.open("index.npy") as stream:
        _parse_header(stream, path, "index")
        data = stream.read()
    if len(data) != member.shape[0] * member.dtype.itemsize:
        raise BadInput(f"expected {member.shape[0]} numbers of 'index' in {path.name}, got others: copy it again.")
    index = np.frombuffer(data, member.dtype).astype(object)
    if any(a >= b for a, b in itertools.pairwise(index)) or any(not 0 <= i <= count for i in index):
        raise BadInput(f"expected 'index' of {path.name} to increase from 0 up to {count}, got other rows.")
    return np.unique([*(int(i) - 1 for i in index if i > 0), count - 1]).astype(np.int64)


@contextmanager
def reading_archive(path: Path) -> Iterator[None]:
    """Whatever zipfile and its decompressors say of a damaged archive, as one sentence."""
    try:
        yield
    except (zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, OSError, ValueError, struct.error) as error:
        said = " ".join(str(error).split())[:300]
        raise BadInput(f"expected a whole npz archive in {path.name}, got '{said}': copy the file again.") from error
    except (RuntimeError, NotImplementedError) as error:
        # What zipfile raises for an encrypted member and for a compression that it does not know; what is made of
        # the rows runs outside of this generator, so its errors do not come by here.
        raise BadInput(
            f"expected an npz archive that NumPy can read in {path.name}, got '{error}': save it again with "
            "np.savez_compressed, without a password."
        ) from error


def _named(raw: dict[str, npt.NDArray[Any]]) -> Rows:
    return {
        "observations": raw["obs"],
        "actions": raw["action"],
        "rewards": raw["reward"][:, 0],
        "next_observations": raw["next_obs"],
        "terminals": raw["done"][:, 0],
        "timeouts": raw["truncated"][:, 0],
    }


def _read_header(archive: zipfile.ZipFile, path: Path, name: str) -> Member:
    if f"{name}.npy" not in archive.namelist():
        found = ", ".join(sorted(n.removesuffix(".npy") for n in archive.namelist())) or "none"
        raise BadInput(f"expected an array '{name}' in {path.name}, got only {found}: export it with that key.")
    with archive.open(f"{name}.npy") as stream:
        member = _parse_header(stream, path, name)
        data = stream.tell()
    entry = archive.getinfo(f"{name}.npy")
    size = math.prod(member.shape) * member.dtype.itemsize
    if data + size > entry.file_size or entry.file_size > MAX_RATIO * entry.compress_size + 64:
        raise BadInput(
            f"expected {size} bytes of '{name}' in {path.name}, got {entry.compress_size} bytes that cannot hold as "
            "many: copy the file again."
        )
    return member


def _parse_header(stream: IO[bytes], path: Path, name: str) -> Member:
    """Read an array's type and shape; what would need unpickling is refused here and never read."""
    try:
        version = np.lib.format.read_magic(stream)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # NumPy's, of headers that Python 2 wrote
            shape, fortran, dtype = read(stream)
    except (ValueError, SyntaxError, TypeError, tokenize.TokenError, RecursionError, MemoryError) as error:
        said = " ".join(str(error).split())[:300]
        raise BadInput(
            f"expected '{name}' in {path.name} to be a NumPy array, got '{said}': export it again."
        ) from None
    if dtype.hasobject:
        raise BadInput(
            f"expected numbers in '{name}' of {path.name}, got pickled objects, which can run code and are never "
            "loaded: save plain arrays instead."
        )
    if dtype.kind not in "fiub":
        raise BadInput(f"expected numbers in '{name}' of {path.name}, got {dtype}: save it as float32.")
    if fortran and len(shape) > 1:
        raise BadInput(
            f"expected '{name}' of {path.name} row after row, got Fortran order: save np.ascontiguousarray of it."
        )
    member = Member(name, tuple(int(n) for n in shape), dtype)
    if any(n < 0 for n in shape) or member.width * dtype.itemsize > MAX_ROW_BYTES:
        raise BadInput(
            f"expected rows of at most {MAX_ROW_BYTES} bytes in '{name}' of {path.name}, got the shape {shape}: "
            "export vectors of signals."
        )
    return member


def _check_shape(path: Path, member: Member, count: int, width: int) -> None:
    vector = width > 1
    if len(member.shape) not in ((2,) if vector else (1, 2)) or member.shape[0] != count or member.width != width:
        expected = f"({count}, {width})" if vector else f"({count},) or ({count}, 1)"
        raise BadInput(
            f"expected '{member.name}' of {path.name} to have shape {expected}, got {member.shape}: "
            "check that the file belongs to this plant."
        )


def _read_rows(stream: IO[bytes], member: Member, count: int, path: Path) -> npt.NDArray[Any]:
    size = count * member.width * member.dtype.itemsize
    data = stream.read(size)
    if len(data) != size:
        raise BadInput(
            f"expected {size} bytes more of '{member.name}' in {path.name}, got {len(data)}: copy the file again."
        )
    values = np.frombuffer(data, member.dtype).reshape(count, member.width)
    with np.errstate(over="ignore"):  # what float32 cannot hold becomes inf, and the row checks find it
        return values.astype(np.float32)
