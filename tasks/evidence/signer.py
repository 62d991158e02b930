"""The signer: the only process with the decrypted key. It checks everything before it signs.

It answers the requests of `ledger.protocol` on a socket that only its user can open. Sequence numbers, times and the
content of certificates do not come from clients; the signer derives them.
"""

from __future__ import annotations

import ctypes
import os
import resource
import socket
import socketserver
import sys
import threading
import time
from base64 import b64encode
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from pydantic import ValidationError
from sqlalchemy.exc import DBAPIError, IntegrityError

from configs.errors import BadInput, Refused
from configs.home import Home
from tasks.evidence import bundle_signature, rules
from tasks.evidence.attempts import ResultBody, certificate_file, seed_file
from tasks.evidence.decisions import champions
from tasks.evidence.ledger import client, table
from tasks.evidence.ledger.entry import Entry, read_entry
from tasks.evidence.ledger.keys import open_keys
from tasks.evidence.ledger.ledger import ENTRY_TYPE, Ledger, insert
from tasks.evidence.ledger.protocol import (
    MAX_BYTES,
    REQUEST,
    Answer,
    Append,
    Certify,
    Countersign,
    Head,
    Hello,
    Nonces,
    Request,
    Rotate,
    Seal,
    SignBundle,
    Stop,
)
from tasks.evidence.ledger.seals import RESULT_TYPE, SealedResult
from tasks.evidence.ledger.signing import HEAD_TYPE, PROJECT_TRUST, SigningKey, TrustRoot
from tasks.evidence.ledger.table import GENESIS
from tasks.evidence.people import rotation
from tasks.evidence.people.keyring import check_pinned_people
from tasks.evidence.policies import check_pinned, check_recorded
from tasks.evidence.witness.client import WITNESSED, WitnessClient
from tasks.evidence.witness.seeds import SeedBody, entry_of_attempt, nonces_of
from tasks.evidence.witness.transport import Transport, http_transport
from tasks.evidence.witness.witness import TOLERANCE
from tasks.files.canonical import format_time, read_secret, sha256_hex, write_atomic
from tasks.files.sockets import OwnedSocketServer, serve_in_child
from tasks.versions.versions import newest

Clock = Callable[[], datetime]
TIMEOUT = 10.0
"""Seconds to wait for the next bytes of a request."""
PR_SET_DUMPABLE = 4
"""Option of prctl(2) that forbids memory dumps of a process."""


