"""Background processes that serve on a Unix socket which only their user can reach."""

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
    """A server on a Unix socket. It ends when idle, or when the folder or the socket is removed.

    Args:
        path: of the socket; an existing one is replaced, and its server ends.
        handler: of a connection; it sets `last` at each request.
        idle: seconds without a request after which the server ends; 0 for never.
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, path: Path, handler: type[socketserver.BaseRequestHandler], idle: float) -> None:
        self.last, self._idle = time.monotonic(), idle
        path.unlink(missing_ok=True)
        # Bind by name within the folder, because the kernel takes no long paths; mode 0600 keeps other users out.
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
        """Called between requests, at least every `LOOK` seconds."""
        idle = self._idle and time.monotonic() - self.last > self._idle
        if idle or not self._is_ours():
            threading.Thread(target=self.shutdown, daemon=True).start()

    def close(self) -> None:
        """Close, and remove the socket unless another server has replaced it."""
        self.server_close()
        if self._is_ours():
            self._path.unlink(missing_ok=True)

    def _is_ours(self) -> bool:
        try:
            return self._path.stat().st_ino == self._inode
        except OSError:
            return False


def serve_in_child(server: OwnedSocketServer, announcement: str = "", log: int | None = None) -> None:
    """Fork a child that serves in a session of its own. Returns at once in the parent, and at the end in the child.

    The server already listens, so that clients can connect as soon as this process ends. The announcement goes to the
    parent's standard output, and the child's standard error to the descriptor `log`, or to /dev/null.
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
    """Run a NeoRL module, of the same sources as this process, that leaves a serving child behind.

    Returns when the child listens or failed to start.
    """
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return subprocess.run(
        [sys.executable, "-P", "-m", module, *arguments],
        input=stdin,
        capture_output=True,
        env={**os.environ, "PYTHONPATH": path},
        check=False,
    )
