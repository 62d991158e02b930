"""Importers of public offline-RL file formats; each yields blocks of rows, as the row checks take them."""

from __future__ import annotations

import lzma
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from configs.errors import BadInput
from neorl_core.plants.base import LoggedSignals
from neorl_core.types import PlantSpec
from tasks.adapters.scoring import BLOCK_ROWS, with_costs
from tasks.adapters.shards import Rows


@dataclass(frozen=True)
class Member:
    """An array inside an npz archive, known by its header alone."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def width(self) -> int:
        """Numbers per row."""
        return int(np.prod(self.shape[1:], dtype=np.int64))


def read_neorl2(path: Path, spec: PlantSpec, logged: LoggedSignals, block_rows: int = BLOCK_ROWS) -> Iterator[Rows]:
    """Stream a NeoRL-2 archive: obs, action, next_obs, reward, done, truncated (arXiv 2503.19267).

    `done` stops bootstrapping, `truncated` is a time limit. Costs come from the plant's limits; the files have none.

    Args:
        path: the .npz file.
        spec: gives the widths that obs and action must have.
        logged: the plant's margins.
        block_rows: rows per block.

    Returns:
        Blocks of rows (n, ...), unchecked.

    Raises:
        BadInput: when the file is missing, damaged, holds pickled objects, lacks a key, or a shape is wrong.
    """
    widths = {
        "obs": spec.observation.size,
        "action": spec.action.size,
        "next_obs": spec.observation.size,
        "reward": 1,
        "done": 1,
        "truncated": 1,
    }
    if not path.is_file():
        raise BadInput(f"expected a NeoRL-2 file at {path}, got none: check the path.")
    for block in _read_blocks(path, widths, block_rows):
        yield with_costs(block, logged)


def _read_blocks(path: Path, widths: Mapping[str, int], block_rows: int) -> Iterator[Rows]:
    """The archive's rows, block after block, as they stand."""
    try:
        with zipfile.ZipFile(path) as archive:
            members = {name: _read_header(archive, path, name) for name in widths}
            count = members["obs"].shape[0] if members["obs"].shape else 0
            for name, width in widths.items():
                _check_shape(path, members[name], count, width)
            if count == 0:
                raise BadInput(f"expected at least one row in {path.name}, got an empty dataset: export it again.")
            with ExitStack() as stack:
                streams = {name: stack.enter_context(archive.open(f"{name}.npy")) for name in widths}
                for name, stream in streams.items():
                    _parse_header(stream, path, name)
                for start in range(0, count, block_rows):
                    n = min(block_rows, count - start)
                    yield _named({name: _read_rows(streams[name], members[name], n, path) for name in widths})
                for name, stream in streams.items():
                    # Reading past the end is what makes zipfile compare the member's checksum.
                    if stream.read(1):
                        raise BadInput(f"expected {count} rows of '{name}' in {path.name}, got more: export it again.")
    except (zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError) as error:
        raise BadInput(f"expected a whole npz archive in {path.name}, got '{error}': copy the file again.") from error
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
        return _parse_header(stream, path, name)


def _parse_header(stream: IO[bytes], path: Path, name: str) -> Member:
    """Read an array's type and shape; what would need unpickling is refused here and never read."""
    try:
        version = np.lib.format.read_magic(stream)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, fortran, dtype = read(stream)
    except ValueError as error:
        raise BadInput(
            f"expected '{name}' in {path.name} to be a NumPy array, got '{error}': export it again."
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
    return Member(name, tuple(int(n) for n in shape), dtype)


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
