"""Collect the content of an audit report from the verified ledger and the files that the ledger names."""

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
from tasks.audit_report.tables import CertificateRow, CheckRow, InForce, LoggedRow, Period, Report
from tasks.evidence.audit.audit import audit
from tasks.evidence.certificate import Check
from tasks.evidence.ledger.entry import Entry
from tasks.evidence.ledger.ledger import HeadNow, Ledger
from tasks.evidence.ledger.signing import HEAD_TYPE, report_heads
from tasks.files.canonical import format_time, parse_time
from tasks.pictures.in_force import Bar, Lane, Mark, draw_in_force
from tasks.record import history_rows
from tasks.references import LedgerHead

BELIEVED = ("table", "chain", "heads")
"""Checks that must pass; otherwise no report is written."""
SOON = timedelta(days=30)
"""The report warns of certificates that expire within this time."""


def collect(home: Home, period: Period, plant: str | None, now: datetime) -> Report:
    """Verify the ledger and collect the content of a report over a period.

    Args:
        period: whole days in UTC.
        plant: plant of the report; None means all plants. The whole ledger is verified in both cases.
    """
    if not Ledger.exists(home):
        raise BadInput(f"there is no ledger at {home.ledger}: check NEORL_HOME, or retrain a plant first")
    checks = audit(home, report_heads(home)).checks
    if broken := next((check for check in checks if check.name in BELIEVED and check.passed is False), None):
        raise Refused(f"the ledger is invalid ({broken.name}: {broken.detail}): run 'neorl audit verify'")
    ledger = Ledger.open(home)
    signed = ledger.signed_head()
    head = HeadNow(**ledger.trust.unseal(HEAD_TYPE, signed.encode()))
    # Entries written while the head was signed belong to the next report.
    entries = [e for e in ledger.entries()[: head.size] if e.timestamp <= period.end]
    mine = [e for e in entries if plant is None or e.plant == plant]
    try:
        return _report(home, period, plant, now, checks, entries, mine, LedgerHead(**head._asdict(), signed=signed))
    except (ValidationError, LookupError, TypeError) as error:
        message = " ".join(str(error).split())[:200]
        raise Refused(f"an entry cannot be read ('{message}'): run 'neorl audit verify' to find it") from error


def _report(
    home: Home,
    period: Period,
    plant: str | None,
    now: datetime,
    checks: Sequence[Check],
    entries: Sequence[Entry],
    mine: Sequence[Entry],
    head: LedgerHead,
) -> Report:
    clock = format_time(now)
    at = min(clock, period.end)

    def own(rows: Iterator[InForce]) -> tuple[InForce, ...]:
        return tuple(row for row in rows if plant in (None, row.plant))

    in_force = own(in_force_in(entries, period))
    certificates = tuple(row for row in certificates_in(entries, period, at) if plant in (None, row.plant))
    keys = tuple(keys_in(entries, period))
    rows = {(p, row.sequence): row for p in {e.plant for e in mine} for row in history_rows(entries, p)}
    report = Report(
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
        # Keys belong to no plant, so revocations are incidents of every report.
        incidents=tuple(row for row in incidents_in(entries, period) if plant in (None, row.plant) or not row.plant),
        keys=keys,
        entries=tuple(
            LoggedRow(**rows[e.plant, e.sequence].model_dump(), plant=e.plant, digest=e.digest)
            for e in mine
            if period.contains(e.timestamp)
        ),
        head=head,
    )
    return report.model_copy(update={"attention": tuple(_attention(report, at))})


def _attention(report: Report, at: str) -> Iterator[str]:
    for check in report.checks:
        if check.passed is False:
            yield f"The audit failed in {check.name}: {check.detail}."
    for row in report.incidents:
        yield f"{row.what.capitalize()}{f' ({row.plant})' if row.plant else ''}: {row.detail} (entry {row.entry})."
    yield from (_certificate_sentence(row, at) for row in report.certificates if _ends_soon(row, at))
    for lineage in report.lineages:
        if lineage.without_result:
            yield (
                f"{lineage.without_result} of {lineage.attempts} attempts of {lineage.plant} have no result because "
                "they were abandoned or still run: they count all the same."
            )
    serving = {row.plant for row in report.in_force if row.until is None or row.until > at}
    for plant in report.plants:
        if plant not in serving:
            yield f"{plant} has neither a champion nor a shadow at the end of the period."
    unsigned = [d for d in report.decisions if d.signed == HOME_NAME]
    if unsigned:
        numbers = ", ".join(str(row.entry) for row in unsigned)
        counted = f"{len(unsigned)} decisions are" if len(unsigned) > 1 else "One decision is"
        yield f"{counted} in the home's name, signed by no person's key (entries {numbers})."


def _ends_soon(row: CertificateRow, at: str) -> bool:
    ends = row.state.endswith("champion") and row.expires
    return bool(ends) and parse_time(str(ends)) - parse_time(at) < SOON


def _certificate_sentence(row: CertificateRow, at: str) -> str:
    ended = "expired" if parse_time(row.expires or at) < parse_time(at) else "expires"
    return f"The certificate of the champion of {row.plant} {ended} on {(row.expires or '')[:10]} (entry {row.entry})."


def timeline(report: Report) -> str:
    """Return a drawing (SVG) of champions, shadows and events over time; an empty string if there are none."""
    begin = parse_time(report.period.begin)
    end = min(parse_time(report.period.end), max(parse_time(report.written), begin + timedelta(days=1)))
    lanes = []
    for plant in report.plants:
        bars = tuple(_bar(row, begin, end) for row in report.in_force if row.plant == plant)
        marks = tuple(mark for mark in _marks(report, plant) if begin <= mark.at <= end)
        if bars or marks:
            lanes.append(Lane(plant, bars, marks))
    return draw_in_force(lanes, begin, end) if lanes else ""


def _bar(row: InForce, begin: datetime, end: datetime) -> Bar:
    until = parse_time(row.until) if row.until else end
    kind: Literal["champion", "own", "shadow"] = "shadow" if row.kind == "shadow" else "own" if row.own else "champion"
    title = f"version {row.version} from {row.time}" + (f" to {row.until}, {row.ended}" if row.until else "")
    return Bar(max(parse_time(row.time), begin), min(until, end), f"version {row.version}", title, kind)


def _marks(report: Report, plant: str) -> Iterator[Mark]:
    for decision in report.decisions:
        if decision.plant == plant and decision.what in ("rejected", "withdrew"):
            kind: Literal["rejection", "withdrawal"] = "rejection" if decision.what == "rejected" else "withdrawal"
            yield Mark(parse_time(decision.time), kind, f"version {decision.version}, {decision.by}: {decision.why}")
    for refusal in report.refusals:
        if refusal.plant == plant:
            yield Mark(parse_time(refusal.time), "refusal", refusal.reason)
    for incident in report.incidents:
        if incident.plant == plant and incident.what == "drift alarm":
            yield Mark(parse_time(incident.time), "alarm", incident.detail)
