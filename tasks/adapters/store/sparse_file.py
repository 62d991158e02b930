"""A file in memory whose unwritten stretches take none of it."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer


class SparseFile(io.RawIOBase):
    """A seekable binary file that keeps what was written and where; the rest reads as zeros.

    For a few small writes far apart, as HDF5 makes when it lays out arrays that it is not given: every read goes
    through all that was written.

    Example:
        >>> file = SparseFile()
        >>> _ = file.seek(10**12), file.write(b"end")
        >>> file.stretch(10**12 - 2, 10**12 + 2)
        b'\\x00\\x00en'
    """

    def __init__(self) -> None:
        super().__init__()
        self._written: list[tuple[int, bytes]] = []
        self._at = self._size = 0

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def write(self, data: ReadableBuffer) -> int:
        if held := bytes(data):
            self._written.append((self._at, held))
            self._at += len(held)
            self._size = max(self._size, self._at)
        return len(held)

    def truncate(self, size: int | None = None) -> int:
        self._size = self._at if size is None else size
        self._written = [(at, data[: self._size - at]) for at, data in self._written if at < self._size]
        return self._size

    def readinto(self, buffer: WriteableBuffer) -> int:
        into = memoryview(buffer).cast("B")
        found = self.stretch(self._at, min(self._at + len(into), self._size))
        into[: len(found)] = found
        self._at += len(found)
        return len(found)

    def stretch(self, start: int, stop: int) -> bytes:
        """Bytes [start, stop), wherever the file ends."""
        found = bytearray(max(stop - start, 0))
        # In the order of writing, so that the last one holds.
        for at, data in self._written:
            first, last = max(at, start), min(at + len(data), stop)
            if first < last:
                found[first - start : last - start] = data[first - at : last - at]
        return bytes(found)
