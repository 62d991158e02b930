"""Work that a restored Prefect database would start: listed at the restore, and held back until a person accepts it.

A backup may contain a run that its owner did not plan. Before `neorl up --accept-restored` no worker starts, and the
Prefect server makes no scheduled runs and performs no actions of automations.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import islice
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from configs.errors import printable
from configs.home import RESTORED, Home
from tasks.files.canonical import write_atomic

MOST, LONGEST = 500, 600
"""Number of lines of a kind, and characters of a line."""
QUERIES = {
    # Blocks of code first: a deployment's steps and job variables may be shell commands.
    "deployment": (
        "SELECT d.name, f.name AS flow, d.entrypoint, d.pull_steps AS steps, d.infra_overrides AS 'job variables', "
        "(SELECT count(*) FROM deployment_schedule s WHERE s.deployment_id = d.id AND s.active AND NOT d.paused) "
        "AS 'active schedules' FROM deployment d LEFT JOIN flow f ON f.id = d.flow_id"
    ),
    "waiting run": (
        "SELECT r.name, d.name AS deployment, r.state_type AS state, r.job_variables AS 'job variables', "
        "d.pull_steps AS steps FROM flow_run r LEFT JOIN deployment d ON d.id = r.deployment_id "
        "WHERE r.state_type IN ('SCHEDULED', 'PENDING', 'RUNNING', 'PAUSED')"
    ),
    "automation": (
        "SELECT name, actions, actions_on_trigger AS 'on trigger', actions_on_resolve AS 'on resolve' "
        "FROM automation WHERE enabled"
    ),
    "work pool": (
        "SELECT name, type, json_extract(base_job_template, '$.variables.properties.command.default') AS command "
        "FROM work_pool WHERE NOT is_paused"
    ),
    "work queue": "SELECT name, concurrency_limit AS 'limit' FROM work_queue WHERE NOT is_paused",
    "concurrency limit": 'SELECT name, "limit", active_slots AS used FROM concurrency_limit_v2 WHERE active',
    # Contents of blocks are encrypted, and may be secrets.
    "block": "SELECT b.name, t.name AS type FROM block_document b JOIN block_type t ON t.id = b.block_type_id",
    "variable": "SELECT name, value FROM variable",
    "trigger or view of the database": "SELECT name, sql FROM sqlite_master WHERE type IN ('trigger', 'view')",
}
EMPTY = (None, "", "{}", "[]", "null", 0)


class RestoredWork(BaseModel):
    """Work in the Prefect database of a restored home."""

    model_config = ConfigDict(frozen=True)

    made: str
    """Time of the backup."""
    found: tuple[str, ...] = ()
    """One line for everything that starts work or can be executed."""


@contextmanager
def foreign_database(path: Path, *, write: bool = False) -> Iterator[sqlite3.Connection]:
    """Open an SQLite database that may have hostile views and triggers.

    Values are limited to 1 MB (20 MB to write), statements to 20 seconds, and growth to a tenth.
    """
    end = time.monotonic() + 20
    with closing(sqlite3.connect(f"{path.as_uri()}?mode={'rw' if write else 'ro'}", uri=True)) as connection:
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 20_000_000 if write else 1_000_000)
        connection.set_progress_handler(lambda: time.monotonic() > end, 100_000)
        if write:
            pages = connection.execute("PRAGMA page_count").fetchone()[0]
            connection.execute(f"PRAGMA max_page_count = {pages + max(pages // 10, 64)}")
        yield connection


def work_of(home: Path, made: str) -> RestoredWork | None:
    """Return what a home's Prefect database would start; None if there is no such database."""
    database = home / "prefect" / "prefect.db"
    if not database.is_file():
        return None
    found: list[str] = []
    for kind, query in QUERIES.items():
        try:
            with foreign_database(database) as connection:
                rows = connection.execute(query)
                names = [column[0] for column in rows.description]
                found += [f"{kind}: {_line(names, row)}" for row in islice(rows, MOST)]
                if more := sum(1 for _ in rows):
                    found.append(f"{kind}: and {more} more: look at Prefect's pages")
        except sqlite3.Error as error:
            found.append(f"{kind}: the database cannot be read ('{printable(str(error), but='')[:LONGEST]}')")
    return RestoredWork(made=made, found=tuple(found))


def _line(names: list[str], row: tuple[object, ...]) -> str:
    """Return the first column, and the names and values of the others; line breaks are escaped."""
    told = [f"{name} {value}" for name, value in zip(names[1:], row[1:], strict=True) if value not in EMPTY]
    text = printable(", ".join([str(row[0]), *told]), but="")
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}… ({len(text) - LONGEST:,} more characters)"


def hold(home: Path, work: RestoredWork) -> None:
    """Hold back the work of a restored home."""
    write_atomic(home / RESTORED, work.model_dump_json(indent=1).encode())


def held(home: Home) -> RestoredWork | None:
    """Return the work that waits for a person now; None if the home was not restored, or a person accepted it."""
    marker = home.root / RESTORED
    if not marker.exists():
        return None
    try:
        made = RestoredWork.model_validate_json(marker.read_bytes()).made
    except (OSError, ValidationError):
        made = "an unknown time"
    return work_of(home.root, made) or RestoredWork(made=made)


def accept(home: Home) -> None:
    """Let the worker start."""
    (home.root / RESTORED).unlink(missing_ok=True)
