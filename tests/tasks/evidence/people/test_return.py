"""Rollbacks under a policy that requires persons' keys."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pytest

from configs.errors import Refused
from configs.home import Home
from tasks.audit_report.decisions import in_force_in
from tasks.audit_report.tables import Period
from tasks.evidence.audit.audit import audit
from tasks.evidence.decisions.approvals import VerdictBody
from tasks.evidence.decisions.champions import (
    PromotionBody,
    RollbackBody,
    champion,
    leaving,
    promote,
    promotion_of,
    rollback_content,
)
from tasks.evidence.decisions.queue import was_rejected
from tasks.evidence.decisions.verdicts import approve
from tasks.evidence.ledger.entry import Entry, read_entry
from tasks.evidence.ledger.ledger import Ledger
from tasks.evidence.ledger.protocol import Rotate
from tasks.evidence.ledger.signing import keyid_of
from tasks.evidence.people.keyring import RevocationBody
from tasks.evidence.people.rules import revocation_content
from tasks.evidence.people.statement import read_payload
from tasks.evidence.signer import Signer
from tasks.lifecycle import keys
from tasks.lifecycle.in_force import in_force_at
from tasks.lifecycle.policy import sign
from tasks.promote import before_run
from tasks.references import CandidateRecord
from tests.evidence import PLANT, open_ledger, propose
from tests.tasks.evidence.people.persons import Person, approval, demanding, pin, proposed

A, B, C = "a" * 64, "b" * 64, "c" * 64
LEFT = (
    "rolled back to version {} by an operator: it hunts; the rollback was voided, but this version stays out of service"
)


def signed_rollback(ledger: Ledger, person: Person, **changes: Any) -> RollbackBody:
    """Return a signed rollback to the first champion, with later changes."""
    history = ledger.entries()
    first = promotion_of(history, PLANT, "1")
    assert first is not None
    replaces, leaves = leaving(history, PLANT)
    said = RollbackBody(
        composite=first.body["composite"],
        candidate=first.body["candidate"],
        version="1",
        restores=first.digest,
        replaces=replaces,
        leaves=leaves,
        by=person.name,
        why="it hunts",
    )
    envelope = person.signs.sign(rollback_content(history, PLANT, said))
    signature = {"signature": envelope, "signed": read_payload(envelope)["signed"]}
    return said.model_copy(update={**signature, **changes})


@pytest.fixture
def two_champions(keyed: Ledger, ada: Person) -> Ledger:
    for number, composite in enumerate((A, B), 1):
        candidate = proposed(keyed, composite, version=str(number), run_key=str(number))
        given = approval(keyed, candidate, ada)
        promotion = PromotionBody(
            composite=composite,
            approval=given.digest,
            replaces=candidate.body["champion"],
            candidate=candidate.digest,
            version=str(number),
        )
        promote(keyed, PLANT, promotion)
    return keyed


def test_a_person_signs_the_return_of_a_champion(two_champions: Ledger, ben: Person) -> None:
    ledger = two_champions
    with pytest.raises(Refused, match="the rollback needs the signature of Ben"):
        ledger.append("rollback", signed_rollback(ledger, ben, signature="", signed=""), plant=PLANT)
    with pytest.raises(Refused, match="the statement's note is 'it hunts', the ledger requires 'another reason'"):
        ledger.append("rollback", signed_rollback(ledger, ben, why="another reason"), plant=PLANT)
    with pytest.raises(Refused, match="is not enrolled"):
        ledger.append("rollback", signed_rollback(ledger, Person("Ben")), plant=PLANT)
    entry = ledger.append("rollback", signed_rollback(ledger, ben), plant=PLANT)
    assert _audited(ledger) == []
    # The statement is of this champion: given again it counts for nothing.
    with pytest.raises(Refused, match="changed while the rollback was prepared"):
        ledger.append("rollback", entry.read(RollbackBody), plant=PLANT)


def test_champions_that_rest_on_a_revoked_key_are_named(two_champions: Ledger, ada: Person, ben: Person) -> None:
    ledger = two_champions
    entry = ledger.append("rollback", signed_rollback(ledger, ben), plant=PLANT)
    gone = RevocationBody(key=ben.id, since=entry.timestamp, by=ada.name, why="the laptop was stolen")
    signature = ada.signs.sign(revocation_content(gone))
    ledger.append("revocation", gone.model_copy(update={"signature": signature}))
    pin(ledger)
    (named,) = _audited(ledger)
    assert named.startswith(f"version 1 of {PLANT} serves on Ben's approval (entry {entry.sequence}) by key {ben.id}")


def test_an_approval_by_a_revoked_key_restores_nothing(two_champions: Ledger, ada: Person, ben: Person) -> None:
    """Ada's key was stolen before her approval of version 1; the policy now requires two persons."""
    ledger = two_champions
    sign(ledger, demanding(count=2), ada.name, "a second pair of eyes", [ada.signs])
    stolen = ledger.entries("approval")[0].timestamp
    gone = RevocationBody(key=ada.id, since=stolen, by=ben.name, why="the laptop was stolen")
    ledger.append("revocation", gone.model_copy(update={"signature": ben.signs.sign(revocation_content(gone))}))
    pin(ledger)
    with pytest.raises(Refused, match="approvals needed from 2 persons, got 1"):
        ledger.append("rollback", signed_rollback(ledger, ben), plant=PLANT)


def _audited(ledger: Ledger) -> list[str]:
    return [check.detail for check in audit(ledger.home).failures]


