"""Asking witnesses: over HTTP, or the socket of the home's own, which is started by whoever needs it first."""

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
from tasks.files.locks import exclusive
from tasks.files.sockets import run_module

PATIENCE = 10.0
"""Seconds to wait for a witness; several may be silent, and whoever asked the signer waits for a minute."""
OWN = "unix:witness/witness.sock"
"""Where a home's own witness listens."""
LARGEST = 1 << 20
"""Bytes of the longest answer that is read."""


class Reply(NamedTuple):
    """A witness's answer."""

    status: int
    text: str


Reach = Callable[[PinnedWitness, str, str | None], Reply]
"""(witness, path, body) -> its answer, by GET where there is no body; OSError where there is none."""


def over_http(home: Home) -> Reach:
    """Reach witnesses where they are pinned; the home's own is started where it does not run."""
    return partial(_ask, home)


def newest_path(origin: str) -> str:
    """Where a witness tells the newest head of a log that it knows."""
    return f"/newest/{quote(origin, safe='')}"


def start_own(home: Home) -> Verifier:
    """Start the home's own witness unless it answers, and wait until it listens; its key.

    Raises:
        Refused: when it does not start.
    """
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
        raise Refused(f"expected this home's own witness to start, got '{last}'.")
    return Verifier.parse(done.stdout.decode())


def stop_own(home: Home) -> bool:
    """End the home's own witness, if one runs; returns whether one ran."""
    own = _socket(home, OWN)
    try:
        _exchange(_UnixConnection(own), "/key", None)
    except OSError:
        return False
    own.unlink(missing_ok=True)  # which ends it
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
    url = urlsplit(witness.url)
    kind = HTTPSConnection if url.scheme == "https" else HTTPConnection
    try:
        connection = kind(url.netloc, timeout=PATIENCE)
    except (HTTPException, ValueError) as error:
        raise ConnectionError(f"an address that is none ({error})") from error
    return _exchange(connection, url.path.rstrip("/") + path, body)


def _socket(home: Home, url: str) -> Path:
    return home.root / url.removeprefix("unix:")


def _exchange(connection: HTTPConnection, path: str, body: str | None) -> Reply:
    try:
        connection.request("GET" if body is None else "POST", path, body=None if body is None else body.encode())
        answer = connection.getresponse()
        return Reply(answer.status, answer.read(LARGEST).decode())
    except (HTTPException, UnicodeError) as error:
        raise ConnectionError(f"an answer that is none ({error})") from error
    finally:
        connection.close()


class _UnixConnection(HTTPConnection):
    """HTTP over a socket in the file system."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=PATIENCE)
        self._path = path

    def connect(self) -> None:
        """Connect to the socket."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(PATIENCE)
        with short_address(self._path) as address:
            self.sock.connect(address)
