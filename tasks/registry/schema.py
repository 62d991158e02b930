"""Schema version of MLflow's database, and its upgrade."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

from configs.errors import Refused


def is_outdated(database: Path) -> bool:
    """Return whether a database has another schema than the installed MLflow creates.

    Args:
        database: the SQLite file; if it does not exist, the result is False.

    Raises:
        Refused: if the file cannot be read.
    """
    if not database.exists():
        return False
    # Imported here, because the scripts import MLflow, which takes seconds.
    from alembic.config import Config
    from alembic.script import ScriptDirectory

    config = Config()
    config.set_main_option("script_location", "mlflow:store/db_migrations")
    return _revisions(database) != set(ScriptDirectory.from_config(config).get_heads())


def _revisions(database: Path) -> set[str]:
    with closing(sqlite3.connect(database)) as connection:
        try:
            if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'alembic_version'").fetchone():
                return set()
            return {revision for (revision,) in connection.execute("SELECT version_num FROM alembic_version")}
        except sqlite3.DatabaseError as error:
            raise Refused(
                f"{database} is not a database of MLflow, got '{error}': restore the home from a backup"
            ) from error


def upgrade_schema(database: Path) -> None:
    """Upgrade MLflow's database to the installed MLflow, if necessary.

    Args:
        database: the SQLite file. No server may use it meanwhile; if it does not exist, nothing is done.

    Raises:
        Refused: if MLflow cannot upgrade it.
    """
    if not database.exists():
        return
    command = [sys.executable, "-m", "mlflow", "db", "upgrade", f"sqlite:///{database}"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["nothing"])[-1][:200]
        raise Refused(f"MLflow cannot upgrade {database}, got '{last}': restore the home from a backup")
