"""A forwarder on the loopback interface that records every byte in both directions."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress

from tasks.federation.transport.flower_process import HOST


class Wiretap:
    """Forward connections to an address within the context."""

    def __init__(self, to: str) -> None:
        host, _, port = to.rpartition(":")
        self._to = (host, int(port))
        self._server = socket.create_server((HOST, 0))
        self.address = f"{HOST}:{self._server.getsockname()[1]}"
        self._parts = list[bytes]()
        self._open = list[socket.socket]()

    def __enter__(self) -> Wiretap:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        for each in (self._server, *self._open):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    @property
    def heard(self) -> bytes:
        """All bytes so far, by direction."""
        return b"".join(self._parts)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                inner, _ = self._server.accept()
                try:
                    outer = socket.create_connection(self._to)
                except OSError:
                    inner.close()
                    continue
                self._open += [inner, outer]
                for source, sink in ((inner, outer), (outer, inner)):
                    threading.Thread(target=self._forward, args=(source, sink), daemon=True).start()

    def _forward(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                self._parts.append(data)
                sink.sendall(data)
        for each in (source, sink):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
