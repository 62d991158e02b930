"""Work in a restored Prefect database waits for a person."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from configs.errors import Refused
from configs.home import Home
from flows.services.foreground import serve
from flows.services.servers import _may_work
from tasks.maintenance.backup_file import backup
from tasks.maintenance.restore import restore
from tasks.maintenance.restored import MARKER, held, work_of
from tests.tasks.maintenance.test_backup import silent


def plant_work(home: Path) -> None:
    """Write a Prefect database with a waiting run, a schedule, an automation and a queue, and paused ones."""
    (home / "prefect").mkdir(exist_ok=True)
    with closing(sqlite3.connect(home / "prefect" / "prefect.db")) as connection, connection:
        connection.executescript(
            """
            CREATE TABLE deployment (id TEXT, name TEXT, paused BOOLEAN);
            CREATE TABLE deployment_schedule (deployment_id TEXT, active BOOLEAN);
            CREATE TABLE flow_run (name TEXT, state_type TEXT);
            CREATE TABLE automation (name TEXT, enabled BOOLEAN);
            CREATE TABLE work_queue (name TEXT, is_paused BOOLEAN);
            INSERT INTO deployment VALUES ('1', 'nightly', 0), ('2', 'paused', 1);
            INSERT INTO deployment_schedule VALUES ('1', 1), ('1', 0), ('2', 1);
            INSERT INTO flow_run VALUES ('planted' || char(10) || 'ok  all is well', 'SCHEDULED');
            INSERT INTO flow_run VALUES ('done', 'COMPLETED');
            INSERT INTO automation VALUES ('start it', 1), ('off', 0);
            INSERT INTO work_queue VALUES ('default', 0), ('shut', 1);
            """
        )


FOUND = (
    "active schedule of deployment: nightly",
    r"waiting run: planted\nok  all is well",
    "enabled automation: start it",
    "work queue: default",
)


def test_work_is_listed_and_paused_work_is_not(tmp_path: Path) -> None:
    assert work_of(tmp_path, "now").found == ()
    plant_work(tmp_path)
    assert work_of(tmp_path, "now").found == FOUND


def test_a_foreign_database_is_one_line_each(tmp_path: Path) -> None:
    (tmp_path / "prefect").mkdir()
    (tmp_path / "prefect" / "prefect.db").write_bytes(b"no database at all" * 100)
    found = work_of(tmp_path, "now").found
    assert len(found) == 4
    assert all("the database cannot be read" in line and "\n" not in line for line in found)


def test_a_restored_home_starts_no_worker_before_a_person_accepts(tmp_path: Path) -> None:
    old = Home(tmp_path / "old")
    old.folder("prefect")
    plant_work(old.root)
    backup(old, tmp_path / "b.tar", silent)
    done = restore(tmp_path / "b.tar", tmp_path / "new", silent)
    assert done.work == FOUND
    home = Home(tmp_path / "new")
    told: list[str] = []
    assert not _may_work(home, False, told.append)
    assert told[:-1] == [f"held: {line}" for line in FOUND]
    assert "'neorl up --accept-restored' runs it" in told[-1]
    with pytest.raises(Refused, match="was restored from a backup: accept"):
        serve(home, "worker", "127.0.0.1", 8080, ())
    (home.root / MARKER).write_text("{")
    work = held(home)
    assert work is not None
    assert "cannot be read" in work.found[0]
    assert not _may_work(home, False, told.append)
    assert _may_work(home, True, told.append)
    assert _may_work(home, False, told.append)
    assert _may_work(old, False, told.append)
