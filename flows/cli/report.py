"""Command `neorl report`."""

from __future__ import annotations

from datetime import date
from typing import Annotated

import typer

from configs.errors import BadInput
from configs.home import Home
from flows.cli.common import AsJson, emit, emit_or_refuse, known_plant


def report(
    plant: Annotated[str | None, typer.Argument(help="The plant's name; optional with a period.")] = None,
    first: Annotated[str, typer.Option("--from", help="First day of a period, such as 2026-11-01 (UTC).")] = "",
    last: Annotated[str, typer.Option("--to", help="Last day of the period, included.")] = "",
    as_json: AsJson = False,
) -> None:
    """Print the path of a plant's newest report, or write the audit report over a period.

    Each report is an HTML file that opens offline. The audit report lists champions, decisions with reasons,
    certificates, data, runs, incidents and the signed head of the ledger. Exit code 1 if a check of the audit fails.

    Example: neorl report chemical_reactor --from 2026-11-01 --to 2026-11-30
    """
    if plant is not None:
        known_plant(plant)
    if first or last:
        _period(plant, first, last, as_json)
        return
    if plant is None:
        raise BadInput("neither a plant nor --from and --to given: write 'neorl report chemical_reactor'.")
    folder = Home.locate().root / "reports" / plant
    files = sorted(folder.glob("*.html"), key=lambda p: p.stat().st_mtime)
    if not files:
        raise BadInput(f"{folder} has no report of {plant}: write one with 'neorl retrain'.")
    result = {"report": str(files[-1]), "reports": [str(f) for f in files]}
    emit(result, as_json, [str(files[-1])])


def _period(plant: str | None, first: str, last: str, as_json: bool) -> None:
    from flows.period_report import report_period

    done = report_period(Home.locate(), _day("--from", first), _day("--to", last), plant)
    refusal = f"checks of the audit failed: {', '.join(done.failed)}: read {done.path}." if done.failed else ""
    emit_or_refuse(refusal, as_json, [str(done.path)], **done.model_dump(mode="json"))


def _day(option: str, text: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError as error:
        raise BadInput(f"{option} must be a day such as 2026-11-01, got '{text}'.") from error
