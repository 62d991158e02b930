"""Rules for persons' keys and signed statements."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path

from pydantic import ValidationError

from configs.errors import Refused
from configs.safety_policy import RULE
from tasks.evidence.ledger.entry import Entry
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
from tasks.evidence.people.statement import Content, Statement, content_fault, read_statement
from tasks.files.canonical import format_time

TOLERANCE = timedelta(minutes=5)
"""A person's clock may be this much ahead of the ledger's clock."""


def check_signed(
    history: Sequence[Entry], entry: Entry, by: str, signature: str, content: Content, *, required: bool
) -> KnownKey | None:
    """Check the signature of an entry made in a person's name. A person who has a key must sign.

    Args:
        signature: the person's signed statement, or empty.
        required: whether a signature is required even if this person has no key.

    Returns:
        The key that signed; None if the entry is unsigned.
    """
    if not signature:
        if required or key_of(history, by) is not None:
            why = "the policy requires signatures" if required else "this person has a key"
            raise Refused(
                f"the {content.act} needs the signature of {by or 'a person'}: {why}; run the command with "
                "that person's key ('neorl keys create', 'neorl keys pin')"
            )
        return None
    key, statement = signed_by_person(history, signature)
    if folded(key.person) != folded(by):
        raise Refused(f"the statement of {by} is signed by {key.person}: sign it with a key of {by}")
    if (fault := content_fault(statement, key.person, content)) is not None:
        raise Refused(f"{fault}: sign a new statement about the present ledger")
    if content.role and content.role not in key.roles:
        roles = ", ".join(key.roles) or "none"
        raise Refused(
            f"{key.person} has no role {content.role!r} (roles: {roles}): use one of these, or 'neorl keys pin --role'"
        )
    if moment_of(statement.signed) > moment_of(entry.timestamp) + TOLERANCE:
        raise Refused(
            f"the statement was signed at {statement.signed}, after the entry of {entry.timestamp}: set the clock of "
            "the signing machine right"
        )
    # Otherwise the home's owner could use an old statement of a person again.
    if any(signature in _signatures(earlier) for earlier in history):
        raise Refused(f"this statement of {key.person} is already in the ledger: sign a new one")
    return key


def signed_by_person(history: Sequence[Entry], signature: str) -> tuple[KnownKey, Statement]:
    """Verify a signed statement; return the key that signed it, which must be valid, and the statement."""
    try:
        name = keyid_of(signature.encode())
    except (ValueError, TypeError, LookupError) as error:
        raise Refused(f"the signed statement cannot be read ({type(error).__name__}): sign again") from error
    key = keyring(history).get(name)
    if key is None:
        raise Refused(f"the signing key {name[:16]!r} is not enrolled: enrol it with 'neorl keys pin'")
    if not key.in_force:
        ended = f"was revoked from {key.revoked} on" if key.revoked else f"was replaced at {key.until}"
        raise Refused(f"the key {name} of {key.person} {ended}: sign with the key in force")
    return key, read_statement(signature, key.public)


def check_key(history: Sequence[Entry], entry: Entry) -> None:
    """Check the enrolment of a key: its owner has the private key, key and name are new, and a person vouches for it.

    The home alone enrols the first person. Later enrolments need the signature of another person, so that access to
    the home is not enough to create an approver.
    """
    body = entry.read(KeyBody)
    if (odd := unwritable(body.person)) is not None:
        raise Refused(f"a person's name must not contain control characters, got {odd} in {body.person!r}: remove it")
    if not folded(body.person) or folded(body.person) == folded(RULE) or not (body.by.strip() and body.why.strip()):
        raise Refused(
            f"an enrolment needs a person's name, an enrolling person and a reason, got {body.person!r}, "
            f"{body.by!r} and {body.why!r}"
        )
    public = public_key(body.public)
    stated = TrustRoot({key_id(public): public}, Path("the request")).unseal(KEY_TYPE, body.possession.encode())
    try:
        own = PersonKey.model_validate(stated)
    except ValidationError as error:
        found = ", ".join(map(str, stated))[:80]
        raise Refused(
            f"the proof of possession has the fields {found}: use the file that 'neorl keys create --person' wrote"
        ) from error
    if own != PersonKey(person=body.person, public=body.public, login=body.login):
        raise Refused(f"the key was made for {own.person}, not for {body.person}: enrol it under the name {own.person}")
    _check_new(history, body.public)
    people = keyring(history).values()
    if any(folded(key.person) == folded(body.person) and key.in_force for key in people):
        raise Refused(f"{body.person} already has a key in force: replace it with 'neorl keys rotate'")
    check_signed(
        history, entry, body.by, body.signature, key_content(body), required=any(key.in_force for key in people)
    )


def check_rotation(history: Sequence[Entry], entry: Entry) -> None:
    """Check a rotation: the old key signed it, and the owner has the new private key."""
    body = entry.read(RotationBody)
    public = public_key(body.public)
    trust = TrustRoot({key_id(public): public}, Path("the request"))
    if trust.unseal(REPLACEMENT_TYPE, body.possession.encode()) != {"new": key_id(public), "old": body.old}:
        raise Refused(f"the new key {key_id(public)} did not sign that it replaces {body.old[:16]}: rotate again")
    _check_new(history, body.public)
    if not body.person:
        # The signer rotates only the key in use; the audit checks the envelope's signature.
        if body.signature or (entry.envelope and keyid_of(entry.envelope) != body.old) or body.old in keyring(history):
            raise Refused(f"the rotation of the home's key {body.old[:16]} is not signed by this key: rotate again")
        return
    key = keyring(history).get(body.old)
    if key is None or folded(key.person) != folded(body.person):
        raise Refused(f"{body.old[:16]!r} is not a key of {body.person}: see 'neorl keys show'")
    check_signed(history, entry, body.person, body.signature, rotation_content(body), required=True)
    if keyid_of(body.signature.encode()) != body.old:
        raise Refused(f"the rotation of key {body.old[:16]} must be signed by this key: rotate again")


def check_revocation(history: Sequence[Entry], entry: Entry) -> None:
    """Check a revocation: the key is known, the time is past, and a person signed if another person has a valid key.

    The home alone may revoke the key of the last person, because that person may have lost the key.
    """
    body = entry.read(RevocationBody)
    people, homes = keyring(history), home_keys_out(history)
    if body.key not in {*people, *homes}:
        raise Refused(
            f"{body.key[:16]!r} is not a person's key or a replaced key of the home: see 'neorl keys show'; rotate the "
            "home's key in force before revoking it"
        )
    if not (body.by.strip() and body.why.strip()):
        raise Refused(f"a revocation needs a person and a reason, got {body.by!r} and {body.why!r}: give both")
    since = moment_of(body.since)
    if format_time(since) != body.since:
        # Times are compared as text with the timestamps of entries.
        raise Refused(f"the time of a revocation must be written as {format_time(since)}, got {body.since[:40]!r}")
    if since > moment_of(entry.timestamp):
        raise Refused(f"a key cannot be revoked in advance, got {body.since}: give a time that is past")
    others = any(key.in_force and key.id != body.key for key in people.values())
    owner = people.get(body.key)
    if not body.signature and not others and owner is not None and folded(owner.person) != folded(body.by):
        return
    check_signed(history, entry, body.by, body.signature, revocation_content(body), required=others)


def key_content(body: KeyBody) -> Content:
    about = {"person": body.person, "public": body.public, "roles": ", ".join(body.roles)}
    return Content("key", "", about, note=body.why)


def rotation_content(body: RotationBody) -> Content:
    return Content("rotation", "", {"old": body.old, "public": body.public}, note=body.why)


def revocation_content(body: RevocationBody) -> Content:
    return Content("revocation", "", {"key": body.key, "since": body.since}, note=body.why)


def moment_of(text: str) -> datetime:
    """Return the time that a text states; raise Refused unless the text is a time in UTC that ends with Z."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError as error:
        raise Refused(f"a time must look like 2026-11-20T14:00:00Z, got {text[:40]!r}: sign again") from error
    if found.tzinfo is None or not text.endswith("Z"):
        raise Refused(f"a time must be in UTC and end with Z, got {text[:40]!r}: sign again")
    return found


def _check_new(history: Sequence[Entry], public: str) -> None:
    name = key_id(public_key(public))
    homes = {keyid_of(entry.envelope) for entry in history if entry.envelope} | set(home_keys_out(history))
    if name in {*keyring(history), *homes}:
        raise Refused(f"the ledger already knows the key {name}: make a new one")


def _signatures(entry: Entry) -> tuple[str, ...]:
    one = entry.body.get("signature")
    return (*entry.body.get("signatures", ()), *([one] if one else []))