class Signer:
    """Answers requests with a home's key and ledger."""

    def __init__(
        self,
        home: Home,
        key: SigningKey,
        ledger: Ledger,
        clock: Clock,
        passphrase: bytes | None,
        witnesses: WitnessClient,
    ) -> None:
        self.home = home
        self._key, self._ledger, self._clock, self._passphrase = key, ledger, clock, passphrase
        self._witnesses = witnesses
        self._engine = table.connect(home.ledger_url)
        self._url = sha256_hex(home.ledger_url.encode())
        self._one_at_a_time = threading.Lock()

    @classmethod
    def open(
        cls,
        home: Home,
        passphrase: bytes | None = None,
        *,
        clock: Clock = lambda: datetime.now(UTC),
        project: Path = PROJECT_TRUST,
        transport: Transport | None = None,
        own_witness: bool = False,
    ) -> Signer:
        """Decrypt the key and open the ledger; on first use, create key, trust root and the ledger's table.

        Args:
            own_witness: whether to start the home's own witness if none is pinned.
        """
        home.folder()
        embedded = home.ledger_url == f"sqlite:///{home.ledger}"
        if embedded and home.signing_key.exists() and not home.ledger.exists():
            raise Refused(
                f"this home has a signing key, but the ledger {home.ledger} does not exist: restore it from a "
                "backup; a new ledger needs a new home (NEORL_HOME)"
            )
        first_use = table.create(table.connect(home.ledger_url))
        if any(home.signing_key.parent.glob(f"{rotation.NEXT}*")):
            trust = TrustRoot.locate(home, None, project)
            rotation.finish(home, Ledger(home, table.connect(home.ledger_url), trust, None).entries())
        key, trust = open_keys(home, first_use=first_use, passphrase=passphrase, project=project)
        ledger = Ledger(home, table.connect(home.ledger_url), trust, None)
        if first_use and not (head := home.root / "ledger.head").exists():
            # From now on, a ledger without a head is damaged.
            write_atomic(head, key.seal(HEAD_TYPE, ledger.head()._asdict()))
        witnesses = WitnessClient(home, ledger, key, transport or http_transport(home), own_witness)
        return cls(home, key, ledger, clock, passphrase, witnesses)

    def answer(self, request: Request) -> Answer:
        """Check and execute one request at a time, and return the answer."""
        with self._one_at_a_time:
            match request:
                case Hello():
                    return self._hello(request)
                case Append():
                    return self._append(request)
                case Head():
                    return Answer(envelope=self._head())
                case Countersign():
                    found = self._witnesses.countersigned()
                    return Answer() if found is None else Answer(envelope=str(found.note), witnesses=found.chosen)
                case Nonces():
                    return Answer(envelope=self._witnesses.nonces(self._record(request.attempt)).model_dump_json())
                case Certify():
                    return self._certify(request)
                case Seal():
                    result = SealedResult(stage=request.stage, key=request.key, sha256=request.sha256)
                    return Answer(envelope=self._key.seal(RESULT_TYPE, result._asdict()).decode())
                case SignBundle():
                    return self._sign_bundle(request)
                case Rotate():
                    return self._rotate(request)
                case Stop():
                    return Answer()

    def _hello(self, request: Hello) -> Answer:
        if request.ledger != self._url:
            raise Refused(
                f"the running signer of {self.home.root} uses another NEORL_LEDGER_URL: correct the variable, or run "
                "`neorl down` and repeat the command"
            )
        public = b64encode(self._key.public.public_bytes_raw()).decode()
        model_key = sha256_hex(bundle_signature.public_pem(self._key))
        stale = request.sources != client.sources()
        return Answer(stale=stale, public=public, model_key=model_key, pid=os.getpid())

    def _sign_bundle(self, request: SignBundle) -> Answer:
        from tasks.models.bundles.manifest import stored_digest

        folder = bundle_signature.bundle_folder(self.home, request.plant, request.composite)
        if (found := stored_digest(folder)) != request.composite:
            raise Refused(f"{folder} has composite {found}, but {request.composite} is required: retrain")
        signature = bundle_signature.signed(self._key, folder)
        return Answer(envelope=signature, public=bundle_signature.public_pem(self._key).decode())

    def _record(self, attempt: str) -> Entry:
        record = entry_of_attempt(self._ledger.entries(), "seed", attempt)
        if record is None or not record.read(SeedBody).witnesses:
            raise Refused(f"attempt {attempt[:12]} has no seed entry that names witnesses: draw the seed first")
        return record

    def _head(self) -> str:
        self._witnesses.catch_up()
        return self._key.seal(HEAD_TYPE, self._ledger.head()._asdict()).decode()

    def _rotate(self, request: Rotate) -> Answer:
        history = self._ledger.entries()
        last = history[-1].digest if history else GENESIS
        source, announce = self._ledger.trust.source, self._witnesses.announce_successor
        key = rotation.rotate(self.home, self._key, self._passphrase, source, request, last, announce, self._write)
        if key is None:
            return Answer(stale=True)
        self._key, self._ledger = key, Ledger(self.home, self._engine, TrustRoot.read(source), None)
        self._witnesses = self._witnesses.for_key(key, self._ledger)
        write_atomic(self.home.root / "ledger.head", self._head().encode())
        return Answer()

    def _append(self, request: Append) -> Answer:
        if request.kind == "rotation" and not request.body.get("person"):
            old = str(request.body.get("old"))[:16]
            raise Refused(f"a rotation of the home's key {old} cannot be appended: use 'neorl keys rotate'")
        return self._write(request)

    def _write(self, request: Append) -> Answer:
        history = self._ledger.entries()
        self._witnesses.catch_up()
        last = history[-1] if history else None
        if request.predecessor != (last.digest if last else GENESIS):
            return Answer(stale=True)
        # Timestamps never decrease, even if the clock does: "champion at a date" relies on the order.
        now = format_time(time := self._clock())
        if last and datetime.fromisoformat(last.timestamp) > time + TOLERANCE:
            raise Refused(
                f"the clock ({now}) is behind the ledger's last entry of {last.timestamp}: set the clock right; if "
                "that entry's time is wrong, start a new home"
            )
        payload = {
            "artefacts": [artefact._asdict() for artefact in request.artefacts],
            "body": request.body,
            "kind": request.kind,
            "plant": request.plant,
            "predecessor": request.predecessor,
            "rules": newest(),
            "sequence": len(history) + 1,
            "timestamp": max(now, last.timestamp if last else ""),
        }
        entry = read_entry(payload)
        rules.check(history, entry)
        if entry.kind == "policy":
            check_recorded(self.home, history, entry)
        if entry.kind in champions.IN_FORCE:
            check_pinned(history, self._ledger.trust, entry.plant)
        if entry.kind == "seed":
            self._witnesses.check_seed(entry.read(SeedBody))
        if entry.kind in ("approval", *champions.IN_FORCE):
            check_pinned_people(history, TrustRoot.read(self._ledger.trust.source))
        self._check_certificate(entry)
        if entry.kind in WITNESSED:
            self._witnesses.countersigned()
        signed = read_entry(payload, self._key.seal(ENTRY_TYPE, payload))
        try:
            insert(self._engine, signed)
        except IntegrityError as error:
            if len(self._ledger.entries()) > len(history):
                return Answer(stale=True)
            raise Refused(
                f"the ledger rejected entry {entry.sequence} ('{error.orig}'): verify it with `neorl audit verify`"
            ) from error
        except DBAPIError as error:
            raise BadInput(
                f"cannot write ledger entry {entry.sequence} to {table.named(self._engine)} ('{error.orig}'): free "
                "disk space or allow writing, then run the same command again"
            ) from error
        head = self._key.seal(HEAD_TYPE, self._ledger.adopt(signed)._asdict())
        write_atomic(self.home.root / "ledger.head", head)
        if signed.kind in champions.IN_FORCE:
            # The entry is valid even if no witness answers; the next seed, promotion or rollback asks them again.
            with suppress(Refused):
                self._witnesses.countersigned()
        return Answer(envelope=signed.envelope.decode())

    def _check_certificate(self, entry: Entry) -> None:
        if entry.kind != "result" or (file := certificate_file(entry)) is None:
            return
        # Imported late: SciPy loads slowly.
        from tasks.evidence.certificate import read_certificate, says_the_same

        path = self.home.root / file.path
        statement = read_certificate(path, self._ledger.trust)
        if sha256_hex(path.read_bytes()) != file.sha256 or not says_the_same(entry, statement.predicate):
            body = entry.read(ResultBody)
            raise Refused(
                f"the certificate {file.path} does not agree with the result of attempt {body.number}: name the "
                "certificate of this attempt"
            )

    def _certify(self, request: Certify) -> Answer:
        from tasks.evidence.certificate import PAYLOAD_TYPE, state
        from tasks.evidence.witness.seeds import DrawnSeed

        history = self._ledger.entries()
        opened = self._ledger.entry(request.attempt)
        committed = entry_of_attempt(history, "seed", request.attempt)
        if opened.kind != "attempt" or committed is None or entry_of_attempt(history, "result", request.attempt):
            raise Refused(
                f"entry {request.attempt[:12]} is no attempt, has no seed or already has a result: open an attempt and "
                "draw its seed"
            )
        path = seed_file(self.home, request.attempt)
        if not path.exists() or sha256_hex(secret := read_secret(path)) != committed.body["commitment"]:
            raise Refused(f"the secret {path} is missing, or differs from the attempt's commitment: restore it")
        if (found := nonces_of(history, request.attempt)) is None:
            raise Refused(f"attempt {request.attempt[:12]} has no nonces of the witnesses: repeat the run")
        drawn = DrawnSeed(committed, secret, found.head, found.nonces)
        statement = state(opened, drawn, request, self._head(), history)
        payload = statement.model_dump(mode="json", by_alias=True)
        return Answer(envelope=self._key.seal(PAYLOAD_TYPE, payload).decode())


