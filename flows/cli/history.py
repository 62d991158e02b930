"""Command `neorl history`: past champions of a plant."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from configs.errors import printable
from configs.home import Home
from flows.cli.common import AsJson, Plant, emit, known_plant, show_table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tasks.audit_report.tables import InForce as Turn
    from tasks.evidence.ledger.entry import Entry
    from tasks.lifecycle.in_force import InForce


def history(
    plant: Plant,
    at: Annotated[
        str, typer.Option(help="Show only the champion at this time: a date (the day's end, UTC) or an ISO time.")
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Show a plant's champions over time, and every ledger entry about the plant.

    With --at, show the champion at that time, with certificate, dataset and approvals. A time without a zone is UTC.

    Example: neorl history chemical_reactor --at 2026-11-20T14:00:00+01:00
    """
    known_plant(plant)
    from tasks.audit_report.decisions import in_force_in
    from tasks.audit_report.tables import ALWAYS
    from tasks.evidence.decisions.champions import before_policy
    from tasks.evidence.ledger.ledger import Ledger
    from tasks.lifecycle.in_force import in_force_at
    from tasks.record import history_rows

    entries = Ledger.open(Home.locate(), write=False).entries()
    then = in_force_at(entries, plant, at) if at else None
    own = {e.sequence: e for e in entries if e.plant == plant and (then is None or e.digest == then.entry)}
    turns = [turn for turn in in_force_in(entries, ALWAYS) if turn.entry in own and turn.plant == plant]
    champions = [_promotion(turn, own[turn.entry], entries) for turn in turns if turn.kind == "champion"]
    shadows = [_promotion(turn, own[turn.entry], entries) for turn in turns if turn.kind == "shadow"]
    found = {"champions": [row._asdict() for row in champions], "shadows": [row._asdict() for row in shadows]}
    if then is not None:
        emit({"plant": plant, **found, "entries": [], "then": then.model_dump()}, as_json, _lines(then))
        return
    rows = [row.model_dump() for row in history_rows(entries, plant)]
    if as_json:
        emit({"plant": plant, **found, "entries": rows}, True)
        return
    if champions:
        show_table(COLUMNS, [_row(each) for each in champions])
    elif shadows:
        print(f"{plant} has no simulator, so it had no champion. Shadows:")
        show_table(COLUMNS, [_row(each) for each in shadows])
    else:
        print(f"{plant} has had no champion yet")
    if problem := before_policy(entries, plant):
        print(problem)
    if rows:
        print()
        show_table(("sequence", "timestamp", "kind", "detail"), [[*row.values()] for row in rows])


class Promotion(NamedTuple):
    """Period in which a version was champion or in shadow."""

    since: str
    until: str | None
    version: str
    composite: str
    approved_by: str
    ended: str
    """How the period ended, as text; empty while the version is in force."""
    entry: str
    sequence: int


COLUMNS = ("since", "until", "version", "composite", "approved by", "ended")


def _promotion(turn: Turn, entry: Entry, entries: Sequence[Entry]) -> Promotion:
    from tasks.evidence.decisions.approvals import approvers
    from tasks.files.canonical import format_time

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


def _row(promotion: Promotion) -> tuple[str, ...]:
    since, until = (f"{time[:19]}Z" if time else "in force" for time in (promotion.since, promotion.until))
    return since, until, promotion.version, promotion.composite[:12], promotion.approved_by, promotion.ended


def _lines(then: InForce) -> list[str]:
    lines = [f"{then.plant} at {then.at} ({then.zone}): {then.who}"]
    if then.version is None:
        return lines
    lines += [f"composite    {then.composite}", f"since        {then.since}, ledger entry {then.entry}"]
    if (certificate := then.certificate) is None:
        lines.append("certificate  none, because the plant has no simulator")
    else:
        until = f", valid until {certificate.until} by the policy at the time" if certificate.until else ""
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
    # Line breaks are escaped, so that a note cannot fake an approval.
    return [printable(line, but="") for line in lines]
