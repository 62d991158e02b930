"""npz archives of plain arrays, written by content alone and read without trust.

NumPy's own reader believes what an archive says of itself: it inflates whatever a member expands to, and allocates
whatever shape a header names. Here both are compared with the bytes that are there before anything is allocated.
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
"""Bytes of all arrays that `read_npz` reads unless told otherwise."""
MAX_RATIO = 1100
"""Bytes that one compressed byte may stand for: deflate reaches 1032."""
MAX_DIRECTORY_BYTES = 2**20
"""Size of an archive's table of contents: more than ten thousand members."""
MAX_HEADER_BYTES = 12 + 10_000
"""An array's magic string, header length and header, which NumPy limits to 10 000 characters."""
MAX_DIMENSIONS = 32


class Member(NamedTuple):
    """An array inside an npz archive, known by its header alone."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    header_bytes: int
    """Where its numbers begin within the member."""
    by_column: bool = False
    """Whether its first index changes fastest (Fortran order)."""

    @property
    def width(self) -> int:
        """Numbers per row."""
        return math.prod(self.shape[1:])

    @property
    def size_bytes(self) -> int:
        """Bytes of its numbers."""
        return math.prod(self.shape) * self.dtype.itemsize


class NpzReader:
    """An open npz archive. Each header is checked, against the bytes that are there, when its array is asked for.

    Open it with `open_npz`.
    """

    def __init__(self, path: Path, archive: zipfile.ZipFile, size: int) -> None:
        self.path = path
        self._archive, self._size = archive, size
        entries = archive.infolist()
        self.names = tuple(entry.filename.removesuffix(".npy") for entry in entries)
        if len(set(self.names)) < len(self.names):
            raise BadInput(f"expected arrays of different names in {path.name}, got one twice: export it again.")

    def member(self, name: str) -> Member:
        """The type and shape of an array, which its bytes are known to fill.

        Raises:
            BadInput: when there is no such array, it is not of plain numbers, or its bytes cannot be as
                many as its shape and type need.
        """
        if f"{name}.npy" not in self._archive.NameToInfo:
            found = ", ".join(sorted(self.names))[:300] or "none"
            raise BadInput(
                f"expected an array '{name}' in {self.path.name}, got only {found}: export it with that key."
            )
        entry = self._archive.getinfo(f"{name}.npy")
        if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            # bzip2 and LZMA inflate a few bytes to megabytes before zipfile can stop them.
            raise BadInput(
                f"expected an npz archive that NumPy can read in {self.path.name}, got compression method "
                f"{entry.compress_type} of '{name}': save it again with np.savez_compressed, without a password."
            )
        with self._archive.open(entry) as stream:
            member = _parse_header(stream.read(MAX_HEADER_BYTES), self.path, name)
        expected = member.header_bytes + member.size_bytes
        held = min(MAX_RATIO * min(entry.compress_size, self._size) + 64, entry.file_size)
        if expected > held:
            raise BadInput(
                f"expected {member.size_bytes} bytes of '{name}' in {self.path.name}, got {entry.compress_size} bytes "
                "that cannot hold as many: copy the file again."
            )
        if expected < entry.file_size:
            raise BadInput(
                f"expected {member.size_bytes} bytes of '{name}' in {self.path.name}, got more: export it again."
            )
        return member

    def open(self, member: Member) -> IO[bytes]:
        """A stream of an array's numbers alone, row after row; their end is where the checksum is compared.

        Raises:
            BadInput: when they do not lie row after row.
        """
        if member.by_column:
            raise BadInput(
                f"expected '{member.name}' of {self.path.name} row after row, got Fortran order: save "
                "np.ascontiguousarray of it."
            )
        stream = self._archive.open(f"{member.name}.npy")
        stream.read(member.header_bytes)
        return stream

    def read(self, member: Member) -> npt.NDArray[Any]:
        """A whole array, read-only; `member.size_bytes` says beforehand what it takes."""
        with self.open(member._replace(by_column=False)) as stream:
            # Reading 'all' would inflate up to two gigabytes before zipfile compares them with the size declared.
            data = stream.read(member.size_bytes)
        if len(data) != member.size_bytes:
            raise BadInput(
                f"expected {member.size_bytes} bytes of '{member.name}' in {self.path.name}, got {len(data)}: copy the "
                "file again."
            )
        return np.frombuffer(data, member.dtype).reshape(member.shape, order="F" if member.by_column else "C")


@contextmanager
def open_npz(path: Path) -> Iterator[NpzReader]:
    """Open an archive; what zipfile says of a damaged one, here or while it is read, becomes one sentence.

    Raises:
        BadInput: when it is no readable npz archive.

    Example:
        >>> with open_npz(Path("curves.npz")) as archive:  # doctest: +SKIP
        ...     step = archive.read(archive.member("step"))
    """
    if not path.is_file():
        raise BadInput(f"expected an npz archive at {path}, got none: check the path.")
    with reading_archive(path), _LimitedReads(io.FileIO(path)) as file, zipfile.ZipFile(file) as archive:
        file.limit = None
        yield NpzReader(path, archive, path.stat().st_size)


def read_npz(path: Path, limit_bytes: int = MAX_BYTES) -> dict[str, npt.NDArray[Any]]:
    """All arrays of an archive, by name, read-only.

    Args:
        path: the .npz file.
        limit_bytes: what its arrays may take of memory together; a larger archive is refused before it is read.

    Raises:
        BadInput: when a member is not an array of plain numbers whose bytes are there, or there are too many bytes.
    """
    with open_npz(path) as archive:
        members = [archive.member(name) for name in archive.names]
        size = sum(member.size_bytes for member in members)
        if size > limit_bytes:
            raise BadInput(
                f"expected arrays of at most {limit_bytes} bytes in {path.name}, got {size}: check where the file "
                "comes from."
            )
        return {member.name: archive.read(member) for member in members}


def npz_bytes(arrays: Mapping[str, npt.NDArray[Any]]) -> bytes:
    """An npz whose bytes depend on its arrays alone: sorted names, no clock, no compression."""
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
    """Whatever zipfile and its decompressors say of a damaged archive, as one sentence."""
    try:
        yield
    except (zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, OSError, ValueError, struct.error) as error:
        said = " ".join(str(error).split())[:300]
        raise BadInput(f"expected a whole npz archive in {path.name}, got '{said}': copy the file again.") from error
    except RuntimeError as error:
        # What zipfile raises for an encrypted member, and in a subclass for a compression that it does not know.
        raise BadInput(
            f"expected an npz archive that NumPy can read in {path.name}, got '{error}': save it again with "
            "np.savez_compressed, without a password."
        ) from error


class _LimitedReads(io.BufferedReader):
    """A file of which no more than `limit` bytes are read at once: zipfile reads a table of contents in one piece."""

    limit: int | None = MAX_DIRECTORY_BYTES

    def read(self, size: int | None = -1, /) -> bytes:
        if self.limit is None:
            return super().read(size)
        # zipfile asks for 'the rest' only where it looks for the end of the table, in the last 64 KiB.
        data = super().read(self.limit + 1 if size is None or size < 0 else min(size, self.limit + 1))
        if len(data) > self.limit:
            raise zipfile.BadZipFile(f"a table of contents of more than {self.limit} bytes")
        return data


def _parse_header(data: bytes, path: Path, name: str) -> Member:
    """An array's type and shape; what would need unpickling is refused here and never read."""
    stream = io.BytesIO(data)
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
        raise BadInput(f"expected numbers in '{name}' of {path.name}, got {str(dtype)[:60]}: save it as float32.")
    if len(shape) > MAX_DIMENSIONS or any(not 0 <= n < 2**48 for n in shape):
        raise BadInput(
            f"expected a shape of at most {MAX_DIMENSIONS} lengths below 2^48 of '{name}' in {path.name}, got another: "
            "export it again."
        )
    return Member(name, tuple(int(n) for n in shape), dtype, stream.tell(), fortran and len(shape) > 1)
