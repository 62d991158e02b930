"""Homes that an earlier version of NeoRL made, brought to the layout of this one, after a backup."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from configs.errors import BadInput, Refused
from configs.home import LAYOUT, Home
from tasks.maintenance.backup_file import backup
from tasks.maintenance.snapshot import MLFLOW, STAGING, is_used
from tasks.progress import Report
from tasks.registry.schema import is_outdated, upgrade_schema


class Migrated(BaseModel):
    """What a migration came to."""

    model_config = ConfigDict(frozen=True)

    before: int
    layout: int
    backup: str | None
    """The file with the home as it was; none where nothing was to be done."""
    mlflow: bool
    """Whether MLflow's database was brought to the schema of the installed MLflow."""


def _write_down(home: Home) -> None:
    """1 to 2: the layout is written down, and the ledger may have rollbacks, which version 1 does not know."""
    for left in home.root.glob(f"{STAGING}*"):
        shutil.rmtree(left, ignore_errors=True)


STEPS: dict[int, Callable[[Home], None]] = {1: _write_down}
"""By the layout that each begins with; it ends with the next one, and may be repeated after a kill."""


def migrate(home: Home, path: Path | None, progress: Report) -> Migrated:
    """Bring a home to the layout of this version, and the database of its MLflow to that of the installed MLflow.

    Args:
        home: whose servers are down.
        path: the file for the backup; beside the home otherwise.
        progress: of the backup.

    Raises:
        BadInput: when there is no home, or the backup cannot be written; nothing is changed then.
        Refused: when a newer version made it, no way leads from its layout, or MLflow cannot upgrade its database.
    """
    if not home.root.is_dir():
        raise BadInput(f"expected a home at {home.root}, got none: check NEORL_HOME.")
    before = home.layout
    if before > LAYOUT:
        home.check_layout()
    if missing := [number for number in range(before, LAYOUT) if number not in STEPS]:
        raise Refused(
            f"expected a home of layout {min(STEPS)} at least in {home.root}, got {missing[0]}: keep it for audits "
            "with the version that made it, and start a new one (NEORL_HOME)."
        )
    database = home.root / MLFLOW
    # One in whose place a team's database is used is in no backup, and is left as it is.
    outdated = is_used(MLFLOW) and is_outdated(database)
    if before == LAYOUT and not outdated:
        return Migrated(before=before, layout=before, backup=None, mlflow=False)
    now = datetime.now(UTC)
    kept = path or home.root.with_name(f"{home.root.name.lstrip('.')}-layout{before}-{now:%Y%m%dT%H%M%SZ}.tar")
    done = backup(home, kept, progress)
    for number in range(before, LAYOUT):
        STEPS[number](home)
        home.write_layout(number + 1)
    if outdated:
        upgrade_schema(database)
    return Migrated(before=before, layout=LAYOUT, backup=done.file, mlflow=outdated)
