"""Rotation of the home's key: make the next key, let the old key sign an entry about it, then replace the file."""

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
    """Make the next key, store it beside the present key, and pin it; return the key and its file.

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
    """Replace the home's key. If the process is killed at any point, either the old or the new key is valid.

    Args:
        announce: function that announces the new key to the witnesses, before this key signs anything.

    Returns:
        The new key; None if another entry was written first and nothing has changed.
    """
    following, path = prepare(home, passphrase, source)
    body = replacement(following, key_id(key.public), request.by, request.why).model_dump(mode="json")
    try:
        announce(following)
        answer = write(Append(kind="rotation", plant="", body=body, artefacts=(), predecessor=predecessor))
    except Refused:
        # After a refusal there is no entry. After other errors the entry may exist, and `finish` decides.
        _forget(home, following, path, source)
        raise
    if answer.stale:
        _forget(home, following, path, source)
        return None
    put_in_place(home, path)
    return following


def _forget(home: Home, following: SigningKey, path: Path, source: Path) -> None:
    kept_passphrase(path.read_bytes()).unlink(missing_ok=True)
    path.unlink()
    name = key_id(following.public)
    change_pins(home, source, lambda trust: [pin for pin in trust.pins if pin.id != name])


def put_in_place(home: Home, path: Path) -> None:
    """Replace the home's key file by the next key. The old passphrase file stays, because backups need it."""
    os.replace(path, home.signing_key)


def finish(home: Home, history: Iterable[Entry]) -> None:
    """Complete a rotation that was killed after its entry was written; undo a rotation that was killed earlier."""
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
    """Return the trust root's rows, updated from the ledger: persons, roles, and replaced or revoked keys."""
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
    """Change the rows of a trust root under a lock, because the signer and commands may write it at the same time."""
    with exclusive(home.folder("locks") / "trust.lock"):
        trust = TrustRoot.read(path)
        if (pins := tuple(change(trust))) != trust.pins:
            write_pins(path, pins)


def write_pins(path: Path, pins: Sequence[Pin]) -> None:
    try:
        write_atomic(path, trust_yaml(*pins))
    except OSError as error:
        raise BadInput(
            f"cannot write the trust root {path} ('{error.strerror}'): allow writing, then run the command again"
        ) from error
