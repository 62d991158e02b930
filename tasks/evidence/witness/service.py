"""A witness: it countersigns a log's head only if it extends the one that it knows, and then gives nonces for records.

It follows c2sp.org/tlog-witness, with two requests of our own: `nonce`, and the newest head that it knows.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path

from pydantic import Field

from configs.errors import BadInput, Refused
from configs.strict import Strict
from tasks.evidence.ledger.signing import SigningKey, from_base64, to_base64
from tasks.evidence.witness.notes import (
    COSIGNATURE,
    SIGNATURE,
    Checkpoint,
    Nonce,
    Note,
    Verifier,
    countersignature,
)
from tasks.files.canonical import read_json, sha256_hex, write_json
from tasks.files.locks import exclusive
from tasks.files.merkle import verify_consistency, verify_leaf_hash

TOLERANCE = timedelta(minutes=5)
"""How far a log's clock may be ahead of the witness's."""
MOST_PROOF = 63
SIZE_TYPE = "text/x.tlog.size"
TEXT_TYPE = "text/plain; charset=utf-8"


class Denied(Exception):
    """What a witness does not do, and why."""

    def __init__(self, status: int, text: str, content_type: str = TEXT_TYPE) -> None:
        super().__init__(text)
        self.status, self.text, self.content_type = status, text, content_type


class KnownLog(Strict):
    """A log, as a witness knows it."""

    origin: str
    keys: list[str]
    """Verifiers of the keys that may sign its heads."""
    next_keys: dict[str, str] = Field(default_factory=dict)
    """By a key the one that it vouched for, until that one signs."""
    head: str = ""
    """Its newest head, countersigned."""

    @property
    def checkpoint(self) -> Checkpoint | None:
        """The newest head."""
        return Checkpoint.parse(Note.parse(self.head).text) if self.head else None


class Witness:
    """A witness's key and folder, behind its requests."""

    def __init__(
        self, folder: Path, name: str, key: SigningKey, clock: Callable[[], datetime], open_to_all: bool
    ) -> None:
        """Take up what the folder holds.

        Args:
            folder: of the witness.
            name: of the witness.
            key: signs.
            clock: tells the time in UTC.
            open_to_all: whether a log that it does not know is taken by its first head. Else its owner adds logs.
        """
        self.folder, self.name, self.clock, self.open_to_all = folder, name, clock, open_to_all
        self._key = key
        self._one_at_a_time = threading.Lock()

    @property
    def verifier(self) -> Verifier:
        """The key of its countersignatures and nonces."""
        return Verifier.of(self.name, COSIGNATURE, self._key)

    def elsewhere(self, folder: Path) -> Witness:
        """The same witness over a copy of its folder."""
        return Witness(folder, self.name, self._key, self.clock, self.open_to_all)

    def add_log(self, verifier: Verifier, after: str = "") -> None:
        """Let a key sign heads of the log of its name.

        Args:
            verifier: the key.
            after: a key whose place it takes as soon as it signs a head.
        """
        if verifier.kind != SIGNATURE:
            raise BadInput(f"expected the key of a log, got one for countersignatures: {verifier}.")
        with self._change(verifier.name):
            known = self._log(verifier.name) or KnownLog(origin=verifier.name, keys=[])
            following = {**known.next_keys, after: str(verifier)} if after else known.next_keys
            added = {"keys": sorted({*known.keys, str(verifier)}), "next_keys": following}
            self._keep(known.model_copy(update=added))

    def take_log(self, body: str) -> str:
        """Take a log that is new here, where this witness is open to all, or the next key of one that is known.

        Args:
            body: the verifier of a log's key; of a next key as a note that a known key of the log signs.

        Raises:
            Denied: where it is not open to all, or no key that is known here vouches for another.
        """
        try:
            verifier = Verifier.parse(body.partition("\n")[0].strip())
            voucher = Note.parse(body) if "\n\n" in body else None
        except (BadInput, Refused) as error:
            raise Denied(400, str(error)) from error
        known = self._log(verifier.name)
        if known is None and voucher is not None:
            raise Denied(404, f"expected a log that is known here, got {verifier.name}: its owner adds it.")
        if known is not None and voucher is not None and voucher.text == f"{verifier}\n":
            by = next((key for key in known.keys if voucher.is_signed_by(Verifier.parse(key))), None)
            if by is None:
                raise Denied(403, f"expected a key of {verifier.name} to vouch for its next one, got another's word.")
            self.add_log(verifier, after=by)
        elif known is None and self.open_to_all:
            self.add_log(verifier)
        elif known is None or str(verifier) not in known.keys:
            raise Denied(403, f"expected a key of {verifier.name} that is known here, got another: its owner adds it.")
        return "ok\n"

    def logs(self) -> list[KnownLog]:
        """The logs that it knows."""
        return [KnownLog.model_validate(read_json(path)) for path in sorted((self.folder / "logs").glob("*.json"))]

    def add_checkpoint(self, body: str) -> str:
        """Countersign a head that extends the one before.

        Args:
            body: "old SIZE", lines of a consistency proof, an empty line, and the checkpoint.

        Returns:
            The line of the countersignature.

        Raises:
            Denied: with the status that c2sp.org/tlog-witness prescribes.
        """
        old, proof, note = _read_request(body)
        checkpoint = _checkpoint(note)
        with self._change(checkpoint.origin):
            known = self._known(checkpoint.origin, note)
            before = known.checkpoint
            if old > checkpoint.size:
                raise Denied(400, f"expected a head of at least {old} records, got {checkpoint.size}.")
            if (size := before.size if before else 0) != old:
                raise Denied(409, f"{size}\n", SIZE_TYPE)
            if before and old == checkpoint.size and before.root != checkpoint.root:
                raise Denied(409, f"{size}\n", SIZE_TYPE)
            if before and not verify_consistency(old, before.root, checkpoint.size, checkpoint.root, proof):
                raise Denied(422, f"expected a head that extends the {old} records known here, got another history.")
            now = self.clock()
            if checkpoint.time and _time(checkpoint.time) > now + TOLERANCE:
                raise Denied(
                    422, f"expected a last record of at most {now:%Y-%m-%dT%H:%M:%SZ}, got one of {checkpoint.time}."
                )
            line = countersignature(note.text, self.name, self._key, int(now.timestamp()))
            # Kept before it is told: whoever has seen a countersignature can rely on it.
            self._keep(_succeeded(known, note).model_copy(update={"head": str(note.beside([line]))}))
        return line + "\n"

    def nonce(self, body: str) -> str:
        """The nonce of a record that a countersigned head contains.

        Args:
            body: "leaf INDEX HASH", lines of an inclusion proof under the newest head that this witness knows, an
                empty line, and that head.

        Returns:
            Base64 of the nonce.

        Raises:
            Denied: when the head is not the newest, or does not contain the record.
        """
        head, _, note_text = body.partition("\n\n")
        asked, *proof = head.split("\n")
        match = re.fullmatch(r"leaf (0|[1-9][0-9]{0,18}) (\S+)", asked)
        if match is None:
            raise Denied(400, "expected 'leaf INDEX HASH', a proof, an empty line and a checkpoint.")
        note = _note(note_text)
        checkpoint = _checkpoint(note)
        index, leaf = int(match[1]), _hash(match[2])
        newest = self._known(checkpoint.origin, note).checkpoint
        if newest is None or (newest.size, newest.root) != (checkpoint.size, checkpoint.root):
            raise Denied(409, f"{newest.size if newest else 0}\n", SIZE_TYPE)
        if not verify_leaf_hash(checkpoint.root, leaf, index, checkpoint.size, [_hash(line) for line in proof]):
            raise Denied(422, f"expected a proof that record {index} is in the head, got another.")
        return to_base64(Nonce(checkpoint.origin, index, leaf).given(self._key)) + "\n"

    def newest(self, origin: str) -> str:
        """The newest head of a log that it knows, countersigned.

        Raises:
            Denied: when it knows none.
        """
        known = self._log(origin)
        if known is None or not known.head:
            raise Denied(404, f"expected a log that is known here, got {origin}.")
        return known.head

    def _known(self, origin: str, note: Note) -> KnownLog:
        """The log of a note that is signed by one of its keys."""
        known = self._log(origin)
        if known is None:
            raise Denied(404, f"expected a log that is known here, got {origin}: its owner adds it.")
        if not any(note.is_signed_by(Verifier.parse(key)) for key in known.keys):
            raise Denied(403, f"expected a head signed by a key of {origin}, got another.")
        return known

    def _path(self, origin: str) -> Path:
        return self.folder / "logs" / f"{sha256_hex(origin.encode())[:24]}.json"

    def _log(self, origin: str) -> KnownLog | None:
        path = self._path(origin)
        return KnownLog.model_validate(read_json(path)) if path.exists() else None

    def _keep(self, known: KnownLog) -> None:
        write_json(self._path(known.origin), known.model_dump())

    @contextmanager
    def _change(self, origin: str) -> Iterator[None]:
        """Look and write as one: two heads at once must not both follow the same one."""
        with self._one_at_a_time, exclusive(self.folder / "lock"):
            yield


