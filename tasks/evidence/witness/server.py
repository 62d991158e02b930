"""A witness's process: HTTP on a loopback port, or on a socket that its user alone can reach.

Run by `neorl witness serve`, and for a home's own witness by `client.start_own`.
"""

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
from tasks.evidence.witness.service import TEXT_TYPE, Denied, Witness
from tasks.files.canonical import write_atomic
from tasks.files.sockets import OwnedSocketServer, serve_in_child

LARGEST = 64 * 1024
"""Bytes of the largest request."""
KEY, NAME = "key.pem", "name"
PATIENCE = 30.0
"""Seconds that a connection may be silent."""


def open_witness(
    folder: Path,
    name: str = "",
    *,
    open_to_all: bool = False,
    passphrase: bytes | None = None,
    clock: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> Witness:
    """The witness in a folder; its key and name are made when there is none.

    Args:
        folder: of the witness.
        name: of a new one; one that ends in '/' is followed by its key's id.
        open_to_all: whether logs that it does not know are taken.
        passphrase: of the key; else the generated one.
        clock: tells the time in UTC.

    Raises:
        BadInput, Refused: when the key cannot be opened, or the name is another than the folder's.
    """
    kept = folder / NAME
    if name and not kept.exists() and re.fullmatch(NAME_FORM, f"{name}x") is None:
        raise BadInput(f"expected a witness's name without spaces and '+', got {name!r}: name it by your host.")
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"expected a folder for a witness at {folder}, got '{error.strerror}': name another.") from error
    key = open_key(folder / KEY, passphrase)
    name = f"{name}{key_id(key.public)}" if name.endswith("/") else name
    if not kept.exists():
        write_atomic(kept, (name or f"neorl.witness/{key_id(key.public)}").encode())
    found = kept.read_text()
    if name not in ("", found) or re.fullmatch(NAME_FORM, found) is None:
        raise BadInput(f"expected the witness {found!r}, without spaces and '+', in {folder}, got the name {name!r}.")
    return Witness(folder, found, key, clock, open_to_all)


class Handler(BaseHTTPRequestHandler):
    """One connection: add-checkpoint, nonce, add-log, and the newest head of a log."""

    protocol_version = "HTTP/1.1"
    timeout = PATIENCE

    def do_POST(self) -> None:
        """Answer a request with a body."""
        witness = self._server.witness
        doing = {"/add-checkpoint": witness.add_checkpoint, "/nonce": witness.nonce, "/add-log": witness.take_log}
        try:
            length = int(self.headers.get("Content-Length", ""))
            if not 0 <= length <= LARGEST:
                raise Denied(413, f"expected at most {LARGEST} bytes.")
            body = self.rfile.read(length).decode()
            if self.path not in doing:
                raise Denied(404, "expected /add-checkpoint, /nonce or /add-log.")
            self._answer(200, doing[self.path](body))
        except Denied as error:
            self._answer(error.status, error.text, error.content_type)
        except ValueError as error:
            self._answer(400, f"expected a length and text in UTF-8, got {error}.")

    def do_GET(self) -> None:
        """The newest head of a log, or the witness's own key."""
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
        """Who asks; a socket's client has no address."""
        return str(self.client_address[0]) if self.client_address else "local"

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing of requests that went well, or of scans."""


class TcpServer(ThreadingHTTPServer):
    """A witness on a port."""

    def __init__(self, witness: Witness, host: str, port: int) -> None:
        self.witness, self.last = witness, time.monotonic()
        super().__init__((host, port), Handler)


class SocketServer(OwnedSocketServer):
    """A witness on a socket."""

    def __init__(self, witness: Witness, path: Path, idle: float) -> None:
        self.witness = witness
        super().__init__(path, Handler, idle)


def serve(witness: Witness, host: str, port: int, ready: Callable[[Verifier, int], None]) -> None:
    """Serve on a port until interrupted.

    Raises:
        BadInput: when the port is taken.
    """
    try:
        server = TcpServer(witness, host, port)
    except OSError as error:
        raise BadInput(f"expected to listen on {host}:{port}, got '{error.strerror}': name another port.") from error
    with server:
        ready(witness.verifier, server.server_address[1])
        server.serve_forever()


def main(folder: str, socket: str, name: str, idle: str) -> int:
    """Open a home's own witness, listen, print its key, and leave a child behind that serves."""
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
