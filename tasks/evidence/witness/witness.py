"""A witness: countersigns a log's head if it extends the previous head, and gives nonces for records of the log.

`add_checkpoint` follows c2sp.org/tlog-witness. The other requests are defined here.
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
from tasks.files.canonical import exclusive, read_json, sha256_hex, write_json
from tasks.files.merkle import verify_consistency, verify_leaf_hash

TOLERANCE = timedelta(minutes=5)
"""A log's clock may be this much ahead of the witness's clock."""
MOST_PROOF = 63
SIZE_TYPE = "text/x.tlog.size"
TEXT_TYPE = "text/plain; charset=utf-8"


class Denied(Exception):
    """A request that the witness rejects, with the HTTP status and the text of the answer."""

    def __init__(self, status: int, text: str, content_type: str = TEXT_TYPE) -> None:
        super().__init__(text)
        self.status, self.text, self.content_type = status, text, content_type


class KnownLog(Strict):
    """A log that a witness knows: its keys and its newest head."""

    origin: str
    keys: list[str]
    """Keys that may sign heads, in the form NAME+ID+BASE64."""
    next_keys: dict[str, str] = Field(default_factory=dict)
    """Old key -> its successor. The old key is removed when the successor signs its first head."""
    head: str = ""
    """Newest head, countersigned."""

    @property
    def checkpoint(self) -> Checkpoint | None:
        return Checkpoint.parse(Note.parse(self.head).text) if self.head else None


class Witness:
    """A witness with its key and its folder."""

    def __init__(
        self, folder: Path, name: str, key: SigningKey, clock: Callable[[], datetime], open_to_all: bool
    ) -> None:
        """Open a witness.

        Args:
            open_to_all: whether anybody may add a log; otherwise only the witness's owner adds logs.
        """
        self.folder, self.name, self.clock, self.open_to_all = folder, name, clock, open_to_all
        self._key = key
        self._one_at_a_time = threading.Lock()

    @property
    def verifier(self) -> Verifier:
        """Public key for countersignatures and nonces."""
        return Verifier.of(self.name, COSIGNATURE, self._key)

    def over_copy(self, folder: Path) -> Witness:
        """Return a witness with the same key that works on a copy of the folder."""
        return Witness(folder, self.name, self._key, self.clock, self.open_to_all)

    def add_log(self, verifier: Verifier, after: str = "") -> None:
        """Allow a key to sign heads of its log; `after` is the old key that it will replace, or empty."""
        if verifier.kind != SIGNATURE:
            raise BadInput(f"a log's key must have signature type {SIGNATURE}, got {verifier.kind} in {verifier}")
        with self._change(verifier.name):
            known = self._log(verifier.name) or KnownLog(origin=verifier.name, keys=[])
            following = {**known.next_keys, after: str(verifier)} if after else known.next_keys
            added = {"keys": sorted({*known.keys, str(verifier)}), "next_keys": following}
            self._keep(known.model_copy(update=added))

    def accept_log(self, body: str) -> str:
        """Add a new log, if this witness is open to all, or the next key of a known log.

        Args:
            body: the log's key, NAME+ID+BASE64; a next key must be in a note that a known key of the log signed.

        Raises:
            Denied: if the witness is not open to all, or no known key vouches for the new one.
        """
        try:
            verifier = Verifier.parse(body.partition("\n")[0].strip())
            voucher = Note.parse(body) if "\n\n" in body else None
        except (BadInput, Refused) as error:
            raise Denied(400, str(error)) from error
        known = self._log(verifier.name)
        if known is None and voucher is not None:
            raise Denied(404, f"log {verifier.name} is unknown here: ask the owner of this witness to add it.")
        if known is not None and voucher is not None and voucher.text == f"{verifier}\n":
            by = next((key for key in known.keys if voucher.is_signed_by(Verifier.parse(key))), None)
            if by is None:
                raise Denied(403, f"no known key of {verifier.name} vouches for the next key {verifier}.")
            self.add_log(verifier, after=by)
        elif known is None and self.open_to_all:
            self.add_log(verifier)
        elif known is None or str(verifier) not in known.keys:
            raise Denied(
                403, f"key {verifier} of {verifier.name} is unknown here: ask the owner of this witness to add it."
            )
        return "ok\n"

    def logs(self) -> list[KnownLog]:
        return [KnownLog.model_validate(read_json(path)) for path in sorted((self.folder / "logs").glob("*.json"))]

    def add_checkpoint(self, body: str) -> str:
        """Countersign a head if it extends the newest head that this witness knows.

        Args:
            body: "old SIZE", lines of a consistency proof, an empty line, and the checkpoint.

        Raises:
            Denied: with the status that c2sp.org/tlog-witness prescribes.
        """
        old, proof, note = _read_request(body)
        checkpoint = _checkpoint(note)
        with self._change(checkpoint.origin):
            known = self._known(checkpoint.origin, note)
            before = known.checkpoint
            if old > checkpoint.size:
                raise Denied(400, f"the head has {checkpoint.size} records, fewer than the old size {old}.")
            if (size := before.size if before else 0) != old:
                raise Denied(409, f"{size}\n", SIZE_TYPE)
            if before and old == checkpoint.size and before.root != checkpoint.root:
                raise Denied(409, f"{size}\n", SIZE_TYPE)
            if before and not verify_consistency(old, before.root, checkpoint.size, checkpoint.root, proof):
                raise Denied(422, f"the head does not extend the {old} records known here: it is another history.")
            now = self.clock()
            if checkpoint.time and _time(checkpoint.time) > now + TOLERANCE:
                raise Denied(422, f"the last record is of {checkpoint.time}, but now is {now:%Y-%m-%dT%H:%M:%SZ}.")
            line = countersignature(note.text, self.name, self._key, int(now.timestamp()))
            # Store before answering, because clients rely on a countersignature.
            self._keep(_drop_replaced_keys(known, note).model_copy(update={"head": str(note.with_lines([line]))}))
        return line + "\n"

    def nonce(self, body: str) -> str:
        """Return the nonce of a record that the newest countersigned head contains.

        Args:
            body: "leaf INDEX HASH", lines of a proof that the newest head contains this record, an empty line, and
                the newest head.

        Raises:
            Denied: if the head is not the newest or does not contain the record.
        """
        head, _, note_text = body.partition("\n\n")
        asked, *proof = head.split("\n")
        match = re.fullmatch(r"leaf (0|[1-9][0-9]{0,18}) (\S+)", asked)
        if match is None:
            raise Denied(400, f"a request for a nonce must begin with 'leaf INDEX HASH', got {asked[:60]!r}.")
        note = _note(note_text)
        checkpoint = _checkpoint(note)
        index, leaf = int(match[1]), _hash(match[2])
        newest = self._known(checkpoint.origin, note).checkpoint
        if newest is None or (newest.size, newest.root) != (checkpoint.size, checkpoint.root):
            raise Denied(409, f"{newest.size if newest else 0}\n", SIZE_TYPE)
        if not verify_leaf_hash(checkpoint.root, leaf, index, checkpoint.size, [_hash(line) for line in proof]):
            raise Denied(422, f"the proof does not show that record {index} is in the head.")
        return to_base64(Nonce(checkpoint.origin, index, leaf).sign(self._key)) + "\n"

    def newest(self, origin: str) -> str:
        known = self._log(origin)
        if known is None or not known.head:
            raise Denied(404, f"no head of log {origin} is known here.")
        return known.head

    def _known(self, origin: str, note: Note) -> KnownLog:
        """Return what this witness knows about a log, after checking that a known key of the log signed the note."""
        known = self._log(origin)
        if known is None:
            raise Denied(404, f"log {origin} is unknown here: ask the owner of this witness to add it.")
        if not any(note.is_signed_by(Verifier.parse(key)) for key in known.keys):
            raise Denied(403, f"the head of {origin} is not signed by a known key of this log.")
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
        """Lock the known logs, so that two heads that arrive together cannot extend the same head."""
        with self._one_at_a_time, exclusive(self.folder / "lock"):
            yield


def _drop_replaced_keys(known: KnownLog, note: Note) -> KnownLog:
    """Remove each old key if its successor signed this head, so that copies of the old key become useless."""
    signing = {key for key in known.keys if note.is_signed_by(Verifier.parse(key))}
    gone = {old for old, new in known.next_keys.items() if new in signing and new != old}
    left = {old: new for old, new in known.next_keys.items() if old not in gone}
    return known.model_copy(update={"keys": [key for key in known.keys if key not in gone], "next_keys": left})


def _read_request(body: str) -> tuple[int, list[bytes], Note]:
    head, _, note = body.partition("\n\n")
    first, *lines = head.split("\n")
    match = re.fullmatch(r"old (0|[1-9][0-9]{0,18})", first)
    if match is None or len(lines) > MOST_PROOF:
        raise Denied(
            400,
            f"a request must be 'old SIZE', at most {MOST_PROOF} proof lines, '' and a checkpoint, got {first[:60]!r}.",
        )
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
        raise Denied(400, f"a hash must be base64 of 32 bytes, got {text[:60]!r}.")
    return found


def _time(text: str) -> datetime:
    try:
        found = datetime.fromisoformat(text)
        if found.tzinfo is None:
            raise ValueError(f"{text[:40]} has no time zone")
    except ValueError as error:
        raise Denied(400, f"a time must have a time zone, got {text[:40]!r}.") from error
    return found
