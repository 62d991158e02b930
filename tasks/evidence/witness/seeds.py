"""The seed of an attempt: a secret that was committed to, and nonces that nobody could foresee then."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import UTC, datetime

from configs.errors import BadInput, NeoRLError, Refused
from tasks.evidence.ledger.ledger import Body, Entry, root_of
from tasks.evidence.ledger.signing import from_base64
from tasks.evidence.witness.notes import COSIGNATURE, Checkpoint, Nonce, Note, Verifier
from tasks.evidence.witness.service import TOLERANCE
from tasks.files.merkle import leaf_hash

LABEL = b"neorl attempt seed v1\n"


class SeedBody(Body):
    """A secret has been drawn, whose SHA-256 this is; these witnesses' nonces make the seed of it."""

    attempt: str
    commitment: str
    witnesses: tuple[str, ...] = ()
    """Their keys. They are named before a nonce is known, for choosing among nonces would be choosing among seeds."""


class NonceBody(Body):
    """The witnesses have countersigned a head that contains the commitment, and given their nonces for it."""

    attempt: str
    head: str
    """The head's checkpoint with their countersignatures."""
    nonces: tuple[str, ...]
    """Base64, in the order of the seed's witnesses."""
    stamp: str = ""
    """Base64 of an RFC 3161 token for the head's text, where an authority is pinned."""


def derive_seed(secret: bytes, nonces: Sequence[str]) -> bytes:
    """The seed: SHA-256("neorl attempt seed v1" LF || secret || nonces), 32 bytes.

    The owner chose the secret before the nonces were known, the witnesses give nonces without knowing the secret: none
    can choose the seed alone.

    Args:
        secret: 32 bytes.
        nonces: base64 of 64 bytes each, in the order in which the commitment's entry names the witnesses.
    """
    return hashlib.sha256(LABEL + secret + b"".join(from_base64(nonce) for nonce in nonces)).digest()


def nonce_fault(record: Entry, head: str, nonces: Sequence[str]) -> str | None:
    """What is wrong with the nonces of a commitment, by what can be seen without the rest of the ledger; or None.

    Args:
        record: the commitment's entry.
        head: a countersigned checkpoint.
        nonces: base64, one for each witness that the entry names.
    """
    body = record.read(SeedBody)
    if not body.witnesses:
        return "expected no nonces where no witness is named, got some" if head or nonces else None
    if len(nonces) != len(body.witnesses):
        return f"expected nonces of {len(body.witnesses)} witnesses, got {len(nonces)}"
    try:
        note = Note.parse(head)
        checkpoint = Checkpoint.parse(note.text)
        if checkpoint.size < record.sequence:
            return f"expected a head of at least {record.sequence} entries, got {checkpoint.size}"
        asked = Nonce(checkpoint.origin, record.sequence - 1, leaf_hash(record.envelope))
        for key, nonce in zip(body.witnesses, nonces, strict=True):
            verifier = Verifier.parse(key)
            time = note.countersigned_by(verifier)
            if time is None:
                return f"expected a head countersigned by {verifier.name}, got one that is not"
            if _later(checkpoint.time, time):
                return f"expected entries of at most {_moment(time)}, got one of {checkpoint.time}"
            if not asked.is_given_by(verifier, from_base64(nonce)):
                return f"expected the nonce that {verifier.name} gives for entry {record.sequence}, got another"
    except (NeoRLError, ValueError) as error:
        return str(error)
    return None