class Server(OwnedSocketServer):
    """Socket server of the signer; it exits when it is idle or receives `Stop`."""

    def __init__(self, signer: Signer, idle: float) -> None:
        self.signer = signer
        super().__init__(client.socket_file(signer.home), Handler, idle)

    def handle_request_of(self, connection: socket.socket) -> None:
        self.last = time.monotonic()
        connection.settimeout(TIMEOUT)
        try:
            request = _receive(connection)
            answer = self.signer.answer(request)
        except Refused as error:
            request, answer = None, Answer(refused=str(error))
        except BadInput as error:
            request, answer = None, Answer(bad_input=str(error))
        connection.sendall(answer.model_dump_json().encode())
        if isinstance(request, Stop):
            self.shutdown()
            threading.Event().wait()  # the client waits until the process exits and closes the connection


class Handler(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        assert isinstance(self.server, Server)
        try:
            self.server.handle_request_of(self.request)
        except (ConnectionError, TimeoutError):
            return


def _receive(connection: socket.socket) -> Request:
    data = bytearray()
    while piece := connection.recv(65536):
        data += piece
        if len(data) > MAX_BYTES:
            raise Refused(f"a request may have at most {MAX_BYTES} bytes, got at least {len(data)}: name fewer files")
    try:
        return REQUEST.validate_json(bytes(data))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"])) or "request"
        raise Refused(f"invalid request to the signer: {where}: {first['msg']}") from error


def keep_secrets() -> None:
    """Disable core dumps and, on Linux, access of other processes to this process's memory and environment."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)


def main(root: str, idle: str) -> int:
    """Read the passphrase from standard input, and start a child process that answers requests."""
    keep_secrets()
    home = Home(Path(root))
    try:
        server = Server(Signer.open(home, sys.stdin.buffer.read() or None, own_witness=True), float(idle))
    except (Refused, BadInput) as error:
        failed = Answer(refused=str(error)) if isinstance(error, Refused) else Answer(bad_input=str(error))
        sys.stdout.write(failed.model_dump_json())
        return 1
    log = os.open(home.folder("logs") / "signer.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    serve_in_child(server, log=log)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
