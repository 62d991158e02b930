"""A process of ours beside the commands, which serves on a socket that its user alone can reach."""

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
"""Seconds between two checks that the socket is still there."""


class OwnedSocketServer(socketserver.ThreadingUnixStreamServer):
    """A socket in a folder. Its server ends when idle, and when the folder or the socket is gone.

    Args:
        path: of the socket; one that is there is replaced, and its server ends.
        handler: of a connection; a request sets `last`.
        idle: seconds without a request after which the server ends; 0 is never.
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, path: Path, handler: type[socketserver.BaseRequestHandler], idle: float) -> None:
        self.last, self._idle = time.monotonic(), idle
        path.unlink(missing_ok=True)
        # The socket is bound by its name in its folder, for the kernel takes no long paths, and others cannot connect.
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
        """Take the socket away, unless it is another server's by now."""
        self.server_close()
        if self._is_ours():
            self._path.unlink(missing_ok=True)

    def _is_ours(self) -> bool:
        try:
            return self._path.stat().st_ino == self._inode
        except OSError:
            return False


def serve_in_child(server: OwnedSocketServer, said: str = "", log: int | None = None) -> None:
    """Leave a child behind that serves, in a session of its own; returns at once here, and in the child at its end.

    Args:
        server: which listens by now, so that whoever waits for the end of this process can connect.
        said: written to standard output here.
        log: descriptor that takes the child's standard error; nothing does without one.
    """
    if os.fork():
        sys.stdout.write(said)
        return
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor, target in ((nothing, 0), (nothing, 1), (nothing if log is None else log, 2)):
        os.dup2(descriptor, target)
    server.serve_forever(poll_interval=LOOK)
    server.close()


def started(module: str, *arguments: str, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """Run a module of ours that leaves a serving child behind, until the child listens or could not be started.

    Args:
        module: by its name; it runs the same sources as this process.
        arguments: of its command line.
        given: its standard input.
    """
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return subprocess.run(
        [sys.executable, "-P", "-m", module, *arguments],
        input=given,
        capture_output=True,
        env={**os.environ, "PYTHONPATH": path},
        check=False,
    )
