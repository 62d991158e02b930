"""A champion that rests on a revoked key stays in service and is reported until a new decision."""

from __future__ import annotations

import pytest

from configs.errors import Refused
from tasks.evidence.audit.audit import audit
from tasks.evidence.decisions.approvals import VerdictBody
from tasks.evidence.decisions.champions import champion
from tasks.evidence.ledger.keys import open_keys
from tasks.evidence.ledger.ledger import Ledger
from tasks.evidence.ledger.protocol import Rotate
from tasks.evidence.ledger.signing import key_id
from tasks.evidence.signer import Signer
from tasks.lifecycle import keys
from tests.evidence import PLANT, forge, open_ledger
from tests.tasks.evidence.people.persons import Person, approval, crowned, proposed

A, B = "a" * 64, "b" * 64


def test_a_champion_with_a_revoked_approval_is_reported(keyed: Ledger, ada: Person, ben: Person) -> None:
    given = approval(keyed, proposed(keyed, A), ben)
    first = crowned(keyed, given)
    keys.revoke(keyed, "Ben", given.timestamp, ada.name, "the laptop was stolen", ada.signs)
    # Nothing is taken out of service without a decision.
    assert champion(keyed.entries(), PLANT) == first
    (failure,) = audit(keyed.home).failures
    assert failure.name == "people"
    assert f"version  of {PLANT} serves on Ben's approval (entry {given.sequence}) by key {ben.id}" in failure.detail
    crowned(keyed, approval(keyed, proposed(keyed, B), ada))
    assert audit(keyed.home).passed


def test_an_approval_from_before_the_revocation_counts(keyed: Ledger, ada: Person, ben: Person) -> None:
    crowned(keyed, approval(keyed, proposed(keyed, A), ben))
    keys.revoke(keyed, ben.id, keys.first_moment(""), ada.name, "left the company", ada.signs)
    assert audit(keyed.home).passed


@pytest.mark.parametrize("kind", ["revocation", "rotation", "key"])
@pytest.mark.parametrize("body", [{}, {"key": [], "since": 1, "old": {}, "person": ""}, {"key": "x", "since": ""}])
def test_an_unreadable_forged_entry_is_named_and_skipped(
    keyed: Ledger, ada: Person, kind: str, body: dict[str, object]
) -> None:
    first = crowned(keyed, approval(keyed, proposed(keyed, A), ada))
    entry = forge(keyed.home, kind, body, plant="")
    ledger = Ledger.open(keyed.home, write=False)
    assert champion(ledger.entries(), PLANT) == first
    told = [check.detail for check in audit(keyed.home).failures]
    assert keys.key_rows(ledger.entries())
    assert any(f"ledger entry {entry.sequence}: " in detail for detail in told), told


def test_the_home_revokes_the_last_persons_key(keyed: Ledger, ada: Person, ben: Person) -> None:
    keys.revoke(keyed, "Ben", keys.first_moment("2026-01-01"), ben.name, "lost", ben.signs)
    entry = keys.revoke(
        keyed, "Ada Lovelace", keys.first_moment("2026-01-01T01:00:00+01:00"), "an administrator", "lost"
    )
    assert entry.body["since"] == "2026-01-01T00:00:00.000000Z"
    assert [row[5] for row in keys.key_rows(keyed.entries())] == ["2026-01-01T00:00:00.000000Z"] * 2
    # And a first person may be enrolled again.
    keyed.append("key", Person("Carl").body())


def test_statements_from_before_a_revocation_cannot_be_reused(keyed: Ledger, ada: Person) -> None:
    """Attack: the home's owner reuses the signature of an entry that a revocation voided."""
    home = keyed.home
    old = key_id(open_keys(home, first_use=False)[0].public)
    candidate = proposed(keyed, A)
    given = approval(keyed, candidate, ada)
    signer = Signer.open(home)
    assert not signer.answer(Rotate(by="an administrator", why="stolen")).stale
    ledger = open_ledger(home)
    keys.revoke(ledger, old, given.timestamp, ada.name, "stolen", ada.signs)
    assert next(e for e in ledger.entries() if e.digest == given.digest).kind == "void"
    with pytest.raises(Refused, match="this statement of Ada Lovelace is already in the ledger"):
        ledger.append("approval", VerdictBody.model_validate(given.body), plant=PLANT)
    assert approval(ledger, candidate, ada).kind == "approval"


@pytest.mark.parametrize("since", ["2026-01-01T00:00:00Z", "20260101T000000.000000Z", "2026-W01-4T00:00:00.000000Z"])
def test_a_revocation_is_written_as_the_ledger_s_times(keyed: Ledger, ada: Person, ben: Person, since: str) -> None:
    """Other forms would sort differently and spare signatures of that second or year."""
    with pytest.raises(Refused, match="the time of a revocation must be written as 2026-01-01T00:00:00"):
        keys.revoke(keyed, ben.id, since, ada.name, "stolen", ada.signs)
