"""Signed notes, and what logs and witnesses write as such: checkpoints, countersignatures and nonces.

The forms are those of transparency logs, so that tools of others read them: c2sp.org/signed-note,
c2sp.org/tlog-checkpoint and c2sp.org/tlog-cosignature. The nonce is ours.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from configs.errors import BadInput, Refused
from tasks.evidence.ledger.signing import SigningKey, from_base64, to_base64

SIGNATURE, COSIGNATURE = 1, 4
"""Signature types of signed notes: Ed25519 over the text; Ed25519 over a time and the text."""
NONCE_LINE = "neorl-nonce/v1"
NAME = r"[^\s+]+"
TIME = "time "
"""How the extension line of our checkpoints begins."""


class Verifier(NamedTuple):
    """Whose signatures of some type are known by which public key."""

    name: str
    kind: int
    public: bytes

    @classmethod
    def of(cls, name: str, kind: int, key: SigningKey) -> Verifier:
        """The verifier of a key's signatures."""
        return cls(name, kind, key.public.public_bytes_raw())

    @classmethod
    def parse(cls, text: str) -> Verifier:
        """Read `NAME+ID+BASE64`, the form in which signed notes name keys.

        Raises:
            BadInput: when it is not of that form, or the id is not that of the key.
        """
        match = re.fullmatch(rf"({NAME})\+([0-9a-f]{{8}})\+([A-Za-z0-9+/=]+)", text)
        try:
            raw = from_base64(match[3]) if match else b""
            found = cls(match[1] if match else "", raw[0] if raw else 0, raw[1:])
            Ed25519PublicKey.from_public_bytes(found.public)
        except ValueError:
            raw = b""
        if not raw or found.kind not in (SIGNATURE, COSIGNATURE) or str(found) != text:
            raise BadInput(
                f"expected a key as NAME+ID+BASE64, got {text[:80]!r}: copy the line that its owner's 'neorl witness "
                "show' prints."
            )
        return found

    @property
    def id(self) -> bytes:
        """SHA-256(name || LF || type || public key)[:4]."""
        return hashlib.sha256(self.name.encode() + b"\n" + bytes([self.kind]) + self.public).digest()[:4]

    def __str__(self) -> str:
        return f"{self.name}+{self.id.hex()}+{to_base64(bytes([self.kind]) + self.public)}"

    def holds(self, message: bytes, signature: bytes) -> bool:
        """Whether a signature is this key's for a message."""
        try:
            Ed25519PublicKey.from_public_bytes(self.public).verify(signature, message)
        except InvalidSignature:
            return False
        return True


class Note(NamedTuple):
    """A text and the signature lines below it."""

    text: str
    lines: tuple[str, ...]

    @classmethod
    def parse(cls, note: str) -> Note:
        """Take a note apart; nothing of it is believed yet.

        Raises:
            Refused: when it is none.
        """
        text, _, tail = note.rpartition("\n\n")
        lines = tail.split("\n")
        shaped = text and lines.pop() == "" and lines and all(re.fullmatch(rf"— {NAME} \S+", line) for line in lines)
        if not shaped or any(character < " " and character != "\n" for character in note):
            raise Refused(f"expected a signed note, got {note[:60]!r}: restore the original.")
        return cls(text + "\n", tuple(lines))

    def __str__(self) -> str:
        return "\n".join([self.text, *self.lines, ""])

    def signatures_of(self, verifier: Verifier) -> Iterator[bytes]:
        """What the lines with this name and key id hold behind the id."""
        for line in self.lines:
            _, name, encoded = line.split(" ")
            try:
                raw = from_base64(encoded)
            except ValueError:
                continue
            if (name, raw[:4]) == (verifier.name, verifier.id):
                yield raw[4:]

    def is_signed_by(self, verifier: Verifier) -> bool:
        """Whether the text is signed by this key; a false signature in its name spoils the note."""
        found = list(self.signatures_of(verifier))
        return bool(found) and all(verifier.holds(self.text.encode(), raw) for raw in found)

    def countersigned_by(self, verifier: Verifier) -> int | None:
        """When a witness countersigned the text, in seconds since 1970; None where it did not."""
        for raw in self.signatures_of(verifier):
            time = int.from_bytes(raw[:8])
            if len(raw) == 72 and verifier.holds(_timed(time, self.text), raw[8:]):
                return time
        return None

    def beside(self, lines: Iterable[str]) -> Note:
        """The note with more signatures."""
        return Note(self.text, (*self.lines, *(line for line in lines if line not in self.lines)))


def signed_note(text: str, name: str, key: SigningKey) -> Note:
    """A text with its author's signature."""
    return Note(text, (_line(Verifier.of(name, SIGNATURE, key), key.sign(text.encode())),))


def countersignature(text: str, name: str, key: SigningKey, time: int) -> str:
    """The line by which a witness says: at this time, the largest head of this log that I know is this one.

    Args:
        text: of a checkpoint.
        name: of the witness.
        key: of the witness.
        time: seconds since 1970.
    """
    verifier = Verifier.of(name, COSIGNATURE, key)
    return _line(verifier, time.to_bytes(8) + key.sign(_timed(time, text)))


def _timed(time: int, text: str) -> bytes:
    return f"cosignature/v1\ntime {time}\n{text}".encode()


def _line(verifier: Verifier, signature: bytes) -> str:
    return f"— {verifier.name} {to_base64(verifier.id + signature)}"


class Checkpoint(NamedTuple):
    """The head of a log: how many records it has, their Merkle root (RFC 6962), and the time of the last one."""

    origin: str
    """Name of the log."""
    size: int
    root: bytes
    time: str
    """Of the last record, as it says it; empty where the log says none."""

    @property
    def text(self) -> str:
        """The text that log and witnesses sign."""
        extension = f"{TIME}{self.time}\n" if self.time else ""
        return f"{self.origin}\n{self.size}\n{to_base64(self.root)}\n{extension}"

    @classmethod
    def parse(cls, text: str) -> Checkpoint:
        """Read a checkpoint's text.

        Raises:
            Refused: when it is none, or is not written in the one way.
        """
        origin, size, root, *more = text.removesuffix("\n").split("\n") + [""] * (3 - text.count("\n"))
        try:
            time = next((line.removeprefix(TIME) for line in more if line.startswith(TIME)), "")
            found = cls(origin, int(size), from_base64(root), time)
        except ValueError:
            found = None
        if found is None or found.text != text or not (origin and len(found.root) == 32 and 0 <= found.size < 2**63):
            raise Refused(f"expected the text of a checkpoint, got {text[:80]!r}: restore the original.")
        return found


class Nonce(NamedTuple):
    """What a witness gives for one record of a log, once it has countersigned a head that contains it."""

    origin: str
    position: int
    """Of the record, from 0."""
    leaf: bytes
    """The record's leaf hash."""

    @property
    def text(self) -> str:
        """The text whose signature is the nonce.

        Ed25519 signatures are deterministic: without the witness's key nobody foresees it, asked again the witness
        gives the same, and everybody can check it.
        """
        return f"{NONCE_LINE}\n{self.origin}\n{self.position}\n{to_base64(self.leaf)}\n"

    def given(self, key: SigningKey) -> bytes:
        """The nonce: 64 bytes."""
        return key.sign(self.text.encode())

    def is_given_by(self, verifier: Verifier, nonce: bytes) -> bool:
        """Whether a nonce is the one of this witness, whose verifier is that of its countersignatures."""
        return verifier.holds(self.text.encode(), nonce)
