"""Rotation of the home's key: prepare the next key, log it with the old one, then put it in place."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from configs.errors import BadInput, Refused
from configs.home import Home
from tasks.evidence.ledger.entry import Entry
from tasks.evidence.ledger.keys import kept_passphrase, store_key
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
from tasks.files.canonical import exclusive, write_atomic

NEXT = "next-"


def prepare(home: Home, passphrase: bytes | None, source: Path) -> tuple[SigningKey, Path]:
    """Make the next key beside the current one and pin it, so that the first signature counts.

    Args:
        passphrase: passphrase of both keys; see `keys.open_keys` for the default.
    """
    private = Ed25519PrivateKey.generate()
    name = key_id(private.public_key())
    path = home.signing_key.with_name(f"{NEXT}{name}.pem")
    key = store_key(path, private, passphrase)
    pin = home_pin(key.public, "took the place of another one")
    change_pins(home, source, lambda trust: [*trust.pins, pin])
    return key, path


def replacement(key: SigningKey, old: str, by: str, why: str, person: str = "", signature: str = "") -> RotationBody:
    """Return the body of a rotation, with the new key's proof of possession."""
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
    """Log the next key in an entry of the old one. A kill at any point leaves one of them in force and complete.

    Args:
        announce: tells witnesses of the new key, which they must know before it signs.

    Returns:
        The new key; None if another entry was written first and nothing has changed.
    """
    following, path = prepare(home, passphrase, source)
    body = replacement(following, key_id(key.public), request.by, request.why).model_dump(mode="json")
    try:
        announce(following)
        answer = write(Append(kind="rotation", plant="", body=body, artefacts=(), predecessor=predecessor))
    except Refused:
        # A refusal means that no entry was written. After other errors it may be there; `finish` decides.
        _forget(home, following, path, source)
        raise
    if answer.stale:
        _forget(home, following, path, source)
        return None
    put_in_place(home, path)
    return following


def _forget(home: Home, following: SigningKey, path: Path, source: Path) -> None:
    """Remove the next key and the pin."""
    kept_passphrase(path.read_bytes()).unlink(missing_ok=True)
    path.unlink()
    name = key_id(following.public)
    change_pins(home, source, lambda trust: [pin for pin in trust.pins if pin.id != name])


def put_in_place(home: Home, path: Path) -> None:
    """Make the next key the home's. The old passphrase file stays, for backups."""
    os.replace(path, home.signing_key)


def finish(home: Home, history: Iterable[Entry]) -> None:
    """Complete a rotation that was killed after the entry; undo one that was killed before."""
    named = set()
    for entry in history:
        if entry.kind == "rotation" and (fields := texts(entry, "public", "person")) and not fields[1]:
            with suppress(ValueError):
                named.add(key_id(public_key(fields[0])))
    for path in home.signing_key.parent.glob(f"{NEXT}*.pem"):
        if path.stem.removeprefix(NEXT) in named:
            put_in_place(home, path)
        else:
            kept_passphrase(path.read_bytes()).unlink(missing_ok=True)
            path.unlink()


def pins_of(trust: TrustRoot, history: Sequence[Entry]) -> list[Pin]:
    """Return the trust root's rows, updated with persons, roles and ended keys of the ledger."""
    out, people = home_keys_out(history), keyring(history)
    revoked: dict[str, str] = {}
    for entry in history:
        if entry.kind == "revocation" and (fields := texts(entry, "key", "since")) and fields[1]:
            revoked[fields[0]] = min(fields[1], revoked.get(fields[0], fields[1]))
    rows = {pin.id: pin for pin in trust.pins}
    for name, pin in rows.items():
        if name in out:
            rows[name] = pin._replace(until=out[name].timestamp, revoked=revoked.get(name, pin.revoked))
    for key in people.values():
        note = rows[key.id].note if key.id in rows else ""
        rows[key.id] = Pin(key.id, key.public, note, key.person, key.roles, key.until, key.revoked)
    return list(rows.values())


def change_pins(home: Home, path: Path, change: Callable[[TrustRoot], Sequence[Pin]]) -> None:
    """Change the rows of a trust root under a lock: the signer and commands of persons both write it."""
    with exclusive(home.folder("locks") / "trust.lock"):
        trust = TrustRoot.read(path)
        if (pins := tuple(change(trust))) != trust.pins:
            write_pins(path, pins)


def write_pins(path: Path, pins: Sequence[Pin]) -> None:
    """Write a trust root."""
    try:
        write_atomic(path, trust_yaml(*pins))
    except OSError as error:
        raise BadInput(
            f"cannot write the trust root {path} ('{error.strerror}'): allow it, then run the command again"
        ) from error
