"""Decisions signed by persons' keys: bound content, names, and limits of the home."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization

from configs.errors import BadInput, Refused
from configs.home import Home
from tasks.evidence.audit.audit import audit
from tasks.evidence.decisions.approvals import approvers
from tasks.evidence.decisions.verdicts import approve, reject, signed
from tasks.evidence.ledger.ledger import Ledger
from tasks.evidence.ledger.signing import TrustRoot
from tasks.evidence.people import private_keys
from tasks.evidence.people.keyring import RevocationBody, key_of
from tasks.evidence.people.rules import revocation_content
from tasks.evidence.people.statement import STATEMENT_TYPE, Content, Signatory, with_key
from tasks.evidence.policies import policy_entry
from tasks.files.canonical import canonical_json, sha256_hex
from tasks.lifecycle.policy import sign
from tasks.promote import promote_candidate, reject_candidate, verdict_on
from tests.evidence import PLANT, certificate_of, forge, open_ledger, signer_at
from tests.tasks.evidence.people.persons import Person, approval, crowned, demanding, enrol, pin, proposed

A, B, C = "a" * 64, "b" * 64, "c" * 64


def test_a_signature_binds_the_decision_and_verifies_independently(keyed: Ledger, ada: Person, tmp_path: Path) -> None:
    candidate = proposed(keyed, A)
    entry = approval(keyed, candidate, ada, "compared trajectories", "safety engineer")
    envelope = json.loads(entry.body["signature"])
    payload = base64.b64decode(envelope["payload"])
    content = json.loads(payload)
    own, policy = certificate_of(keyed, A), policy_entry(keyed.entries(), PLANT)
    assert own is not None
    assert policy is not None
    assert content["about"] == {
        "candidate": candidate.digest,
        "certificate": sha256_hex(own.path.read_bytes()),
        "champion": None,
        "composite": A,
        "policy": policy.digest,
        "version": "1",
    }
    assert {name: content[name] for name in ("act", "plant", "meaning", "role", "note", "person")} == {
        "act": "approval",
        "plant": PLANT,
        "meaning": "approved for closed loop",
        "role": "safety engineer",
        "note": "compared trajectories",
        "person": "Ada Lovelace",
    }
    assert content["signed"] == entry.body["signed"]
    # DSSE's encoding, written out (DSSE v1.0.2), and OpenSSL's own Ed25519.
    message = f"DSSEv1 {len(STATEMENT_TYPE)} {STATEMENT_TYPE} {len(payload)} ".encode() + payload
    files = {"message": message, "signature": base64.b64decode(envelope["signatures"][0]["sig"])}
    files["key.pem"] = ada.key.public.public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("no openssl here")
    words = [openssl, "pkeyutl", "-verify", "-pubin", "-inkey", "key.pem", "-rawin", "-in", "message"]
    done = subprocess.run([*words, "-sigfile", "signature"], cwd=tmp_path, capture_output=True, check=False)
    assert done.returncode == 0, done


def test_another_persons_name_is_not_enough(keyed: Ledger, ada: Person, ben: Person) -> None:
    """Attack: `neorl approve --by "Somebody Else"`, signed by the home's key."""
    candidate = proposed(keyed, A)
    for name in ("Somebody Else", ada.name, " ada  LOVELACE "):
        with pytest.raises(Refused, match=r"the approval needs the signature of .*: the policy requires signatures"):
            approve(keyed, PLANT, verdict_on(candidate, name, ""))
        with pytest.raises(Refused, match="the rejection needs the signature"):
            reject(keyed, PLANT, verdict_on(candidate, name, "", against=True))
    # Another's key does not help, nor one that nobody enrolled.
    stranger = Person("Ada Lovelace")
    posing = with_key("Ada Lovelace", ben.key)
    for signatory, told in (
        (posing, "the statement of Ada Lovelace is signed by Ben"),
        (stranger.signs, "is not enrolled"),
    ):
        with pytest.raises(Refused, match=told):
            approve(keyed, PLANT, verdict_on(candidate, ada.name, ""), signatory)
    assert keyed.entries("approval") == []
    crowned(keyed, approval(keyed, candidate, ada))
    report = audit(keyed.home)
    assert report.passed, report.failures
    assert "1 decisions signed by persons' keys, each as the trust root pins it" in [c.detail for c in report.checks]


