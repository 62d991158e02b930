"""Keys as people handle them: enrolled, replaced, revoked; each is an entry, and the trust root follows."""

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
from tasks.evidence.people.keyring import (
    KINDS,
    KeyBody,
    RevocationBody,
    key_of,
    keyring,
)
from tasks.evidence.people.rotation import change_pins, pins_of, replacement
from tasks.evidence.people.rules import key_content, revocation_content, rotation_content
from tasks.evidence.people.statement import Signatory
from tasks.evidence.witness.pinned import FILE as WITNESSES
from tasks.evidence.witness.pinned import load_witnesses
from tasks.files.canonical import write_atomic
from tasks.files.times import format_time, normalise_time


def enrol(
    ledger: Ledger, file: Path, roles: Sequence[str], by: str, why: str, signatory: Signatory | None = None
) -> Entry:
    """Enrol a person's key, and pin it; one that is enrolled already is only pinned again.

    Args:
        ledger: opened to write.
        file: what the key says of itself, from `private_keys.create`.
        roles: as what this person may decide.
        by: who enrols it, after asking that person for the key's id.
        why: for the record.
        signatory: a person who vouches, once there is one.

    Raises:
        BadInput: when the file is another.
        Refused: when the name or the key is taken, or nobody vouches.
    """
    own, possession = private_keys.read_public(file)
    known = keyring(ledger.entries()).get(key_id(public_key(own.public)))
    if known is not None and known.in_force:
        _pin(ledger)
        return next(e for e in ledger.entries() if e.kind in KINDS and e.body.get("public") == own.public)
    said = KeyBody(**own.model_dump(), roles=tuple(roles), possession=possession, by=by, why=why)
    if signatory is not None:
        said = said.model_copy(update={"signature": signatory.sign(key_content(said))})
    entry = ledger.append("key", said)
    _pin(ledger)
    return entry


def pin_home(home: Home, public: Ed25519PublicKey, note: str, project: Path) -> list[Path]:
    """Pin the home's key in the project, with what lies beside the home's trust root: that is looked for there, then.

    Args:
        home: whose key.
        public: its public half.
        note: whose it is, in words.
        project: the project's trust root.

    Returns:
        The files that were copied; what the project has already stays.

    Raises:
        Refused: when the project pins other keys.
    """
    if project.exists() and key_id(public) not in TrustRoot.read(project).keys:
        raise Refused(
            f"expected no other pinned keys, got some in {project}: add this one there by hand after asking their "
            "owner."
        )
    beside = home.trust.parent
    files = [*sorted(beside.glob("policies/*.yaml")), *_witnesses(beside)]
    wanted = [(file, project.parent / file.relative_to(beside)) for file in files]
    copied = [write_atomic(there, file.read_bytes()) for file, there in wanted if not there.exists()]
    # The trust root last: until it lies there the home's own holds, and the same command again goes on.
    if not project.exists():
        own = [pin for pin in TrustRoot.locate(home, project=project).pins if pin.id != key_id(public)]
        write_atomic(project, trust_yaml(home_pin(public, note), *own))
    return copied


def _witnesses(folder: Path) -> list[Path]:
    """The file that pins witnesses, with the certificate that it names beside itself."""
    path = folder / WITNESSES
    if not path.is_file():
        return []
    stamps = load_witnesses(path).timestamps
    named = [folder / stamps.certificate] if stamps and not Path(stamps.certificate).is_absolute() else []
    return [*(file for file in named if file.is_file()), path]


def rotate_home(home: Home, by: str, why: str) -> str:
    """Let another key take the place of the home's; the old one signs which, and is gone.

    Returns:
        The new key's id.

    Raises:
        Refused: when the signer refuses.
    """
    while ask(home, Rotate(by=by, why=why)).stale:
        pass  # another home's entry came first
    ledger = Ledger.open(home)
    _pin(ledger)
    return key_id(public_key(ledger.entries("rotation")[-1].body["public"]))


def rotate_person(ledger: Ledger, person: str, why: str, path: Path | None = None) -> str:
    """Let another key take the place of a person's; the old one signs which.

    A kill at any point leaves a whole key: the same command again goes on with it.

    Args:
        ledger: opened to write.
        person: whose key.
        why: for the record.
        path: the private key's file; the one in the user's configuration otherwise.

    Returns:
        The new key's id.

    Raises:
        BadInput: when there is no key, or its file does not end with .pem.
        Refused: when it is not the person's key in force.
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
            raise BadInput(f"expected an enrolled key of {person}, got none: have it enrolled with 'neorl keys pin'.")
        said = replacement(key, old.id, person, why, old.person)
        ledger.append("rotation", said.model_copy(update={"signature": signatory.sign(rotation_content(said))}))
    own, _ = private_keys.read_public(private_keys.public_file(following))
    name = key_id(public_key(own.public))
    if name in keyring(ledger.entries()):
        # The public half last: while it lies there, this goes on.
        if following.exists():
            os.replace(following, private)
        os.replace(private_keys.public_file(following), own_file)
        _pin(ledger)
        return name
    # It was killed before its entry: nobody knows that key.
    _forget(following)
    return rotate_person(ledger, person, why, path)


def revoke(ledger: Ledger, key: str, since: str, by: str, why: str, signatory: Signatory | None = None) -> Entry:
    """Let a key not count from a moment on, which may lie in the past.

    Args:
        ledger: opened to write.
        key: its id, or the person whose key in force it is.
        since: a moment as the ledger writes times.
        by: who revokes it.
        why: for the record.
        signatory: a person with their key, where another one than the home has a say.

    Raises:
        Refused: when it is not known, or in force and the home's own.
    """
    found = key_of(ledger.entries(), key)
    said = RevocationBody(key=found.id if found else key, since=since, by=by, why=why)
    if signatory is not None:
        said = said.model_copy(update={"signature": signatory.sign(revocation_content(said))})
    entry = ledger.append("revocation", said)
    _pin(ledger)
    return entry


def first_moment(text: str) -> str:
    """A date (its first moment) or an ISO time, as the ledger writes times; now without one.

    Raises:
        BadInput: when it is neither.
    """
    return normalise_time(text, last=False) if text else format_time(datetime.now(UTC) - timedelta(microseconds=1))


def told(entries: Sequence[Entry]) -> list[tuple[str, ...]]:
    """Every key that the ledger knows of: id, whose, as what, from when, until when, and from when revoked."""
    return [(k.id, k.person, ", ".join(k.roles), k.since, k.until, k.revoked) for k in keyring(entries).values()]


def _forget(private: Path) -> None:
    private_keys.public_file(private).unlink(missing_ok=True)
    private.unlink(missing_ok=True)


def _pin(ledger: Ledger) -> None:
    change_pins(ledger.home, ledger.trust.source, lambda trust: pins_of(trust, ledger.entries()))
