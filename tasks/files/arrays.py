"""Write npz archives with bytes that depend on the arrays alone, and read npz archives from untrusted sources.

NumPy's own reader inflates any member completely and allocates any shape that a header declares. This reader first
compares sizes and shapes with the bytes in the file.
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
"""Default limit for the bytes of all arrays that `read_npz` reads."""
MAX_RATIO = 1100
"""Largest accepted ratio of inflated to compressed bytes; deflate reaches 1032."""
MAX_DIRECTORY_BYTES = 2**20
"""Largest accepted table of contents: room for more than ten thousand members."""
MAX_HEADER_BYTES = 12 + 10_000
"""Magic string, header length and header of an array; NumPy limits the header to 10,000 characters."""
MAX_DIMENSIONS = 32


class Member(NamedTuple):
    """Header of an array inside an npz archive."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    header_bytes: int
    """Offset of the numbers within the member."""
    by_column: bool = False
    """Fortran order: the first index changes fastest."""

    @property
    def width(self) -> int:
        """Numbers per row."""
        return math.prod(self.shape[1:])

    @property
    def size_bytes(self) -> int:
        """Bytes of the numbers."""
        return math.prod(self.shape) * self.dtype.itemsize


class NpzReader:
    """An open npz archive, made by `open_npz`. The header of an array is checked when the array is requested."""

    def __init__(self, path: Path, archive: zipfile.ZipFile, size: int) -> None:
        self.path = path
        self._archive, self._size = archive, size
        entries = archive.infolist()
        self.names = tuple(entry.filename.removesuffix(".npy") for entry in entries)
        if len(set(self.names)) < len(self.names):
            raise BadInput(f"{path.name} contains two arrays of one name: export it again.")

    def member(self, name: str) -> Member:
        """Return the type and shape of an array; raise BadInput if it is missing, not numeric, or cut short."""
        if f"{name}.npy" not in self._archive.NameToInfo:
            names = ", ".join(sorted(self.names))[:300] or "no arrays"
            raise BadInput(f"{self.path.name} has no array '{name}', only {names}: export it with that key.")
        entry = self._archive.getinfo(f"{name}.npy")
        if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            # bzip2 and LZMA inflate a few bytes to megabytes before zipfile can stop them.
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
                f"'{name}' in {self.path.name} declares {member.size_bytes} bytes, but its {entry.compress_size} "
                "compressed bytes cannot contain as many: copy the file again."
            )
        if needed < entry.file_size:
            raise BadInput(
                f"'{name}' in {self.path.name} has more than the {member.size_bytes} bytes declared: export it again."
            )
        return member

    def open(self, member: Member) -> IO[bytes]:
        """Open a stream of an array's numbers, row after row; raise BadInput if it is in Fortran order.

        Reading to the end checks the checksum.
        """
        if member.by_column:
            raise BadInput(
                f"'{member.name}' of {self.path.name} is in Fortran order and cannot be streamed by row: save "
                "np.ascontiguousarray of it."
            )
        stream = self._archive.open(f"{member.name}.npy")
        stream.read(member.header_bytes)
        return stream

    def read(self, member: Member) -> npt.NDArray[Any]:
        """Return a whole array, read-only. It takes `member.size_bytes` of memory."""
        with self.open(member._replace(by_column=False)) as stream:
            # Without a size, zipfile would inflate up to two gigabytes before it compares them with the declared size.
            data = stream.read(member.size_bytes)
        if len(data) != member.size_bytes:
            raise BadInput(
                f"'{member.name}' in {self.path.name} has {len(data)} of {member.size_bytes} bytes: copy the file "
                "again."
            )
        return np.frombuffer(data, member.dtype).reshape(member.shape, order="F" if member.by_column else "C")


@contextmanager
def open_npz(path: Path) -> Iterator[NpzReader]:
    """Open an npz archive; damage found now or while reading raises `BadInput`, as does a missing file.

    Example:
        >>> with open_npz(Path("curves.npz")) as archive:  # doctest: +SKIP
        ...     step = archive.read(archive.member("step"))
    """
    if not path.is_file():
        raise BadInput(f"{path} is not a file: give the path of an npz archive.")
    with reading_archive(path), _LimitedReads(io.FileIO(path)) as file, zipfile.ZipFile(file) as archive:
        file.limit = None
        yield NpzReader(path, archive, path.stat().st_size)


def read_npz(path: Path, limit_bytes: int = MAX_BYTES) -> dict[str, npt.NDArray[Any]]:
    """Return all arrays of an archive by name, read-only; raise BadInput for a damaged or non-numeric array.

    The size of all arrays together is compared with `limit_bytes` before reading; a larger one raises BadInput, too.
    """
    with open_npz(path) as archive:
        members = [archive.member(name) for name in archive.names]
        size = sum(member.size_bytes for member in members)
        if size > limit_bytes:
            raise BadInput(
                f"the arrays in {path.name} take {size} bytes, the limit is {limit_bytes}: check where the file comes "
                "from."
            )
        return {member.name: archive.read(member) for member in members}


def npz_bytes(arrays: Mapping[str, npt.NDArray[Any]]) -> bytes:
    """Return an npz archive as bytes that depend on the arrays alone: sorted names, fixed date, no compression."""
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
    """Turn errors of zipfile and the decompressors about a damaged archive into `BadInput`."""
    try:
        yield
    except (zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, OSError, ValueError, struct.error) as error:
        reason = " ".join(str(error).split())[:300]
        raise BadInput(f"{path.name} is not a complete npz archive ({reason}): copy the file again.") from error
    except RuntimeError as error:
        # zipfile raises it for an encrypted member, and a subclass for an unknown compression.
        raise BadInput(
            f"NumPy cannot read {path.name} ({error}): save it again with np.savez_compressed, without a password."
        ) from error


class _LimitedReads(io.BufferedReader):
    """A file that reads at most `limit` bytes at once, because zipfile reads a table of contents in one piece."""

    limit: int | None = MAX_DIRECTORY_BYTES

    def read(self, size: int | None = -1, /) -> bytes:
        if self.limit is None:
            return super().read(size)
        # zipfile reads without a size only when it looks for the end of the table, in the last 64 KiB.
        data = super().read(self.limit + 1 if size is None or size < 0 else min(size, self.limit + 1))
        if len(data) > self.limit:
            raise zipfile.BadZipFile(f"a table of contents of more than {self.limit} bytes")
        return data


def _parse_header(data: bytes, path: Path, name: str) -> Member:
    """Return an array's type and shape; refuse arrays that would need unpickling."""
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
            f"'{name}' of {path.name} contains pickled objects, which can run code and are never loaded: save plain "
            "arrays instead."
        )
    if dtype.kind not in "fiub":
        raise BadInput(f"'{name}' of {path.name} must be numeric, got {str(dtype)[:60]}: save it as float32.")
    if len(shape) > MAX_DIMENSIONS or any(not 0 <= n < 2**48 for n in shape):
        raise BadInput(
            f"'{name}' in {path.name} must have at most {MAX_DIMENSIONS} dimensions below 2^48, got "
            f"{str(shape)[:80]}: export it again."
        )
    return Member(name, tuple(int(n) for n in shape), dtype, stream.tell(), fortran and len(shape) > 1)
