"""HTTP client for witnesses; starts the home's own witness on demand."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from functools import partial
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote, urlsplit

from configs.errors import Refused
from configs.home import Home
from tasks.evidence.claims import LOCAL
from tasks.evidence.ledger.client import DEFAULT_IDLE, IDLE, short_address
from tasks.evidence.witness.notes import Verifier
from tasks.evidence.witness.pinned import PinnedWitness
from tasks.files.canonical import exclusive
from tasks.files.sockets import run_module

TIMEOUT = 10.0
"""Timeout of one request in seconds. It is short, because the signer's client waits only 60 s for all witnesses."""
OWN = "unix:witness/witness.sock"
"""Socket of the home's own witness."""
MAX_BYTES = 1 << 20
"""Longest answer that is read, in bytes."""


class Reply(NamedTuple):
    status: int
    text: str


Transport = Callable[[PinnedWitness, str, str | None], Reply]
"""Function (witness, path, body) -> reply. A body of None means GET. Raises OSError without an answer."""


def http_transport(home: Home) -> Transport:
    """Return a transport over HTTP and Unix sockets. It starts the home's own witness if this does not run."""
    return partial(_ask, home)


def newest_path(origin: str) -> str:
    return f"/newest/{quote(origin, safe='')}"


def start_own(home: Home) -> Verifier:
    """Start the home's own witness unless it runs, wait until it listens, and return its key."""
    own = _socket(home, OWN)
    with exclusive(home.folder("locks") / "witness.lock"):
        try:
            return Verifier.parse(_exchange(_UnixConnection(own), "/key", None).text.strip())
        except OSError:
            pass
        folder, idle = home.folder("witness"), os.environ.get(IDLE, DEFAULT_IDLE)
        module = "tasks.evidence.witness.server"
        done = run_module(module, str(folder.resolve()), str(own.resolve()), LOCAL, idle)
    if done.returncode:
        last = (done.stderr.decode(errors="replace").strip().splitlines() or ["nothing"])[-1]
        raise Refused(f"this home's own witness did not start ('{last}'): see the folder {folder}")
    return Verifier.parse(done.stdout.decode())


def stop_own(home: Home) -> bool:
    """Stop the home's own witness; return whether it ran."""
    own = _socket(home, OWN)
    try:
        _exchange(_UnixConnection(own), "/key", None)
    except OSError:
        return False
    own.unlink(missing_ok=True)  # the server exits when the socket is gone
    return True


def _ask(home: Home, witness: PinnedWitness, path: str, body: str | None) -> Reply:
    if witness.url.startswith("unix:"):
        try:
            return _exchange(_UnixConnection(_socket(home, witness.url)), path, body)
        except (FileNotFoundError, ConnectionError):
            if witness.url != OWN:
                raise
        start_own(home)
        return _exchange(_UnixConnection(_socket(home, witness.url)), path, body)
    return _exchange(connection_to(witness.url, TIMEOUT), urlsplit(witness.url).path.rstrip("/") + path, body)


def connection_to(address: str, timeout: float) -> HTTPConnection:
    """Return a connection to the host of an HTTP or HTTPS address; it opens with the first request."""
    url = urlsplit(address)
    try:
        return (HTTPSConnection if url.scheme == "https" else HTTPConnection)(url.netloc, timeout=timeout)
    except (HTTPException, ValueError) as error:
        raise ConnectionError(f"invalid address {address} ({error})") from error


def _socket(home: Home, url: str) -> Path:
    return home.root / url.removeprefix("unix:")


def _exchange(connection: HTTPConnection, path: str, body: str | None) -> Reply:
    try:
        connection.request("GET" if body is None else "POST", path, body=None if body is None else body.encode())
        answer = connection.getresponse()
        return Reply(answer.status, answer.read(MAX_BYTES).decode())
    except (HTTPException, UnicodeError) as error:
        raise ConnectionError(f"invalid answer ({error})") from error
    finally:
        connection.close()


class _UnixConnection(HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=TIMEOUT)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(TIMEOUT)
        with short_address(self._path) as address:
            self.sock.connect(address)