def _succeeded(known: KnownLog, note: Note) -> KnownLog:
    """The log without the keys whose next one signs: a copy of a replaced key must not speak for it any more."""
    signing = {key for key in known.keys if note.is_signed_by(Verifier.parse(key))}
    gone = {old for old, new in known.next_keys.items() if new in signing and new != old}
    left = {old: new for old, new in known.next_keys.items() if old not in gone}
    return known.model_copy(update={"keys": [key for key in known.keys if key not in gone], "next_keys": left})


def _read_request(body: str) -> tuple[int, list[bytes], Note]:
    head, _, note = body.partition("\n\n")
    first, *lines = head.split("\n")
    match = re.fullmatch(r"old (0|[1-9][0-9]{0,18})", first)
    if match is None or len(lines) > MOST_PROOF:
        raise Denied(400, "expected 'old SIZE', a consistency proof, an empty line and a checkpoint.")
    return int(match[1]), [_hash(line) for line in lines], _note(note)


def _note(text: str) -> Note:
    try:
        return Note.parse(text)
    except Refused as error:
        raise Denied(400, str(error)) from error


def _checkpoint(note: Note) -> Checkpoint:
    try:
        return Checkpoint.parse(note.text)
    except Refused as error:
        raise Denied(400, str(error)) from error


def _hash(text: str) -> bytes:
    try:
        found = from_base64(text)
    except ValueError:
        found = b""
    if len(found) != 32:
        raise Denied(400, "expected base64 of 32 bytes.")
    return found


def _time(text: str) -> datetime:
    try:
        found = datetime.fromisoformat(text)
        if found.tzinfo is None:
            raise ValueError("no time zone")
    except ValueError as error:
        raise Denied(400, f"expected a time with its zone, got {text[:40]!r}.") from error
    return found
