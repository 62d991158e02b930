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
    """Body of a `seed` entry: SHA-256 of a secret (the commitment), and the witnesses that will give nonces."""

    attempt: str
    commitment: str
    witnesses: tuple[str, ...] = ()
    """Keys of the witnesses, fixed before any nonce is known, so that no party can choose among several seeds."""


class NonceBody(Body):
    """Body of a `nonce` entry: the witnesses' nonces, and a countersigned head that contains the seed entry."""

    attempt: str
    head: str
    """Countersigned checkpoint."""
    nonces: tuple[str, ...]
    """Base64 of the nonces, in the order of the witnesses in the seed entry."""
    stamp: str = ""
    """Base64 of an RFC 3161 token for the head's text; empty if no authority is pinned."""


def derive_seed(secret: bytes, nonces: Sequence[str]) -> bytes:
    """Return the seed: SHA-256 over "neorl attempt seed v1", a line feed, the secret and the nonces; 32 bytes.

    The secret is fixed before the nonces are known, and the witnesses do not know the secret. Therefore no party can
    choose the seed.

    Args:
        secret: 32 bytes.
        nonces: base64 of 64 bytes each, in the order of the witnesses in the seed entry.
    """
    return hashlib.sha256(LABEL + secret + b"".join(from_base64(nonce) for nonce in nonces)).digest()


def nonce_fault(record: Entry, head: str, nonces: Sequence[str]) -> str | None:
    """Check the nonces of the seed entry `record` without the rest of the ledger; return a message, or None."""
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
    """Check that a head belongs to this ledger and that all `keys` countersigned it; return the earliest time."""
    note = Note.parse(head)
    checkpoint = Checkpoint.parse(note.text)
    size = checkpoint.size
    if size > len(entries):
        raise Refused(
            f"the ledger has {len(entries)} entries, but a countersigned head covers {size}: it was truncated, or an "
            "older copy was restored; restore the newer ledger"
        )
    if root_of(entries, size) != checkpoint.root:
        raise Refused(
            f"the first {size} ledger entries do not match a countersigned head: entries were altered or replaced; "
            "restore the original ledger"
        )
    if checkpoint.time != (entries[size - 1].timestamp if size else ""):
        stated = entries[size - 1].timestamp if size else "none"
        raise Refused(
            f"the head states {checkpoint.time} as time of entry {size}, but the ledger {stated}: discard the head"
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
    """Check a seed entry: its attempt is in the ledger and has no other seed, and its witnesses are valid."""
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
    """Check a nonce entry: its nonces are valid, and its head belongs to this ledger."""
    body = entry.read(NonceBody)
    record = entry_of_attempt(history, "seed", body.attempt)
    if record is None or entry_of_attempt(history, "nonce", body.attempt) or not record.read(SeedBody).witnesses:
        raise Refused(
            f"attempt {body.attempt[:12]} already has nonces, or has no seed entry that names witnesses: repeat the run"
        )
    if fault := nonce_fault(record, body.head, body.nonces):
        raise Refused(f"{fault}: ask the witnesses again")
    countersigned_at(history, body.head, record.read(SeedBody).witnesses)


def nonces_of(history: Sequence[Entry], attempt: str) -> NonceBody | None:
    """Return the nonces of an attempt, or None if the witnesses have not given them yet."""
    record = entry_of_attempt(history, "seed", attempt)
    if record is None:
        raise Refused(f"attempt {attempt[:12]} has no committed seed: open an attempt and draw the seed")
    if not record.read(SeedBody).witnesses:
        return NonceBody(attempt=attempt, head="", nonces=())
    found = entry_of_attempt(history, "nonce", attempt)
    return found.read(NonceBody) if found else None


def entry_of_attempt(history: Sequence[Entry], kind: str, attempt: str) -> Entry | None:
    """Return an attempt's first entry of a kind (seed, nonce or result); `attempt` is the digest of its first entry."""
    # Search from the attempt's entry on, because no earlier entry can contain its digest.
    numbers = reversed(range(len(history)))
    begun = next((number for number in numbers if history[number].digest == attempt), 0)
    # Stop at the first match, because later forged bodies may lack the field.
    return next((entry for entry in history[begun:] if entry.kind == kind and entry.body["attempt"] == attempt), None)


def witness_names(keys: Sequence[str]) -> list[str]:
    return [Verifier.parse(key).name for key in keys]


class DrawnSeed(NamedTuple):
    """The parts from which an attempt's seed is derived."""

    record: Entry
    """The seed entry, which contains the commitment."""
    secret: bytes
    head: str
    nonces: tuple[str, ...]

    def stated(self) -> Seed:
        """Return the seed with its parts, in the form in which a certificate contains them."""
        return Seed(
            commitment=sha256_hex(self.secret),
            record=self.record.envelope.decode(),
            head=self.head,
            nonces=self.nonces,
            secret=self.secret.hex(),
            value=derive_seed(self.secret, self.nonces).hex(),
        )


def seed_fault(predicate: Predicate) -> str | None:
    """Check a certificate's seed without the ledger; return a message, or None if the seed is valid."""
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
    return _recorded(predicate).read(SeedBody).witnesses


def compare_witnesses(predicate: Predicate, trust: TrustRoot) -> tuple[bool | None, str]:
    """Compare a certificate's witnesses with the pinned witnesses; return verdict (None: none pinned) and message."""
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
    """Return the seed entry that a certificate contains; its signature is not verified here."""
    envelope = predicate.seed.record
    try:
        return read_entry(json.loads(from_base64(json.loads(envelope)["payload"])), envelope.encode())
    except (KeyError, TypeError) as error:
        raise ValueError(f"the seed's record is not a ledger entry: {error!r}") from error


def _later(last: str, time: int) -> bool:
    """Return whether the time `last` is later than a witness's time plus the tolerated clock difference."""
    return bool(last) and datetime.fromisoformat(last) > _moment(time) + TOLERANCE


def _moment(time: int) -> datetime:
    return datetime.fromtimestamp(time, UTC)
