"""Enrolment, rotation and revocation of keys: each writes a ledger entry and updates the trust root."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from configs.errors import BadInput, Refused
from configs.home import Home
from tasks.evidence.ledger.client import ask
from tasks.evidence.ledger.entry import Entry
from tasks.evidence.ledger.ledger import Ledger
from tasks.evidence.ledger.protocol import Rotate
from tasks.evidence.ledger.signing import SigningKey, TrustRoot, home_pin, key_id, public_key, trust_yaml
from tasks.evidence.people import private_keys
from tasks.evidence.people.keyring import KINDS, KeyBody, RevocationBody, key_of, keyring
from tasks.evidence.people.rotation import change_pins, pins_of, replacement
from tasks.evidence.people.rules import key_content, revocation_content, rotation_content
from tasks.evidence.people.statement import Signatory, with_signature
from tasks.evidence.witness.pinned import FILE as WITNESSES
from tasks.evidence.witness.pinned import load_witnesses
from tasks.files.canonical import format_time, normalise_time, write_atomic


def enrol(
    ledger: Ledger, file: Path, roles: Sequence[str], by: str, why: str, signatory: Signatory | None = None
) -> Entry:
    """Enrol a person's key and pin it; a key that is already enrolled is only pinned again.

    Args:
        signatory: person who vouches for the key; required if another person already has a key.
    """
    own, possession = private_keys.read_public(file)
    known = keyring(ledger.entries()).get(key_id(public_key(own.public)))
    if known is not None and known.in_force:
        _pin(ledger)
        return next(e for e in ledger.entries() if e.kind in KINDS and e.body.get("public") == own.public)
    made = KeyBody(**own.model_dump(), roles=tuple(roles), possession=possession, by=by, why=why)
    entry = ledger.append("key", with_signature(made, signatory, key_content(made)))
    _pin(ledger)
    return entry


def pin_home(home: Home, public: Ed25519PublicKey, note: str, project: Path) -> list[Path]:
    """Pin the home's key in the project, and copy the home's policies and witnesses into the same folder.

    Returns:
        The copied files; files that exist already are not replaced.
    """
    if project.exists() and key_id(public) not in TrustRoot.read(project).keys:
        raise Refused(f"{project} pins other keys: ask their owner, and add {key_id(public)} there by hand")
    beside = home.trust.parent
    files = [*sorted(beside.glob("policies/*.yaml")), *_witnesses(beside)]
    wanted = [(file, project.parent / file.relative_to(beside)) for file in files]
    copied = [write_atomic(there, file.read_bytes()) for file, there in wanted if not there.exists()]
    # Write the trust root last: until then the home's own trust root applies, and a repeated command continues.
    if not project.exists():
        own = [pin for pin in TrustRoot.locate(home, project=project).pins if pin.id != key_id(public)]
        write_atomic(project, trust_yaml(home_pin(public, note), *own))
    return copied


def _witnesses(folder: Path) -> list[Path]:
    path = folder / WITNESSES
    if not path.is_file():
        return []
    stamps = load_witnesses(path).timestamps
    named = [folder / stamps.certificate] if stamps and not Path(stamps.certificate).is_absolute() else []
    return [*(file for file in named if file.is_file()), path]


def rotate_home(home: Home, by: str, why: str) -> str:
    """Replace the home's key by a new key, and return the new key's id. The old key signs the rotation."""
    while ask(home, Rotate(by=by, why=why)).stale:
        pass  # another writer was first
    ledger = Ledger.open(home)
    _pin(ledger)
    return key_id(public_key(ledger.entries("rotation")[-1].body["public"]))


def rotate_person(ledger: Ledger, person: str, why: str, path: Path | None = None) -> str:
    """Replace a person's key by a new key; the old key signs the rotation. After a kill, the same command continues.

    Returns:
        The new key's id.
    """
    private = path or private_keys.key_file(person)
    own_file, following = private_keys.public_file(private), private.with_suffix(".next.pem")
    if not private_keys.public_file(following).exists():
        signatory = private_keys.unlock(private)
        made = Ed25519PrivateKey.generate()
        private_keys.write(following, person, made, private_keys.new_passphrase(person))
        old, key = key_of(ledger.entries(), person), SigningKey(made)
        if old is None:
            _forget(following)
            raise BadInput(f"{person} has no enrolled key: have one enrolled with 'neorl keys pin'")
        made_body = replacement(key, old.id, person, why, old.person)
        ledger.append("rotation", with_signature(made_body, signatory, rotation_content(made_body)))
    own, _ = private_keys.read_public(private_keys.public_file(following))
    name = key_id(public_key(own.public))
    if name in keyring(ledger.entries()):
        # Move the public file last: while it exists, a repeated command continues here.
        if following.exists():
            os.replace(following, private)
        os.replace(private_keys.public_file(following), own_file)
        _pin(ledger)
        return name
    # An earlier run was killed before it logged the prepared key.
    _forget(following)
    return rotate_person(ledger, person, why, path)


def revoke(ledger: Ledger, key: str, since: str, by: str, why: str, signatory: Signatory | None = None) -> Entry:
    """Revoke a key: its signatures do not count from the time `since` on, which may be in the past.

    Args:
        key: id of the key, or name of its owner.
        signatory: the person who signs; required if another person has a valid key.
    """
    found = key_of(ledger.entries(), key)
    made = RevocationBody(key=found.id if found else key, since=since, by=by, why=why)
    entry = ledger.append("revocation", with_signature(made, signatory, revocation_content(made)))
    _pin(ledger)
    return entry


def first_moment(text: str) -> str:
    """Return a time in the ledger's format, from a date (start of day), an ISO time or an empty text (now)."""
    return normalise_time(text, last=False) if text else format_time(datetime.now(UTC) - timedelta(microseconds=1))


def key_rows(entries: Sequence[Entry]) -> list[tuple[str, ...]]:
    """Return every key of a person: id, person, roles, since, until, revoked."""
    return [(k.id, k.person, ", ".join(k.roles), k.since, k.until, k.revoked) for k in keyring(entries).values()]


def _forget(private: Path) -> None:
    private_keys.public_file(private).unlink(missing_ok=True)
    private.unlink(missing_ok=True)


def _pin(ledger: Ledger) -> None:
    change_pins(ledger.home, ledger.trust.source, lambda trust: pins_of(trust, ledger.entries()))
