"""The schema of MLflow's own database, which the installed version of MLflow may want newer than it is."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

from configs.errors import Refused


def is_outdated(database: Path) -> bool:
    """Whether the revision of MLflow's database is another than the one that the installed MLflow makes.

    Args:
        database: the SQLite file; False where there is none.

    Raises:
        Refused: when it cannot be read.
    """
    if not database.exists():
        return False
    # Here, for its scripts import MLflow, which takes seconds.
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
                f"expected MLflow's database at {database}, got '{error}': bring the home back from its backup."
            ) from error


def upgrade_schema(database: Path) -> None:
    """Bring MLflow's database to what the installed MLflow reads; one that is there already stays as it is.

    Args:
        database: the SQLite file, which no server uses meanwhile; nothing is done where there is none.

    Raises:
        Refused: when MLflow cannot.
    """
    if not database.exists():
        return
    command = [sys.executable, "-m", "mlflow", "db", "upgrade", f"sqlite:///{database}"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["nothing"])[-1][:200]
        raise Refused(f"expected MLflow to upgrade {database}, got '{last}': bring the home back from its backup.")
