"""Background servers on Unix sockets; only the user who started a server can connect."""

from __future__ import annotations

import os
import socketserver
import subprocess
import sys
import threading
import time
from pathlib import Path

from tasks.files.provenance import ROOT

LOOK = 0.25
"""Seconds between checks that the socket still exists."""


class OwnedSocketServer(socketserver.ThreadingUnixStreamServer):
    """A server on a Unix socket. The server stops when it is idle, or when the socket file is removed.

    Args:
        path: the socket file; an existing file is replaced, so that its server stops.
        handler: class that handles a connection; it sets the server's `last` to `time.monotonic()` at each request.
        idle: seconds without a request after which the server stops; 0 means never.
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, path: Path, handler: type[socketserver.BaseRequestHandler], idle: float) -> None:
        self.last, self._idle = time.monotonic(), idle
        path.unlink(missing_ok=True)
        # Bind to a name in the current folder, because the kernel rejects long paths. Mode 0600 keeps other users out.
        here, mask = os.open(".", os.O_RDONLY), os.umask(0o177)
        try:
            os.chdir(path.parent)
            super().__init__(path.name, handler)
        finally:
            os.umask(mask)
            os.fchdir(here)
            os.close(here)
        self._path, self._inode = path, path.stat().st_ino

    def service_actions(self) -> None:
        """Stop the server if it is idle or its socket file is gone; called at least every `LOOK` seconds."""
        idle = self._idle and time.monotonic() - self.last > self._idle
        if idle or not self._is_ours():
            threading.Thread(target=self.shutdown, daemon=True).start()

    def close(self) -> None:
        """Close the server, and remove the socket file unless another server has replaced it."""
        self.server_close()
        if self._is_ours():
            self._path.unlink(missing_ok=True)

    def _is_ours(self) -> bool:
        try:
            return self._path.stat().st_ino == self._inode
        except OSError:
            return False


def serve_in_child(server: OwnedSocketServer, announcement: str = "", log: int | None = None) -> None:
    """Run a server in a forked background process. The parent returns at once, the child when the server has stopped.

    The server already listens, so clients can connect as soon as the parent ends. The parent prints `announcement`. The
    child writes its standard error to the file descriptor `log`; if `log` is None, the output is discarded.
    """
    if os.fork():
        sys.stdout.write(announcement)
        return
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor, target in ((nothing, 0), (nothing, 1), (nothing if log is None else log, 2)):
        os.dup2(descriptor, target)
    server.serve_forever(poll_interval=LOOK)
    server.close()


def run_module(module: str, *arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """Run a NeoRL module that starts a background server; return when the server listens or has failed to start.

    The module comes from the same source folder as this process.
    """
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return subprocess.run(
        [sys.executable, "-P", "-m", module, *arguments],
        input=stdin,
        capture_output=True,
        env={**os.environ, "PYTHONPATH": path},
        check=False,
    )
