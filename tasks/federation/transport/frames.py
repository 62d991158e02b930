"""What NeoRL and a Flower process beside it tell each other over a pair of sockets: a line of JSON, then arrays.

Flower's pins clash with NeoRL's, so its processes run in an environment of their own (`make federation`). This module
is imported on both sides, and by it alone they meet: nothing but numbers and text passes, and nothing is unpickled.
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
"""Bytes of all arrays of a frame: what gRPC lets through."""
TYPES = ("<f4", "<f8", "<i4", "<i8", "<u4", "<u8", "|b1", "|u1", "|i1", "<i2", "<u2", "<f2")


class Frame(NamedTuple):
    """One message between the two processes."""

    kind: Kind
    text: str = ""
    """JSON of what is said, which Flower hands on unread; of `failed` the reason."""
    arrays: Arrays = NOTHING
    number: int = 0
    """Of an `ask`, and of the `answer` or `failed` that it comes to."""
    node: int = 0
    """Flower's number of the node that is asked or answers."""
    seconds: float = 0.0
    """How long an answer to an `ask` is waited for."""


class Pipe:
    """A connected socket that carries frames; several threads may send."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket, self._sending = connection, Lock()

    def send(self, frame: Frame) -> None:
        """Send a frame.

        Raises:
            OSError: when the other side is gone.
        """
        layout, parts = [], []
        for name, array in frame.arrays.items():
            # `ascontiguousarray` would make a vector of a scalar.
            plain = np.asarray(array).astype(np.asarray(array).dtype.newbyteorder("<"), order="C", copy=False)
            layout.append([name, plain.dtype.str, list(plain.shape)])
            parts.append(plain.tobytes())
        header = json.dumps({**frame._asdict(), "arrays": layout}).encode()
        with self._sending:
            self._socket.sendall(LENGTH.pack(len(header)) + header)
            for part in parts:
                self._socket.sendall(part)

    def receive(self, seconds: float | None = None) -> Frame | None:
        """The next frame, or None where none came in time.

        Args:
            seconds: how long its beginning is waited for; without end where not given.

        Raises:
            EOFError: when the other side closed.
            BadInput: when what came is no frame.
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
            raise BadInput(f"expected a header of at most {MAX_HEADER} bytes, got {size}: start the process again.")
        try:
            header = json.loads(self._exactly(size))
            layout = [(str(name), _known(kind), tuple(map(int, shape))) for name, kind, shape in header.pop("arrays")]
            frame = Frame(**header)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise BadInput(f"expected a frame, got what cannot be read ({error}): start the process again.") from error
        sizes = [math.prod(shape) * kind.itemsize for _, kind, shape in layout]
        if any(any(n < 0 for n in shape) for _, _, shape in layout) or sum(sizes) > MAX_BYTES:
            raise BadInput(f"expected arrays of at most {MAX_BYTES} bytes, got more: federate a smaller network.")
        arrays = {
            name: np.frombuffer(self._exactly(size), kind).reshape(shape)
            for (name, kind, shape), size in zip(layout, sizes, strict=True)
        }
        return frame._replace(arrays=arrays)

    @property
    def ended(self) -> bool:
        """Whether the other side closed, and nothing more of it is to be read."""
        self._socket.settimeout(0)
        try:
            return not self._socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        finally:
            self._socket.settimeout(None)

    def close(self) -> None:
        """Close it; the other side reads its end."""
        # Without it a thread that waits in `receive` would wait on.
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


def _known(name: str) -> np.dtype[Any]:
    if name not in TYPES:
        raise ValueError(f"an array of type {name[:20]!r}")
    return np.dtype(name)