def countersigned_at(entries: Sequence[Entry], head: str, keys: Sequence[str]) -> datetime:
    """When witnesses countersigned a head of this ledger: the earliest of their times.

    Args:
        entries: of the ledger.
        head: the countersigned checkpoint.
        keys: of the witnesses that must have.

    Raises:
        Refused: when it is no head of this ledger, is not countersigned by them, or earlier than its own entries.
    """
    note = Note.parse(head)
    checkpoint = Checkpoint.parse(note.text)
    size = checkpoint.size
    if size > len(entries):
        raise Refused(
            f"expected at least the {size} ledger entries that a countersigned head has seen, got {len(entries)}: the "
            "ledger was truncated or an older one restored, so bring back the newer one."
        )
    if root_of(entries, size) != checkpoint.root:
        raise Refused(
            f"expected the first {size} ledger entries to be those of a countersigned head, got others: this is "
            "another history, so bring back the original ledger."
        )
    if checkpoint.time != (entries[size - 1].timestamp if size else ""):
        raise Refused(f"expected the time of entry {size} in its head, got {checkpoint.time}: void it.")
    times = []
    for key in keys:
        verifier = Verifier.parse(key)
        time = note.countersigned_by(verifier)
        if time is None:
            raise Refused(f"expected a head countersigned by {verifier.name}, got one that is not: ask it again.")
        if _later(checkpoint.time, time):
            raise Refused(f"expected entries of at most {_moment(time)}, got one of {checkpoint.time}: mend the clock.")
        times.append(time)
    return _moment(min(times))


def check_seed(history: Sequence[Entry], entry: Entry) -> None:
    """Refuse a commitment without an attempt, a second one for the same attempt, or one that names no real witnesses.

    Args:
        history: all entries before this one.
        entry: the commitment.
    """
    body = entry.read(SeedBody)
    opened = any(e.kind == "attempt" and e.digest == body.attempt for e in reversed(history))
    if not opened or of_attempt(history, "seed", body.attempt):
        raise Refused("expected the first seed of a logged attempt, got another: open an attempt, and draw one seed.")
    try:
        verifiers = [Verifier.parse(key) for key in body.witnesses]
    except BadInput as error:
        raise Refused(str(error)) from error
    names = {verifier.name for verifier in verifiers}
    if len(names) < len(verifiers) or any(verifier.kind != COSIGNATURE for verifier in verifiers):
        raise Refused("expected witnesses of different names, each with its key for countersignatures, got others.")


def check_nonce(history: Sequence[Entry], entry: Entry) -> None:
    """Refuse nonces that are not those of the commitment's witnesses, or whose head is not one of this ledger.

    Args:
        history: all entries before this one.
        entry: the nonces.
    """
    body = entry.read(NonceBody)
    record = of_attempt(history, "seed", body.attempt)
    if record is None or of_attempt(history, "nonce", body.attempt) or not record.read(SeedBody).witnesses:
        raise Refused("expected nonces once, after a commitment that names witnesses, got others: void them.")
    if fault := nonce_fault(record, body.head, body.nonces):
        raise Refused(f"{fault}: ask the witnesses again.")
    countersigned_at(history, body.head, record.read(SeedBody).witnesses)


def nonces_of(history: Sequence[Entry], attempt: str) -> NonceBody | None:
    """The nonces of an attempt, or None where its commitment waits for them.

    Raises:
        Refused: when there is no commitment.
    """
    record = of_attempt(history, "seed", attempt)
    if record is None:
        raise Refused("expected an attempt whose secret is committed to, got another: open one and draw its seed.")
    if not record.read(SeedBody).witnesses:
        return NonceBody(attempt=attempt, head="", nonces=())
    found = of_attempt(history, "nonce", attempt)
    return found.read(NonceBody) if found else None


def of_attempt(history: Sequence[Entry], kind: str, attempt: str) -> Entry | None:
    """The seed, nonces or result of the attempt that an entry with this digest logged; of several the first."""
    # From the attempt on, which is looked for from the end: nothing before it can name its digest.
    numbers = reversed(range(len(history)))
    begun = next((number for number in numbers if history[number].digest == attempt), 0)
    # No further than the first, for a body that was forged later may lack what is read here.
    return next((entry for entry in history[begun:] if entry.kind == kind and entry.body["attempt"] == attempt), None)


def names_of(keys: Sequence[str]) -> list[str]:
    """The names of witnesses, by their keys."""
    return [Verifier.parse(key).name for key in keys]


def _later(last: str, time: int) -> bool:
    """Whether a log's last record is later than a witness's time, beyond what clocks differ."""
    return bool(last) and datetime.fromisoformat(last) > _moment(time) + TOLERANCE


def _moment(time: int) -> datetime:
    return datetime.fromtimestamp(time, UTC)
