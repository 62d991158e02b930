"""Everything that a report over a period tells, gathered from the verified ledger and the files that it names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import Literal

from pydantic import ValidationError

from configs.errors import BadInput, Refused
from configs.home import Home
from tasks.audit_report.decisions import HOME_NAME, decisions_in, in_force_in, incidents_in, keys_in, policies_in
from tasks.audit_report.findings import (
    candidates_in,
    certificates_in,
    datasets_in,
    drift_in,
    lineages_in,
    refusals_in,
    runs_in,
)
from tasks.audit_report.tables import CertificateRow, CheckRow, InForce, LoggedRow, Period, Told
from tasks.evidence.audit.audit import audit
from tasks.evidence.certificate import Check
from tasks.evidence.ledger.entry import Entry
from tasks.evidence.ledger.ledger import HeadNow, Ledger
from tasks.evidence.ledger.signing import HEAD_TYPE, report_heads
from tasks.files.times import format_time, parse_time
from tasks.pictures.in_force import Bar, Lane, Mark, draw_in_force
from tasks.record import history_rows
from tasks.references import LedgerHead

BELIEVED = ("table", "chain", "heads")
"""Checks without which nothing that the ledger says is worth telling."""
SOON = timedelta(days=30)
"""Before its end a certificate is named among what a reader should look at."""


def collect(home: Home, period: Period, plant: str | None, now: datetime) -> Told:
    """Gather what happened in a period.

    Args:
        home: of the ledger, whose signer signs the head.
        period: whole days.
        plant: only this one; its ledger is verified as a whole all the same.
        now: when this is asked, in UTC.

    Raises:
        BadInput: when there is no ledger.
        Refused: when the ledger does not verify, or an entry cannot be read.
    """
    if not Ledger.exists(home):
        raise BadInput(f"expected a ledger at {home.ledger}, got none: check NEORL_HOME, or retrain a plant first.")
    checks = audit(home, report_heads(home)).checks
    if broken := next((check for check in checks if check.name in BELIEVED and check.passed is False), None):
        raise Refused(f"expected a ledger that verifies, got in {broken.name}: {broken.detail}")
    ledger = Ledger.open(home)
    signed = ledger.signed_head()
    head = HeadNow(**ledger.trust.unseal(HEAD_TYPE, signed.encode()))
    # What came while the head was signed is of the next report.
    entries = [e for e in ledger.entries()[: head.size] if e.timestamp <= period.end]
    mine = [e for e in entries if plant is None or e.plant == plant]
    try:
        return _told(home, period, plant, now, checks, entries, mine, LedgerHead(**head._asdict(), signed=signed))
    except (ValidationError, LookupError, TypeError) as error:
        what = " ".join(str(error).split())[:200]
        raise Refused(f"expected entries that can be read, got '{what}': 'neorl audit verify' names them.") from error


def _told(
    home: Home,
    period: Period,
    plant: str | None,
    now: datetime,
    checks: Sequence[Check],
    entries: Sequence[Entry],
    mine: Sequence[Entry],
    head: LedgerHead,
) -> Told:
    clock = format_time(now)
    at = min(clock, period.end)

    def own(rows: Iterator[InForce]) -> tuple[InForce, ...]:
        return tuple(row for row in rows if plant in (None, row.plant))

    in_force = own(in_force_in(entries, period))
    certificates = tuple(row for row in certificates_in(entries, period, at) if plant in (None, row.plant))
    keys = tuple(keys_in(entries, period))
    rows = {(p, row.sequence): row for p in {e.plant for e in mine} for row in history_rows(entries, p)}
    told = Told(
        period=period,
        plant=plant,
        plants=tuple(sorted({e.plant for e in mine if e.plant})),
        written=now.isoformat(timespec="seconds").replace("+00:00", "Z"),
        over=clock > period.end,
        checks=tuple(CheckRow(name=c.name, passed=c.passed, detail=c.detail) for c in checks),
        attention=(),
        in_force=in_force,
        decisions=tuple(row for row in decisions_in(entries, period) if plant in (None, row.plant)),
        policies=tuple(row for row in policies_in(entries, period) if plant in (None, row.plant)),
        certificates=certificates,
        lineages=tuple(row for row in lineages_in(entries, period) if plant in (None, row.plant)),
        candidates=tuple(candidates_in(mine, period)),
        runs=tuple(runs_in(mine, period)),
        refusals=tuple(refusals_in(mine, period)),
        datasets=tuple(datasets_in(home, mine, period, in_force)),
        drift=tuple(drift_in(mine, period)),
        # A key is nobody's plant's, and its revocation is an incident of all.
        incidents=tuple(row for row in incidents_in(entries, period) if plant in (None, row.plant) or not row.plant),
        keys=keys,
        entries=tuple(
            LoggedRow(**rows[e.plant, e.sequence].model_dump(), plant=e.plant, digest=e.digest)
            for e in mine
            if period.holds(e.timestamp)
        ),
        head=head,
    )
    return told.model_copy(update={"attention": tuple(_attention(told, at))})


def _attention(told: Told, at: str) -> Iterator[str]:
    """What a reader should look at first."""
    for check in told.checks:
        if check.passed is False:
            yield f"The audit failed in {check.name}: {check.detail}."
    for row in told.incidents:
        yield f"{row.what.capitalize()}{f' ({row.plant})' if row.plant else ''}: {row.detail} (entry {row.entry})."
    yield from (_of_certificate(row, at) for row in told.certificates if _ends_soon(row, at))
    for lineage in told.lineages:
        if lineage.without_result:
            yield (
                f"{lineage.without_result} of {lineage.attempts} attempts of {lineage.plant} have no result, for they "
                "were abandoned or are under way: they count all the same."
            )
    serving = {row.plant for row in told.in_force if row.until is None or row.until > at}
    for plant in told.plants:
        if plant not in serving:
            yield f"{plant} has neither a champion nor a shadow at the end of the period."
    unsigned = [d for d in told.decisions if d.signed == HOME_NAME]
    if unsigned:
        numbers = ", ".join(str(row.entry) for row in unsigned)
        counted = f"{len(unsigned)} decisions are" if len(unsigned) > 1 else "One decision is"
        yield f"{counted} in the home's name, signed by no person's key ({numbers} among the entries)."


def _ends_soon(row: CertificateRow, at: str) -> bool:
    ends = row.state.endswith("champion") and row.expires
    return bool(ends) and parse_time(str(ends)) - parse_time(at) < SOON


def _of_certificate(row: CertificateRow, at: str) -> str:
    ended = "expired" if parse_time(row.expires or at) < parse_time(at) else "expires"
    return f"The certificate of the champion of {row.plant} {ended} on {(row.expires or '')[:10]} (entry {row.entry})."


def timeline(told: Told) -> str:
    """The picture of who was in force; nothing where nobody was and nothing happened.

    Args:
        told: what the report tells.
    """
    begin = parse_time(told.period.begin)
    end = min(parse_time(told.period.end), max(parse_time(told.written), begin + timedelta(days=1)))
    lanes = []
    for plant in told.plants:
        bars = tuple(_bar(row, begin, end) for row in told.in_force if row.plant == plant)
        marks = tuple(mark for mark in _marks(told, plant) if begin <= mark.at <= end)
        if bars or marks:
            lanes.append(Lane(plant, bars, marks))
    return draw_in_force(lanes, begin, end) if lanes else ""


def _bar(row: InForce, begin: datetime, end: datetime) -> Bar:
    until = parse_time(row.until) if row.until else end
    kind: Literal["champion", "own", "shadow"] = "shadow" if row.kind == "shadow" else "own" if row.own else "champion"
    said = f"version {row.version} from {row.time}" + (f" to {row.until}, {row.ended}" if row.until else "")
    return Bar(max(parse_time(row.time), begin), min(until, end), f"version {row.version}", said, kind)


def _marks(told: Told, plant: str) -> Iterator[Mark]:
    for decision in told.decisions:
        if decision.plant == plant and decision.what in ("rejected", "withdrew"):
            kind: Literal["rejection", "withdrawal"] = "rejection" if decision.what == "rejected" else "withdrawal"
            yield Mark(parse_time(decision.time), kind, f"version {decision.version}, {decision.by}: {decision.why}")
    for refusal in told.refusals:
        if refusal.plant == plant:
            yield Mark(parse_time(refusal.time), "refusal", refusal.reason)
    for incident in told.incidents:
        if incident.plant == plant and incident.what == "drift alarm":
            yield Mark(parse_time(incident.time), "alarm", incident.detail)
