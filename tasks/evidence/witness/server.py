"""HTTP server of a witness, on a TCP port or on a Unix socket that only the user can open."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote

from configs.errors import BadInput, Refused
from tasks.evidence.ledger.keys import open_key
from tasks.evidence.ledger.signing import key_id
from tasks.evidence.witness.notes import NAME as NAME_FORM
from tasks.evidence.witness.notes import Verifier
from tasks.evidence.witness.witness import TEXT_TYPE, Denied, Witness
from tasks.files.canonical import write_atomic
from tasks.files.sockets import OwnedSocketServer, serve_in_child

MAX_BYTES = 64 * 1024
"""Largest request in bytes."""
KEY, NAME = "key.pem", "name"
TIMEOUT = 30.0
"""Seconds without data after which a connection is closed."""


def open_witness(
    folder: Path,
    name: str = "",
    *,
    open_to_all: bool = False,
    passphrase: bytes | None = None,
    clock: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> Witness:
    """Open the witness in a folder; create key and name if the folder has none.

    Args:
        name: name of a new witness; if the name ends in '/', the key's id is appended.
    """
    kept = folder / NAME
    if name and not kept.exists() and re.fullmatch(NAME_FORM, f"{name}x") is None:
        raise BadInput(f"a witness's name must not contain spaces or '+', got {name!r}: use your host's name")
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"cannot create the witness folder {folder} ('{error.strerror}'): choose another") from error
    key = open_key(folder / KEY, passphrase)
    name = f"{name}{key_id(key.public)}" if name.endswith("/") else name
    if not kept.exists():
        write_atomic(kept, (name or f"neorl.witness/{key_id(key.public)}").encode())
    found = kept.read_text()
    if name not in ("", found) or re.fullmatch(NAME_FORM, found) is None:
        raise BadInput(f"the folder {folder} belongs to witness {found!r}, got the name {name!r}: leave the name out")
    return Witness(folder, found, key, clock, open_to_all)


class Handler(BaseHTTPRequestHandler):
    """Answers the HTTP requests of a witness: add-checkpoint, nonce, add-log, newest and key."""

    protocol_version = "HTTP/1.1"
    timeout = TIMEOUT

    def do_POST(self) -> None:
        witness = self._server.witness
        doing = {"/add-checkpoint": witness.add_checkpoint, "/nonce": witness.nonce, "/add-log": witness.accept_log}
        try:
            length = int(self.headers.get("Content-Length", ""))
            if not 0 <= length <= MAX_BYTES:
                raise Denied(413, f"a request may have at most {MAX_BYTES} bytes, got {length}.")
            body = self.rfile.read(length).decode()
            if self.path not in doing:
                raise Denied(404, f"the path must be /add-checkpoint, /nonce or /add-log, got {self.path[:60]!r}.")
            self._answer(200, doing[self.path](body))
        except Denied as error:
            self._answer(error.status, error.text, error.content_type)
        except ValueError as error:
            self._answer(400, f"the request needs a Content-Length and UTF-8 text: {error}.")

    def do_GET(self) -> None:
        try:
            if self.path == "/key":
                self._answer(200, f"{self._server.witness.verifier}\n")
            else:
                self._answer(200, self._server.witness.newest(unquote(self.path.removeprefix("/newest/"))))
        except Denied as error:
            self._answer(error.status, error.text, error.content_type)

    @property
    def _server(self) -> TcpServer | SocketServer:
        assert isinstance(self.server, TcpServer | SocketServer)
        self.server.last = time.monotonic()
        return self.server

    def _answer(self, status: int, text: str, content_type: str = TEXT_TYPE) -> None:
        data = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def address_string(self) -> str:
        """Return the client's address; clients of a Unix socket have none."""
        return str(self.client_address[0]) if self.client_address else "local"

    def log_message(self, format: str, *args: object) -> None:
        """Do not log requests."""


class TcpServer(ThreadingHTTPServer):
    def __init__(self, witness: Witness, host: str, port: int) -> None:
        self.witness, self.last = witness, time.monotonic()
        super().__init__((host, port), Handler)


class SocketServer(OwnedSocketServer):
    def __init__(self, witness: Witness, path: Path, idle: float) -> None:
        self.witness = witness
        super().__init__(path, Handler, idle)


def serve(witness: Witness, host: str, port: int, ready: Callable[[Verifier, int], None]) -> None:
    """Serve on a port until interrupted.

    Args:
        ready: called with the witness's key and the port when the server listens.
    """
    try:
        server = TcpServer(witness, host, port)
    except OSError as error:
        raise BadInput(f"cannot listen on {host}:{port} ('{error.strerror}'): choose another port") from error
    with server:
        ready(witness.verifier, server.server_address[1])
        server.serve_forever()


def main(folder: str, socket: str, name: str, idle: str) -> int:
    """Start a home's own witness in a child process and print its key; return the exit status."""
    try:
        witness = open_witness(Path(folder), name, open_to_all=True)
        server = SocketServer(witness, Path(socket), float(idle))
    except (Refused, BadInput) as error:
        sys.stderr.write(str(error))
        return 1
    serve_in_child(server, announcement=str(witness.verifier))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