def test_a_person_with_a_key_signs_even_if_not_required(ledger: Ledger, ada: Person, ben: Person) -> None:
    enrol(ledger, ada)
    candidate = proposed(ledger, A)
    with pytest.raises(Refused, match="this person has a key"):
        approve(ledger, PLANT, verdict_on(candidate, "ADA LOVELACE", ""))
    given = approve(ledger, PLANT, verdict_on(candidate, "somebody else", ""))
    crowned(ledger, given)
    report = audit(ledger.home)
    assert report.passed
    assert "1 decisions are unsigned: they were made in the home's name" in [c.detail for c in report.checks]


@pytest.mark.parametrize("name", ["", " \t"])
def test_a_decision_needs_a_name(ledger: Ledger, name: str) -> None:
    """As on a machine without a user name, with a command that names no person."""
    candidate = proposed(ledger, A)
    with pytest.raises(Refused, match="the approval of a candidate needs a person's name"):
        approve(ledger, PLANT, verdict_on(candidate, name, ""))
    with pytest.raises(Refused, match="the rejection of a candidate needs a person's name"):
        reject(ledger, PLANT, verdict_on(candidate, name, "", against=True))
    forge(ledger.home, "approval", verdict_on(candidate, name, ""))
    (failure,) = audit(ledger.home).failures
    assert "the approval of a candidate needs a person's name" in failure.detail


@pytest.mark.parametrize(
    "name",
    [
        "Ren\u00e9e",
        "Rene\u0301e",
        "RENE\u0301E",
        "Ren\u00e9\u200be",
        "Ren\u00e9\x00e",
        "\uff32en\u00e9e\ufe0f",
        "\u2066Ren\u00e9e",
    ],
)
def test_a_persons_name_is_compared_in_normal_form(ledger: Ledger, name: str) -> None:
    enrol(ledger, Person("Ren\u00e9e"))
    candidate = proposed(ledger, A)
    with pytest.raises(Refused, match="this person has a key"):
        approve(ledger, PLANT, verdict_on(candidate, name, ""))


@pytest.mark.parametrize(
    "name", ["\u674e\u660e", "\U00020bb7\u91ce", "Zo\u00eb \U0001f600", "\u0646\u0627\u0645\u200c\u0647", "a\u00a0b"]
)
def test_persons_of_all_scripts_are_pinned_and_approve(ledger: Ledger, name: str) -> None:
    person = Person(name)
    enrol(ledger, person, [f"engineer of {name}\x85\u2028"])
    assert [(pin.person, pin.roles) for pin in TrustRoot.read(ledger.trust.source).pins if pin.person] == [
        (name, (f"engineer of {name}\x85\u2028",))
    ]
    crowned(ledger, approval(ledger, proposed(ledger, A), person))
    assert audit(ledger.home).passed


def test_names_with_control_characters_are_refused(ledger: Ledger) -> None:
    for name in ("Ada\x07", "Ada\u202e", "Ada\u2028x", "\u200badA"):
        with pytest.raises(Refused, match=r"must not contain control characters, got U\+"):
            enrol(ledger, Person(name))
    with pytest.raises(BadInput, match=r"must not contain control characters: remove U\+202E"):
        private_keys.create(ledger.home, "Ada\u202e")
    with pytest.raises(Refused, match="an enrolment needs a person's name"):
        enrol(ledger, Person("\u3164\u200d"))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"note": "another"}, "the statement's note is 'another', the ledger requires 'looked at it'"),
        ({"role": "operator"}, "the statement's role is 'operator', the ledger requires ''"),
        ({"act": "rejection"}, "the statement's act is 'rejection', the ledger requires 'approval'"),
        ({"plant": "double_mass"}, "the statement's plant is 'double_mass', the ledger requires 'chemical_reactor'"),
        (
            {"meaning": "reviewed"},
            "the statement's meaning is 'reviewed', the ledger requires 'approved for closed loop'",
        ),
        ({"about": {"composite": B}}, f"composite is '{B[:24]}', the ledger requires '{A[:24]}'"),
        ({"about": {"certificate": B}}, f"is '{B[:24]}', the ledger requires"),
        ({"about": {"policy": None}}, "the statement's policy is none, the ledger requires"),
        ({"about": {"champion": B}}, f"champion is '{B[:24]}', the ledger requires none"),
        ({"about": {"candidate": B}}, f"is '{B[:24]}', the ledger requires"),
    ],
)
def test_a_statement_with_other_content_is_refused(
    keyed: Ledger, ada: Person, change: dict[str, Any], told: str
) -> None:
    candidate = proposed(keyed, A)

    def altered(content: Content) -> str:
        about = {**content.about, **change.get("about", {})}
        return ada.signs.sign(content._replace(**{**change, "about": about}))

    with pytest.raises(Refused, match=told):
        approve(keyed, PLANT, verdict_on(candidate, ada.name, "looked at it"), Signatory(ada.name, altered))
    assert keyed.entries("approval") == []


