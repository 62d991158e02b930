"""Send requests to the signer through a Unix socket beside the keys; start the signer if it does not run."""

from __future__ import annotations

import getpass
import os
import socket
import sys
import tempfile
from base64 import b64decode
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError

from configs.errors import BadInput, Refused
from configs.home import PASSPHRASE, Home
from tasks.evidence.ledger.protocol import MAX_BYTES, Answer, Append, Hello, Request, Stop
from tasks.files.canonical import exclusive, sha256_hex
from tasks.files.provenance import sources_digest
from tasks.files.sockets import run_module

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

IDLE = "NEORL_SIGNER_IDLE"
"""Variable with the idle time in seconds after which a signer exits, unless a person typed the passphrase."""
DEFAULT_IDLE = "3600"
TIMEOUT = 60.0
"""Seconds to wait for an answer."""
LONGEST_ADDRESS = 100
"""Longest path of a socket in bytes."""


def ask(home: Home, request: Request) -> Answer:
    """Send a request to a home's signer and return the answer; start the signer if it does not run.

    Raises:
        Refused: if a rule or check refuses the request, or the key cannot be used.
        BadInput: if an input or the environment makes the request impossible.
        ConnectionError: if an append got no answer. The entry may exist, so the caller must read the ledger first.
    """
    lost = replaced = False
    while True:
        connection = _connect(home)
        if connection is None:
            start(home)
            connection = _connect(home)
        if connection is None:
            raise Refused(f"the signer exited right after it started: see {home.root}/logs/signer.log")
        with connection:
            try:
                answer = _exchange(connection, request)
            except ConnectionError as error:
                if isinstance(request, Append):
                    raise
                if lost:
                    raise Refused(f"the signer did not answer two requests ('{error}'): see logs/signer.log") from error
                lost = True
                continue
        if replaced or not (isinstance(request, Hello) and answer.stale):
            break
        # The signer runs other source code. Replace it only once, because this process may be the outdated one.
        stop(home)
        replaced = True
    if answer.refused:
        raise Refused(answer.refused)
    if answer.bad_input:
        raise BadInput(answer.bad_input)
    return answer


def hello(home: Home) -> Hello:
    """Return a client's first request, which names the ledger and the client's source code."""
    return Hello(ledger=sha256_hex(home.ledger_url.encode()), sources=sources())


def public_key(home: Home) -> Ed25519PublicKey:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    return Ed25519PublicKey.from_public_bytes(b64decode(ask(home, hello(home)).public))


def model_key(home: Home) -> str:
    """Return the SHA-256 of the file with the public key for bundles."""
    return ask(home, hello(home)).model_key


def start(home: Home) -> None:
    """Start a home's signer unless it runs, and wait until it listens.

    The passphrase comes from `NEORL_KEY_PASSPHRASE`, from a file (see `keys.open_keys`), or from a person at the
    terminal. The variable is removed from this process's environment, so that child processes do not inherit it.
    """
    given = os.environ.pop(PASSPHRASE, "").encode()
    with exclusive(home.folder("locks") / "signer.lock"):
        running = _connect(home)
        if running is not None:
            running.close()
            return
        from tasks.evidence.ledger.keys import must_be_asked_for

        if not given and sys.stdin is not None and sys.stdin.isatty() and must_be_asked_for(home):
            given = getpass.getpass(f"Passphrase of {home.signing_key}: ").encode()
        # With a typed passphrase the signer does not exit when idle, because it could not restart unattended.
        idle = "0" if given else os.environ.get(IDLE, DEFAULT_IDLE)
        done = run_module("tasks.evidence.signer", str(home.root.resolve()), idle, stdin=given)
        if done.returncode == 0:
            return
    try:
        answer = Answer.model_validate_json(done.stdout)
    except ValidationError:
        last = (done.stderr.decode(errors="replace").strip().splitlines() or ["nothing"])[-1]
        raise Refused(f"the signer did not start ({last!r}): see logs/signer.log in {home.root}") from None
    raise Refused(answer.refused) if answer.refused else BadInput(answer.bad_input)


def stop(home: Home) -> bool:
    """Stop a home's signer and wait until it has exited; return whether it ran."""
    connection = _connect(home)
    if connection is None:
        return False
    # The signer exits after the answer, which closes the connection. A lost connection means that it has exited.
    with connection, suppress(ConnectionError):
        _exchange(connection, Stop())
    return True


@cache
def sources() -> str:
    """Return the digest of the signer's source code. `ask` replaces a signer that runs other source code."""
    return sources_digest("tasks.evidence.signer")


def socket_file(home: Home) -> Path:
    """Return the path of the signer's socket, in the folder of the keys."""
    return home.signing_key.with_name("signer.sock")


def _connect(home: Home) -> socket.socket | None:
    path = socket_file(home)
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with short_address(path) as address:
            connection.connect(address)
    except (FileNotFoundError, ConnectionError):
        connection.close()
        return None
    connection.settimeout(TIMEOUT)
    return connection


@contextmanager
def short_address(path: Path) -> Iterator[str]:
    """Yield an address of a socket that is short enough for the kernel; a symbolic link shortens a long path."""
    if len(os.fsencode(path)) <= LONGEST_ADDRESS:
        yield str(path)
        return
    with tempfile.TemporaryDirectory(prefix="neorl-") as folder:
        link = Path(folder) / "keys"
        link.symlink_to(path.parent.resolve())
        yield str(link / path.name)


def _exchange(connection: socket.socket, request: Request) -> Answer:
    data = request.model_dump_json().encode()
    if len(data) > MAX_BYTES:
        raise Refused(f"an entry may have at most {MAX_BYTES} bytes, got {len(data)}: name fewer files")
    try:
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        received = b"".join(iter(lambda: connection.recv(65536), b""))
    except TimeoutError as error:
        if isinstance(request, Append):
            # The signer continues, and may still write the entry.
            raise ConnectionError(f"no answer within {TIMEOUT:g} s") from error
        raise Refused(f"the signer did not answer within {TIMEOUT:g} s: see logs/signer.log") from error
    if not received:
        raise ConnectionError(f"the connection to the signer was lost before the answer to {request.ask!r}")
    return Answer.model_validate_json(received)
