"""Write the audit report as one HTML file that opens offline and prints on A4."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from markupsafe import Markup, escape

from configs.home import Home
from tasks.audit_report.collect import timeline
from tasks.audit_report.tables import DatasetRow, Report
from tasks.data.store.cards.pictures import Picture, pictures_of
from tasks.files.canonical import write_atomic
from tasks.record import mark
from tasks.report import environment

FOLDER = ("reports", "by-period")
"""Folder of audit reports in a home. Plant names have no hyphen, so no plant's folder has this name."""
MARKS = {True: "ok", False: "FAIL", None: "note"}


class Shown(NamedTuple):
    row: DatasetRow
    pictures: tuple[Picture, ...]


def write_page(home: Home, report: Report) -> Path:
    """Write the report into `reports/by-period/`, where later audits find its signed head; return the file."""
    datasets = [Shown(row, tuple(pictures_of(row.card)) if row.card else ()) for row in report.datasets]
    loader = environment()
    loader.filters |= {
        "breakable": _breakable,
        "time": _time,
        "gate_mark": mark,
        "check_mark": MARKS.__getitem__,
    }
    template = loader.get_template("period.html.j2")
    text = template.render(report=report, timeline=timeline(report), datasets=datasets)
    prefix = f"{report.plant}_" if report.plant else ""
    name = f"{prefix}{report.period.first.isoformat()}_{report.period.last.isoformat()}.html"
    return write_atomic(home.folder(*FOLDER) / name, text.encode())


def _time(timestamp: str | None) -> str:
    """Format a ledger time (UTC) to the minute."""
    return timestamp[:16].replace("T", " ") if timestamp else "–"


def _breakable(name: str) -> Markup:
    """Return a name as HTML that may break lines only after underscores."""
    return Markup("_<wbr>").join(escape(part) for part in name.split("_"))
