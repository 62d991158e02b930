"""Enrolment of keys: named person, vouching, pinning, and limits of the home."""

from __future__ import annotations

import base64
import json

import pytest

from configs.errors import Refused
from tasks.evidence.audit.audit import audit
from tasks.evidence.ledger.keys import open_keys
from tasks.evidence.ledger.ledger import Ledger
from tasks.evidence.ledger.protocol import Answer, Append, Rotate
from tasks.evidence.ledger.signing import SigningKey, TrustRoot, key_id
from tasks.evidence.people.keyring import check_pins
from tasks.evidence.people.rotation import rotate, write_pins
from tasks.evidence.people.statement import Signatory
from tasks.evidence.policies import PolicyBody, policy_content, policy_entry
from tasks.files.canonical import canonical_json
from tasks.lifecycle.policy import sign, signed_policy
from tests.evidence import PLANT, forge
from tests.tasks.evidence.people.persons import Person, approval, demanding, enrol, pin, proposed

A, B, C = "a" * 64, "b" * 64, "c" * 64


def test_the_home_alone_cannot_add_approvers_or_relax_policies(keyed: Ledger, ada: Person) -> None:
    """Attack: enrol an unknown key, or drop `keys: true`, by asking the home's signer."""
    eve = Person("Eve")
    with pytest.raises(Refused, match=r"the key needs the signature of .*: the policy requires signatures"):
        keyed.append("key", eve.body())
    with pytest.raises(Refused, match="is not enrolled"):
        enrol(keyed, eve, by=Person("Ada Lovelace"))
    lax = demanding(keys=False)
    with pytest.raises(Refused, match="the policy needs the signature"):
        sign(keyed, lax, "Eve", "because")
    # Ada's statement on one policy is none on another.
    other = signed_policy(keyed, demanding(count=2), "because", ada.signs)
    with pytest.raises(Refused, match="the statement's policy is"):
        sign(keyed, lax, ada.name, "because", [Signatory(ada.name, lambda said: other)])
    with pytest.raises(Refused, match=r"approvers.count must be at least 1"):
        sign(keyed, demanding(count=0), ada.name, "because", [ada.signs])
    # Past the rules, with the decrypted key, the audit says so.
    forge(keyed.home, "key", eve.body(), plant="")
    assert "keys" in {check.name for check in audit(keyed.home).failures}


def test_a_policy_change_needs_as_many_persons_as_an_approval(keyed: Ledger, ada: Person, ben: Person) -> None:
    two = demanding(count=2)
    sign(keyed, two, ada.name, "two from now on", [ada.signs])
    lax = demanding()
    with pytest.raises(Refused, match="needs 2 persons' signatures"):
        sign(keyed, lax, ada.name, "one again", [ada.signs])
    with pytest.raises(Refused, match="needs 2 persons' signatures"):
        sign(keyed, lax, ada.name, "one again", [ada.signs, ada.signs])
    with pytest.raises(Refused, match="Eve is not a signer"):
        sign(keyed, lax, "Eve", "one again", [ada.signs, ben.signs])
    entry = sign(keyed, lax, ada.name, "one again", [ada.signs, ben.signs])
    assert entry.body["policy"]["approvers"]["count"] == 1
    last = policy_entry(keyed.entries(), PLANT)
    assert last is not None
    assert policy_content(last.read(PolicyBody)).note == "one again"


@pytest.mark.parametrize("attack", ["another role", "not pinned", "out in the trust root"])
def test_the_trust_root_must_match_the_ledger(keyed: Ledger, ada: Person, attack: str) -> None:
    """The home's owner writes both; an earlier copy of the trust root reveals it, and the signer checks too."""
    candidate = proposed(keyed, A)
    trust = TrustRoot.read(keyed.trust.source)
    changed = {
        "another role": lambda pin: pin._replace(roles=("intern",)),
        "not pinned": lambda pin: None,
        "out in the trust root": lambda pin: pin._replace(revoked="2026-01-01T00:00:00.000000Z"),
    }[attack]
    rows = [changed(each) if each.person == ada.name else each for each in trust.pins]
    write_pins(trust.source, [row for row in rows if row is not None])
    assert len(check_pins(keyed.entries(), TrustRoot.read(trust.source))) == 1
    with pytest.raises(Refused, match=r"unlike the ledger"):
        approval(keyed, candidate, ada)
    assert [check.name for check in audit(keyed.home).failures] == ["people"]
    pin(keyed)
    approval(keyed, candidate, ada)
    assert audit(keyed.home).passed


def test_persons_keys_sign_no_entries(keyed: Ledger, ada: Person) -> None:
    """A person's pinned key is not a home's key: an entry signed by it is refused."""
    assert ada.id not in TrustRoot.read(keyed.trust.source).keys
    with pytest.raises(Refused, match="is not pinned in"):
        TrustRoot.read(keyed.trust.source).unseal("x", ada.key.seal("x", {}))


@pytest.mark.parametrize(
    ("case", "told"),
    [
        ("name taken", "already has a key in force"),
        ("key taken", "the ledger already knows the key"),
        ("no name", "an enrolment needs a person's name"),
        ("the rule's name", "an enrolment needs a person's name"),
        ("another's file", "the key was made for Ada Lovelace, not for Carl"),
        ("not in hand", "is invalid"),
    ],
)
def test_a_key_is_enrolled_once_by_its_person(ledger: Ledger, ada: Person, case: str, told: str) -> None:
    enrol(ledger, ada)
    ann = Person("Ann")
    body = {
        "name taken": Person("ADA  lovelace").body(),
        "key taken": ada.body(),
        "no name": Person(" ").body(),
        "the rule's name": Person("Rule: auto").body(),
        "another's file": Person("Ada Lovelace").body().model_copy(update={"person": "Carl"}),
        "not in hand": ann.body().model_copy(update={"possession": _resigned(ann.body().possession, ada)}),
    }[case]
    with pytest.raises(Refused, match=told):
        ledger.append("key", body)


def _resigned(envelope: str, thief: Person) -> str:
    """Return the same payload and key id, signed by another key."""
    document = json.loads(envelope)
    payload = json.loads(base64.b64decode(document["payload"]))
    other = json.loads(thief.key.seal(document["payloadType"], payload))
    document["signatures"][0]["sig"] = other["signatures"][0]["sig"]
    return canonical_json(document).decode()


def test_a_person_pinned_during_a_rotation_stays_pinned(ledger: Ledger, ada: Person) -> None:
    """The enrolment is an entry, so the rotation comes second and drops its prepared key."""
    home, source, last = ledger.home, ledger.trust.source, ledger.head().last

    def announce(_: SigningKey) -> None:
        enrol(ledger, ada)

    def write(_: Append) -> Answer:
        return Answer(stale=True)

    key, _ = open_keys(home, first_use=False)
    request = Rotate(by="an administrator", why="yearly")
    assert rotate(home, key, None, source, request, last, announce, write) is None
    assert [pin.id for pin in TrustRoot.read(source).pins] == [key_id(key.public), ada.id]
