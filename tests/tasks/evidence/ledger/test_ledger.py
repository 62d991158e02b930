"""The ledger: chained, signed and append-only, with several processes, kills and full disks."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
from base64 import b64decode
from collections.abc import Sequence
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from configs.errors import BadInput, Refused
from configs.home import Home
from tasks.evidence.ledger.client import stop
from tasks.evidence.ledger.entry import Entry, read_entry
from tasks.evidence.ledger.keys import open_keys
from tasks.evidence.ledger.ledger import ENTRY_TYPE, HeadNow, Ledger, artefact, folder_artefacts, insert
from tasks.evidence.ledger.protocol import Artefact
from tasks.evidence.ledger.signing import HEAD_TYPE, signed_by
from tasks.evidence.ledger.table import GENESIS, connect
from tasks.evidence.rules import NoteBody, RefusalBody
from tasks.versions.versions import newest
from tests.evidence import open_ledger


@pytest.fixture
def ledger(home: Path) -> Ledger:
    return open_ledger(Home(home))


def rows(ledger: Ledger) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(ledger.home.ledger)) as database:
        return list(database.execute("SELECT * FROM ledger ORDER BY sequence"))


def attack(ledger: Ledger, *statements: str) -> None:
    """Change rows with access to the database file."""
    with closing(sqlite3.connect(ledger.home.ledger)) as database:
        for name in ("no_update", "no_delete", "next_only"):
            database.execute(f"DROP TRIGGER IF EXISTS ledger_{name}")
        for statement in statements:
            database.execute(statement)
        database.commit()


def test_a_team_ledger_exists(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not Ledger.exists(Home(home))
    monkeypatch.setenv("NEORL_LEDGER_URL", f"sqlite:///{home}/team.db")
    assert Ledger.exists(Home(home))


def test_heads_of_other_ledgers_are_left_out(ledger: Ledger, tmp_path: Path) -> None:
    ledger.append("note", NoteBody())
    other = open_ledger(Home(tmp_path / "other"))
    other.append("note", NoteBody())
    heads = [other.signed_head(), "no head at all", ledger.signed_head()]
    assert signed_by(heads, ledger.trust.keys) == [ledger.signed_head()]


def test_rows_match_their_envelopes(ledger: Ledger) -> None:
    """Read the table with only sqlite3, json, base64 and hashlib."""
    for i in range(3):
        ledger.append("note", NoteBody(text=f"{i}"), plant="p")
    last, leaves = "0" * 64, []
    for number, row in enumerate(rows(ledger), start=1):
        sequence, predecessor, digest, timestamp, kind, plant, envelope = row
        payload = json.loads(b64decode(json.loads(envelope)["payload"]))
        assert (sequence, predecessor, kind, plant) == (number, last, "note", "p")
        assert payload == {
            "artefacts": [],
            "body": {"text": f"{number - 1}"},
            "kind": kind,
            "plant": plant,
            "predecessor": predecessor,
            "rules": newest(),
            "sequence": sequence,
            "timestamp": timestamp,
        }
        assert abs((datetime.fromisoformat(timestamp) - datetime.now(UTC)).total_seconds()) < 3600
        last = hashlib.sha256(envelope.encode()).hexdigest()
        assert digest == last
        leaves.append(hashlib.sha256(b"\x00" + envelope.encode()).digest())
    # RFC 6962, section 2.1.3 draws the tree of three leaves: ((a b) c).
    pair = hashlib.sha256(b"\x01" + leaves[0] + leaves[1]).digest()
    root = hashlib.sha256(b"\x01" + pair + leaves[2]).hexdigest()
    assert ledger.head() == HeadNow(last=last, root=root, size=3)


def test_an_empty_ledger_has_a_head(ledger: Ledger) -> None:
    assert ledger.head() == HeadNow(last=GENESIS, root=hashlib.sha256(b"").hexdigest(), size=0)
    head = ledger.signed_head()
    ledger.append("note", NoteBody())
    assert ledger.verify([head]).size == 1


def test_entries_are_selected_and_found(ledger: Ledger) -> None:
    ledger.append("note", NoteBody(), plant="p")
    second = ledger.append("refusal", RefusalBody(reason="x"), plant="q")
    assert [entry.kind for entry in ledger.entries(plant="q")] == ["refusal"]
    assert [entry.plant for entry in ledger.entries(kind="note")] == ["p"]
    assert ledger.entry(second.digest) == second
    with pytest.raises(BadInput, match="neorl history"):
        ledger.entry("0" * 64)


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE ledger SET kind = 'other'",
        "DELETE FROM ledger",
        "INSERT OR REPLACE INTO ledger SELECT sequence, predecessor, digest, timestamp, 'other', plant, envelope "
        "FROM ledger WHERE sequence = 1",
        "INSERT INTO ledger SELECT 9, digest, 'x', timestamp, kind, plant, envelope FROM ledger WHERE sequence = 2",
        "INSERT INTO ledger SELECT 3, 'x', 'y', timestamp, kind, plant, envelope FROM ledger WHERE sequence = 2",
    ],
)
def test_the_table_only_takes_the_next_entry(ledger: Ledger, statement: str) -> None:
    ledger.append("note", NoteBody())
    ledger.append("note", NoteBody())
    before = rows(ledger)
    with (
        closing(sqlite3.connect(ledger.home.ledger)) as database,
        pytest.raises(sqlite3.IntegrityError, match="ledger"),
    ):
        database.execute(statement)
    assert rows(ledger) == before


@pytest.mark.parametrize(
    ("statement", "named"),
    [
        ("UPDATE ledger SET kind = 'approval' WHERE sequence = 2", "entry 2: kind must be 'note', got 'approval'"),
        ("UPDATE ledger SET plant = CAST(plant AS BLOB) WHERE sequence = 2", "entry 2: plant must be"),
        (
            "UPDATE ledger SET envelope = CAST(envelope AS BLOB) WHERE sequence = 1",
            "the envelope column must be text",
        ),
        ('UPDATE ledger SET envelope = replace(envelope, \'"sig":"\', \'"sig":"A\') WHERE sequence = 3', "entry 3: "),
        (
            "UPDATE ledger SET timestamp = '2020-01-01T00:00:00.000000Z' WHERE sequence = 3",
            "entry 3: timestamp must be",
        ),
        ("UPDATE ledger SET digest = upper(digest) WHERE sequence = 1", "entry 1: digest must be"),
        ("UPDATE ledger SET predecessor = upper(predecessor) WHERE sequence = 2", "entry 2: predecessor must be"),
        ("UPDATE ledger SET sequence = -sequence WHERE sequence = 3", "entry 1: sequence must be 1, got -3"),
        ("UPDATE ledger SET sequence = 7 WHERE sequence = 3", "entry 3: sequence must be 3, got 7"),
        ("DELETE FROM ledger WHERE sequence = 2", "entry 2: sequence must be 2, got 3"),
        ("DELETE FROM ledger WHERE sequence = 1", "entry 1: sequence must be 1, got 2"),
        ("UPDATE ledger SET kind = CAST(x'ff' AS TEXT) WHERE sequence = 3", "entry 3 cannot be read"),
    ],
)
def test_an_altered_row_is_named(ledger: Ledger, statement: str, named: str) -> None:
    for _ in range(3):
        ledger.append("note", NoteBody(), plant="p")
    attack(ledger, statement)
    with pytest.raises(Refused, match=named):
        Ledger.open(ledger.home, write=False).entries()


def test_rows_signed_by_a_fresh_key_are_refused(ledger: Ledger, tmp_path: Path) -> None:
    entry = ledger.append("note", NoteBody(text="us"))
    payload = {name: getattr(entry, name) for name in ("sequence", "predecessor", "timestamp", "kind", "plant")}
    thief, _ = open_keys(Home(tmp_path / "thief"), first_use=True)
    envelope = thief.seal(ENTRY_TYPE, {**payload, "body": {"text": "them"}, "artefacts": []}).decode()
    digest = hashlib.sha256(envelope.encode()).hexdigest()
    attack(ledger, f"UPDATE ledger SET envelope = '{envelope}', digest = '{digest}'")
    with pytest.raises(Refused, match=r"entry 1: the signing key .* is not pinned"):
        Ledger.open(ledger.home, write=False).entries()


def test_a_signed_payload_of_another_shape_is_refused(ledger: Ledger) -> None:
    entry = ledger.append("note", NoteBody())
    key, _ = open_keys(ledger.home, first_use=False)
    payload = {name: getattr(entry, name) for name in ("sequence", "predecessor", "timestamp", "kind", "plant", "body")}
    spoiled: tuple[Any, ...] = (payload, {**payload, "artefacts": [], "more": 1}, [], "text")
    for odd in spoiled:
        envelope = key.seal(ENTRY_TYPE, odd).decode()
        attack(ledger, f"UPDATE ledger SET envelope = '{envelope}'")
        with pytest.raises(Refused, match="entry 1"):
            Ledger.open(ledger.home, write=False).entries()


def test_a_ledger_of_an_earlier_version_is_explained(ledger: Ledger) -> None:
    key, _ = open_keys(ledger.home, first_use=False)
    payload = {"artefacts": [], "body": {}, "kind": "note", "plant": "", "predecessor": GENESIS, "sequence": 1}
    payload["timestamp"] = "2026-11-20T10:00:00.000000Z"
    envelope = key.seal("application/vnd.neorl.ledger-entry+json", payload)
    insert(connect(ledger.home.ledger_url), read_entry(payload, envelope))
    with pytest.raises(Refused, match=r"^ledger entry 1: an earlier version of NeoRL wrote .*: audit this home"):
        open_ledger(ledger.home).entries()


def test_heads_refuse_another_history(ledger: Ledger, tmp_path: Path) -> None:
    heads = []
    for i in range(5):
        ledger.append("note", NoteBody(text=f"{i}"))
        heads.append(ledger.signed_head())
    assert len(heads[-1]) < 500
    assert ledger.verify(heads) == ledger.head()
    assert (ledger.home.root / "ledger.head").read_text() == heads[-1]

    attack(ledger, "DELETE FROM ledger WHERE sequence > 3")
    shorter = open_ledger(ledger.home)
    assert shorter.verify(heads[:3]).size == 3
    with pytest.raises(Refused, match=r"the ledger has 3 entries, .* covers 5: .*truncated"):
        shorter.verify(heads[4:])
    # The home's own head knows better than to go on, and so does its absence.
    own = ledger.home.root / "ledger.head"
    with pytest.raises(Refused, match=r"the ledger has 3 entries, .* covers 5: .*truncated"):
        shorter.append("note", NoteBody())
    own.unlink()
    with pytest.raises(Refused, match="the ledger has 3 entries, but the file of its newest head"):
        open_ledger(ledger.home).append("note", NoteBody())
    own.write_text(heads[2])
    shorter = open_ledger(ledger.home)
    # The same key writes the missing entries anew: another history of the same length.
    for i in (3, 4):
        shorter.append("note", NoteBody(text=f"{i} once more"))
    with pytest.raises(Refused, match=r"first 4 ledger entries .* altered or replaced"):
        shorter.verify(heads)

    thief, _ = open_keys(Home(tmp_path / "thief"), first_use=True)
    forged = thief.seal(HEAD_TYPE, shorter.head()._asdict()).decode()
    with pytest.raises(Refused, match=r"the signing key .* is not pinned"):
        shorter.verify([forged])


def test_appending_is_compare_and_set(ledger: Ledger) -> None:
    """Another writer appends between reading and writing, so reading is repeated."""
    other = open_ledger(ledger.home)
    sizes = []

    def body(history: Sequence[Entry]) -> NoteBody:
        sizes.append(len(history))
        if len(sizes) == 1:
            other.append("note", NoteBody(text="other"))
        return NoteBody(text=f"saw {len(history)}")

    entry = ledger.append("note", body)
    assert sizes == [0, 1]
    assert (entry.sequence, entry.body) == (2, {"text": "saw 1"})

    def refuse(history: Sequence[Entry]) -> NoteBody:
        raise Refused("no")

    with pytest.raises(Refused, match="no"):
        ledger.append("note", refuse)
    assert len(rows(ledger)) == 2


WRITER = """
import sys
from configs.home import Home
from tasks.evidence.ledger.ledger import Ledger
from tasks.evidence.rules import NoteBody
ledger = Ledger.open(Home.locate())
print("open", flush=True)
for i in range(int(sys.argv[1])):
    ledger.append("note", NoteBody(text=f"{sys.argv[2]}{i}"))
    print(i, flush=True)