def test_signed_bytes_must_be_canonical(keyed: Ledger, ada: Person) -> None:
    candidate = proposed(keyed, A)
    body = signed(keyed.entries(), "approval", PLANT, verdict_on(candidate, ada.name, ""), ada.signs)
    envelope = json.loads(body.signature)
    payload = json.loads(base64.b64decode(envelope["payload"]))
    loud = base64.b64encode(canonical_json({**payload, "note": "yes"})).decode()
    spoiled = {
        "another payload": canonical_json({**envelope, "payload": loud}).decode(),
        "white space": json.dumps(envelope),
        "nothing": "{}",
        "no JSON": "signed: Ada",
        "no signature": canonical_json({**envelope, "signatures": []}).decode(),
    }
    for name, text in spoiled.items():
        with pytest.raises(Refused):
            approve(keyed, PLANT, body.model_copy(update={"signature": text}))
        assert keyed.entries("approval") == [], name
    with pytest.raises(Refused, match=r"the time of signing must be"):
        approve(keyed, PLANT, body.model_copy(update={"signed": "2030-01-01T00:00:00.000000Z"}))
    approve(keyed, PLANT, body)


def test_a_statement_counts_once(keyed: Ledger, ada: Person, ben: Person) -> None:
    """Attack: after a rejection, the home reuses the signature of the approval."""
    candidate = proposed(keyed, A)
    given = approval(keyed, candidate, ada)
    reject(keyed, PLANT, verdict_on(candidate, ben.name, "no", against=True), ben.signs)
    body = verdict_on(candidate, ada.name, "").model_copy(
        update={"signature": given.body["signature"], "signed": given.body["signed"]}
    )
    with pytest.raises(Refused, match="this statement of Ada Lovelace is already in the ledger"):
        approve(keyed, PLANT, body)


def test_a_statement_from_before_a_change_is_refused(keyed: Ledger, ada: Person) -> None:
    """Logged later, under another policy or champion, the statement is out of date."""
    candidate = proposed(keyed, A)
    kept = signed(keyed.entries(), "approval", PLANT, verdict_on(candidate, ada.name, ""), ada.signs)
    sign(keyed, demanding(roles=["operator"]), ada.name, "x", [ada.signs])
    with pytest.raises(Refused, match="the statement's policy is"):
        approve(keyed, PLANT, kept)


def test_two_persons_approve_with_roles_and_a_review(keyed: Ledger, ada: Person, ben: Person) -> None:
    both = demanding(roles=["safety engineer"], reviewers=1)
    sign(keyed, both, ada.name, "a second pair of eyes", [ada.signs])
    candidate = proposed(keyed, A)
    first = approval(keyed, candidate, ben, reviewed=True)
    with pytest.raises(Refused, match="approvals needed from 1 persons, got 0"):
        crowned(keyed, first)
    with pytest.raises(Refused, match=r"Ben has no role 'safety engineer' \(roles: operator\)"):
        approval(keyed, candidate, ben, role="safety engineer")
    # Ben's approval besides his review does not make him two.
    second = approval(keyed, candidate, ben, role="operator")
    with pytest.raises(Refused, match="further reviews needed from 1 persons, got 0"):
        crowned(keyed, second)
    last = approval(keyed, candidate, ada, role="safety engineer")
    crowned(keyed, last)
    assert audit(keyed.home).passed


def test_reviewers_are_not_listed_as_approvers(keyed: Ledger, ada: Person, ben: Person) -> None:
    sign(keyed, demanding(reviewers=1), ada.name, "a second pair of eyes", [ada.signs])
    candidate = proposed(keyed, A)
    approval(keyed, candidate, ben, reviewed=True)
    promotion = crowned(keyed, approval(keyed, candidate, ada))
    assert approvers(keyed.entries(), promotion) == "Ada Lovelace"


