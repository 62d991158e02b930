"""Write npz archives reproducibly (equal arrays give equal bytes), and read untrusted npz archives safely.

NumPy's own reader decompresses every array completely and allocates any shape that a header declares. This reader first
checks that the file has enough bytes for the declared shape.
"""

from __future__ import annotations

import io
import lzma
import math
import struct
import tokenize
import warnings
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from configs.errors import BadInput

MAX_BYTES = 2**28
"""Default limit of `read_npz` for the total size of all arrays, in bytes."""
MAX_RATIO = 1100
"""Largest accepted compression ratio: decompressed divided by compressed bytes. Deflate reaches 1032."""
MAX_DIRECTORY_BYTES = 2**20
"""Largest accepted table of contents in bytes, enough for ten thousand arrays."""
MAX_HEADER_BYTES = 12 + 10_000
"""Largest header of an array in bytes: magic string and length (12), and NumPy's limit of 10,000 characters."""
MAX_DIMENSIONS = 32


class Member(NamedTuple):
    """Name, shape and type of an array in an npz archive, from the array's header."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    header_bytes: int
    """Length of the header; the array's values follow."""
    by_column: bool = False
    """Whether the values are in Fortran order, in which the first index changes fastest."""

    @property
    def width(self) -> int:
        """Number of values per row; a row is one entry of the first axis."""
        return math.prod(self.shape[1:])

    @property
    def size_bytes(self) -> int:
        """Size of the values in bytes, without the header."""
        return math.prod(self.shape) * self.dtype.itemsize


class NpzReader:
    """An open npz archive, returned by `open_npz`."""

    def __init__(self, path: Path, archive: zipfile.ZipFile, size: int) -> None:
        self.path = path
        self._archive, self._size = archive, size
        entries = archive.infolist()
        self.names = tuple(entry.filename.removesuffix(".npy") for entry in entries)
        if len(set(self.names)) < len(self.names):
            raise BadInput(f"two arrays in {path.name} have the same name: export it again.")

    def member(self, name: str) -> Member:
        """Return an array's shape and type; raise BadInput if it is missing, not numeric or of the wrong size."""
        if f"{name}.npy" not in self._archive.NameToInfo:
            names = ", ".join(sorted(self.names))[:300] or "no arrays"
            raise BadInput(f"{self.path.name} has no array '{name}', only {names}: export it with this array.")
        entry = self._archive.getinfo(f"{name}.npy")
        if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            # bzip2 and LZMA can decompress a few bytes to megabytes before zipfile can stop.
            raise BadInput(
                f"'{name}' in {self.path.name} uses compression method {entry.compress_type}, which NumPy cannot read: "
                "save it again with np.savez_compressed, without a password."
            )
        with self._archive.open(entry) as stream:
            member = _parse_header(stream.read(MAX_HEADER_BYTES), self.path, name)
        needed = member.header_bytes + member.size_bytes
        available = min(MAX_RATIO * min(entry.compress_size, self._size) + 64, entry.file_size)
        if needed > available:
            raise BadInput(
                f"'{name}' in {self.path.name} declares {member.size_bytes} bytes, which is more than its "
                f"{entry.compress_size} compressed bytes can contain: copy the file again."
            )
        if needed < entry.file_size:
            raise BadInput(
                f"'{name}' in {self.path.name} has more data than its header declares ({member.size_bytes} bytes): "
                "export it again."
            )
        return member

    def open(self, member: Member) -> IO[bytes]:
        """Open a stream of an array's values, row by row; raise BadInput if the array is in Fortran order.

        The checksum is verified when the stream has been read to the end.
        """
        if member.by_column:
            raise BadInput(
                f"'{member.name}' of {self.path.name} is in Fortran order and cannot be read row by row: convert it "
                "with np.ascontiguousarray and save it again."
            )
        stream = self._archive.open(f"{member.name}.npy")
        stream.read(member.header_bytes)
        return stream

    def read(self, member: Member) -> npt.NDArray[Any]:
        """Return a whole array, read-only; this needs `member.size_bytes` bytes of memory."""
        with self.open(member._replace(by_column=False)) as stream:
            # Without a size, zipfile would decompress up to two gigabytes before it checks the declared size.
            data = stream.read(member.size_bytes)
        if len(data) != member.size_bytes:
            raise BadInput(
                f"'{member.name}' in {self.path.name} ends after {len(data)} of {member.size_bytes} bytes: copy the "
                "file again."
            )
        return np.frombuffer(data, member.dtype).reshape(member.shape, order="F" if member.by_column else "C")


