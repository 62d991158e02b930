"""Make a consistent snapshot of a running home: copies of databases and heads, and the paths of other files."""

from __future__ import annotations

import os
import shutil
import sqlite3
import stat
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import sqlalchemy as sql
from sqlalchemy.exc import DBAPIError

from configs.environment import ARTIFACTS, DATASETS, MLFLOW_DATABASE, PREFECT_DATABASE, setting
from configs.home import Home
from tasks.evidence.ledger import table
from tasks.evidence.ledger.ledger import Ledger
from tasks.files.canonical import exclusive
from tasks.maintenance.backup_format import BESIDE, DATABASES, LEDGER, MLFLOW, PREFECT, STAGING, UNNEEDED

WRITTEN_BY_UP = ("prefect/profiles.toml",)
WITH_HEADS = ("ledger.head", "witnessed.head", "witness", "reports")
"""Files that may contain heads. They are copied together with the ledger, so that an audit of the copy passes."""
SERVERS = {
    "NEORL_PREFECT_URL": "the flow runs that a team's Prefect keeps",
    "NEORL_MLFLOW_URL": "the models and pages that a team's MLflow keeps",
}
STATE = {
    PREFECT_DATABASE: "Prefect's database",
    MLFLOW_DATABASE: "MLflow's database",
    ARTIFACTS: "the bucket of MLflow's artifacts",
    DATASETS: "the bucket of datasets' shards",
}
INSTEAD = {MLFLOW: MLFLOW_DATABASE, PREFECT: PREFECT_DATABASE}
"""Database in the home -> setting that names another database instead."""
PATIENCE = 60.0
"""Seconds to wait for a database that another process writes."""


class Snapshot(NamedTuple):
    """Content of a backup."""

    files: dict[str, Path]
    """Path relative to the home -> file to read."""
    left_out: tuple[str, ...]
    """Descriptions of state that belongs to the home but is kept elsewhere."""


@contextmanager
def snapshot(home: Home) -> Iterator[Snapshot]:
    """Provide a consistent snapshot of a running home; its temporary copies are removed at the end.

    For some seconds nobody can append to the ledger, while heads, reports and databases are copied. Other files need no
    copy, because they never change after they are written.
    """
    with exclusive(home.folder("locks") / "backup.lock"):
        for left in home.root.glob(f"{STAGING}*"):
            shutil.rmtree(left, ignore_errors=True)
        staging = Path(tempfile.mkdtemp(dir=home.root, prefix=STAGING))
        try:
            yield _copied(home, staging)
        finally:
            shutil.rmtree(staging, ignore_errors=True)


def _copied(home: Home, staging: Path) -> Snapshot:
    with _no_appends(home):
        for name in WITH_HEADS:
            _link(home.root / name, staging / name)
        # MLflow's tags contain heads; Prefect's database does not.
        if is_used(MLFLOW):
            copy_database(home.root / MLFLOW, staging / MLFLOW)
        if Ledger.exists(home):
            _copy_ledger(home, staging / LEDGER)
    if is_used(PREFECT):
        copy_database(home.root / PREFECT, staging / PREFECT)
    copied = dict(files_of(staging))
    others = {name: path for name, path in files_of(home.root) if not _is_replaced(name)}
    return Snapshot({**copied, **others}, tuple(_elsewhere(home)))


def is_used(database: str) -> bool:
    """Return whether the servers use this database in the home. A setting may name another database instead."""
    return database not in INSTEAD or not setting(INSTEAD[database])


def files_of(root: Path) -> Iterator[tuple[str, Path]]:
    """Yield every regular file below a folder with the relative path; links, sockets and caches are skipped."""
    for name, mode in _entries(root):
        if stat.S_ISREG(mode):
            yield name, root / name


def links_of(root: Path) -> Iterator[tuple[str, str]]:
    """Yield every symbolic link below a folder with relative path and target."""
    for name, mode in _entries(root):
        if stat.S_ISLNK(mode):
            with suppress(FileNotFoundError):
                yield _printable(name), _printable(os.readlink(root / name))


