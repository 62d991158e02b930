"""Commands about champions of before: who was in force when, and going back to one of them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from configs.errors import printable
from configs.home import Home
from flows.cli.console import AsJson, emit, known_plant, show_table
from flows.cli.keys import KeyFile, hand_of
from flows.cli.models import Plant, Role, Who, signed_how

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tasks.audit_report.tables import InForce as Turn
    from tasks.evidence.ledger.ledger import Entry
    from tasks.lifecycle.past import InForce


def rollback(
    plant: Plant,
    to: Annotated[str, typer.Option("--to", help="The version to go back to, which was champion before.")],
    why: Annotated[str, typer.Option(help="Why, for the record.")],
    by: Who = "",
    role: Role = "",
    key: KeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Bring an earlier champion back into service, once all that it rests on has been verified again.

    Verified are the ledger, the certificate (signature, statistics, age by the plant's policy), the bundle, which must
    load and answer as recorded, and MLflow's files. The version that it takes the place of is not promoted again by
    itself; a rollback brings it back.

    Example: neorl rollback chemical_reactor --to 3 --why "version 4 is nervous on the valve"
    """
    from flows.promote import rollback as decide

    hand = hand_of(by, key)
    result = decide(Home.locate(), known_plant(plant), to, hand.name, why, hand.signatory, role=role)
    lines = [f"version {to} of {plant} is champion again", signed_how(result, hand), *result.aliases.changes]
    emit(result, as_json, lines)


def history(
    plant: Plant,
    at: Annotated[
        str,
        typer.Option(help="Only who was in force then: a date (its end in UTC), or an ISO time with its zone."),
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Show who was champion when, and every entry about the plant, from the verified ledger.

    With --at, who was in force at that instant, with the certificate, the dataset and the approvals of then. A time
    without a zone is taken as UTC, and the answer says so.

    Example: neorl history chemical_reactor --at 2026-11-20T14:00:00+01:00
    """
    known_plant(plant)
    from tasks.audit_report.decisions import in_force_in
    from tasks.audit_report.tables import ALWAYS
    from tasks.evidence.decisions.champions import before_policy
    from tasks.evidence.ledger.ledger import Ledger
    from tasks.lifecycle.past import in_force_at
    from tasks.record import history_rows

    entries = Ledger.open(Home.locate(), write=False).entries()
    then = in_force_at(entries, plant, at) if at else None
    own = {e.sequence: e for e in entries if e.plant == plant and (then is None or e.digest == then.entry)}
    turns = [turn for turn in in_force_in(entries, ALWAYS) if turn.entry in own and turn.plant == plant]
    rows = [_promotion(turn, own[turn.entry], entries) for turn in turns if turn.kind == "champion"]
    watched = [_promotion(turn, own[turn.entry], entries) for turn in turns if turn.kind == "shadow"]
    found = {"champions": [row._asdict() for row in rows], "shadows": [row._asdict() for row in watched]}
    if then is not None:
        emit({"plant": plant, **found, "entries": [], "then": then.model_dump()}, as_json, _told(then))
        return
    everything = [row.model_dump() for row in history_rows(entries, plant)]
    if as_json:
        emit({"plant": plant, **found, "entries": everything}, True)
        return
    if rows:
        show_table(TURN, [_shown(row) for row in rows])
    elif watched:
        print(f"{plant} has had no champion, for it has no simulator; in shadow were")
        show_table(TURN, [_shown(row) for row in watched])
    else:
        print(f"{plant} has had no champion yet")
    if standing := before_policy(entries, plant):
        print(standing)
    if everything:
        print()
        show_table(("sequence", "timestamp", "kind", "detail"), [[*row.values()] for row in everything])


class Promotion(NamedTuple):
    """A version's time as champion, or in shadow."""

    since: str
    until: str | None
    """None while it is in force."""
    version: str
    composite: str
    approved_by: str
    ended: str
    """How, in words; empty while it is in force."""
    entry: str
    sequence: int


TURN = ("since", "until", "version", "composite", "approved by", "ended")


def _promotion(turn: Turn, entry: Entry, entries: Sequence[Entry]) -> Promotion:
    from tasks.evidence.decisions.approvals import approvers
    from tasks.files.times import format_time

    over = turn.until is not None and turn.until <= format_time(datetime.now(UTC))
    return Promotion(
        since=entry.timestamp,
        until=turn.until,
        version=turn.version,
        composite=turn.composite,
        approved_by=approvers(entries, entry),
        ended=turn.ended if over else "",
        entry=entry.digest,
        sequence=entry.sequence,
    )


def _shown(row: Promotion) -> tuple[str, ...]:
    """A row of the table for people: times to the second, and the digest as everywhere else."""
    since, until = (f"{time[:19]}Z" if time else "in force" for time in (row.since, row.until))
    return since, until, row.version, row.composite[:12], row.approved_by, row.ended


def _told(then: InForce) -> list[str]:
    """Who was in force at an instant, for people."""
    lines = [f"{then.plant} at {then.at} ({then.zone}): {then.who}"]
    if then.version is None:
        return lines
    lines += [f"composite    {then.composite}", f"since        {then.since}, ledger entry {then.entry}"]
    if (certificate := then.certificate) is None:
        lines.append("certificate  none: without a simulator there is none")
    else:
        until = f", by the policy of then good until {certificate.until}" if certificate.until else ""
        lines += [
            f"certificate  {certificate.file} of {certificate.since}{until}",
            *(f"             {line}" for line in (certificate.claim or "").splitlines()),
        ]
    if (dataset := then.dataset) is not None:
        logs = f", of logs {', '.join(source[:12] for source in dataset.sources)}" if dataset.sources else ""
        lines.append(f"dataset      {dataset.digest}: {dataset.rows:,} rows in {dataset.episodes:,} episodes{logs}")
    for each in then.approvals:
        role, note = f" as {each.role}" if each.role else "", f": {each.note}" if each.note else ""
        lines.append(f"{each.when}  {each.meaning} by {each.by}{role}, {each.signed}{note}")
    # A line's end in a note would make an approval of its own.
    return [printable(line, but="") for line in lines]
