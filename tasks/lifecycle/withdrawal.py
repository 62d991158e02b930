"""Take a champion out of service: an entry of the ledger, and the plant's own controller takes over."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from configs.errors import NeoRLError, Refused
from configs.home import Home
from tasks.evidence.decisions.champions import IN_FORCE, WithdrawalBody, champion, withdrawal_content
from tasks.evidence.decisions.queue import record_of, was_rejected
from tasks.evidence.ledger.entry import Entry
from tasks.evidence.ledger.ledger import Ledger
from tasks.evidence.people.statement import Signatory, read_payload
from tasks.promote import promote_candidate


class Withdrawn(NamedTuple):
    """What a withdrawal came to."""

    entry: Entry
    before: bool
    """Whether the champion had been withdrawn already, and nothing was added."""
    takes_over: str
    """Who is in force now, in words."""


def withdraw_champion(
    home: Home, plant: str, version: str, by: str, why: str, signatory: Signatory | None = None
) -> Withdrawn:
    """Take the champion out of service at once; giving the same command again changes nothing.

    The plant's own controller takes over: as champion where a version of it is certified and the plant's policy asks
    for no more than this person's approval, else where it always is, at the plant.

    Args:
        home: of the ledger.
        plant: the plant's name.
        version: of the champion, so that nobody withdraws another than they mean.
        by: who decides.
        why: for the record.
        signatory: the person with their key; in the home's name without one.

    Raises:
        Refused: when another version is champion, or no reason is given.
    """
    ledger = Ledger.open(home)

    def body(history: Sequence[Entry]) -> WithdrawalBody:
        now = champion(history, plant)
        if now is None or now.body["version"] != version:
            got = f"version {now.body['version']}" if now else "none"
            raise Refused(
                f"expected version {version} of {plant} to be champion, got {got}: see 'neorl history {plant}'."
            )
        said = WithdrawalBody(composite=now.body["composite"], promotion=now.digest, version=version, by=by, why=why)
        if signatory is None:
            return said
        envelope = signatory.sign(withdrawal_content(said, plant))
        return said.model_copy(update={"signature": envelope, "signed": read_payload(envelope)["signed"]})

    made, before = _withdrawn(ledger, plant, version), True
    if made is None:
        try:
            made, before = ledger.append("withdrawal", body, plant=plant), False
        except Refused:
            # Another person may have been the first, while this one signed.
            if (made := _withdrawn(ledger, plant, version)) is None:
                raise
    note = f"takes over from version {version}: {why}"
    return Withdrawn(made, before, _take_over(home, ledger, plant, by, note, signatory))


def _withdrawn(ledger: Ledger, plant: str, version: str) -> Entry | None:
    """The withdrawal of a version that has not been in force since."""
    turns = (e for e in reversed(ledger.entries()) if e.plant == plant and e.kind in (*IN_FORCE, "withdrawal"))
    last = next((e for e in turns if e.body["version"] == version), None)
    return last if last is not None and last.kind == "withdrawal" else None


def _take_over(home: Home, ledger: Ledger, plant: str, by: str, note: str, signatory: Signatory | None) -> str:
    """Promote the certified version of the plant's own controller, if there is one and nobody is in force by now."""
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
            return f"the plant's own controller, at the plant alone (its version {record.version}: {error})"
        if made.kind == "promotion":
            return f"the plant's own controller, version {record.version}"
        return f"the plant's own controller, at the plant alone, for its version {record.version} takes more approvals"
    return "the plant's own controller, at the plant alone, for no version of it is registered"
