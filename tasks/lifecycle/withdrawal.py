"""Withdrawal of a champion; the plant's own controller takes over."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from configs.errors import NeoRLError, Refused
from configs.home import Home
from tasks.evidence.decisions.champions import IN_FORCE, WithdrawalBody, champion, withdrawal_content
from tasks.evidence.decisions.queue import record_of, was_rejected
from tasks.evidence.ledger.entry import Entry
from tasks.evidence.ledger.ledger import Ledger
from tasks.evidence.people.statement import Signatory, with_signature
from tasks.promote import promote_candidate


class Withdrawn(NamedTuple):
    """Result of a withdrawal."""

    entry: Entry
    before: bool
    """Whether the champion had already been withdrawn."""
    takes_over: str
    """Description of the controller that takes over."""


def withdraw_champion(
    home: Home, plant: str, version: str, by: str, why: str, signatory: Signatory | None = None
) -> Withdrawn:
    """Take the champion out of service at once; repeating the command changes nothing.

    The plant's own controller takes over: as champion if a version of it is certified and needs no further approval,
    otherwise as it runs at the plant.

    Args:
        version: version of the champion, to prevent mistakes.
        signatory: the person with their key; without one, the withdrawal is in the home's name.
    """
    ledger = Ledger.open(home)

    def body(history: Sequence[Entry]) -> WithdrawalBody:
        now = champion(history, plant)
        if now is None or now.body["version"] != version:
            found = f"version {now.body['version']} is" if now else "there is none"
            raise Refused(f"version {version} of {plant} is not champion, {found}: see 'neorl history {plant}'")
        made = WithdrawalBody(composite=now.body["composite"], promotion=now.digest, version=version, by=by, why=why)
        return with_signature(made, signatory, withdrawal_content(made, plant))

    made, before = _withdrawn(ledger, plant, version), True
    if made is None:
        try:
            made, before = ledger.append("withdrawal", body, plant=plant), False
        except Refused:
            # Another person may have withdrawn it while this one signed.
            if (made := _withdrawn(ledger, plant, version)) is None:
                raise
    note = f"takes over from version {version}: {why}"
    return Withdrawn(made, before, _take_over(home, ledger, plant, by, note, signatory))


def _withdrawn(ledger: Ledger, plant: str, version: str) -> Entry | None:
    """Return the withdrawal of a version that has not been in force since."""
    turns = (e for e in reversed(ledger.entries()) if e.plant == plant and e.kind in (*IN_FORCE, "withdrawal"))
    last = next((e for e in turns if e.body["version"] == version), None)
    return last if last is not None and last.kind == "withdrawal" else None


def _take_over(home: Home, ledger: Ledger, plant: str, by: str, note: str, signatory: Signatory | None) -> str:
    """Promote a certified version of the plant's own controller, if any; describe the controller in force."""
    entries = ledger.entries()
    if (now := champion(entries, plant)) is not None:
        record = record_of(ledger.entry(now.body["candidate"]))
        own = "the plant's own controller, " if record.role == "fallback" else ""
        return f"{own}version {now.body['version']}"
    for entry in reversed(entries):
        if (entry.kind, entry.plant) != ("candidate", plant) or was_rejected(entries, plant, entry.body["composite"]):
            continue
        record = record_of(entry)
        if record.role != "fallback" or not record.passed or record.champion is not None:
            continue
        try:
            made = promote_candidate(home, entry, by, note, signatory=signatory)
        except NeoRLError as error:
            return f"the plant's own controller, only at the plant (its version {record.version}: {error})"
        if made.kind == "promotion":
            return f"the plant's own controller, version {record.version}"
        return f"the plant's own controller, only at the plant: its version {record.version} needs more approvals"
    return "the plant's own controller, only at the plant: no version of it is registered"
