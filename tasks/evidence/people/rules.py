"""The rules of persons' keys and of what they sign: applied when writing, and again by the audit."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path

from pydantic import ValidationError

from configs.errors import Refused
from configs.safety_policy import RULE
from tasks.evidence.ledger.ledger import Entry
from tasks.evidence.ledger.signing import TrustRoot, key_id, keyid_of, public_key
from tasks.evidence.people.keyring import (
    KEY_TYPE,
    REPLACEMENT_TYPE,
    KeyBody,
    KnownKey,
    PersonKey,
    RevocationBody,
    RotationBody,
    folded,
    home_keys_out,
    key_of,
    keyring,
    unwritable,
)
from tasks.evidence.people.statement import Said, Statement, differs, read_statement
from tasks.files.times import format_time

TOLERANCE = timedelta(minutes=5)
"""How far a person's clock may be ahead of the ledger's."""


def check_signed(
    history: Sequence[Entry], entry: Entry, by: str, signature: str, said: Said, *, required: bool
) -> KnownKey | None:
    """Refuse an entry in the name of a person who has a key, unless that key signed what it says.

    Args:
        history: all entries before this one.
        entry: whose body carries the signature.
        by: in whose name it is.
        signature: envelope of the person's statement, or nothing.
        said: what must have been signed, by the ledger.
        required: whether a name alone is not enough.

    Returns:
        The key that signed; None where the entry is in the home's name.

    Raises:
        Refused: naming what is wrong with the signature.
    """
    if not signature:
        if required or key_of(history, by) is not None:
            why = "the policy asks for persons' keys" if required else "this person has a key"
            raise Refused(
                f"expected {by or 'somebody'}'s own signature on the {said.act}, got the home's: {why}, so that person "
                "gives the command with their key ('neorl keys create', 'neorl keys pin')."
            )
        return None
    key, statement = signed_by_person(history, signature)
    if folded(key.person) != folded(by):
        raise Refused(f"expected a signature of {by}, got one of {key.person}: each signs in their own name.")
    if (fault := differs(statement, key.person, said)) is not None:
        raise Refused(f"{fault}: sign what the ledger has now.")
    if said.role and said.role not in key.roles:
        roles = ", ".join(key.roles) or "none"
        raise Refused(f"expected a role of {key.person} ({roles}), got {said.role!r}: name that, or have it pinned.")
    if moment_of(statement.signed) > moment_of(entry.timestamp) + TOLERANCE:
        raise Refused(
            f"expected a statement signed by {entry.timestamp}, got one of {statement.signed}: correct that clock."
        )
    # Whoever holds the home could otherwise give again what its signer has taken back.
    if any(signature in _signatures(earlier) for earlier in history):
        raise Refused(f"expected a new statement of {key.person}, got one that the ledger has already: sign anew.")
    return key


def signed_by_person(history: Sequence[Entry], signature: str) -> tuple[KnownKey, Statement]:
    """The key in force that made a signature, and what it signed.

    Raises:
        Refused: when no key in force did.
    """
    try:
        name = keyid_of(signature.encode())
    except (ValueError, TypeError, LookupError) as error:
        raise Refused(f"expected a signed statement, got one that cannot be read ({type(error).__name__}).") from error
    key = keyring(history).get(name)
    if key is None:
        raise Refused(f"expected a signature by a key that is enrolled, got one by {name[:16]!r}: 'neorl keys pin' it.")
    if not key.in_force:
        ended = f"was revoked from {key.revoked} on" if key.revoked else f"was replaced at {key.until}"
        raise Refused(f"expected a signature by {key.person}'s key in force, got one by {name}, which {ended}.")
    return key, read_statement(signature, key.public)


def check_key(history: Sequence[Entry], entry: Entry) -> None:
    """Refuse a key that its person did not make, that is known, whose name is taken, or that nobody vouches for.

    The first person is enrolled in the home's name; every other one is vouched for by a person's signature, so that who
    holds the home alone cannot make an approver.

    Args:
        history: all entries before the key.
        entry: the key.

    Raises:
        Refused: naming what is wrong.
    """
    body = entry.read(KeyBody)
    if (odd := unwritable(body.person)) is not None:
        raise Refused(f"expected a person's name without control characters, got {odd} in it: write letters.")
    if not folded(body.person) or folded(body.person) == folded(RULE) or not (body.by.strip() and body.why.strip()):
        raise Refused("expected a person's name, who enrols their key, and why, got one missing: say all three.")
    public = public_key(body.public)
    told = TrustRoot({key_id(public): public}, Path("the request")).unseal(KEY_TYPE, body.possession.encode())
    try:
        own = PersonKey.model_validate(told)
    except ValidationError as error:
        raise Refused("expected what 'neorl keys create --person' wrote, got something else: use that file.") from error
    if own != PersonKey(person=body.person, public=body.public, login=body.login):
        raise Refused(f"expected {own.person}'s key as it was made, got it as {body.person}'s: enrol it as that.")
    _check_new(history, body.public)
    if any(folded(key.person) == folded(body.person) and key.in_force for key in keyring(history).values()):
        raise Refused(f"expected a person without a key, got {body.person}, who has one: 'neorl keys rotate' it.")
    check_signed(history, entry, body.by, body.signature, said_of_key(body), required=_anybody(history))


def check_rotation(history: Sequence[Entry], entry: Entry) -> None:
    """Refuse a rotation that the old key did not sign, or whose new key is not in the hands of who asks.

    Args:
        history: all entries before the rotation.
        entry: the rotation.

    Raises:
        Refused: naming what is wrong.
    """
    body = entry.read(RotationBody)
    public = public_key(body.public)
    trust = TrustRoot({key_id(public): public}, Path("the request"))
    if trust.unseal(REPLACEMENT_TYPE, body.possession.encode()) != {"new": key_id(public), "old": body.old}:
        raise Refused("expected the new key's signature on what it replaces, got another: rotate again.")
    _check_new(history, body.public)
    if not body.person:
        # The signer signs none but its own key's rotation, and the audit reads the signature.
        if body.signature or (entry.envelope and keyid_of(entry.envelope) != body.old) or body.old in keyring(history):
            raise Refused("expected a rotation of the home's key that the old key signed, got another.")
        return
    key = keyring(history).get(body.old)
    if key is None or folded(key.person) != folded(body.person):
        raise Refused(f"expected a key of {body.person} to be replaced, got {body.old[:16]!r}: see 'neorl keys show'.")
    check_signed(history, entry, body.person, body.signature, said_of_rotation(body), required=True)
    if keyid_of(body.signature.encode()) != body.old:
        raise Refused("expected the old key's signature on its own rotation, got another's.")


def check_revocation(history: Sequence[Entry], entry: Entry) -> None:
    """Refuse a revocation of an unknown key, of the home's key in force, from a later day on, or by nobody.

    Where there are persons with keys one of them signs it: its own owner, or another. The home alone may revoke the
    last one, for it may be lost.

    Args:
        history: all entries before the revocation.
        entry: the revocation.

    Raises:
        Refused: naming what is wrong.
    """
    body = entry.read(RevocationBody)
    people, homes = keyring(history), home_keys_out(history)
    if body.key not in {*people, *homes}:
        raise Refused(
            f"expected a person's key, or one of the home that was replaced, got {body.key[:16]!r}: see 'neorl keys "
            "show'; the home's key in force is rotated first."
        )
    if not (body.by.strip() and body.why.strip()):
        raise Refused("expected who revokes a key, and why, got nothing: say both.")
    since = moment_of(body.since)
    if format_time(since) != body.since:
        # It is compared with entries' times as a text.
        raise Refused(f"expected a moment written as {format_time(since)}, got {body.since[:40]!r}: write it so.")
    if since > moment_of(entry.timestamp):
        raise Refused(f"expected a date that has come, got {body.since}: revoke it then.")
    others = any(key.in_force and key.id != body.key for key in people.values())
    owner = people.get(body.key)
    if not body.signature and not others and owner is not None and folded(owner.person) != folded(body.by):
        return
    said = said_of_revocation(body)
    check_signed(history, entry, body.by, body.signature, said, required=others)


def said_of_key(body: KeyBody) -> Said:
    """What who vouches for a key signs."""
    about = {"person": body.person, "public": body.public, "roles": ", ".join(body.roles)}
    return Said("key", "", about, note=body.why)


def said_of_rotation(body: RotationBody) -> Said:
    """What a person signs with the old key."""
    return Said("rotation", "", {"old": body.old, "public": body.public}, note=body.why)


def said_of_revocation(body: RevocationBody) -> Said:
    """What who revokes a key signs."""
    return Said("revocation", "", {"key": body.key, "since": body.since}, note=body.why)


def moment_of(text: str) -> datetime:
    """A time as the ledger writes it.

    Raises:
        Refused: when it is none, or names no zone.
    """
    try:
        found = datetime.fromisoformat(text)
    except ValueError as error:
        raise Refused(f"expected a time like 2026-11-20T14:00:00Z, got {text[:40]!r}: sign again.") from error
    if found.tzinfo is None or not text.endswith("Z"):
        raise Refused(f"expected a time in UTC that ends with Z, got {text[:40]!r}: sign again.")
    return found


def _check_new(history: Sequence[Entry], public: str) -> None:
    """No key serves twice: neither two persons, nor a person and a home, nor again after it went out."""
    name = key_id(public_key(public))
    homes = {keyid_of(entry.envelope) for entry in history if entry.envelope} | set(home_keys_out(history))
    if name in {*keyring(history), *homes}:
        raise Refused(f"expected a key that is new to the ledger, got {name}, which it knows: make another one.")


def _anybody(history: Sequence[Entry]) -> bool:
    return any(key.in_force for key in keyring(history).values())


def _signatures(entry: Entry) -> tuple[str, ...]:
    one = entry.body.get("signature")
    return (*entry.body.get("signatures", ()), *([one] if one else []))
