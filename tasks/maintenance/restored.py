"""Work that a restored Prefect database would start: listed at the restore, and held back until a person accepts it.

A backup may contain a run that its owner did not plan. Nothing executes such runs without a worker, so `neorl up`
starts no worker before `neorl up --accept-restored`.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from configs.errors import printable
from configs.home import Home
from tasks.files.canonical import write_atomic

MARKER = "restored.json"
"""File of a home whose worker must wait for a person."""
MOST, LONGEST = 1_000, 120
"""Number of lines, and characters of a name."""
QUERIES = {
    "active schedule of deployment": (
        "SELECT d.name FROM deployment_schedule s JOIN deployment d ON d.id = s.deployment_id "
        "WHERE s.active AND NOT d.paused"
    ),
    "waiting run": "SELECT name FROM flow_run WHERE state_type IN ('SCHEDULED', 'PENDING', 'RUNNING', 'PAUSED')",
    "enabled automation": "SELECT name FROM automation WHERE enabled",
    "work queue": "SELECT name FROM work_queue WHERE NOT is_paused",
}


class RestoredWork(BaseModel):
    """Work in the Prefect database of a restored home."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    made: str
    """Time of the backup."""
    found: tuple[str, ...]
    """One line for each schedule, run, automation and work queue."""


def work_of(home: Path, made: str) -> RestoredWork:
    """Return what a home's Prefect database would start."""
    database = home / "prefect" / "prefect.db"
    if not database.is_file():
        return RestoredWork(made=made, found=())
    found: list[str] = []
    with closing(sqlite3.connect(f"{database.as_uri()}?mode=ro", uri=True)) as connection:
        # Functions in views and triggers of a foreign database must not run.
        connection.execute("PRAGMA trusted_schema = OFF")
        for kind, query in QUERIES.items():
            try:
                rows = connection.execute(f"{query} LIMIT {MOST}").fetchall()
            except sqlite3.Error as error:
                rows = [(f"the database cannot be read ('{error}')",)]
            # Line breaks are escaped, so that a name cannot fake a line.
            found += [f"{kind}: {printable(str(name), but='')[:LONGEST]}" for (name,) in rows]
    return RestoredWork(made=made, found=tuple(found))


def hold(home: Path, work: RestoredWork) -> None:
    """Hold back the worker of a restored home."""
    write_atomic(home / MARKER, work.model_dump_json(indent=1).encode())


def held(home: Home) -> RestoredWork | None:
    """Return the work that waits for a person; None if the home was not restored, or a person accepted it."""
    marker = home.root / MARKER
    if not marker.exists():
        return None
    try:
        return RestoredWork.model_validate_json(marker.read_bytes())
    except (OSError, ValidationError):
        return RestoredWork(made="an unknown time", found=(f"{marker} cannot be read",))


def accept(home: Home) -> None:
    """Let the worker start."""
    (home.root / MARKER).unlink(missing_ok=True)
