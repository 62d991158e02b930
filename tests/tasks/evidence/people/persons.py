"""Persons with keys, for tests of decisions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from configs.safety_policy import SafetyPolicy
from configs.strict import Approvers
from tasks.evidence.decisions.champions import PromotionBody, champion, promote
from tasks.evidence.decisions.verdicts import signed
from tasks.evidence.ledger.entry import Entry
from tasks.evidence.ledger.ledger import Ledger
from tasks.evidence.ledger.signing import SigningKey, TrustRoot, key_id, public_text
from tasks.evidence.people.keyring import KEY_TYPE, KeyBody, PersonKey
from tasks.evidence.people.rotation import pins_of, write_pins
from tasks.evidence.people.rules import key_content
from tasks.evidence.people.statement import Signatory, with_key
from tasks.promote import verdict_on
from tests.evidence import PLANT, POLICY, propose


class Person:
    """A person with a key in memory."""

    def __init__(self, name: str, login: str = "") -> None:
        self.name, self.login = name, login or name.lower()
        self.key = SigningKey(Ed25519PrivateKey.generate())

    @property
    def id(self) -> str:
        return key_id(self.key.public)

    @property
    def signs(self) -> Signatory:
        return with_key(self.name, self.key)

    def body(self, roles: Sequence[str] = (), by: str = "an administrator") -> KeyBody:
        own = PersonKey(person=self.name, public=public_text(self.key.public), login=self.login)
        possession = self.key.seal(KEY_TYPE, own.model_dump()).decode()
        return KeyBody(**own.model_dump(), roles=tuple(roles), possession=possession, by=by, why="known in person")


def enrol(ledger: Ledger, person: Person, roles: Sequence[str] = (), by: Person | None = None) -> Entry:
    """Enrol and pin a person's key, vouched for by another person if given."""
    body = person.body(roles, by.name if by else "an administrator")
    if by is not None:
        body = body.model_copy(update={"signature": by.signs.sign(key_content(body))})
    entry = ledger.append("key", body)
    pin(ledger)
    return entry


def pin(ledger: Ledger) -> None:
    """Write the ledger's keys into its trust root."""
    trust = TrustRoot.read(ledger.trust.source)
    write_pins(trust.source, pins_of(trust, ledger.entries()))


def approval(ledger: Ledger, candidate: Entry, person: Person, note: str = "", role: str = "", **said: bool) -> Entry:
    """Approve a candidate with a person's signature on the current ledger."""
    body = verdict_on(candidate, person.name, note, role, **said)
    return ledger.append(
        "approval", lambda h: signed(h, "approval", candidate.plant, body, person.signs), plant=candidate.plant
    )


def demanding(**approvers: Any) -> SafetyPolicy:
    """Return the tests' policy with other approvers; by default one with a key."""
    return POLICY.model_copy(update={"approvers": Approvers(**{"count": 1, "keys": True, **approvers})})


def proposed(ledger: Ledger, composite: str, **changes: object) -> Entry:
    """Log a certified candidate that passed every gate."""
    return ledger.entry(propose(ledger, composite, **changes))


def crowned(ledger: Ledger, given: Entry) -> Entry:
    """Promote an approved candidate."""
    now = champion(ledger.entries(), PLANT)
    body = given.body
    return promote(
        ledger,
        PLANT,
        PromotionBody(
            composite=body["composite"],
            approval=given.digest,
            replaces=now.digest if now else None,
            candidate=body["candidate"],
        ),
    )
