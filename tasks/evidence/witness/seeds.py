"""Seeds of certification attempts, derived from a committed secret and unpredictable nonces of the witnesses."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from configs.errors import BadInput, NeoRLError, Refused
from tasks.evidence.claims import Predicate, Seed
from tasks.evidence.ledger.entry import Body, Entry, read_entry, root_of
from tasks.evidence.ledger.signing import TrustRoot, from_base64
from tasks.evidence.witness.notes import COSIGNATURE, Checkpoint, Nonce, Note, Verifier
from tasks.evidence.witness.pinned import FILE, ledger_fault, load_witnesses, witness_fault
from tasks.evidence.witness.witness import TOLERANCE
from tasks.files.canonical import sha256_hex
from tasks.files.merkle import leaf_hash

LABEL = b"neorl attempt seed v1\n"


class SeedBody(Body):
    """Entry: commitment to a secret, and the witnesses that will give nonces."""

    attempt: str
    commitment: str
    witnesses: tuple[str, ...] = ()
    """Witness keys. Fixed before any nonce is known: choosing among nonces would be choosing among seeds."""


class NonceBody(Body):
    """Entry: the nonces for a commitment, with a countersigned head that contains it."""

    attempt: str
    head: str
    """Countersigned checkpoint."""
    nonces: tuple[str, ...]
    """Base64, in the order of the commitment's witnesses."""
    stamp: str = ""
    """Base64 of an RFC 3161 token for the head's text; empty if no authority is pinned."""


def derive_seed(secret: bytes, nonces: Sequence[str]) -> bytes:
    """Return SHA-256("neorl attempt seed v1" LF || secret || nonces), 32 bytes.

    The secret is fixed before the nonces are known, and witnesses do not know the secret: nobody can choose the seed
    alone.

    Args:
        secret: 32 bytes.
        nonces: base64 of 64 bytes each, in the order of the commitment's witnesses.
    """
    return hashlib.sha256(LABEL + secret + b"".join(from_base64(nonce) for nonce in nonces)).digest()


def nonce_fault(record: Entry, head: str, nonces: Sequence[str]) -> str | None:
    """Check a commitment's nonces without the rest of the ledger; return an error, or None."""
    body = record.read(SeedBody)
    if not body.witnesses:
        return f"{len(nonces)} nonces or a head given, but no witness is named" if head or nonces else None
    if len(nonces) != len(body.witnesses):
        return f"{len(nonces)} nonces given for {len(body.witnesses)} witnesses"
    try:
        note = Note.parse(head)
        checkpoint = Checkpoint.parse(note.text)
        if checkpoint.size < record.sequence:
            return f"the head covers {checkpoint.size} entries, but the commitment is entry {record.sequence}"
        asked = Nonce(checkpoint.origin, record.sequence - 1, leaf_hash(record.envelope))
        for key, nonce in zip(body.witnesses, nonces, strict=True):
            verifier = Verifier.parse(key)
            time = note.countersigned_by(verifier)
            if time is None:
                return f"the head is not countersigned by {verifier.name}"
            if _later(checkpoint.time, time):
                return f"the last entry is of {checkpoint.time}, later than the countersignature of {_moment(time)}"
            if not asked.is_from(verifier, from_base64(nonce)):
                return f"the nonce for entry {record.sequence} was not given by {verifier.name}"
    except (NeoRLError, ValueError) as error:
        return str(error)
    return None


def countersigned_at(entries: Sequence[Entry], head: str, keys: Sequence[str]) -> datetime:
    """Return the earliest time at which the witnesses countersigned a head of this ledger."""
    note = Note.parse(head)
    checkpoint = Checkpoint.parse(note.text)
    size = checkpoint.size
    if size > len(entries):
        raise Refused(
            f"the ledger has {len(entries)} entries, but a countersigned head covers {size}: it was truncated or an "
            "older copy was restored; bring back the newer one"
        )
    if root_of(entries, size) != checkpoint.root:
        raise Refused(
            f"the first {size} ledger entries do not match a countersigned head: this is another history; bring back "
            "the original ledger"
        )
    if checkpoint.time != (entries[size - 1].timestamp if size else ""):
        stated = entries[size - 1].timestamp if size else "none"
        raise Refused(
            f"the head states {checkpoint.time} as time of entry {size}, the ledger {stated}: discard the head"
        )
    times = []
    for key in keys:
        verifier = Verifier.parse(key)
        time = note.countersigned_by(verifier)
        if time is None:
            raise Refused(f"the head is not countersigned by {verifier.name}: ask this witness again")
        if _later(checkpoint.time, time):
            raise Refused(
                f"the ledger's last entry is of {checkpoint.time}, later than the countersignature of "
                f"{verifier.name} at {_moment(time)}: set the clock right"
            )
        times.append(time)
    return _moment(min(times))


def check_seed(history: Sequence[Entry], entry: Entry) -> None:
    """Check that a commitment is the first of a logged attempt and names valid witnesses."""
    body = entry.read(SeedBody)
    opened = any(e.kind == "attempt" and e.digest == body.attempt for e in reversed(history))
    if not opened or entry_of_attempt(history, "seed", body.attempt):
        raise Refused(
            f"attempt {body.attempt[:12]} is not in the ledger or already has a seed: open an attempt and draw one seed"
        )
    try:
        verifiers = [Verifier.parse(key) for key in body.witnesses]
    except BadInput as error:
        raise Refused(str(error)) from error
    names = {verifier.name for verifier in verifiers}
    if len(names) < len(verifiers) or any(verifier.kind != COSIGNATURE for verifier in verifiers):
        raise Refused(f"witnesses must have different names and countersignature keys, got {', '.join(body.witnesses)}")


