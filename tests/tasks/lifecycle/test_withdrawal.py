"""Withdrawals: immediate, final, and followed by the plant's own controller."""

from __future__ import annotations

import json

import pytest

from configs.errors import Refused
from configs.strict import Approvers
from flows.cli.main import run
from flows.decisions import withdraw
from tasks import promote
from tasks.evidence.audit.audit import audit
from tasks.evidence.decisions import approvals, champions, queue, verdicts
from tasks.evidence.ledger.entry import Entry
from tasks.evidence.ledger.ledger import Ledger
from tasks.evidence.people.statement import Content, Signatory
from tasks.evidence.rules import NoteBody, RefusalBody
from tasks.lifecycle.champions import withdraw_champion
from tasks.lifecycle.policy import sign
from tests.evidence import PLANT, POLICY, candidate_record, certify, forge, propose
from tests.tasks.evidence.people.persons import Person
from tests.tasks.lifecycle.served import Served

A, B, C = "a" * 64, "b" * 64, "c" * 64
WHY = "the valve was replaced, it is another plant"


def crowned(ledger: Ledger, composite: str, version: str) -> Entry:
    candidate = ledger.entry(propose(ledger, composite, version=version, run_key=version))
    return promote.promote_candidate(ledger.home, candidate, "a reviewer", "compared")


def own_controller(ledger: Ledger, version: str = "0") -> Entry:
    """Register the plant's own controller while there is no champion."""
    certify(ledger, C)
    record = candidate_record(ledger, C, version=version, run_key="own", role="fallback")
    alone = tuple(gate for gate in record.gates if gate.name == "fallback")
    return ledger.append("candidate", record.model_copy(update={"gates": alone}), plant=PLANT)


def test_a_withdrawn_champion_does_not_come_back(ledger: Ledger) -> None:
    first = crowned(ledger, A, "1")
    done = withdraw_champion(ledger.home, PLANT, "1", "shift engineer", WHY)
    assert (done.entry.body["promotion"], done.entry.body["why"]) == (first.digest, WHY)
    assert "only at the plant" in done.takes_over
    entries = ledger.entries()
    assert champions.champion(entries, PLANT) is None
    assert champions.champion(entries, PLANT, at=first.timestamp) == first
    report = audit(ledger.home)
    assert report.passed
    assert f"none for {PLANT}, whose was withdrawn" in {c.name: c.detail for c in report.checks}["champions"]
    # Given again, the command changes nothing.
    assert withdraw_champion(ledger.home, PLANT, "1", "another", "again").entry == done.entry
    assert len(ledger.entries("withdrawal")) == 1
    # Another run that comes to the same composite does not bring it back, by the rule or by a person.
    again = ledger.entry(propose(ledger, A, version="2", run_key="2"))
    assert queue.was_rejected(ledger.entries(), PLANT, A)
    assert queue.waiting(ledger.entries(), PLANT) == []
    with pytest.raises(Refused, match="shift engineer withdrew version"):
        promote.promote_candidate(ledger.home, again, "a reviewer", "")
    said = approvals.VerdictBody(composite=A, by="a reviewer", candidate=again.digest)
    body = champions.PromotionBody(
        composite=A, approval=verdicts.approve(ledger, PLANT, said).digest, replaces=None, candidate=again.digest
    )
    with pytest.raises(Refused, match=r"was ruled out: shift engineer withdrew \(the"):
        champions.promote(ledger, PLANT, body)
    # What comes next replaces nothing.
    assert crowned(ledger, B, "3").body["replaces"] is None
    assert audit(ledger.home).passed


@pytest.mark.parametrize("registered", [False, True])
def test_the_second_of_two_withdrawals_names_the_first(ledger: Ledger, registered: bool) -> None:
    """Also after the own controller has taken over: it stays in force, and nothing is added."""
    if registered:
        own_controller(ledger)
    crowned(ledger, A, "1")
    ben = Person("Ben")

    def slowly(said: Content) -> str:
        withdraw_champion(ledger.home, PLANT, "1", "shift engineer", WHY)
        return ben.signs.sign(said)

    second = withdraw(ledger.home, PLANT, "1", "Ben", "it hunts", Signatory("Ben", slowly))
    (made,) = ledger.entries("withdrawal")
    assert made.body["by"] == "shift engineer"
    assert second.standing == f"shift engineer, {made.timestamp}"
    entries = len(ledger.entries())
    again = withdraw_champion(ledger.home, PLANT, "1", "another", "again")
    assert again.before
    assert again.takes_over.startswith(
        "the plant's own controller, " + ("version 0" if registered else "only at the plant")
    )
    assert len(ledger.entries()) == entries
    if registered:
        crowned(ledger, B, "2")
        assert withdraw_champion(ledger.home, PLANT, "1", "another", "again").takes_over == "version 2"