def _reported(entries: Sequence[Entry]) -> list[tuple[str, str, str]]:
    """Return version, end and reason of every champion in the month's report."""
    month = Period(first=date(2024, 1, 1), last=date(2024, 1, 31))
    return [(row.version, (row.until or "")[:10], row.ended) for row in in_force_in(entries, month)]


class Revoked:
    """A home with a stolen key: two champions and a rollback to the first, each on its own day."""

    def __init__(self, home: Home) -> None:
        self.home, self.day = home, datetime(2024, 1, 1, tzinfo=UTC)
        self.signer = Signer.open(home, clock=lambda: self.day)

    @property
    def ledger(self) -> Ledger:
        return open_ledger(self.home, clock=lambda: self.day)

    def on(self, day: int) -> Ledger:
        self.day = datetime(2024, 1, day, tzinfo=UTC)
        return self.ledger

    def propose(self, day: int, composite: str) -> str:
        """Log a candidate whose version is its letter."""
        return propose(self.on(day), composite, version=composite[0], run_key=composite[0])

    def crown(self, day: int, composite: str, proposed: str = "") -> Entry:
        """Promote an earlier or a new candidate."""
        candidate = proposed or self.propose(day, composite)
        ledger = self.on(day)
        now = champion(ledger.entries(), PLANT)
        said = VerdictBody(composite=composite, by="a reviewer", note="", candidate=candidate)
        promotion = PromotionBody(
            composite=composite,
            approval=approve(ledger, PLANT, said).digest,
            replaces=now.digest if now else None,
            candidate=candidate,
            version=composite[0],
        )
        return promote(ledger, PLANT, promotion)

    def rotate(self) -> None:
        assert not self.signer.answer(Rotate(by="an administrator", why="stolen")).stale

    def roll_back(self, day: int, to: Entry) -> None:
        ledger = self.on(day)
        replaces, leaves = leaving(ledger.entries(), PLANT)
        about = {name: to.body[name] for name in ("composite", "candidate", "version")}
        why = {"by": "an operator", "why": "it hunts"}
        ledger.append(
            "rollback", RollbackBody(**about, **why, restores=to.digest, replaces=replaces, leaves=leaves), plant=PLANT
        )

    def revoke(self, since: int, key: str) -> list[Entry]:
        keys.revoke(self.on(20), key, f"2024-01-{since:02}T00:00:00.000000Z", "an administrator", "stolen")
        return self.ledger.entries()


def test_a_voided_rollback_leaves_its_champion_out_of_service(home: Path) -> None:
    stolen = Revoked(Home(home))
    first = stolen.crown(1, A)
    stolen.crown(2, B)
    stolen.roll_back(6, first)
    key = keyid_of(first.envelope)
    stolen.on(10)
    stolen.rotate()
    entries = stolen.revoke(5, key)
    assert champion(entries, PLANT) is None
    assert _reported(entries) == [("a", "2024-01-02", "replaced by version b"), ("b", "2024-01-06", LEFT.format("a"))]
    assert was_rejected(entries, PLANT, B)
    assert not was_rejected(entries, PLANT, A)
    report = audit(stolen.home)
    assert report.passed, report.failures


def test_a_rollback_cannot_restore_what_a_stolen_key_promoted(home: Path) -> None:
    stolen = Revoked(Home(home))
    first = stolen.crown(1, A)
    second = stolen.crown(6, B)
    key = keyid_of(first.envelope)
    stolen.on(7)
    stolen.rotate()
    stolen.crown(8, C)
    stolen.roll_back(9, second)
    assert champion(stolen.ledger.entries(), PLANT) is not None
    entries = stolen.revoke(5, key)
    assert champion(entries, PLANT) is None
    assert _reported(entries) == [("a", "2024-01-08", "replaced by version c"), ("c", "2024-01-09", LEFT.format("b"))]
    assert was_rejected(entries, PLANT, C)
    report = audit(stolen.home)
    assert report.passed, report.failures


def test_a_champion_with_a_voided_candidate_is_named(home: Path) -> None:
    stolen = Revoked(Home(home))
    first = stolen.crown(1, A)
    key, proposed = keyid_of(first.envelope), stolen.propose(6, B)
    stolen.on(7)
    stolen.rotate()
    second = stolen.crown(8, B, proposed)
    entries = stolen.revoke(5, key)
    candidate = next(entry for entry in entries if entry.digest == proposed)
    assert (candidate.kind, champion(entries, PLANT)) == ("void", second)
    record = before_run(entries, PLANT, "a run")
    assert record is not None
    assert (record, record.composite) == (candidate.read(CandidateRecord), B)
    assert in_force_at(entries, PLANT, "2024-01-25").version == "b"
    assert _audited(stolen.ledger) == [
        f"version b of {PLANT} serves on entry {candidate.sequence}, which does not count: candidate signed by key "
        f"{key}, which was revoked from 2024-01-05T00:00:00.000000Z on: review it again, or 'neorl withdraw {PLANT} b'"
    ]


def test_no_entry_declares_itself_void(two_champions: Ledger) -> None:
    envelope = two_champions.entries()[-1].envelope
    payload = read_payload(envelope.decode())
    assert read_entry(payload, envelope) == two_champions.entries()[-1]
    # Nor is the root of all entries its own to say.
    for name, said in {"void": "rollback of another", "root": "00"}.items():
        with pytest.raises(TypeError, match=name):
            read_entry({**payload, name: said}, envelope)
