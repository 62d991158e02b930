"""Promotions: certified, approved, and compare-and-set."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from configs.errors import Refused
from configs.home import Home
from tasks.evidence.audit.audit import audit
from tasks.evidence.decisions.approvals import VerdictBody, open_approval, open_approvals
from tasks.evidence.decisions.champions import PromotionBody, WithdrawalBody, champion, promote
from tasks.evidence.decisions.verdicts import approve, reject
from tasks.evidence.ledger.ledger import Ledger
from tests.evidence import PLANT, candidate_record, certify, crown, forge, open_ledger, propose, put, verdict

A, B = "a" * 64, "b" * 64


@pytest.fixture
def ledger(home: Path) -> Ledger:
    ledger = open_ledger(Home(home))
    for composite in (A, B):
        certify(ledger, composite)
    return ledger


def test_the_last_promotion_is_champion(ledger: Ledger) -> None:
    assert champion(ledger.entries(), PLANT) is None
    first, second = crown(ledger, A), crown(ledger, B)
    assert second.body["replaces"] == first.digest
    history = ledger.entries()
    assert champion(history, PLANT) == second
    assert champion(history, "double_mass") is None
    assert champion(history, PLANT, at=first.timestamp) == first
    assert champion(history, PLANT, at="2020-01-01") is None
    assert champion(history, PLANT, at="2999-12-31") == second


def test_the_champion_at_a_date(ledger: Ledger) -> None:
    def at(instant: datetime) -> Ledger:
        return open_ledger(ledger.home, clock=lambda: instant)

    first = crown(at(datetime(2030, 3, 1, 12, tzinfo=UTC)), A)
    second = crown(at(datetime(2030, 3, 2, 23, 59, 59, tzinfo=UTC)), B)
    history = ledger.entries()
    assert champion(history, PLANT, at="2030-03-01") == first
    assert champion(history, PLANT, at="2030-03-01T11:59:59Z") is None
    # The end of a day counts; midnight in a zone five hours west is 05:00 in UTC.
    assert champion(history, PLANT, at="2030-03-02") == second
    assert champion(history, PLANT, at="2030-03-02T12:00:00") == first
    assert champion(history, PLANT, at="2030-03-02T23:30:00-05:00") == second


def test_two_promotions_against_the_same_champion(ledger: Ledger) -> None:
    first, second = (approve(ledger, PLANT, verdict(ledger, composite)) for composite in (A, B))
    put(ledger, first, None)
    with pytest.raises(Refused, match=r"the champion of chemical_reactor changed to composite aaaaaaaaaaaa"):
        put(ledger, second, None)
    now = champion(ledger.entries(), PLANT)
    assert now is not None
    assert now.body["composite"] == A


def test_repeating_a_killed_promotion_changes_nothing(ledger: Ledger) -> None:
    said = verdict(ledger, A)
    approval = approve(ledger, PLANT, said)
    assert approve(ledger, PLANT, said) == approval
    entry = put(ledger, approval, None)
    size = ledger.head().size
    assert put(ledger, approval, None) == entry
    assert ledger.head().size == size


def test_an_approval_is_good_for_one_promotion(ledger: Ledger) -> None:
    first = crown(ledger, A)
    second = crown(ledger, B)
    used = ledger.entry(first.body["approval"])
    with pytest.raises(Refused, match=r"composite aaaaaaaaaaaa .* has no unused approval"):
        put(ledger, used, second.digest)
    with pytest.raises(Refused, match=r"composite bbbbbbbbbbbb .* has no unused approval"):
        put(ledger, used, second.digest, composite=B)
    assert open_approval(ledger.entries(), PLANT, A) is None


def test_an_approval_is_of_the_candidate_that_is_promoted(ledger: Ledger) -> None:
    """Two candidates share a composite; an approval of one does not promote the other."""
    approval, other = approve(ledger, PLANT, verdict(ledger, A)), propose(ledger, A)
    promotion = PromotionBody(composite=A, approval=approval.digest, replaces=None, candidate=other)
    with pytest.raises(Refused, match=r"composite aaaaaaaaaaaa .* has no unused approval"):
        promote(ledger, PLANT, promotion)


def test_only_a_candidate_that_passed_every_gate_is_approved(ledger: Ledger) -> None:
    failed = "c" * 64
    certify(ledger, failed, (1, 2, 3), episodes=500)
    candidate = ledger.append("candidate", candidate_record(ledger, failed), plant=PLANT)
    assert candidate.body["passed"] is False
    with pytest.raises(Refused, match="an approval cannot replace a gate"):
        approve(ledger, PLANT, VerdictBody(composite=failed, by="x", candidate=candidate.digest))
    for named in ("", candidate.predecessor):
        with pytest.raises(Refused, match="the approval names no logged candidate"):
            approve(ledger, PLANT, VerdictBody(composite=failed, by="x", candidate=named))
    with pytest.raises(Refused, match="the approval names no logged candidate"):
        approve(ledger, PLANT, VerdictBody(composite=B, by="x", candidate=propose(ledger, A)))


def test_a_rejection_takes_an_approval_back(ledger: Ledger) -> None:
    approve(ledger, PLANT, verdict(ledger, A))
    reject(ledger, PLANT, verdict(ledger, A, "y", "too aggressive"))
    assert open_approvals(ledger.entries(), PLANT, A) == []


def test_a_rejected_candidate_is_not_promoted_by_a_later_approval(ledger: Ledger) -> None:
    """Attack: the home's owner approves Ada's rejected candidate under another name."""
    reject(ledger, PLANT, verdict(ledger, A, "Ada", "too aggressive"))
    with pytest.raises(Refused, match=r"composite aaaaaaaaaaaa of .* was ruled out: Ada rejected \(too aggress"):
        crown(ledger, A)
    assert crown(ledger, B).body["composite"] == B
    approval = ledger.entries("approval", PLANT)[0]
    body = PromotionBody(
        composite=A,
        approval=approval.digest,
        replaces=ledger.entries("promotion")[0].digest,
        candidate=approval.body["candidate"],
    )
    forge(ledger.home, "promotion", body)
    assert {check.name for check in audit(ledger.home).failures} == {"promotions"}


@pytest.mark.parametrize("version", ["99", " 1"])
def test_a_decision_names_the_version_of_its_candidate(ledger: Ledger, version: str) -> None:
    """Attack: a promotion names another version than the approved one, which MLflow's alias would follow."""
    said = verdict(ledger, A)
    for decide in (approve, reject):
        with pytest.raises(Refused, match="the candidate of chemical_reactor has version 1, got"):
            decide(ledger, PLANT, said.model_copy(update={"version": version}))
    approval = approve(ledger, PLANT, said.model_copy(update={"version": "1"}))
    body = PromotionBody(
        composite=A, approval=approval.digest, replaces=None, candidate=said.candidate, version=version
    )
    with pytest.raises(Refused, match="the candidate of chemical_reactor has version 1, got"):
        promote(ledger, PLANT, body)
    now = promote(ledger, PLANT, body.model_copy(update={"version": "1"}))
    gone = WithdrawalBody(composite=A, promotion=now.digest, version=version, by="x", why="y")
    with pytest.raises(Refused, match="the candidate of chemical_reactor has version 1, got"):
        ledger.append("withdrawal", gone, plant=PLANT)
    forge(ledger.home, "withdrawal", gone)
    assert {check.name for check in audit(ledger.home).failures} == {"promotions"}


def test_a_rejection_needs_a_logged_candidate_that_is_not_champion(ledger: Ledger) -> None:
    twin = propose(ledger, B)
    crown(ledger, B)
    for composite, candidate in ((A, ""), (A, twin), ("c" * 64, "f" * 64)):
        with pytest.raises(Refused, match="the rejection names no logged candidate"):
            reject(ledger, PLANT, VerdictBody(composite=composite, by="x", candidate=candidate))
    with pytest.raises(Refused, match="cannot be rejected"):
        reject(ledger, PLANT, VerdictBody(composite=B, by="x", candidate=twin))


def test_nothing_is_promoted_without_a_passed_certification(ledger: Ledger) -> None:
    """Not even with a forged approval."""
    failed = "c" * 64
    certify(ledger, failed, (1, 2, 3), episodes=500)
    candidate = ledger.append("candidate", candidate_record(ledger, failed), plant=PLANT)
    approval = forge(ledger.home, "approval", VerdictBody(composite=failed, by="x", candidate=candidate.digest))
    with pytest.raises(Refused, match=r"composite cccccccccccc .* has no passed certification"):
        put(ledger, approval, None)
