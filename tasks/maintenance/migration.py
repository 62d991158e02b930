"""Migrate homes of earlier versions of NeoRL, after a backup."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from configs.errors import BadInput, Refused
from configs.home import LAYOUT, Home
from tasks.maintenance.backup_file import backup
from tasks.maintenance.backup_format import MLFLOW, STAGING
from tasks.maintenance.snapshot import is_used
from tasks.progress import Report
from tasks.registry.schema import is_outdated, upgrade_schema


class Migrated(BaseModel):
    """Result of a migration."""

    model_config = ConfigDict(frozen=True)

    before: int
    layout: int
    backup: str | None
    """Backup of the previous state; None if nothing had to be done."""
    mlflow: bool
    """Whether MLflow's database was upgraded to the installed MLflow's schema."""


def _write_down(home: Home) -> None:
    """Migrate layout 1 to 2: remove leftovers of backups; the caller stores the new number."""
    for left in home.root.glob(f"{STAGING}*"):
        shutil.rmtree(left, ignore_errors=True)


STEPS: dict[int, Callable[[Home], None]] = {1: _write_down}
"""Layout number -> function that migrates to the next layout; after a kill, the function may run again."""


def migrate(home: Home, path: Path | None, progress: Report) -> Migrated:
    """Bring a home to this version's layout and MLflow's database to the installed MLflow's schema.

    Args:
        path: file of the backup; defaults to a file beside the home.

    Raises:
        BadInput: if there is no home, or the backup cannot be written; nothing is changed then.
        Refused: if the home is too new or too old, or MLflow cannot upgrade its database.
    """
    if not home.root.is_dir():
        raise BadInput(f"there is no home at {home.root}: check NEORL_HOME")
    before = home.layout
    if before > LAYOUT:
        home.check_layout()
    if missing := [number for number in range(before, LAYOUT) if number not in STEPS]:
        raise Refused(
            f"the home {home.root} has layout {missing[0]}, but only layouts from {min(STEPS)} on can be migrated: "
            "keep it for audits with the NeoRL that made it, and start a new home (NEORL_HOME)"
        )
    database = home.root / MLFLOW
    # The database of a team's server is not part of the backup, so it is not upgraded.
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
