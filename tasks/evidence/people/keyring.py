"""The keys that the ledger knows: who enrolled them, whose they are, and from when to when they count."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from configs.errors import Refused
from tasks.evidence.ledger.ledger import Body, Entry
from tasks.evidence.ledger.signing import TrustRoot, key_id, keyid_of, public_key
from tasks.evidence.ledger.voided import texts

KEY_TYPE = "application/vnd.neorl.person-key+json"
REPLACEMENT_TYPE = "application/vnd.neorl.replacement-key+json"
UNSEEN = re.compile("[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2065\u3164\ufe00-\ufe0f\uffa0\U000e0000-\U000e0fff]")
"""What Unicode calls default ignorable, and is in no category of its own."""
JOINERS = "\u200c\u200d"
KINDS = ("key", "rotation", "revocation")


class PersonKey(Body):
    """What a person's new key says of itself, signed by that key: so that nobody enrols a key that is not theirs."""

    person: str
    public: str
    login: str
    """Of the machine that it was made on: who ran a retraining is known by it."""


class KeyBody(Body):
    """A person's key is enrolled: from now on its signatures count, and nobody else may use this name."""

    person: str
    public: str
    login: str
    roles: tuple[str, ...]
    possession: str
    """Envelope of the `PersonKey`."""
    by: str
    why: str
    signature: str = ""
    """Statement of a person who vouches, once there is one."""


class RotationBody(Body):
    """Another key takes the place of one that is still good."""

    old: str
    """Its id."""
    public: str
    """The new one."""
    person: str = ""
    """Whose it is; nobody's is the home's, whose entry the old key signs."""
    possession: str
    """Envelope of what replaces what, by the new key."""
    by: str
    why: str
    signature: str = ""
    """The person's statement, by the old key."""


class RevocationBody(Body):
    """A key does not count from a moment on, which may lie in the past."""

    key: str
    since: str
    by: str
    why: str
    signature: str = ""
    """Statement of a person, where another one than the home has a say."""


class KnownKey(NamedTuple):
    """A person's key, as the ledger has it."""

    id: str
    public: str
    person: str
    login: str
    roles: tuple[str, ...]
    since: str
    until: str = ""
    """When another key took its place."""
    revoked: str = ""
    """From when on it does not count."""

    @property
    def in_force(self) -> bool:
        """Whether what it signs now counts."""
        return not (self.until or self.revoked)


def keyring(history: Iterable[Entry]) -> dict[str, KnownKey]:
    """Every person's key by its id, as the ledger has them after these entries; what cannot be read says nothing."""
    found: dict[str, KnownKey] = {}
    for entry in history:
        if entry.kind == "key":
            try:
                body = entry.read(KeyBody)
                name = key_id(public_key(body.public))
            except (ValueError, TypeError):
                continue
            found[name] = KnownKey(name, body.public, body.person, body.login, body.roles, entry.timestamp)
        elif entry.kind == "rotation" and (told := texts(entry, "old", "public")) and told[0] in found:
            old, public = found[told[0]], told[1]
            try:
                name = key_id(public_key(public))
            except (ValueError, TypeError):
                continue
            found[name] = old._replace(id=name, public=public, since=entry.timestamp)
            found[old.id] = old._replace(until=entry.timestamp)
        elif entry.kind == "revocation" and (told := texts(entry, "key", "since")) and told[0] in found and told[1]:
            old, since = found[told[0]], told[1]
            found[old.id] = old._replace(revoked=min(since, old.revoked or since))
    return found


def key_of(history: Iterable[Entry], person: str) -> KnownKey | None:
    """The key in force of a person, whose name is the same however it is written."""
    wanted = folded(person)
    return next((key for key in keyring(history).values() if key.in_force and folded(key.person) == wanted), None)


def folded(name: str) -> str:
    """A name without what does not tell two persons apart: case, white space, forms of a letter, what nobody sees."""
    seen = UNSEEN.sub("", unicodedata.normalize("NFKC", name))
    seen = "".join(c for c in seen if c.isspace() or unicodedata.category(c) not in ("Cf", "Cc"))
    return unicodedata.normalize("NFKC", " ".join(seen.split()).casefold())


def unwritable(name: str) -> str | None:
    """A character of a name that is written nowhere, or turns around how others read; None where there is none.

    Args:
        name: a person's; the joiners of Indic and Persian letters belong into names.
    """
    odd = (c for c in name if c not in JOINERS and unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp"))
    return next((f"U+{ord(c):04X}" for c in odd), None)


def counts(keys: dict[str, KnownKey], decision: Entry) -> bool:
    """Whether a person's decision counts, after all that is known of keys now: one in the home's name does.

    Args:
        keys: from `keyring`.
        decision: an approval or rejection.
    """
    signature = decision.body.get("signature")
    if not signature:
        return True
    key = keys.get(keyid_of(signature.encode()))
    return key is not None and not (key.revoked and decision.timestamp >= key.revoked)


def home_keys_out(history: Iterable[Entry]) -> dict[str, Entry]:
    """The home's keys that another one replaced: id -> the rotation's entry."""
    found = ((texts(entry, "old", "person"), entry) for entry in history if entry.kind == "rotation")
    return {told[0]: entry for told, entry in found if told and not told[1]}


def check_pins(history: Sequence[Entry], trust: TrustRoot) -> list[str]:
    """What the trust root says otherwise than the ledger of persons' keys: a line for each key.

    Args:
        history: verified entries.
        trust: the trust root in force.
    """
    pinned, faults = {pin.id: pin for pin in trust.pins if pin.person}, []
    for key in keyring(history).values():
        pin = pinned.get(key.id)
        if pin is None:
            faults.append(f"key {key.id} of {key.person} is pinned nowhere in {trust.source}")
        elif (pin.person, pin.roles) != (key.person, key.roles):
            told = f"{pin.person} ({', '.join(pin.roles) or 'no role'})"
            faults.append(f"key {key.id} of {key.person} ({', '.join(key.roles) or 'no role'}) is pinned as {told}")
        elif key.in_force and (pin.until or pin.revoked):
            faults.append(
                f"key {key.id} of {key.person} counts, which is pinned as out since {pin.revoked or pin.until}"
            )
    return faults


def check_pinned_people(history: Sequence[Entry], trust: TrustRoot) -> None:
    """Refuse persons' keys that the trust root has otherwise than the ledger.

    Raises:
        Refused: naming the first.
    """
    if faults := check_pins(history, trust):
        raise Refused(
            f"expected persons' keys as {trust.source} pins them, got a ledger where {faults[0]}: restore the trust "
            "root, or after asking that person write it with 'neorl keys pin'."
        )
