"""Asking the signer: a socket in the home's folder of keys, and a signer that is started by whoever needs it first."""

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
from tasks.files.canonical import sha256_hex
from tasks.files.locks import exclusive
from tasks.files.provenance import sources_digest
from tasks.files.sockets import run_module

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

IDLE = "NEORL_SIGNER_IDLE"
"""Seconds without a request after which a signer that can be started again unattended ends by itself."""
DEFAULT_IDLE = "3600"
TIMEOUT = 60.0
"""Seconds to wait for an answer."""
LONGEST_ADDRESS = 100
"""Bytes; the kernel takes a little over a hundred."""


def ask(home: Home, request: Request) -> Answer:
    """Ask a home's signer, starting it where none runs.

    Raises:
        Refused: when a rule or check refuses the request, or the key cannot be used.
        BadInput: when it cannot be done with what there is.
        ConnectionError: when the signer was lost, or is slow, before it answered, and asking again could append twice.
    """
    lost = replaced = False
    while True:
        connection = _connect(home)
        if connection is None:
            start(home)
            connection = _connect(home)
        if connection is None:
            raise Refused(f"expected the signer to stay, got its end: see {home.root}/logs/signer.log.")
        with connection:
            try:
                answer = _exchange(connection, request)
            except ConnectionError as error:
                if isinstance(request, Append):
                    raise
                if lost:
                    raise Refused(f"expected the signer to answer, got '{error}': see logs/signer.log.") from error
                lost = True
                continue
        if replaced or not (isinstance(request, Hello) and answer.stale):
            break
        # It runs other sources than this client. Once is enough: they may have changed under this process.
        stop(home)
        replaced = True
    if answer.refused:
        raise Refused(answer.refused)
    if answer.bad_input:
        raise BadInput(answer.bad_input)
    return answer


def hello(home: Home) -> Hello:
    """The first request of a client."""
    return Hello(ledger=sha256_hex(home.ledger_url.encode()), sources=sources())


def public_key(home: Home) -> Ed25519PublicKey:
    """The public half of the key that a home's signer holds."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    return Ed25519PublicKey.from_public_bytes(b64decode(ask(home, hello(home)).public))


def start(home: Home) -> None:
    """Start a home's signer unless one answers, and wait until it listens.

    The passphrase comes from `NEORL_KEY_PASSPHRASE`, which is taken out of this process's environment so that no child
    inherits it; else from a file (see `keys.open_keys`); else a person is asked on the terminal.

    Raises:
        Refused: when the passphrase is wrong or missing, the key is missing or not pinned, or the database is none.
        BadInput: when key or trust root cannot be read.
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
        # A signer whose passphrase only a person knows stays until it is stopped: nobody may be there to ask.
        idle = "0" if given else os.environ.get(IDLE, DEFAULT_IDLE)
        done = run_module("tasks.evidence.signer", str(home.root.resolve()), idle, stdin=given)
        if done.returncode == 0:
            return
    try:
        answer = Answer.model_validate_json(done.stdout)
    except ValidationError:
        last = (done.stderr.decode(errors="replace").strip().splitlines() or ["nothing"])[-1]
        raise Refused(f"expected the signer to start, got {last!r}: see logs/signer.log in {home.root}.") from None
    raise Refused(answer.refused) if answer.refused else BadInput(answer.bad_input)


def stop(home: Home) -> bool:
    """End a home's signer, if one runs, and wait until it has ended; returns whether one ran.

    Raises:
        Refused: when it does not end in time.
    """
    connection = _connect(home)
    if connection is None:
        return False
    # Its answer is followed by the end of the process, which closes the connection; one that is lost has ended, too.
    with connection, suppress(ConnectionError):
        _exchange(connection, Stop())
    return True


@cache
def sources() -> str:
    """Digest of the sources that hold the rules of writing: a signer of other sources is replaced."""
    return sources_digest("tasks.evidence.signer")


def socket_file(home: Home) -> Path:
    """Where the signer listens: in the folder of the keys, which is its owner's alone."""
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
    """An address that the kernel takes: a link to the folder where the path itself is too long."""
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
        raise Refused(f"expected an entry of at most {MAX_BYTES} bytes, got {len(data)}: name fewer files.")
    try:
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        received = b"".join(iter(lambda: connection.recv(65536), b""))
    except TimeoutError as error:
        if isinstance(request, Append):
            # It goes on, and may write the entry yet, as one that is lost may have written it.
            raise ConnectionError(f"no answer within {TIMEOUT:g} s") from error
        raise Refused(
            f"expected an answer of the signer within {TIMEOUT:g} s, got none: see logs/signer.log."
        ) from error
    if not received:
        raise ConnectionError("the signer was lost before it answered")
    return Answer.model_validate_json(received)