def _entries(root: Path) -> Iterator[tuple[str, int]]:
    """Yield relative paths and modes below a folder; links are not followed."""
    for folder, names, files in os.walk(root):
        here = Path(folder)
        names[:] = sorted(n for n in names if not (here == root and (n in UNNEEDED or n.startswith(STAGING))))
        for name in sorted([*names, *files]):
            path = here / name
            try:
                yield path.relative_to(root).as_posix(), path.lstat().st_mode
            except FileNotFoundError:
                continue  # a temporary file that was renamed meanwhile


def copy_database(source: Path, target: Path) -> None:
    """Copy an SQLite database consistently while others write to it; do nothing if it does not exist."""
    if not source.exists():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    with closing(sqlite3.connect(source, timeout=PATIENCE)) as there, closing(sqlite3.connect(target)) as here:
        there.backup(here)
        # Programs that need write-ahead logging turn it on again.
        here.execute("PRAGMA journal_mode=DELETE")
    target.chmod(0o600)


def _copy_ledger(home: Home, target: Path) -> None:
    """Copy the ledger's rows from any database into an SQLite file."""
    if home.ledger.exists() and home.ledger_url == f"sqlite:///{home.ledger}":
        copy_database(home.ledger, target)
        return
    copy = table.connect(f"sqlite:///{target}")
    table.create(copy)
    with copy.connect() as connection:
        connection.exec_driver_sql("BEGIN")
        for row in table.rows_from(table.connect(home.ledger_url), 0):
            connection.execute(sql.insert(table.TABLE), row._asdict())
        connection.exec_driver_sql("COMMIT")


@contextmanager
def _no_appends(home: Home) -> Iterator[None]:
    """Block appending to the ledger; readers continue.

    If the database refuses the lock, the copy continues without it. Then MLflow's copy may lack a version that is
    registered meanwhile.
    """
    if not Ledger.exists(home):
        yield
        return
    engine = table.connect(home.ledger_url)
    if engine.dialect.name == "sqlite":
        with closing(sqlite3.connect(str(engine.url.database), timeout=PATIENCE, isolation_level=None)) as connection:
            with suppress(sqlite3.OperationalError):
                connection.execute("BEGIN IMMEDIATE")
            yield
        return
    with engine.connect().execution_options(isolation_level="READ COMMITTED") as team, team.begin():
        if engine.dialect.name == "postgresql":
            with suppress(DBAPIError):
                team.execute(sql.text(f"LOCK TABLE {table.TABLE.name} IN EXCLUSIVE MODE"))
        yield


def _link(source: Path, target: Path) -> None:
    """Hard-link files, which may be replaced but are never modified; copy them if the disk has no hard links."""
    if source.is_symlink():
        return
    if source.is_dir():
        for name, path in files_of(source):
            _link(path, target / name)
    elif source.is_file():
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(source, target)
        except FileNotFoundError:
            return
        except OSError:
            shutil.copyfile(source, target)


def _is_replaced(name: str) -> bool:
    """Return whether a file has a copy in the snapshot, belongs to a database, or is written by `neorl up`."""
    return name in (*DATABASES, *BESIDE, *WRITTEN_BY_UP) or name.partition("/")[0] in WITH_HEADS


def _elsewhere(home: Home) -> Iterator[str]:
    """Describe data that the backup lacks. Only hosts of URLs are shown, because URLs may contain passwords."""
    for name, contents in SERVERS.items():
        if url := os.environ.get(name):
            yield f"{contents} at {_host(url)} ({name}): back up its database and artifacts there"
    for name, contents in STATE.items():
        if url := setting(name):
            yield f"{contents} at {_host(url)} ({name}): back it up there"
    for database in filter(lambda name: not is_used(name), INSTEAD):
        if (home.root / database).exists():
            yield f"{database}, which {INSTEAD[database]} replaces"
    for link, target in links_of(home.root):
        if link not in DATABASES:
            yield f"the target {target} of the link {link}, except for databases of the home: back it up there"
    if home.ledger_url != f"sqlite:///{home.ledger}":
        yield "the server of the team's ledger; its rows are included as an embedded ledger"
    yield "passphrases and persons' keys, in the users' configuration folders"
    yield "the project: configurations, pinned keys and policies, and user code"


def _host(url: str) -> str:
    try:
        return urlsplit(url).hostname or "another host"
    except ValueError:
        return "another host"


def _printable(name: str) -> str:
    """Return a path as printable text; bytes that are not UTF-8 are escaped."""
    return os.fsencode(name).decode(errors="backslashreplace")