@contextmanager
def open_npz(path: Path) -> Iterator[NpzReader]:
    """Open an npz archive; a missing file, or damage found inside the `with` block, raises `BadInput`."""
    if not path.is_file():
        raise BadInput(f"{path} is not a file: give the path of an npz archive.")
    with reading_archive(path), _LimitedReads(io.FileIO(path)) as file, zipfile.ZipFile(file) as archive:
        file.limit = None
        yield NpzReader(path, archive, path.stat().st_size)


def read_npz(path: Path, limit_bytes: int = MAX_BYTES) -> dict[str, npt.NDArray[Any]]:
    """Return all arrays of an npz archive by name, read-only.

    Raise BadInput if an array is damaged or not numeric, or if all arrays together are larger than `limit_bytes`.
    """
    with open_npz(path) as archive:
        members = [archive.member(name) for name in archive.names]
        size = sum(member.size_bytes for member in members)
        if size > limit_bytes:
            raise BadInput(
                f"the arrays in {path.name} take {size} bytes, the limit is {limit_bytes}: check that the file is "
                "the right one."
            )
        return {member.name: archive.read(member) for member in members}


def npz_bytes(arrays: Mapping[str, npt.NDArray[Any]]) -> bytes:
    """Encode arrays as an uncompressed npz archive with a fixed date, so that equal arrays give equal bytes."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name in sorted(arrays):
            member = io.BytesIO()
            np.lib.format.write_array(member, arrays[name], version=(1, 0), allow_pickle=False)
            entry = zipfile.ZipInfo(f"{name}.npy", date_time=(1980, 1, 1, 0, 0, 0))
            entry.create_system = 3
            archive.writestr(entry, member.getvalue())
    return buffer.getvalue()


@contextmanager
def reading_archive(path: Path) -> Iterator[None]:
    """Turn errors that zipfile raises for a damaged or unsupported archive into `BadInput`."""
    try:
        yield
    except (zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, OSError, ValueError, struct.error) as error:
        reason = " ".join(str(error).split())[:300]
        raise BadInput(f"{path.name} is not a complete npz archive ({reason}): copy the file again.") from error
    except RuntimeError as error:
        # zipfile raises RuntimeError for an encrypted array, and a subclass of it for an unknown compression.
        raise BadInput(
            f"NumPy cannot read {path.name} ({error}): save it again with np.savez_compressed, without a password."
        ) from error


class _LimitedReads(io.BufferedReader):
    """A file that raises an error if zipfile reads a table of contents of more than `limit` bytes into memory."""

    limit: int | None = MAX_DIRECTORY_BYTES

    def read(self, size: int | None = -1, /) -> bytes:
        if self.limit is None:
            return super().read(size)
        # zipfile reads without a size only in the last 64 KiB, to find the end of the table.
        data = super().read(self.limit + 1 if size is None or size < 0 else min(size, self.limit + 1))
        if len(data) > self.limit:
            raise zipfile.BadZipFile(f"the table of contents has more than {self.limit} bytes")
        return data


def _parse_header(data: bytes, path: Path, name: str) -> Member:
    """Return an array's shape and type from its header; raise BadInput for pickled objects."""
    stream = io.BytesIO(data)
    try:
        version = np.lib.format.read_magic(stream)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # NumPy warns about headers written by Python 2
            shape, fortran, dtype = read(stream)
    except (ValueError, SyntaxError, TypeError, tokenize.TokenError, RecursionError, MemoryError) as error:
        reason = " ".join(str(error).split())[:300]
        raise BadInput(f"'{name}' in {path.name} is not a NumPy array ({reason}): export it again.") from None
    if dtype.hasobject:
        raise BadInput(
            f"'{name}' of {path.name} contains pickled objects, which can run code and are never loaded: save numeric "
            "arrays instead."
        )
    if dtype.kind not in "fiub":
        raise BadInput(f"'{name}' of {path.name} must be numeric, got {str(dtype)[:60]}: save it as float32.")
    if len(shape) > MAX_DIMENSIONS or any(not 0 <= n < 2**48 for n in shape):
        raise BadInput(
            f"'{name}' in {path.name} must have at most {MAX_DIMENSIONS} dimensions, each below 2^48, got shape "
            f"{str(shape)[:80]}: export it again."
        )
    return Member(name, tuple(int(n) for n in shape), dtype, stream.tell(), fortran and len(shape) > 1)
