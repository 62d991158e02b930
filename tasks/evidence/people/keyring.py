"""Keys of persons in the ledger: enrolment, rotation and revocation, and the key that is valid now."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from configs.errors import Refused
from tasks.evidence.ledger.entry import Body, Entry
from tasks.evidence.ledger.signing import TrustRoot, key_id, keyid_of, public_key
from tasks.evidence.ledger.voided import texts

KEY_TYPE = "application/vnd.neorl.person-key+json"
REPLACEMENT_TYPE = "application/vnd.neorl.replacement-key+json"
UNSEEN = re.compile("[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2065\u3164\ufe00-\ufe0f\uffa0\U000e0000-\U000e0fff]")
"""Invisible characters ("default ignorable" in Unicode) that are not in the categories Cc and Cf."""
JOINERS = "\u200c\u200d"
KINDS = ("key", "rotation", "revocation")


class PersonKey(Body):
    """Description of a person's new key. The key itself signs it, which proves that the person has the private key."""

    person: str
    public: str
    login: str
    """Login on the machine that made the key. The login tells which person started a retraining."""


class KeyBody(Body):
    """Body of a `key` entry: a person's key is enrolled. Nobody else may use this name afterwards."""

    person: str
    public: str
    login: str
    roles: tuple[str, ...]
    possession: str
    """Signed `PersonKey` (DSSE envelope)."""
    by: str
    why: str
    signature: str = ""
    """Signed statement of the person who vouches for the key; empty for the first person."""


class RotationBody(Body):
    """Body of a `rotation` entry: a new key replaces a key that is still trusted."""

    old: str
    """Id of the replaced key."""
    public: str
    """Base64 of the new public key."""
    person: str = ""
    """Owner; empty for the home's key. The old key signs the entry."""
    possession: str
    """Proof of possession: envelope with both ids, signed by the new key."""
    by: str
    why: str
    signature: str = ""
    """The person's statement, signed by the old key."""


class RevocationBody(Body):
    """Body of a `revocation` entry: signatures by a key are void from `since` on; `since` may be in the past."""

    key: str
    since: str
    by: str
    why: str
    signature: str = ""
    """Signed statement of a person; required if another person has a valid key."""


class KnownKey(NamedTuple):
    """A person's key according to the ledger."""

    id: str
    public: str
    person: str
    login: str
    roles: tuple[str, ...]
    since: str
    until: str = ""
    revoked: str = ""

    @property
    def in_force(self) -> bool:
        """Whether new signatures by this key count."""
        return not (self.until or self.revoked)


def keyring(history: Iterable[Entry]) -> dict[str, KnownKey]:
    """Return all persons' keys by id. Entries that cannot be read are skipped."""
    found: dict[str, KnownKey] = {}
    for entry in history:
        if entry.kind == "key":
            try:
                body = entry.read(KeyBody)
                name = key_id(public_key(body.public))
            except (ValueError, TypeError):
                continue
            found[name] = KnownKey(name, body.public, body.person, body.login, body.roles, entry.timestamp)
        elif entry.kind == "rotation" and (fields := texts(entry, "old", "public")) and fields[0] in found:
            old, public = found[fields[0]], fields[1]
            try:
                name = key_id(public_key(public))
            except (ValueError, TypeError):
                continue
            found[name] = old._replace(id=name, public=public, since=entry.timestamp)
            found[old.id] = old._replace(until=entry.timestamp)
        elif entry.kind == "revocation" and (fields := texts(entry, "key", "since")) and fields[0] in found:
            old, since = found[fields[0]], fields[1]
            if since:
                found[old.id] = old._replace(revoked=min(since, old.revoked or since))
    return found


def key_of(history: Iterable[Entry], person: str) -> KnownKey | None:
    """Return a person's valid key, or None. Names are compared after `folded`."""
    wanted = folded(person)
    return next((key for key in keyring(history).values() if key.in_force and folded(key.person) == wanted), None)


def folded(name: str) -> str:
    """Return a name for comparison, without differences in case, white space, letter forms and invisible characters."""
    seen = UNSEEN.sub("", unicodedata.normalize("NFKC", name))
    seen = "".join(c for c in seen if c.isspace() or unicodedata.category(c) not in ("Cf", "Cc"))
    return unicodedata.normalize("NFKC", " ".join(seen.split()).casefold())


def unwritable(name: str) -> str | None:
    """Return the first forbidden character of a name (control or bidirectional) as U+XXXX; None if there is none."""
    odd = (c for c in name if c not in JOINERS and unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp"))
    return next((f"U+{ord(c):04X}" for c in odd), None)


def counts(keys: dict[str, KnownKey], decision: Entry) -> bool:
    """Return whether a decision counts: it is unsigned, or its key is known and was not revoked before the decision."""
    signature = decision.body.get("signature")
    if not signature:
        return True
    key = keys.get(keyid_of(signature.encode()))
    return key is not None and not (key.revoked and decision.timestamp >= key.revoked)


def home_keys_out(history: Iterable[Entry]) -> dict[str, Entry]:
    """Return the replaced keys of the home: id -> entry of the rotation."""
    found = ((texts(entry, "old", "person"), entry) for entry in history if entry.kind == "rotation")
    return {fields[0]: entry for fields, entry in found if fields and not fields[1]}


def check_pins(history: Sequence[Entry], trust: TrustRoot) -> list[str]:
    """Compare the trust root with the ledger's keys of persons; return one message for each difference."""
    pinned, faults = {pin.id: pin for pin in trust.pins if pin.person}, []
    for key in keyring(history).values():
        pin = pinned.get(key.id)
        if pin is None:
            faults.append(f"key {key.id} of {key.person} is not pinned in {trust.source}")
        elif (pin.person, pin.roles) != (key.person, key.roles):
            stated = f"{pin.person} ({', '.join(pin.roles) or 'no role'})"
            faults.append(f"key {key.id} of {key.person} ({', '.join(key.roles) or 'no role'}) is pinned as {stated}")
        elif key.in_force and (pin.until or pin.revoked):
            faults.append(f"key {key.id} of {key.person} is in force but pinned as ended {pin.revoked or pin.until}")
    return faults


def check_pinned_people(history: Sequence[Entry], trust: TrustRoot) -> None:
    """Raise Refused if the trust root pins a person's key differently from the ledger."""
    if faults := check_pins(history, trust):
        raise Refused(
            f"{faults[0]}, unlike the ledger: restore the trust root, or ask that person and pin the key with 'neorl "
            "keys pin'"
        )