def check_nonce(history: Sequence[Entry], entry: Entry) -> None:
    """Check the nonces of a commitment and that their head belongs to this ledger."""
    body = entry.read(NonceBody)
    record = entry_of_attempt(history, "seed", body.attempt)
    if record is None or entry_of_attempt(history, "nonce", body.attempt) or not record.read(SeedBody).witnesses:
        raise Refused(
            f"attempt {body.attempt[:12]} already has nonces, or no commitment that names witnesses: do not log them"
        )
    if fault := nonce_fault(record, body.head, body.nonces):
        raise Refused(f"{fault}: ask the witnesses again")
    countersigned_at(history, body.head, record.read(SeedBody).witnesses)


def nonces_of(history: Sequence[Entry], attempt: str) -> NonceBody | None:
    """Return the nonces of an attempt, or None if the commitment still waits for them."""
    record = entry_of_attempt(history, "seed", attempt)
    if record is None:
        raise Refused(f"attempt {attempt[:12]} has no committed seed: open an attempt and draw the seed")
    if not record.read(SeedBody).witnesses:
        return NonceBody(attempt=attempt, head="", nonces=())
    found = entry_of_attempt(history, "nonce", attempt)
    return found.read(NonceBody) if found else None


def entry_of_attempt(history: Sequence[Entry], kind: str, attempt: str) -> Entry | None:
    """Return the first entry of this kind (seed, nonce, result) of the attempt that the entry `attempt` opened."""
    # Search from the attempt on: no earlier entry can contain the digest.
    numbers = reversed(range(len(history)))
    begun = next((number for number in numbers if history[number].digest == attempt), 0)
    # Stop at the first: later forged bodies may lack the field.
    return next((entry for entry in history[begun:] if entry.kind == kind and entry.body["attempt"] == attempt), None)


def witness_names(keys: Sequence[str]) -> list[str]:
    """Return the names of witnesses."""
    return [Verifier.parse(key).name for key in keys]


class DrawnSeed(NamedTuple):
    """Components of an attempt's seed."""

    record: Entry
    """Entry of the commitment."""
    secret: bytes
    head: str
    nonces: tuple[str, ...]

    def stated(self) -> Seed:
        """Return the seed as a certificate states it."""
        return Seed(
            commitment=sha256_hex(self.secret),
            record=self.record.envelope.decode(),
            head=self.head,
            nonces=self.nonces,
            secret=self.secret.hex(),
            value=derive_seed(self.secret, self.nonces).hex(),
        )


def seed_fault(predicate: Predicate) -> str | None:
    """Check a certificate's seed without the ledger; return an error, or None."""
    seed, record = predicate.seed, _recorded(predicate)
    secret, body = bytes.fromhex(seed.secret), record.read(SeedBody)
    if fault := nonce_fault(record, seed.head, seed.nonces):
        return fault
    if (body.attempt, body.commitment) != (predicate.attempt.entry, seed.commitment):
        return (
            f"entry {record.sequence} logged commitment {body.commitment[:12]} of attempt {body.attempt[:12]}, not "
            f"{seed.commitment[:12]} of {predicate.attempt.entry[:12]}"
        )
    if sha256_hex(secret) != seed.commitment:
        return f"committed to {seed.commitment[:12]}, revealed {sha256_hex(secret)[:12]}"
    if derive_seed(secret, seed.nonces).hex() != seed.value:
        return f"the stated seed {seed.value[:12]} does not follow from secret and nonces"
    return None


def stated_witnesses(predicate: Predicate) -> tuple[str, ...]:
    """Return the keys of the seed's witnesses."""
    return _recorded(predicate).read(SeedBody).witnesses


def compare_witnesses(predicate: Predicate, trust: TrustRoot) -> tuple[bool | None, str]:
    """Compare a certificate's witnesses with those pinned beside the trust root."""
    path = trust.source.with_name(FILE)
    try:
        keys = stated_witnesses(predicate)
        asked = load_witnesses(path) if path.exists() else None
        fault = (witness_fault(asked, keys) or ledger_fault(asked, predicate.seed.head)) if asked else None
    except (BadInput, ValueError) as error:
        return False, str(error)
    names = " and ".join(witness_names(keys)) or "none"
    if asked is None:
        return None, f"{names}; not compared: none are pinned in {path}"
    return fault is None, fault or f"{names}, as pinned in {path}"


def _recorded(predicate: Predicate) -> Entry:
    """Read the commitment's entry from a certificate without verifying the signature."""
    envelope = predicate.seed.record
    try:
        return read_entry(json.loads(from_base64(json.loads(envelope)["payload"])), envelope.encode())
    except (KeyError, TypeError) as error:
        raise ValueError(f"the seed's record is not a ledger entry: {error!r}") from error


def _later(last: str, time: int) -> bool:
    """Return whether a log's last record is later than a witness's time plus the tolerated clock difference."""
    return bool(last) and datetime.fromisoformat(last) > _moment(time) + TOLERANCE


def _moment(time: int) -> datetime:
    return datetime.fromtimestamp(time, UTC)
