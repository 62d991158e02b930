"""Homes of other versions: opened, migrated after a backup, or refused with the command to run."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from alembic import command
from alembic.config import Config

from configs import home as homes
from configs.errors import Refused
from configs.home import LAYOUT, Home
from flows.cli.doctor import examine
from flows.cli.main import run
from tasks.evidence.audit.audit import audit
from tasks.maintenance.migration import migrate
from tasks.maintenance.restore import restore
from tasks.registry.schema import upgrade_schema
from tests.evidence import furnished_home


@pytest.fixture
def old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    """Make a home as versions without the file `layout` did."""
    root = tmp_path / "home"
    furnished_home(root)
    (root / "layout").unlink()
    monkeypatch.setenv("NEORL_HOME", str(root))
    return Home(root)


def test_a_new_home_states_its_layout_and_an_old_one_keeps_it(tmp_path: Path, old: Home) -> None:
    fresh = Home(tmp_path / "fresh")
    assert fresh.layout == LAYOUT
    fresh.folder("datasets")
    assert (fresh.root / "layout").read_text() == f"{LAYOUT}\n"
    old.folder("datasets", "another")
    assert (old.layout, (old.root / "layout").exists()) == (1, False)


def test_an_old_home_opens_and_migrates_after_a_backup(
    old: Home, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["audit", "verify"]) == 0
    assert {finding.name: finding.cure for finding in examine(old)}["layout"].startswith("run 'neorl down'")
    capsys.readouterr()
    assert run(["migrate", "--json"]) == 0
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (told["before"], told["layout"], old.layout) == (1, LAYOUT, LAYOUT)
    (kept,) = tmp_path.glob("home-layout1-*.tar")
    assert told["backup"] == str(kept)
    assert audit(old).passed
    # What was before comes back as it was, and opens.
    assert restore(kept, tmp_path / "again", lambda *_: None).passed
    assert Home(tmp_path / "again").layout == 1
    assert run(["migrate", "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["backup"] is None
    assert len(list(tmp_path.glob("*.tar"))) == 1


def test_a_home_of_a_newer_version_is_refused_except_by_doctor(old: Home, capsys: pytest.CaptureFixture[str]) -> None:
    old.write_layout(LAYOUT + 1)
    for words in (["audit", "verify"], ["status"], ["candidates"], ["migrate"], ["backup", "x.tar"]):
        assert run(words) == 1
        assert f"this version supports up to {LAYOUT}" in capsys.readouterr().err
    (finding,) = (found for found in examine(old) if found.name == "layout")
    assert not finding.ok
    (old.root / "layout").write_text("two")
    with pytest.raises(Refused, match=r"layout must hold a number, got .*: restore it"):
        Home.locate()


def test_a_too_old_home_is_refused_with_the_command(old: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(homes, "OLDEST", 2)
    with pytest.raises(Refused, match=r"has layout 1, this version needs at least 2: run 'neorl migrate', which"):
        Home.locate()
    assert run(["migrate"]) == 0
    assert Home.locate() == old


def test_a_migration_that_cannot_back_up_changes_nothing(old: Home, tmp_path: Path) -> None:
    (tmp_path / "held.tar").write_text("mine")
    assert run(["migrate", "--backup", str(tmp_path / "held.tar")]) == 2
    assert old.layout == 1


def revision(database: Path) -> list[tuple[str]]:
    with closing(sqlite3.connect(database)) as connection:
        return connection.execute("SELECT version_num FROM alembic_version").fetchall()


@pytest.mark.slow
def test_mlflows_own_database_is_brought_along_after_a_backup(
    old: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A database of the installed MLflow stays; an earlier one is backed up first."""
    from tasks.registry.registry import Registry

    database = old.folder("mlflow") / "mlflow.db"
    Registry(f"sqlite:///{database}").client.search_experiments(max_results=1)
    newest = revision(database)
    assert run(["migrate"]) == 0
    assert revision(database) == newest
    assert "MLflow" not in capsys.readouterr().out
    config = Config()
    config.set_main_option("script_location", "mlflow:store/db_migrations")
    config.set_main_option("sqlalchemy.url", f"sqlite:///{database}")
    command.downgrade(config, "-1")
    earlier = revision(database)
    assert earlier != newest
    # The one that a team's database takes the place of is in no backup.
    with monkeypatch.context() as team:
        team.setenv("NEORL_MLFLOW_DATABASE_URL", "postgresql://me@team.example/mlflow")
        assert run(["migrate"]) == 0
    assert (revision(database), "nothing to upgrade" in capsys.readouterr().out) == (earlier, True)
    assert run(["migrate", "--backup", str(tmp_path / "kept.tar")]) == 0
    assert revision(database) == newest
    assert capsys.readouterr().out == (
        f"layout {LAYOUT}\nMLflow's database: upgraded to the installed version\nbackup: {tmp_path / 'kept.tar'}\n"
    )
    assert restore(tmp_path / "kept.tar", tmp_path / "again", lambda *_: None).passed
    assert revision(tmp_path / "again" / "mlflow" / "mlflow.db") == earlier


@pytest.mark.slow
def test_an_invalid_mlflow_database_is_one_sentence(old: Home) -> None:
    database = old.folder("mlflow") / "mlflow.db"
    database.write_bytes(b"no database, but long enough to be read as one" * 100)
    with pytest.raises(Refused, match=r"mlflow\.db is not a database of MLflow, got .*: restore the home"):
        migrate(old, None, lambda *_: None)
    assert old.layout == 1
    with pytest.raises(Refused, match=r"MLflow cannot upgrade .*mlflow\.db, got .*: restore the home"):
        upgrade_schema(database)
