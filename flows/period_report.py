"""The report of an audit over a period: what a plant's auditor reads, prints and keeps."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime

from configs.errors import BadInput
from configs.home import Home
from tasks.audit_report.collect import collect
from tasks.audit_report.html import write_page
from tasks.audit_report.tables import Period, PeriodReport


def report_period(
    home: Home,
    first: date,
    last: date,
    plant: str | None = None,
    clock: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> PeriodReport:
    """Write what the ledger has of a period, with what it vouches for, as one HTML file.

    Args:
        home: of the ledger; the file becomes `reports/by-period/[PLANT_]FIRST_LAST.html` in it.
        first: first day, in UTC.
        last: last day, included.
        plant: only this one; all of them otherwise.
        clock: tells the time in UTC.

    Returns:
        The file, and which checks of the audit did not hold.

    Raises:
        BadInput: when the period ends before it begins or has not begun, or there is no ledger.
        Refused: when the ledger does not verify: then nothing is worth telling, and nothing is written.

    Example:
        >>> report_period(Home.locate(), date(2026, 11, 1), date(2026, 11, 30)).path  # doctest: +SKIP
    """
    now = clock()
    if last < first:
        raise BadInput(f"expected a period that ends on {first} or later, got {last}: swap the two dates.")
    if first > now.date():
        raise BadInput(f"expected a period that has begun, got one from {first} on: today is {now.date()} (UTC).")
    told = collect(home, Period(first=first, last=last), plant, now)
    return PeriodReport(
        path=write_page(home, told),
        first=first,
        last=last,
        plant=plant,
        entries=len(told.entries),
        ledger_size=told.head.size,
        failed=tuple(dict.fromkeys(check.name for check in told.checks if check.passed is False)),
    )
