"""Content of a backup: copies of databases, and descriptions of external state."""

from __future__ import annotations

import shutil
import sqlite3
import tarfile
from contextlib import closing
from pathlib import Path

import pytest

from configs.errors import BadInput
from configs.home import Home
from tasks.evidence.ledger.ledger import Ledger
from tasks.maintenance.backup_file import backup
from tasks.maintenance.restore import restore
from tasks.maintenance.snapshot import copy_database
from tests.evidence import furnished_home


def silent(done: int, total: int, unit: str) -> None:
    assert (unit, done <= total) == ("MB", True)


def sqlite_file(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE t (x)")
    return path


def test_external_state_is_listed_without_passwords(
    furnished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = Path(shutil.copytree(furnished, tmp_path / "home"))
    for name in ("mlflow/mlflow.db", "mlflow/mlflow.db-wal", "prefect/prefect.db"):
        sqlite_file(home / name)
    assert {"mlflow/mlflow.db", "prefect/prefect.db"} <= {*members(home, tmp_path / "own.tar")[0]}
    monkeypatch.setenv("NEORL_PREFECT_DATABASE_URL", "postgresql://me:geheim@one.example:5432/p?password=geheim")
    monkeypatch.setenv("NEORL_MLFLOW_DATABASE_URL", "postgresql://me:geheim@two.example/m")
    monkeypatch.setenv("NEORL_ARTIFACTS_URL", "s3://plant-models/mlflow")
    monkeypatch.setenv("NEORL_MLFLOW_URL", "http://me:geheim@three.example:5000")
    names, left_out = members(home, tmp_path / "team.tar")
    assert [name for name in names if ".db" in name] == ["ledger.db"]
    assert left_out[:6] == (
        "the models and pages that a team's MLflow keeps at three.example (NEORL_MLFLOW_URL): back up its database and "
        "artifacts there",
        "Prefect's database at one.example (NEORL_PREFECT_DATABASE_URL): back it up there",
        "MLflow's database at two.example (NEORL_MLFLOW_DATABASE_URL): back it up there",
        "the bucket of MLflow's artifacts at plant-models (NEORL_ARTIFACTS_URL): back it up there",
        "mlflow/mlflow.db, which NEORL_MLFLOW_DATABASE_URL replaces",
        "prefect/prefect.db, which NEORL_PREFECT_DATABASE_URL replaces",
    )
    assert b"geheim" not in (tmp_path / "team.tar").read_bytes()
    monkeypatch.setenv("NEORL_ARTIFACTS_URL", "/mnt/models")
    with pytest.raises(BadInput, match="NEORL_ARTIFACTS_URL must have the form s3://BUCKET/PREFIX"):
        backup(Home(home), tmp_path / "x.tar", silent)


def members(home: Path, archive: Path) -> tuple[list[str], tuple[str, ...]]:
    """Return the names in a new backup and its list of external state."""
    done = backup(Home(home), archive, silent)
    with tarfile.open(archive) as tar:
        return tar.getnames(), done.left_out


def test_links_are_not_followed_and_are_listed(furnished: Path, tmp_path: Path) -> None:
    home, disk = Path(shutil.copytree(furnished, tmp_path / "home")), tmp_path / "disk"
    disk.mkdir()
    for name in ("bundles", "mlflow"):
        shutil.move(home / name, disk / name)
    sqlite_file(disk / "mlflow" / "mlflow.db")
    links = {"bundles": "bundles", "mlflow": "mlflow", "datasets/gone": "nothing", "reports": "mlflow"}
    for name, target in links.items():
        (home / name).symlink_to(disk / target)
    (home / "cache" / "link").symlink_to(disk)
    done = backup(Home(home), tmp_path / "b.tar", silent)
    told = [each for each in done.left_out if " of the link " in each]
    assert told == [
        f"the target {disk / target} of the link {name}, except for databases of the home: back it up there"
        for name, target in sorted(links.items(), key=lambda link: (link[0].count("/"), link))
    ]
    with tarfile.open(tmp_path / "b.tar") as tar:
        assert [name for name in tar.getnames() if name.partition("/")[0] in links] == ["mlflow/mlflow.db"]
    assert "bundles/a/composite.json is missing" in done.damaged


def test_a_database_is_copied_with_its_write_ahead_log(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "live.db", isolation_level=None)) as writer:
        writer.execute("PRAGMA journal_mode=WAL")
        writer.execute("CREATE TABLE t (x)")
        writer.execute("INSERT INTO t VALUES (1)")
        assert (tmp_path / "live.db-wal").stat().st_size
        writer.execute("BEGIN IMMEDIATE")
        writer.execute("INSERT INTO t VALUES (2)")  # not committed
        copy_database(tmp_path / "live.db", tmp_path / "copy" / "it.db")
    with closing(sqlite3.connect(tmp_path / "copy" / "it.db")) as copy:
        assert copy.execute("SELECT x FROM t").fetchall() == [(1,)]
        assert copy.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    assert [path.name for path in (tmp_path / "copy").iterdir()] == ["it.db"]


def test_a_ledger_in_another_database_is_copied_as_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are read through SQLAlchemy; the other database is an SQLite file here."""
    monkeypatch.setenv("NEORL_LEDGER_URL", f"sqlite:///{tmp_path / 'team.db'}")
    ledger = furnished_home(tmp_path / "home")
    done = backup(Home(tmp_path / "home"), tmp_path / "b.tar", silent)
    assert (done.entries, done.damaged) == (15, ())
    assert any("the server of the team's ledger" in each for each in done.left_out)
    before = [entry.digest for entry in ledger.entries()]
    monkeypatch.delenv("NEORL_LEDGER_URL")
    restored = restore(tmp_path / "b.tar", tmp_path / "new", silent)
    assert restored.passed, restored.checks
    assert [entry.digest for entry in Ledger.open(Home(tmp_path / "new"), write=False).entries()] == before
