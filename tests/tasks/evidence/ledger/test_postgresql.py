"""The ledger in PostgreSQL: same entries, same refusals, concurrent writers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from base64 import b64decode
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import pytest

from configs.errors import BadInput, Refused
from configs.home import Home
from tasks.evidence.audit.audit import audit
from tasks.evidence.ledger import client, table
from tasks.evidence.ledger.ledger import Ledger
from tasks.evidence.rules import NoteBody
from tests.evidence import open_ledger
from tests.servers import Postgres, postgres

WRITER = """
import sys
from configs.home import Home
from tasks.evidence.ledger.ledger import Ledger
from tasks.evidence.rules import NoteBody
from tasks.evidence.rules import NoteBody

ledger = Ledger.open(Home.locate())
for i in range(int(sys.argv[2])):
    ledger.append("note", NoteBody(text=f"{sys.argv[1]} {i}"))
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Postgres]:
    with postgres(tmp_path_factory.mktemp("team") / "postgres") as found:
        yield found


@pytest.fixture
def team(
    home: Path, server: Postgres, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[Home]:
    """A home whose ledger is a separate database on the team's server."""
    monkeypatch.setenv("NEORL_LEDGER_URL", server.create(request.node.name))
    yield Home(home)
    client.stop(Home(home))


def test_a_second_implementation_reads_the_rows(team: Home, server: Postgres, request: pytest.FixtureRequest) -> None:
    ledger = open_ledger(team)
    for i in range(3):
        ledger.append("note", NoteBody(text=f"{i}"), plant="p")
    assert not team.ledger.exists()
    rows = server.run(request.node.name, "SELECT row_to_json(ledger) FROM ledger ORDER BY sequence").splitlines()
    before = "0" * 64
    for i, row in enumerate(map(json.loads, rows)):
        payload = json.loads(b64decode(json.loads(row["envelope"])["payload"]))
        assert (row["predecessor"], payload["body"]["text"]) == (before, f"{i}")
        before = sha256(row["envelope"].encode()).hexdigest()
        assert row["digest"] == before
    assert len(rows) == 3
    report = audit(team)
    assert [check for check in report.checks if check.passed is False] == []


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE ledger SET plant = 'q'",
        "DELETE FROM ledger WHERE sequence = 2",
        "TRUNCATE ledger",
        "INSERT INTO ledger SELECT 9, digest, repeat('f', 64), timestamp, kind, plant, envelope FROM ledger LIMIT 1",
    ],
)
def test_the_table_takes_the_next_entry_alone(
    home: Path, server: Postgres, monkeypatch: pytest.MonkeyPatch, statement: str
) -> None:
    name = sha256(statement.encode()).hexdigest()[:12]
    monkeypatch.setenv("NEORL_LEDGER_URL", server.create(name))
    ledger = open_ledger(Home(home))
    for i in range(2):
        ledger.append("note", NoteBody(text=f"{i}"))
    assert "the ledger" in server.run(name, statement)
    assert ledger.verify().size == 2


def test_changes_by_an_administrator_are_found(team: Home, server: Postgres, request: pytest.FixtureRequest) -> None:
    ledger = open_ledger(team)
    for i in range(3):
        ledger.append("note", NoteBody(text=f"{i}"))
    drop = "DROP TRIGGER ledger_no_change ON ledger; "
    server.run(request.node.name, f"{drop} UPDATE ledger SET plant = 'q' WHERE sequence = 2")
    with pytest.raises(Refused, match="entry 2"):
        Ledger.open(team, write=False).verify()


def test_triggers_missing_after_a_kill_are_created(
    team: Home, server: Postgres, request: pytest.FixtureRequest
) -> None:
    open_ledger(team).append("note", NoteBody(text="first"))
    server.run(request.node.name, "DROP TRIGGER ledger_no_change ON ledger")
    assert open_ledger(team).verify().size == 1
    assert "append-only" in server.run(request.node.name, "DELETE FROM ledger")


@pytest.mark.slow
def test_writers_at_once_lose_nothing(team: Home) -> None:
    open_ledger(team)
    command = [sys.executable, "-c", WRITER]
    writers = [subprocess.Popen([*command, name, "10"], env=dict(os.environ)) for name in "abcd"]
    assert [writer.wait(120) for writer in writers] == [0] * 4
    entries = Ledger.open(team, write=False).entries("note")
    texts = [str(entry.body["text"]) for entry in entries]
    assert sorted(texts) == sorted(f"{name} {i}" for name in "abcd" for i in range(10))
    # Each writer's own order holds.
    for name in "abcd":
        assert [text for text in texts if text[0] == name] == [f"{name} {i}" for i in range(10)]


@pytest.mark.slow
def test_a_killed_server_comes_back_with_every_entry(team: Home, server: Postgres) -> None:
    ledger = open_ledger(team)
    ledger.append("note", NoteBody(text="before"))
    assert server.process is not None
    server.process.kill()
    server.process.wait(30)
    (server.folder / "data" / "postmaster.pid").unlink(missing_ok=True)
    with pytest.raises((Refused, BadInput), match="check NEORL_LEDGER_URL and the server"):
        ledger.append("note", NoteBody(text="meanwhile"))
    server.start()
    Ledger.open(team).append("note", NoteBody(text="after"))
    assert [entry.body["text"] for entry in Ledger.open(team).entries("note")] == ["before", "after"]


def test_passwords_are_not_shown(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEORL_LEDGER_URL", "postgresql://neorl:hidden-word@127.0.0.1:1/ledger")
    with pytest.raises(Refused, match=r"cannot use the database .*NEORL_LEDGER_URL and the server") as refused:
        Ledger.open(Home(home))
    assert "hidden-word" not in str(refused.value)


@pytest.mark.parametrize("url", ["hidden-word", "mysql://u:hidden-word@host/db", "postgresql://u:hidden-word@h:x/d"])
def test_an_invalid_ledger_is_named(url: str) -> None:
    with pytest.raises(BadInput, match="NEORL_LEDGER_URL") as refused:
        table.connect(url)
    assert "hidden-word" not in str(refused.value)
