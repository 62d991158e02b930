"""What a certificate states of its seed, and whether it follows."""

from __future__ import annotations

import json
from typing import NamedTuple

from configs.errors import BadInput
from tasks.evidence.claims import Predicate, Seed
from tasks.evidence.ledger.ledger import Entry, read_entry
from tasks.evidence.ledger.signing import TrustRoot, from_base64
from tasks.evidence.witness.pinned import FILE, lacking_witnesses, load_witnesses, strange_ledger
from tasks.evidence.witness.seeds import SeedBody, derive_seed, names_of, nonce_fault
from tasks.files.canonical import sha256_hex


class DrawnSeed(NamedTuple):
    """What an attempt's seed was made of."""

    record: Entry
    """The commitment's entry."""
    secret: bytes
    head: str
    nonces: tuple[str, ...]

    def stated(self) -> Seed:
        """The seed, as a certificate states it."""
        return Seed(
            commitment=sha256_hex(self.secret),
            record=self.record.envelope.decode(),
            head=self.head,
            nonces=self.nonces,
            secret=self.secret.hex(),
            value=derive_seed(self.secret, self.nonces).hex(),
        )


def seed_fault(predicate: Predicate) -> str | None:
    """What is wrong with a stated seed, by what the certificate itself shows; or None.

    Raises:
        ValueError: when a field is malformed.
    """
    seed, record = predicate.seed, _recorded(predicate)
    secret, body = bytes.fromhex(seed.secret), record.read(SeedBody)
    if fault := nonce_fault(record, seed.head, seed.nonces):
        return fault
    if (body.attempt, body.commitment) != (predicate.attempt.entry, seed.commitment):
        return f"expected the entry that logged commitment {seed.commitment[:12]}, got another"
    if sha256_hex(secret) != seed.commitment:
        return f"committed to {seed.commitment[:12]}, revealed {sha256_hex(secret)[:12]}"
    if derive_seed(secret, seed.nonces).hex() != seed.value:
        return "expected the seed that follows from secret and nonces, got another"
    return None


def witnesses_stated(predicate: Predicate) -> tuple[str, ...]:
    """Keys of the witnesses whose nonces made the seed.

    Raises:
        ValueError: when the stated entry is none.
    """
    return _recorded(predicate).read(SeedBody).witnesses


def pinned_as_stated(predicate: Predicate, trust: TrustRoot) -> tuple[bool | None, str]:
    """Whether the witnesses are those that are pinned beside the trust root, and who they are; None where none are."""
    path = trust.source.with_name(FILE)
    try:
        keys = witnesses_stated(predicate)
        asked = load_witnesses(path) if path.exists() else None
        fault = (lacking_witnesses(asked, keys) or strange_ledger(asked, predicate.seed.head)) if asked else None
    except (BadInput, ValueError) as error:
        return False, str(error)
    said = " and ".join(names_of(keys)) or "none"
    if asked is None:
        return None, f"{said}; not compared: none are pinned in {path}"
    return fault is None, fault or f"{said}, as pinned in {path}"


def _recorded(predicate: Predicate) -> Entry:
    """The entry that logged a commitment, as the certificate has it; its signature is not looked at."""
    envelope = predicate.seed.record
    try:
        return read_entry(json.loads(from_base64(json.loads(envelope)["payload"])), envelope.encode())
    except (KeyError, TypeError) as error:
        raise ValueError(f"no entry of a ledger: {error!r}") from error
