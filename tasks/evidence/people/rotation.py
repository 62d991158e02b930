"""Another key in the place of the home's own: prepared beside it, named by an entry of the old one, then put there."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from configs.errors import BadInput, Refused
from configs.home import Home
from tasks.evidence.ledger.keys import kept_passphrase, store_key
from tasks.evidence.ledger.ledger import Entry
from tasks.evidence.ledger.protocol import Answer, Append, Rotate
from tasks.evidence.ledger.signing import (
    Pin,
    SigningKey,
    TrustRoot,
    home_pin,
    key_id,
    public_key,
    public_text,
    trust_yaml,
)
from tasks.evidence.ledger.voided import texts
from tasks.evidence.people.keyring import REPLACEMENT_TYPE, RotationBody, home_keys_out, keyring
from tasks.files.canonical import write_atomic
from tasks.files.locks import exclusive

NEXT = "next-"


def prepare(home: Home, passphrase: bytes | None, source: Path) -> tuple[SigningKey, Path]:
    """Make the next key beside the one in force, and pin it: what it signs must count as soon as it signs.

    Args:
        home: whose key.
        passphrase: of the key in force, and so of the next; else as `keys.open_keys` finds one.
        source: the trust root's file.
    """
    private = Ed25519PrivateKey.generate()
    name = key_id(private.public_key())
    path = home.signing_key.with_name(f"{NEXT}{name}.pem")
    key = store_key(path, private, passphrase)
    pin = home_pin(key.public, "took the place of another one")
    change_pins(home, source, lambda trust: [*trust.pins, pin])
    return key, path


def replacement(key: SigningKey, old: str, by: str, why: str, person: str = "", signature: str = "") -> RotationBody:
    """What is logged: the new key's own signature shows that somebody holds it.

    Args:
        key: the new one.
        old: id of the one that it replaces.
        by: who does it.
        why: for the record.
        person: whose key it is; nobody's is the home's.
        signature: the person's statement, by the old key.
    """
    possession = key.seal(REPLACEMENT_TYPE, {"new": key_id(key.public), "old": old}).decode()
    return RotationBody(
        old=old,
        public=public_text(key.public),
        person=person,
        possession=possession,
        by=by,
        why=why,
        signature=signature,
    )


def rotate(
    home: Home,
    key: SigningKey,
    passphrase: bytes | None,
    source: Path,
    request: Rotate,
    predecessor: str,
    announce: Callable[[SigningKey], None],
    write: Callable[[Append], Answer],
) -> SigningKey | None:
    """Name the next key in an entry of the old one; a kill at any point leaves one of them in force, and whole.

    Args:
        home: whose key.
        key: the one in force.
        passphrase: of it, where it is in no file.
        source: the trust root's file.
        request: who rotates it, and why.
        predecessor: digest of the ledger's last entry.
        announce: tells witnesses of the new key, which they must know before it signs.
        write: appends an entry that the old key signs.

    Returns:
        The new key; None where another entry came first, and nothing has changed.
    """
    following, path = prepare(home, passphrase, source)
    body = replacement(following, key_id(key.public), request.by, request.why).model_dump(mode="json")
    try:
        announce(following)
        answer = write(Append(kind="rotation", plant="", body=body, artefacts=(), predecessor=predecessor))
    except Refused:
        # Nothing is refused once its entry is in; after any other error it may be, and `finish` looks.
        _forget(home, following, path, source)
        raise
    if answer.stale:
        _forget(home, following, path, source)
        return None
    put_in_place(home, path)
    return following


def _forget(home: Home, following: SigningKey, path: Path, source: Path) -> None:
    """Leave the key in force, as if no other had been made."""
    kept_passphrase(path.read_bytes()).unlink(missing_ok=True)
    path.unlink()
    name = key_id(following.public)
    change_pins(home, source, lambda trust: [pin for pin in trust.pins if pin.id != name])


def put_in_place(home: Home, path: Path) -> None:
    """Let the next key be the home's; the old one is gone, and its generated passphrase stays, for backups."""
    os.replace(path, home.signing_key)


def finish(home: Home, history: Iterable[Entry]) -> None:
    """Complete a rotation that was killed after its entry, and forget one that was killed before."""
    named = set()
    for entry in history:
        if entry.kind == "rotation" and (told := texts(entry, "public", "person")) and not told[1]:
            with suppress(ValueError):
                named.add(key_id(public_key(told[0])))
    for path in home.signing_key.parent.glob(f"{NEXT}*.pem"):
        if path.stem.removeprefix(NEXT) in named:
            put_in_place(home, path)
        else:
            kept_passphrase(path.read_bytes()).unlink(missing_ok=True)
            path.unlink()


def pins_of(trust: TrustRoot, history: Sequence[Entry]) -> list[Pin]:
    """The rows of a trust root with all that the ledger says of keys: persons, roles, and when a key went out."""
    out, people = home_keys_out(history), keyring(history)
    revoked: dict[str, str] = {}
    for entry in history:
        if entry.kind == "revocation" and (told := texts(entry, "key", "since")) and told[1]:
            revoked[told[0]] = min(told[1], revoked.get(told[0], told[1]))
    rows = {pin.id: pin for pin in trust.pins}
    for name, pin in rows.items():
        if name in out:
            rows[name] = pin._replace(until=out[name].timestamp, revoked=revoked.get(name, pin.revoked))
    for key in people.values():
        note = rows[key.id].note if key.id in rows else ""
        rows[key.id] = Pin(key.id, key.public, note, key.person, key.roles, key.until, key.revoked)
    return list(rows.values())


def change_pins(home: Home, path: Path, change: Callable[[TrustRoot], Sequence[Pin]]) -> None:
    """Change a trust root's rows as one: the signer and the commands of persons both write it.

    Args:
        home: whose signer and commands.
        path: of the trust root.
        change: gives the rows that it is to have.
    """
    with exclusive(home.folder("locks") / "trust.lock"):
        trust = TrustRoot.read(path)
        if (pins := tuple(change(trust))) != trust.pins:
            write_pins(path, pins)


def write_pins(path: Path, pins: Sequence[Pin]) -> None:
    """Write a trust root whole.

    Raises:
        BadInput: when it cannot be written.
    """
    try:
        write_atomic(path, trust_yaml(*pins))
    except OSError as error:
        raise BadInput(
            f"expected to write the trust root {path}, got '{error.strerror}': allow it, and give the command again."
        ) from error