def test_reviews_have_no_role_and_are_no_approvals(keyed: Ledger, ada: Person, ben: Person) -> None:
    sign(keyed, demanding(roles=["safety engineer"]), ada.name, "an engineer decides", [ada.signs])
    candidate = proposed(keyed, A)
    approval(keyed, candidate, ada, role="safety engineer", reviewed=True)
    with pytest.raises(Refused, match="an approval as safety engineer is needed, got none"):
        crowned(keyed, approval(keyed, candidate, ben, role="operator"))
    sign(keyed, demanding(reviewers=1), ada.name, "somebody looks at it first", [ada.signs])
    approval(keyed, candidate, ada)
    with pytest.raises(Refused, match="further reviews needed from 1 persons, got 0"):
        crowned(keyed, approval(keyed, candidate, ben))
    crowned(keyed, approval(keyed, candidate, ada, reviewed=True))
    assert audit(keyed.home).passed


def test_the_author_does_not_approve(keyed: Ledger, ada: Person, ben: Person) -> None:
    sign(keyed, demanding(not_author=True), ada.name, "four eyes", [ada.signs])
    own = proposed(keyed, A, author="ada")
    with pytest.raises(Refused, match=r"requires another approver than the person who ran the retraining \(ada\)"):
        approval(keyed, own, ada)
    nobodys = proposed(keyed, B, author="")
    with pytest.raises(Refused, match="unknown"):
        approval(keyed, nobodys, ben)
    crowned(keyed, approval(keyed, own, ben))


def test_approvals_expire_from_when_they_were_signed(home: Path, ada: Person) -> None:
    now = datetime(2030, 1, 1, tzinfo=UTC)
    ledger = open_ledger(Home(home), clock=lambda: now)
    enrol(ledger, ada)
    early = with_key(ada.name, ada.key, lambda: datetime(2029, 12, 1, tzinfo=UTC))
    month = demanding().model_copy(update={"approval_days": 30})
    sign(ledger, month, ada.name, "a month", [with_key(ada.name, ada.key, lambda: now)])
    candidate = proposed(ledger, A)
    kept = approve(ledger, PLANT, verdict_on(candidate, ada.name, ""), early)
    with pytest.raises(Refused, match="approvals needed from 1 persons, got 0, and 1 expired"):
        crowned(ledger, kept)
    for minutes, passes in ((6, False), (4, True)):
        ahead = with_key(ada.name, ada.key, lambda minutes=minutes: now + timedelta(minutes=minutes))
        body = signed(ledger.entries(), "approval", PLANT, verdict_on(candidate, ada.name, ""), ahead)
        if passes:
            crowned(ledger, ledger.append("approval", body, plant=PLANT))
        else:
            with pytest.raises(Refused, match="set the clock of the signing machine right"):
                ledger.append("approval", body, plant=PLANT)


def test_commands_sign_too(home: Path, ada: Person) -> None:
    with signer_at(Home(home)):
        ledger = Ledger.open(Home(home))
        enrol(ledger, ada)
        candidate = proposed(ledger, A)
        made = promote_candidate(ledger.home, candidate, ada.name, "yes", signatory=ada.signs)
        (given,) = ledger.entries("approval")
        assert made.body["approval"] == given.digest
        # Given again it is found again, and another champion is decided on anew.
        assert promote_candidate(ledger.home, candidate, ada.name, "yes", signatory=ada.signs) == made
        second = proposed(ledger, B)
        entry = reject_candidate(ledger.home, second, ada.name, "too lively", ada.signs)
        assert entry.body["meaning"] == "rejected"
        with pytest.raises(Refused, match="is the champion"):
            reject_candidate(ledger.home, candidate, ada.name, "", ada.signs)
        # Below that check, too, where two commands race.
        with pytest.raises(Refused, match=r"is the champion of .* and cannot be rejected"):
            reject(ledger, PLANT, verdict_on(candidate, ada.name, "", against=True), ada.signs)


def test_a_signed_revocation_ends_later_signatures(keyed: Ledger, ada: Person, ben: Person) -> None:
    candidate = proposed(keyed, A)
    given = approval(keyed, candidate, ben)
    content = RevocationBody(key=ben.id, since=given.timestamp, by="Eve", why="because")
    with pytest.raises(Refused, match="the revocation needs the signature"):
        keyed.append("revocation", content)
    body = content.model_copy(update={"by": ada.name, "why": "the laptop was stolen"})
    body = body.model_copy(update={"signature": ada.signs.sign(revocation_content(body))})
    keyed.append("revocation", body)
    pin(keyed)
    with pytest.raises(Refused, match="composite aaaaaaaaaaaa"):
        crowned(keyed, given)
    with pytest.raises(Refused, match=f"the key {ben.id} of Ben was revoked from"):
        approval(keyed, candidate, ben)
    assert key_of(keyed.entries(), "Ben") is None
    crowned(keyed, approval(keyed, candidate, ada))
    assert audit(keyed.home).passed
