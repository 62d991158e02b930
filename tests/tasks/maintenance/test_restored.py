"""Work in a restored Prefect database waits for a person."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from configs.errors import Refused
from configs.home import RESTORED, Home
from flows.services.foreground import serve
from flows.services.servers import _may_work
from tasks.maintenance.backup_file import backup
from tasks.maintenance.restore import _drop_absolute_paths, restore
from tasks.maintenance.restored import QUERIES, RestoredWork, held, work_of
from tests.tasks.maintenance.test_backup import silent


def plant_work(home: Path) -> None:
    """Write a Prefect database with a waiting run, a schedule, an automation and a queue, and paused ones."""
    (home / "prefect").mkdir(exist_ok=True)
    with closing(sqlite3.connect(home / "prefect" / "prefect.db")) as connection, connection:
        connection.executescript(
            """
            CREATE TABLE flow (id TEXT, name TEXT);
            CREATE TABLE deployment
              (id TEXT, flow_id TEXT, name TEXT, paused INT, entrypoint TEXT, pull_steps JSON, infra_overrides JSON);
            CREATE TABLE deployment_schedule (deployment_id TEXT, active BOOLEAN);
            CREATE TABLE flow_run (name TEXT, state_type TEXT, deployment_id TEXT, job_variables JSON);
            CREATE TABLE automation
              (name TEXT, enabled BOOLEAN, actions JSON, actions_on_trigger JSON, actions_on_resolve JSON);
            CREATE TABLE work_pool (name TEXT, type TEXT, base_job_template JSON, is_paused BOOLEAN);
            CREATE TABLE work_queue (name TEXT, is_paused BOOLEAN, concurrency_limit INTEGER);
            CREATE TABLE concurrency_limit_v2 (name TEXT, "limit" INTEGER, active_slots INTEGER, active BOOLEAN);
            CREATE TABLE block_type (id TEXT, name TEXT);
            CREATE TABLE block_document (name TEXT, block_type_id TEXT, data JSON);
            CREATE TABLE variable (name TEXT, value JSON);
            INSERT INTO flow VALUES ('f', 'retrain');
            INSERT INTO deployment VALUES ('1', 'f', 'nightly', 0, 'a.py:f', '[{"shell": "touch x"}]', '{}'),
              ('2', 'f', 'paused', 1, NULL, NULL, '{"command": "touch y"}');
            INSERT INTO deployment_schedule VALUES ('1', 1), ('1', 0), ('2', 1);
            INSERT INTO flow_run VALUES ('planted' || char(10) || 'ok  all is well', 'SCHEDULED', '1', '{}');
            INSERT INTO flow_run VALUES ('done', 'COMPLETED', '1', '{}');
            INSERT INTO automation VALUES ('start it', 1, '[{"type": "run-deployment"}]', '[]', '[]'),
              ('off', 0, '[]', '[]', '[]');
            INSERT INTO work_pool VALUES ('neorl', 'process', '{"variables": {"properties": {"command": {}}}}', 0);
            INSERT INTO work_queue VALUES ('default', 0, NULL), ('shut', 1, NULL);
            INSERT INTO concurrency_limit_v2 VALUES ('one', 1, 0, 1);
            INSERT INTO block_type VALUES ('b', 'Secret');
            INSERT INTO block_document VALUES ('key', 'b', '"never shown"');
            INSERT INTO variable VALUES ('there', '"value"');
            """
        )


FOUND = (
    'deployment: nightly, flow retrain, entrypoint a.py:f, steps [{"shell": "touch x"}], active schedules 1',
    'deployment: paused, flow retrain, job variables {"command": "touch y"}',
    r"waiting run: planted\nok  all is well, deployment nightly, state SCHEDULED, "
    r'steps [{"shell": "touch x"}]',
    'automation: start it, actions [{"type": "run-deployment"}]',
    "work pool: neorl, type process",
    "work queue: default",
    "concurrency limit: one, limit 1",
    "block: key, type Secret",
    'variable: there, value "value"',
)


def found_in(home: Path) -> tuple[str, ...]:
    work = work_of(home, "now")
    assert work is not None
    return work.found


def test_work_is_listed_and_paused_work_is_not(tmp_path: Path) -> None:
    assert work_of(tmp_path, "now") is None
    plant_work(tmp_path)
    assert found_in(tmp_path) == FOUND


def test_a_foreign_database_is_one_line_each(tmp_path: Path) -> None:
    (tmp_path / "prefect").mkdir()
    (tmp_path / "prefect" / "prefect.db").write_bytes(b"no database at all" * 100)
    found = found_in(tmp_path)
    assert len(found) == len(QUERIES)
    assert all("the database cannot be read" in line and "\n" not in line for line in found)


def test_long_and_many_names_are_shortened_and_counted(tmp_path: Path) -> None:
    plant_work(tmp_path)
    with closing(sqlite3.connect(tmp_path / "prefect" / "prefect.db")) as connection, connection:
        connection.execute("UPDATE deployment SET pull_steps = printf('%.*c', 5000, 'x')")
        connection.executemany("INSERT INTO variable VALUES (?, 0)", [(f"v{i}",) for i in range(600)])
        connection.execute("CREATE TRIGGER again AFTER INSERT ON variable BEGIN SELECT 1; END")
    found = found_in(tmp_path)
    assert "more characters)" in found[0]
    assert max(map(len, found)) < 700
    assert "variable: and 101 more: look at Prefect's pages" in found
    assert any(line.startswith("trigger or view of the database: again, sql CREATE TRIGGER") for line in found)


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
    assert "run 'neorl up --accept-restored', which runs the rest" in told[-1]
    with pytest.raises(Refused, match="was restored from a backup: accept"):
        serve(home, "worker", "127.0.0.1", 8080, ())
    (home.root / RESTORED).write_text("{")
    work = held(home)
    assert work == RestoredWork(made="an unknown time", found=FOUND)
    assert not _may_work(home, False, told.append)
    assert _may_work(home, True, told.append)
    assert _may_work(home, False, told.append)
    assert _may_work(old, False, told.append)


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("", None),
        (
            "UPDATE datasets SET dataset_source = '/old/' || hex(zeroblob(40000)) WHERE rowid = 7",
            "1 rows of 'datasets'",
        ),
        ("DROP TABLE datasets", "has no table 'datasets'"),
        (
            "ALTER TABLE datasets RENAME TO d; CREATE VIEW datasets AS SELECT 1 AS rowid, '' AS dataset_source",
            "no table",
        ),
        ("CREATE TRIGGER t AFTER UPDATE ON datasets BEGIN SELECT 1; END", "has the trigger 't'"),
    ],
)
def test_all_paths_of_a_moved_home_change_or_the_check_fails(tmp_path: Path, statement: str, said: str | None) -> None:
    (tmp_path / "mlflow").mkdir()
    with closing(sqlite3.connect(tmp_path / "mlflow" / "mlflow.db")) as connection, connection:
        connection.execute("CREATE TABLE datasets (dataset_source TEXT)")
        rows = [(number, f"/old/{number}") for number in (-5, 0, *range(1, 2_500))]
        connection.executemany("INSERT INTO datasets (rowid, dataset_source) VALUES (?, ?)", rows)
        connection.executescript(statement)
    found = _drop_absolute_paths(tmp_path, "/old", "/new")
    if said is not None:
        assert [passed for _, passed, _ in found] == [False]
        assert said in found[0][2]
        return
    assert found == []
    with closing(sqlite3.connect(tmp_path / "mlflow" / "mlflow.db")) as connection:
        stored = dict(connection.execute("SELECT rowid, dataset_source FROM datasets"))
    assert stored == {number: path.replace("old", "new") for number, path in rows}
