"""Write the audit report over a period: one printable HTML file."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING

from prefect import flow

from configs.errors import BadInput, Refused
from configs.home import Home
from flows.flow_run import completed, refusals_as_states
from tasks.audit_report.collect import collect
from tasks.audit_report.html import write_page
from tasks.audit_report.tables import Period, PeriodReport

if TYPE_CHECKING:
    from prefect.client.schemas.objects import State


@flow(name="report", flow_run_name="report {first} to {last}", persist_result=False)
@refusals_as_states
def report(first: str = "", last: str = "", plant: str | None = None) -> State[PeriodReport]:
    """Write the audit report over a period, by default over the previous month.

    Args:
        first: first day of the period in UTC, such as 2026-11-01.
        last: last day of the period; by default today if `first` is given.
        plant: only this plant; by default all plants.

    Returns:
        The final Prefect state, with the report's path and summary as data.

    Raises:
        NeoRLError: if the period is invalid, there is no ledger, or a check of the audit fails.
    """
    home, previous = Home.locate(), datetime.now(UTC).date().replace(day=1) - timedelta(days=1)
    try:
        begin = date.fromisoformat(first) if first else previous.replace(day=1)
        end = date.fromisoformat(last) if last else (previous if not first else datetime.now(UTC).date())
    except ValueError as error:
        raise BadInput(f"'first' and 'last' must be days such as 2026-11-01, got '{first}' and '{last}'.") from error
    written = report_period(home, begin, end, plant)
    if written.failed:
        raise Refused(f"checks of the audit failed: {', '.join(written.failed)}: read {written.path}.")
    return completed(f"{begin} to {end}: {written.entries} ledger entries in {written.path}", written)


def report_period(
    home: Home,
    first: date,
    last: date,
    plant: str | None = None,
    clock: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> PeriodReport:
    """Write the ledger's entries of a period and the evidence behind them to one HTML file.

    The file is `reports/by-period/[PLANT_]FIRST_LAST.html` in the home. The days are in UTC, and the period contains
    both. Without `plant` the report is about all plants.

    Raises:
        BadInput: if the period ends before it begins, begins in the future, or there is no ledger.
        Refused: if the ledger does not verify. Nothing is written then.
    """
    now = clock()
    if last < first:
        raise BadInput(f"the period ends on {last}, before its first day {first}: swap the two dates.")
    if first > now.date():
        raise BadInput(f"the period begins on {first}, but today is {now.date()} (UTC): choose an earlier day.")
    collected = collect(home, Period(first=first, last=last), plant, now)
    return PeriodReport(
        path=write_page(home, collected),
        first=first,
        last=last,
        plant=plant,
        entries=len(collected.entries),
        ledger_size=collected.head.size,
        failed=tuple(dict.fromkeys(check.name for check in collected.checks if check.passed is False)),
    )