"""


def writer(count: int, name: str, **options: Any) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, str(count), name],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ,
        **options,
    )


@pytest.mark.slow
def test_two_processes_write_one_chain(home: Path) -> None:
    processes = [writer(10, name) for name in "ab"]
    for process in processes:
        _, errors = process.communicate()
        assert process.returncode == 0, errors.decode()
    ledger = Ledger.open(Home(home), write=False)
    assert ledger.verify().size == 20
    texts = [entry.body["text"] for entry in ledger.entries()]
    for name in "ab":
        assert [text for text in texts if text[0] == name] == [f"{name}{i}" for i in range(10)]
    stop(Home(home))


@pytest.mark.slow
def test_a_killed_writer_loses_nothing_it_reported(home: Path) -> None:
    process = writer(10_000, "a")
    assert process.stdout is not None
    reported = [process.stdout.readline() for _ in range(4)]
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    assert reported == [b"open\n", b"0\n", b"1\n", b"2\n"]
    ledger = Ledger.open(Home(home))
    assert ledger.verify([(home / "ledger.head").read_text()]).size >= 3
    ledger.append("note", NoteBody())
    stop(Home(home))


@pytest.mark.slow
def test_a_full_disk_is_one_sentence_and_leaves_nothing(ledger: Ledger) -> None:
    """A file size limit, which the signer inherits, simulates a full disk."""
    ledger.append("note", NoteBody())
    size = ledger.home.ledger.stat().st_size
    code = (
        "import resource\n"
        "from configs.errors import BadInput\n"
        "from configs.home import Home\n"
        "from tasks.evidence.ledger.ledger import Ledger\n"
        "from tasks.evidence.rules import NoteBody\n"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({size}, {size}))\n"
        "ledger = Ledger.open(Home.locate())\n"
        "try:\n"
        "    ledger.append('note', NoteBody(text='x' * 100_000))\n"
        "except BadInput as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, env=os.environ, check=True)
    assert b"cannot write ledger entry 2" in done.stdout
    assert Ledger.open(ledger.home, write=False).verify().size == 1
    stop(ledger.home)


def test_time_never_runs_backwards(home: Path) -> None:
    times = iter(datetime(2026, 11, 20, hour, minute, tzinfo=UTC) for hour, minute in ((10, 0), (9, 56), (9, 0)))
    ledger = open_ledger(Home(home), clock=lambda: next(times))
    assert ledger.append("note", NoteBody()).timestamp == "2026-11-20T10:00:00.000000Z"
    assert ledger.append("note", NoteBody()).timestamp == "2026-11-20T10:00:00.000000Z"
    with pytest.raises(Refused, match=r"the clock \(2026-11-20T09:00.*\) is behind"):
        ledger.append("note", NoteBody())


@pytest.mark.slow
def test_reading_needs_a_ledger_and_no_private_key(ledger: Ledger, tmp_path: Path) -> None:
    ledger.append("note", NoteBody())
    (ledger.home.root / "keys" / "signing.pem").unlink()
    reader = Ledger.open(ledger.home, write=False)
    assert reader.verify().size == 1
    with pytest.raises(Refused, match="opened for reading"):
        reader.append("note", NoteBody())
    with pytest.raises(Refused, match=r"the private key .* does not exist"):
        Ledger.open(ledger.home)
    with pytest.raises(BadInput, match="NEORL_HOME"):
        Ledger.open(Home(tmp_path / "nowhere"), write=False)
    assert not (tmp_path / "nowhere").exists()


def test_a_file_that_is_no_database_is_refused(home: Path) -> None:
    home.mkdir()
    Home(home).ledger.write_bytes(b"not a database" * 100)
    with pytest.raises(Refused, match=r"cannot use the database .* restore"):
        Ledger.open(Home(home))


def test_a_url_names_another_database(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEORL_LEDGER_URL", f"sqlite:///{tmp_path / 'team.db'}")
    ledger = open_ledger(Home(home))
    ledger.append("note", NoteBody())
    assert not Home(home).ledger.exists()
    assert Ledger.open(Home(home), write=False).verify().size == 1


def test_artefacts_are_named_by_digest(ledger: Ledger) -> None:
    folder = ledger.home.folder("bundles", "x")
    for name in ("b", "a"):
        (folder / name).write_bytes(name.encode())
    # printf a | sha256sum, printf b | sha256sum
    digests = [
        "ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb",
        "3e23e8160039594a33894f6564e1b1348bbd7a0088d42c4acb73eeaed59c009d",
    ]
    named = folder_artefacts(ledger.home, folder, "bundle")
    assert named == [
        Artefact("bundle/a", "bundles/x/a", digests[0]),
        Artefact("bundle/b", "bundles/x/b", digests[1]),
    ]
    assert ledger.append("note", NoteBody(), artefacts=named).artefacts == tuple(named)
    with pytest.raises(ValueError, match="subpath"):
        artefact(ledger.home, Path(sys.executable))
