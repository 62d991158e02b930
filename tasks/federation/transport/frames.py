"""Frames between NeoRL and a Flower process over a socket pair: a JSON header, then arrays.

Flower's dependencies conflict with NeoRL's, so Flower runs in a separate environment (`make federation`). Both sides
import this module and exchange only numbers and text; nothing is unpickled.
"""

from __future__ import annotations

import json
import math
import socket
import struct
from collections.abc import Mapping
from contextlib import suppress
from threading import Lock
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from configs.errors import BadInput

Arrays = Mapping[str, npt.NDArray[Any]]
Kind = Literal["settings", "ready", "nodes", "ask", "answer", "failed"]

NOTHING: Arrays = MappingProxyType({})
LENGTH = struct.Struct(">I")
MAX_HEADER = 2**24
MAX_BYTES = 2**31
"""Largest size of all arrays of a frame, the limit of gRPC."""
TYPES = ("<f4", "<f8", "<i4", "<i8", "<u4", "<u8", "|b1", "|u1", "|i1", "<i2", "<u2", "<f2")


class Frame(NamedTuple):
    """One message between the two processes."""

    kind: Kind
    text: str = ""
    """JSON, which Flower forwards unread. In a frame of kind `failed`, the reason."""
    arrays: Arrays = NOTHING
    number: int = 0
    """Number of an `ask`, repeated in the `answer` or `failed`."""
    node: int = 0
    """Flower's number of the site's node."""
    seconds: float = 0.0
    """Time-out of an `ask`."""


class Pipe:
    """A connected socket for frames; several threads may send."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket, self._sending = connection, Lock()

    def send(self, frame: Frame) -> None:
        """Send a frame.

        Raises:
            OSError: if the other side closed.
        """
        layout, parts = [], []
        for name, array in frame.arrays.items():
            # `ascontiguousarray` would turn a scalar into a vector.
            plain = np.asarray(array).astype(np.asarray(array).dtype.newbyteorder("<"), order="C", copy=False)
            layout.append([name, plain.dtype.str, list(plain.shape)])
            parts.append(plain.tobytes())
        header = json.dumps({**frame._asdict(), "arrays": layout}).encode()
        with self._sending:
            self._socket.sendall(LENGTH.pack(len(header)) + header)
            for part in parts:
                self._socket.sendall(part)

    def receive(self, seconds: float | None = None) -> Frame | None:
        """Return the next frame, or None after a time-out.

        Args:
            seconds: time-out for the start of the frame; None waits forever.

        Raises:
            EOFError: if the other side closed.
            BadInput: if the data are not a frame.
        """
        self._socket.settimeout(seconds)
        try:
            first = self._socket.recv(LENGTH.size)
        except (TimeoutError, BlockingIOError):
            return None
        self._socket.settimeout(None)
        if not first:
            raise EOFError("the other process closed")
        size = LENGTH.unpack(first + self._exactly(LENGTH.size - len(first)))[0]
        if size > MAX_HEADER:
            raise BadInput(f"a header may have at most {MAX_HEADER} bytes, got {size}: restart the process")
        try:
            header = json.loads(self._exactly(size))
            layout = [(str(name), _dtype(kind), tuple(map(int, shape))) for name, kind, shape in header.pop("arrays")]
            frame = Frame(**header)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise BadInput(f"the frame cannot be read ({error}): restart the process") from error
        sizes = [math.prod(shape) * kind.itemsize for _, kind, shape in layout]
        if any(any(n < 0 for n in shape) for _, _, shape in layout) or sum(sizes) > MAX_BYTES:
            raise BadInput(f"arrays may have at most {MAX_BYTES} bytes, got {sum(sizes)}: federate a smaller network")
        arrays = {
            name: np.frombuffer(self._exactly(size), kind).reshape(shape)
            for (name, kind, shape), size in zip(layout, sizes, strict=True)
        }
        return frame._replace(arrays=arrays)

    @property
    def ended(self) -> bool:
        """Return whether the other side closed the socket and all frames were read."""
        self._socket.settimeout(0)
        try:
            return not self._socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        finally:
            self._socket.settimeout(None)

    def close(self) -> None:
        """Close the socket; the other process then reads an end of file."""
        # A shutdown wakes a thread that waits in `receive`.
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            part = self._socket.recv(min(size - len(data), 2**20))
            if not part:
                raise EOFError("the other process closed within a frame")
            data += part
        return bytes(data)


def _dtype(name: str) -> np.dtype[Any]:
    if name not in TYPES:
        raise ValueError(f"array type {name[:20]!r} is not allowed")
    return np.dtype(name)
