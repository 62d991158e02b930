"""Signed notes of transparency logs: checkpoints, countersignatures and nonces.

Formats: c2sp.org/signed-note, c2sp.org/tlog-checkpoint and c2sp.org/tlog-cosignature, which other tools can read. Only
the format of nonces is defined here.
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
"""Signature types: Ed25519 over the text; Ed25519 over a time and the text (countersignature)."""
NONCE_LINE = "neorl-nonce/v1"
NAME = r"[^\s+]+"
TIME = "time "
"""Prefix of the line that NeoRL adds to a checkpoint."""


class Verifier(NamedTuple):
    """A public key, with the name and the signature type that notes use for this key."""

    name: str
    kind: int
    public: bytes

    @classmethod
    def of(cls, name: str, kind: int, key: SigningKey) -> Verifier:
        return cls(name, kind, key.public.public_bytes_raw())

    @classmethod
    def parse(cls, text: str) -> Verifier:
        """Read a key in the form `NAME+ID+BASE64`."""
        match = re.fullmatch(rf"({NAME})\+([0-9a-f]{{8}})\+([A-Za-z0-9+/=]+)", text)
        try:
            raw = from_base64(match[3]) if match else b""
            found = cls(match[1] if match else "", raw[0] if raw else 0, raw[1:])
            Ed25519PublicKey.from_public_bytes(found.public)
        except ValueError:
            raw = b""
        if not raw or found.kind not in (SIGNATURE, COSIGNATURE) or str(found) != text:
            raise BadInput(
                f"a witness or log key must have the form NAME+ID+BASE64, got {text[:80]!r}: copy the line that "
                "'neorl witness show' prints on the owner's machine"
            )
        return found

    @property
    def id(self) -> bytes:
        """Key id: SHA-256(name || LF || type || public key)[:4]."""
        return hashlib.sha256(self.name.encode() + b"\n" + bytes([self.kind]) + self.public).digest()[:4]

    def __str__(self) -> str:
        return f"{self.name}+{self.id.hex()}+{to_base64(bytes([self.kind]) + self.public)}"

    def verifies(self, message: bytes, signature: bytes) -> bool:
        try:
            Ed25519PublicKey.from_public_bytes(self.public).verify(signature, message)
        except InvalidSignature:
            return False
        return True


class Note(NamedTuple):
    """A text followed by signature lines."""

    text: str
    lines: tuple[str, ...]

    @classmethod
    def parse(cls, note: str) -> Note:
        """Split a note into text and signature lines; signatures are not verified."""
        text, _, tail = note.rpartition("\n\n")
        lines = tail.split("\n")
        shaped = text and lines.pop() == "" and lines and all(re.fullmatch(rf"— {NAME} \S+", line) for line in lines)
        if not shaped or any(character < " " and character != "\n" for character in note):
            raise Refused(f"{note[:60]!r} is not a signed note: restore the original")
        return cls(text + "\n", tuple(lines))

    def __str__(self) -> str:
        return "\n".join([self.text, *self.lines, ""])

    def signatures_of(self, verifier: Verifier) -> Iterator[bytes]:
        """Yield the signatures that carry this key's name and id."""
        for line in self.lines:
            _, name, encoded = line.split(" ")
            try:
                raw = from_base64(encoded)
            except ValueError:
                continue
            if (name, raw[:4]) == (verifier.name, verifier.id):
                yield raw[4:]

    def is_signed_by(self, verifier: Verifier) -> bool:
        """Return whether this key signed the text. One invalid signature with the key's name and id gives False."""
        found = list(self.signatures_of(verifier))
        return bool(found) and all(verifier.verifies(self.text.encode(), raw) for raw in found)

    def countersigned_by(self, verifier: Verifier) -> int | None:
        """Return the time of a witness's countersignature in Unix seconds; None if there is no valid one."""
        for raw in self.signatures_of(verifier):
            time = int.from_bytes(raw[:8])
            if len(raw) == 72 and verifier.verifies(_timed(time, self.text), raw[8:]):
                return time
        return None

    def with_lines(self, lines: Iterable[str]) -> Note:
        return Note(self.text, (*self.lines, *(line for line in lines if line not in self.lines)))


def signed_note(text: str, name: str, key: SigningKey) -> Note:
    return Note(text, (_line(Verifier.of(name, SIGNATURE, key), key.sign(text.encode())),))


def countersignature(text: str, name: str, key: SigningKey, time: int) -> str:
    """Return a witness's signature line for the largest head (checkpoint) that the witness has seen of a ledger."""
    verifier = Verifier.of(name, COSIGNATURE, key)
    return _line(verifier, time.to_bytes(8) + key.sign(_timed(time, text)))


def _timed(time: int, text: str) -> bytes:
    return f"cosignature/v1\ntime {time}\n{text}".encode()


def _line(verifier: Verifier, signature: bytes) -> str:
    return f"— {verifier.name} {to_base64(verifier.id + signature)}"


class Checkpoint(NamedTuple):
    """Head of a log: number of records, Merkle root (RFC 6962) and time of the last record."""

    origin: str
    size: int
    root: bytes
    time: str
    """Time of the last record; empty if the log states none."""

    @property
    def text(self) -> str:
        """Text that the log and the witnesses sign."""
        extension = f"{TIME}{self.time}\n" if self.time else ""
        return f"{self.origin}\n{self.size}\n{to_base64(self.root)}\n{extension}"

    @classmethod
    def parse(cls, text: str) -> Checkpoint:
        origin, size, root, *more = text.removesuffix("\n").split("\n") + [""] * (3 - text.count("\n"))
        try:
            time = next((line.removeprefix(TIME) for line in more if line.startswith(TIME)), "")
            found = cls(origin, int(size), from_base64(root), time)
        except ValueError:
            found = None
        if found is None or found.text != text or not (origin and len(found.root) == 32 and 0 <= found.size < 2**63):
            raise Refused(f"{text[:80]!r} is not a checkpoint: restore the original")
        return found


class Nonce(NamedTuple):
    """A witness's random number for one record. The witness gives it after countersigning a head with the record."""

    origin: str
    position: int
    """Index of the record, from 0."""
    leaf: bytes
    """Leaf hash of the record."""

    @property
    def text(self) -> str:
        """Text to sign; the signature is the nonce.

        Ed25519 signatures are deterministic, so a witness always gives the same nonce. Nobody can predict the nonce
        without the witness's key, and anybody can verify it.
        """
        return f"{NONCE_LINE}\n{self.origin}\n{self.position}\n{to_base64(self.leaf)}\n"

    def sign(self, key: SigningKey) -> bytes:
        """Return the nonce (64 bytes)."""
        return key.sign(self.text.encode())

    def is_from(self, verifier: Verifier, nonce: bytes) -> bool:
        """Return whether a witness gave this nonce; `verifier` is the witness's key for countersignatures."""
        return verifier.verifies(self.text.encode(), nonce)
