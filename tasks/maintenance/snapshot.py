"""A home at one moment, while servers and runs go on: copies of its databases, and everything else by its files."""

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
from tasks.files.locks import exclusive

STAGING = ".backup."
"""How a folder in the home begins that holds such copies; one that a killed backup left is of no use."""
UNNEEDED = ("cache", "locks", "logs")
"""Folders of the home that are made anew where they are missing."""
WRITTEN_BY_UP = ("prefect/profiles.toml",)
WITH_HEADS = ("ledger.head", "witnessed.head", "witness", "reports")
"""What may hold a head of the ledger: of the same moment as the ledger, or an audit would miss entries in the copy."""
LEDGER, MLFLOW, PREFECT = DATABASES = ("ledger.db", "mlflow/mlflow.db", "prefect/prefect.db")
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
"""A database of the home -> the setting that names another one in its place."""
PATIENCE = 60.0
"""Seconds to wait for a database that somebody else writes to."""


class Snapshot(NamedTuple):
    """What a backup is made of."""

    files: dict[str, Path]
    """Path under the home -> the file to read it from."""
    left_out: tuple[str, ...]
    """What belongs to this home and lies elsewhere, in words."""


@contextmanager
def snapshot(home: Home) -> Iterator[Snapshot]:
    """Copy what changes while it is read; what was copied is removed again at the end.

    Nobody appends to the ledger while heads, reports and databases are copied, so that they are of one moment: some
    seconds, which whoever appends waits for. All other files are written once, under names that no entry has before.

    Args:
        home: of which nothing else is changed.
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
        # MLflow's tags have heads, too; Prefect's database has none.
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
    """Whether servers keep their state in this database of the home, and not in one that a setting names.

    Args:
        database: its path under the home.

    Raises:
        BadInput: when the setting has another form.
    """
    return database not in INSTEAD or not setting(INSTEAD[database])


def files_of(root: Path) -> Iterator[tuple[str, Path]]:
    """Every regular file below a folder with its path from there; no links, sockets or folders that are remade."""
    for name, mode in _entries(root):
        if stat.S_ISREG(mode):
            yield name, root / name


def links_of(root: Path) -> Iterator[tuple[str, str]]:
    """Every symbolic link below a folder with its path from there, and what it leads to: a file, a folder, nothing."""
    for name, mode in _entries(root):
        if stat.S_ISLNK(mode):
            with suppress(FileNotFoundError):
                yield _printable(name), _printable(os.readlink(root / name))


def _entries(root: Path) -> Iterator[tuple[str, int]]:
    """Paths from a folder to whatever lies below it, with modes; no link is followed."""
    for folder, names, files in os.walk(root):
        here = Path(folder)
        names[:] = sorted(n for n in names if not (here == root and (n in UNNEEDED or n.startswith(STAGING))))
        for name in sorted([*names, *files]):
            path = here / name
            try:
                yield path.relative_to(root).as_posix(), path.lstat().st_mode
            except FileNotFoundError:
                continue  # a temporary file that has got its name by now


def copy_database(source: Path, target: Path) -> None:
    """Copy an SQLite database as it is at one moment, whoever writes to it; nothing where there is none.

    Args:
        source: the database.
        target: a file that is made, with nothing beside it.
    """
    if not source.exists():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    with closing(sqlite3.connect(source, timeout=PATIENCE)) as there, closing(sqlite3.connect(target)) as here:
        there.backup(here)
        # Whatever opens the copy turns write-ahead logging on again where it wants it.
        here.execute("PRAGMA journal_mode=DELETE")
    target.chmod(0o600)


def _copy_ledger(home: Home, target: Path) -> None:
    """Copy the ledger's rows, whatever database keeps them, into a file as an embedded ledger is."""
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
    """Keep others from appending to the ledger: they wait; readers do not.

    Who may not lock it goes on without: heads are copied before the ledger all the same, but a version that is
    registered meanwhile may be missing in MLflow's copy.
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
    """The same files once more, which are replaced and never written to; copies where the disk knows no links."""
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
    """Whether a file of the home is in the copies already, belongs to a database of them, or is written by `up`."""
    beside = tuple(f"{database}-{end}" for database in DATABASES for end in ("wal", "shm", "journal"))
    return name in (*DATABASES, *beside, *WRITTEN_BY_UP) or name.partition("/")[0] in WITH_HEADS


def _elsewhere(home: Home) -> Iterator[str]:
    """What belongs to the home and is not in its backup; of URLs the host alone, for the rest may hold a password."""
    for name, what in SERVERS.items():
        if url := os.environ.get(name):
            yield f"{what} at {_host(url)} ({name}): back up its database and artifacts there"
    for name, what in STATE.items():
        if url := setting(name):
            yield f"{what} at {_host(url)} ({name}): back it up there"
    for database in filter(lambda name: not is_used(name), INSTEAD):
        if (home.root / database).exists():
            yield f"{database}, in whose place the servers use what {INSTEAD[database]} names"
    for link, target in links_of(home.root):
        if link not in DATABASES:
            yield f"what the link {link} leads to, {target}, but for databases of the home: back it up there"
    if home.ledger_url != f"sqlite:///{home.ledger}":
        yield "the database server of the team's ledger, whose rows are here as an embedded one"
    yield "passphrases and persons' keys, which lie in the users' configuration folders"
    yield "the project: its configurations, its pinned keys and policies, and code of its own"


def _host(url: str) -> str:
    try:
        return urlsplit(url).hostname or "another host"
    except ValueError:
        return "another host"


def _printable(name: str) -> str:
    """A path as text, whatever bytes it is made of."""
    return os.fsencode(name).decode(errors="backslashreplace")