def test_the_plants_own_controller_takes_over(ledger: Ledger) -> None:
    own_controller(ledger)
    crowned(ledger, A, "1")
    done = withdraw_champion(ledger.home, PLANT, "1", "shift engineer", WHY)
    assert done.takes_over == "the plant's own controller, version 0"
    now = champions.champion(ledger.entries(), PLANT)
    assert now is not None
    assert now.body["composite"] == C
    approval = ledger.entry(now.body["approval"])
    assert (approval.body["by"], approval.body["note"]) == ("shift engineer", f"takes over from version 1: {WHY}")
    # It can be withdrawn itself; then nothing is left to take over.
    assert "no version of it is registered" in withdraw_champion(ledger.home, PLANT, "0", "a", "b").takes_over


def test_a_withdrawal_takes_effect_without_further_approvals(ledger: Ledger) -> None:
    own_controller(ledger)
    crowned(ledger, A, "1")
    two = POLICY.model_copy(update={"approvers": Approvers(count=2)})
    sign(ledger, two, "a reviewer", "two from now on")
    done = withdraw_champion(ledger.home, PLANT, "1", "shift engineer", WHY)
    assert "its version 0 needs more approvals" in done.takes_over
    assert champions.champion(ledger.entries(), PLANT) is None


@pytest.mark.parametrize(
    ("version", "by", "why", "said"),
    [
        ("2", "x", "y", "version 2 of chemical_reactor is not champion, version 1 is"),
        ("1", "x", " ", "a withdrawal needs a person and a reason"),
        ("1", " ", "y", "a withdrawal needs a person and a reason"),
    ],
)
def test_only_the_champion_is_withdrawn_with_person_and_reason(
    ledger: Ledger, version: str, by: str, why: str, said: str
) -> None:
    first = crowned(ledger, A, "1")
    with pytest.raises(Refused, match=said):
        withdraw_champion(ledger.home, PLANT, version, by, why)
    assert champions.champion(ledger.entries(), PLANT) == first


def test_a_withdrawal_of_another_than_the_champion_is_found(ledger: Ledger) -> None:
    crowned(ledger, A, "1")
    body = champions.WithdrawalBody(composite=B, promotion="0" * 64, version="7", by="x", why="y")
    with pytest.raises(Refused, match="the champion of chemical_reactor is composite"):
        ledger.append("withdrawal", body, plant=PLANT)
    forge(ledger.home, "withdrawal", body)
    assert {check.name for check in audit(ledger.home).failures} == {"promotions", "champions"}


def test_a_withdrawal_needs_no_server(ledger: Ledger) -> None:
    crowned(ledger, A, "1")
    done = withdraw(ledger.home, PLANT, "1", "shift engineer", WHY)
    assert (done.champion, done.record) == (None, None)
    assert done.aliases.changes == ("MLflow does not answer: the aliases will be updated later",)


def test_the_history_shows_all_kinds(ledger: Ledger, capsys: pytest.CaptureFixture[str]) -> None:
    crowned(ledger, A, "1")
    rejected = ledger.entry(propose(ledger, B, version="2", run_key="2"))
    promote.reject_candidate(ledger.home, rejected, "Ada", "too lively")
    ledger.append("note", NoteBody(text="looked at the valve"), plant=PLANT)
    ledger.append("refusal", RefusalBody(reason="too few episodes"), plant=PLANT)
    assert run(["withdraw", PLANT, "1", "--why", WHY, "--by", "Ben"]) == 0
    assert "version 1 of chemical_reactor is withdrawn; in force: the plant's own" in capsys.readouterr().out
    assert run(["withdraw", PLANT, "1", "--why", "again", "--by", "Cleo"]) == 0
    (withdrawn,) = ledger.entries("withdrawal")
    assert f"already decided by Ben, {withdrawn.timestamp}: nothing was added to the ledger" in capsys.readouterr().out
    assert run(["history", PLANT]) == 0
    shown = capsys.readouterr().out
    for told in (
        "by Ada",
        "note too lively",
        "text looked at the valve",
        "reason too few episodes",
        f"by Ben, why {WHY}",
    ):
        assert told in shown
    assert run(["history", PLANT, "--json"]) == 0
    kinds = [row["kind"] for row in json.loads(capsys.readouterr().out)["entries"]]
    assert kinds == [entry.kind for entry in ledger.entries(plant=PLANT)]
    assert {"policy", "candidate", "approval", "promotion", "rejection", "note", "refusal", "withdrawal"} <= set(kinds)


@pytest.mark.slow
def test_a_repeated_decision_names_the_person_who_decided(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = (served.candidate().body["version"] for _ in range(2))
    for verb, version, kind in (("reject", second, "rejection"), ("approve", first, "promotion")):
        assert run([verb, PLANT, version, "--by", "Ada"]) == 0
        assert "in the home's name, without a person's key\n" in capsys.readouterr().out
        (standing,) = served.ledger.entries(kind)
        size = len(served.ledger.entries())
        assert run([verb, PLANT, version, "--by", "Ben"]) == 0
        assert (
            f"\nalready decided by Ada, {standing.timestamp}: nothing was added to the ledger\n"
            in capsys.readouterr().out
        )
        assert run([verb, PLANT, version, "--by", "Ben", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["standing"] == f"Ada, {standing.timestamp}"
        assert len(served.ledger.entries()) == size
