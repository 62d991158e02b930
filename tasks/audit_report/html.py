"""The report over a period as one HTML file, which opens offline and prints on A4."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from markupsafe import Markup, escape

from configs.home import Home
from tasks.audit_report.collect import timeline
from tasks.audit_report.tables import DatasetRow, Told
from tasks.data.store.cards.pictures import Picture, pictures_of
from tasks.files.canonical import write_atomic
from tasks.record import mark
from tasks.references import Gate
from tasks.report import environment

FOLDER = ("reports", "by-period")
"""Where a home keeps these reports; no plant is called so, for their names have no hyphen."""
MARKS = {True: "ok", False: "FAIL", None: "note"}


class Shown(NamedTuple):
    """A dataset with its pictures."""

    row: DatasetRow
    pictures: tuple[Picture, ...]


def write_page(home: Home, told: Told) -> Path:
    """Write the report; the same period again is written over.

    Args:
        home: keeps it in `reports/by-period/`, where an audit finds its signed head.
        told: what it says.

    Returns:
        The file.
    """
    datasets = [Shown(row, tuple(pictures_of(row.card)) if row.card else ()) for row in told.datasets]
    loader = environment()
    loader.filters |= {
        "breakable": _breakable,
        "time": _time,
        "gate": _gate,
        "gate_mark": mark,
        "check_mark": MARKS.__getitem__,
    }
    template = loader.get_template("period.html.j2")
    text = template.render(told=told, timeline=timeline(told), datasets=datasets)
    whose = f"{told.plant}_" if told.plant else ""
    name = f"{whose}{told.period.first.isoformat()}_{told.period.last.isoformat()}.html"
    return write_atomic(home.folder(*FOLDER) / name, text.encode())


def _time(timestamp: str | None) -> str:
    """A time of the ledger to the minute, its zone told in the page's head."""
    return timestamp[:16].replace("T", " ") if timestamp else "–"


def _breakable(name: str) -> Markup:
    """A name that a narrow column may break after an underscore and nowhere else."""
    return Markup("_<wbr>").join(escape(part) for part in name.split("_"))


def _gate(gate: Gate) -> str:
    return gate.name
