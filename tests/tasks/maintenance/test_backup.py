"""Backup and restore: complete and verified, or nothing."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import pytest

from configs.errors import BadInput, Refused
from configs.home import LAYOUT, Home
from flows.cli.main import run
from flows.services.state import Service, read_services, write_services
from tasks.evidence.audit.audit import audit
from tasks.evidence.ledger.ledger import Ledger
from tasks.evidence.rules import NoteBody
from tasks.files.canonical import digests_in
from tasks.maintenance.backup_file import _write, backup
from tasks.maintenance.backup_format import HEADER, SUMS, Header, Megabytes
from tasks.maintenance.restore import restore
from tasks.maintenance.snapshot import Snapshot
from tests.evidence import PLANT, furnished_home, open_ledger, signer_at
from tests.flows.services.waiting import killed_process

PROJECT = Path(__file__).parents[3]
SHARD = f"datasets/{PLANT}/shard.h5"


def silent(done: int, total: int, unit: str) -> None:
    assert (unit, done <= total) == ("MB", True)


@pytest.fixture
def archive(furnished: Path, tmp_path: Path) -> Path:
    made = backup(Home(furnished), tmp_path / "home.tar", silent)
    assert made.damaged == ()
    return tmp_path / "home.tar"


def test_a_home_is_restored_elsewhere_file_by_file(furnished: Path, archive: Path, tmp_path: Path) -> None:
    done = restore(archive, tmp_path / "elsewhere" / "home", silent)
    assert done.passed, done.checks
    assert any(line.startswith("ok    chain: 15 entries") for line in done.checks)
    kept = {name: digest for name, digest in digests_in(furnished).items() if name.partition("/")[0] not in UNNEEDED}
    found = digests_in(Path(done.home))
    # The copy of a database has its rows, not always its bytes.
    assert {**found, "ledger.db": ""} == {**kept, "ledger.db": ""}
    assert [(entry.digest, entry.envelope) for entry in Ledger.open(Home(Path(done.home)), write=False).entries()] == [
        (entry.digest, entry.envelope) for entry in Ledger.open(Home(furnished), write=False).entries()
    ]
    modes = {path.stat().st_mode & 0o777 for path in Path(done.home).rglob("*")}
    assert modes == {0o700, 0o600}
    # It goes on where it was: the key signs, with the passphrase that lies in no backup.
    assert open_ledger(Home(Path(done.home))).append("note", NoteBody(text="here"), plant=PLANT).sequence == 16
    assert audit(Home(Path(done.home))).passed
    assert sorted(path.name for path in archive.parent.iterdir()) == ["elsewhere", "home.tar"]
    assert [path.name for path in Path(done.home).parent.iterdir()] == ["home"]


UNNEEDED = ("cache", "logs", "locks")


def test_progress_reports_each_megabyte_once() -> None:
    told: list[tuple[int, int, str]] = []
    count = Megabytes(2_500_000, lambda *said: told.append(said))
    for _ in range(4):
        count(700_000)
    assert told == [(0, 2, "MB"), (1, 2, "MB"), (2, 2, "MB")]


def test_outside_tools_can_check_a_backup(archive: Path, tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    with tarfile.open(archive) as tar:
        assert [tar.getnames()[0], tar.getnames()[-1]] == [HEADER, SUMS]
        tar.extractall(tmp_path / "x", filter="data")
    for line in (tmp_path / "x" / SUMS).read_text().splitlines():
        digest, _, name = line.partition("  ")
        assert hashlib.sha256((tmp_path / "x" / name).read_bytes()).hexdigest() == digest
    header = json.loads((tmp_path / "x" / HEADER).read_text())
    assert (header["layout"], header["entries"], header["format"]) == (LAYOUT, 15, 1)


def test_names_with_odd_characters_come_back(furnished: Path, tmp_path: Path) -> None:
    home = Path(shutil.copytree(furnished, tmp_path / "home"))
    names = ["a\rb", "a\x0bb", "a\x1cb", "a\x85b", "a\u2028b", "a  b", "größe"]
    for name in names:
        (home / "bundles" / name).write_bytes(name.encode())
    assert backup(Home(home), tmp_path / "b.tar", silent).damaged == ()
    assert restore(tmp_path / "b.tar", tmp_path / "new", silent).passed
    assert [(tmp_path / "new" / "bundles" / name).read_bytes().decode() for name in names] == names


@pytest.mark.parametrize(("name", "shown"), [(b"a\xff", r"a\\udcff"), (b"a\nb", r"a\\nb"), (b"a\\b", r"a\\\\b")])
def test_a_name_that_cannot_be_stored_is_refused(furnished: Path, tmp_path: Path, name: bytes, shown: str) -> None:
    home = Path(shutil.copytree(furnished, tmp_path / "home"))
    Path(os.fsdecode(os.fsencode(home / "bundles") + b"/" + name)).write_text("x")
    with pytest.raises(BadInput, match=rf"file names must .*, got 'bundles/{shown}'.*: rename it"):
        backup(Home(home), tmp_path / "b.tar", lambda *_: pytest.fail("something was written"))
    assert [path.name for path in tmp_path.iterdir()] == ["home"]
    assert list(home.glob(".backup.*")) == []


class Renamed(type(Path())):  # type: ignore[misc]
    """A file that is replaced as soon as it is opened."""

    def open(self, mode: str = "r") -> IO[bytes]:  # type: ignore[override]
        content = super().open(mode)
        os.replace(self.with_name("shorter"), self)
        return content  # type: ignore[return-value]


def test_a_file_replaced_during_the_copy_is_copied_completely(tmp_path: Path) -> None:
    (tmp_path / "status.json").write_bytes(b"the whole of what was there")
    (tmp_path / "shorter").write_bytes(b"less")
    header = Header(format=1, layout=2, neorl="", made="", root="", files=1, size=1, entries=0, left_out=())
    with (tmp_path / "x.tar").open("wb") as file:
        _write(file, header, Snapshot({"status.json": Renamed(tmp_path / "status.json")}, ()), lambda *_: None)
    with tarfile.open(tmp_path / "x.tar") as tar:
        content = tar.extractfile("status.json")
        assert content is not None
        assert content.read() == b"the whole of what was there"


def test_a_home_that_grows_too_much_for_a_restore_is_not_backed_up(tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(bytes(100_000))
    header = Header(format=1, layout=2, neorl="", made="", root="", files=1, size=1, entries=0, left_out=())
    with (
        (tmp_path / "x.tar").open("wb") as file,
        pytest.raises(BadInput, match="the home grew from 1 to 100000 bytes during the copy: back up again"),
    ):
        _write(file, header, Snapshot({"large": tmp_path / "large"}, ()), lambda *_: None)


def changed(archive: Path, change: Callable[[tarfile.TarInfo, bytes], tuple[str, bytes] | None]) -> Path:
    """Return the archive with changed members and an unchanged list of digests."""
    path = archive.with_name("changed.tar")
    with tarfile.open(archive) as old, tarfile.open(path, "w") as new:
        for member in old:
            content = old.extractfile(member)
            assert content is not None
            if (told := change(member, content.read())) is not None:
                member.name, member.size = told[0], len(told[1])
                new.addfile(member, io.BytesIO(told[1]))
    return path


def one(name: str, to: str, data: bytes | None) -> Callable[[tarfile.TarInfo, bytes], tuple[str, bytes] | None]:
    """Rename, change or remove a member."""

    def change(member: tarfile.TarInfo, content: bytes) -> tuple[str, bytes] | None:
        if member.name != name:
            return member.name, content
        return None if data is None else (to, data or content)

    return change


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            one(SHARD, SHARD, b"other bytes"),
            rf"lists {SHARD} with SHA-256 [0-9a-f]{{12}}, but the archive has other files: take",
        ),
        (
            one(SHARD, "", None),
            rf"SHA256SUMS of .* lists {SHARD} with SHA-256 .*, but the archive has other files: take another copy",
        ),
        (
            one(SHARD, "stranger", b""),
            rf"SHA256SUMS of .* lists {SHARD} with SHA-256 .*, but the archive has other files: take another copy",
        ),
        (one(SHARD, "../stranger", b""), r"has the unexpected member '\.\./stranger': take another copy of the backup"),
        (
            one(SHARD, "/etc/stranger", b""),
            r"has the unexpected member '/etc/stranger': take another copy of the backup",
        ),
        (one(SUMS, "", None), "ends before the list of digests: take another copy"),
        (one(HEADER, "", None), f"a backup must begin with {HEADER}, got 'ledger.db'"),
        (one(HEADER, HEADER, b"{}"), "is truncated or altered"),
    ],
)
def test_a_damaged_backup_is_refused_and_restores_nothing(
    archive: Path, tmp_path: Path, change: Callable[[tarfile.TarInfo, bytes], tuple[str, bytes] | None], said: str
) -> None:
    with pytest.raises(Refused, match=said):
        restore(changed(archive, change), tmp_path / "new", silent)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["changed.tar", "home.tar"]


def test_flipped_bits_and_short_or_foreign_files_are_refused(archive: Path, tmp_path: Path) -> None:
    data = bytearray(archive.read_bytes())
    data[len(data) // 2] ^= 1
    for content in (bytes(data), archive.read_bytes()[: len(data) // 2], b"no tar at all", b""):
        (tmp_path / "bad.tar").write_bytes(content)
        assert run(["restore", str(tmp_path / "bad.tar"), "--home", str(tmp_path / "new")]) == 1
        assert not (tmp_path / "new").exists()
    with pytest.raises(BadInput, match="there is no backup at"):
        restore(tmp_path / "none.tar", tmp_path / "new", silent)


def hostile(archive: Path, path: Path, *members: tuple[tarfile.TarInfo, bytes]) -> Path:
    """Return the archive's header followed by other members."""
    with tarfile.open(archive) as old, tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as new:
        first = old.next()
        assert first is not None
        new.addfile(first, old.extractfile(first))
        for info, data in members:
            new.addfile(info, io.BytesIO(data))
    return path


def member(name: str, data: bytes = b"", **fields: Any) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    for field, value in fields.items():
        setattr(info, field, value)
    return info, data


def test_hostile_archives_are_refused_in_one_sentence(archive: Path, tmp_path: Path) -> None:
    stated = 10_000_000
    sparse = member(
        "sparse",
        b"1\n0\n0\n" + bytes(505),
        pax_headers={
            "GNU.sparse.major": "1",
            "GNU.sparse.minor": "0",
            "GNU.sparse.name": "sparse",
            "GNU.sparse.realsize": str(2**31),
        },
    )
    cases = {
        "file and folder": [member("a"), member("a/b")],
        "folder and file": [member("a/b"), member("a")],
        "twice": [member("a"), member("a")],
        "deep": [member("/".join(["d"] * 3000) + "/f")],
        "long": [member("n" * 2000)],
        "above": [member("../x")],
        "link": [member("l", type=tarfile.SYMTYPE, linkname="/etc/passwd")],
        "device": [member("d", type=tarfile.CHRTYPE)],
        "folder": [member("d", type=tarfile.DIRTYPE)],
        "sparse": [sparse],
        "large header": [member("h", pax_headers={"comment": "x" * 200_000})],
        "too much": [member("big", bytes(stated))],
        "too many": [member(f"{i}") for i in range(5_000)],
        "long digests": [member(SUMS, b"0" * 1_000_000)],
    }
    for name, members in cases.items():
        path = hostile(archive, tmp_path / "hostile.tar", *members)
        with pytest.raises(Refused, match=r"take another copy of the backup$"):
            restore(path, tmp_path / "new", silent)
        assert sorted(p.name for p in tmp_path.iterdir()) == ["home.tar", "hostile.tar"], name


def test_backups_need_a_new_file_and_restores_an_empty_folder(
    furnished: Path, archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "held").mkdir()
    (tmp_path / "held" / "note").write_text("mine")
    with pytest.raises(Refused, match=r"held is not an empty folder"):
        restore(archive, tmp_path / "held", silent)
    (tmp_path / "empty").mkdir()
    assert restore(archive, tmp_path / "empty", silent).passed
    for path in (archive, furnished / "within.tar"):
        with pytest.raises(BadInput, match=r"choose a file outside|already exists"):
            backup(Home(furnished), path, silent)
    with pytest.raises(BadInput, match="does not exist: make it"):
        backup(Home(furnished), tmp_path / "none" / "x.tar", silent)
    with pytest.raises(BadInput, match="there is no home at"):
        backup(Home(tmp_path / "nowhere"), tmp_path / "x.tar", silent)
    monkeypatch.setenv("NEORL_LEDGER_URL", "postgresql://db/ledger")
    with pytest.raises(BadInput, match="NEORL_LEDGER_URL is set"):
        restore(archive, tmp_path / "new", silent)


def test_a_backup_of_a_newer_version_names_it(archive: Path, tmp_path: Path) -> None:
    def newer(member: tarfile.TarInfo, content: bytes) -> tuple[str, bytes]:
        told = json.dumps({**json.loads(content), "layout": 99}).encode() if member.name == HEADER else content
        return member.name, told

    with pytest.raises(Refused, match=r"layout 99, this NeoRL reads .*: install NeoRL"):
        restore(changed(archive, newer), tmp_path / "new", silent)


KILLED = """
import os, signal, sys
from pathlib import Path
from tasks.maintenance import {module}
def die(*_): os.kill(os.getpid(), signal.SIGKILL)
{module}.{function} = die
{module}.{call}
"""


def killed(module: str, function: str, call: str) -> None:
    code = KILLED.format(module=module, function=function, call=call)
    done = subprocess.run([sys.executable, "-c", code], cwd=PROJECT, env={**os.environ, "PYTHONPATH": str(PROJECT)})
    assert done.returncode == -signal.SIGKILL


@pytest.mark.parametrize("function", ["_put_in_place"])
def test_a_killed_restore_leaves_nothing_and_can_be_repeated(archive: Path, tmp_path: Path, function: str) -> None:
    call = f"restore(Path({str(archive)!r}), Path({str(tmp_path / 'new')!r}), lambda *_: None)"
    killed("restore", function, call)
    assert not (tmp_path / "new").exists()
    assert (tmp_path / ".new.restoring" / SHARD).is_file()
    assert restore(archive, tmp_path / "new", silent).passed
    assert sorted(path.name for path in tmp_path.iterdir()) == ["home.tar", "new"]


def test_kill_9_leaves_no_half_backup(furnished: Path, tmp_path: Path) -> None:
    call = f"backup(backup_file.Home(Path({str(furnished)!r})), Path({str(tmp_path / 'b.tar')!r}), lambda *_: None)"
    killed("backup_file", "_add", call)
    assert not (tmp_path / "b.tar").exists()
    assert len(list(furnished.glob(".backup.*"))) == 1
    made = backup(Home(furnished), tmp_path / "b.tar", silent)
    with tarfile.open(tmp_path / "b.tar") as tar:
        assert not [name for name in tar.getnames() if name.startswith(".backup.")]
    assert made.damaged == ()
    assert list(furnished.glob(".backup.*")) == []


def test_a_backup_during_appends_is_consistent(tmp_path: Path) -> None:
    """Heads, written after each entry, never cover more entries than the ledger in the backup."""
    home = Home(tmp_path / "home")
    furnished_home(home.root)
    stop = threading.Event()

    def write() -> None:
        ledger = Ledger.open(home)
        while not stop.is_set():
            ledger.append("note", NoteBody(text="x"), plant=PLANT)
            head = home.folder("reports", PLANT) / "head.html"
            head.with_suffix(".new").write_text(ledger.signed_head())
            os.replace(head.with_suffix(".new"), head)

    with signer_at(home):
        thread = threading.Thread(target=write)
        thread.start()
        try:
            sizes = []
            for number in range(5):
                done = backup(home, tmp_path / f"{number}.tar", silent)
                sizes.append(done.entries)
                restored = restore(tmp_path / f"{number}.tar", tmp_path / str(number), silent)
                assert restored.passed, restored.checks
                report = tmp_path / str(number) / "reports" / PLANT / "head.html"
                heads = [report.read_text()] if report.exists() else []
                Ledger.open(Home(tmp_path / str(number)), write=False).verify(heads)
        finally:
            stop.set()
            thread.join()
    assert sizes == sorted(sizes)
    assert sizes[-1] > 15


def test_damaged_and_missing_files_are_reported_by_the_backup(
    furnished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    home = Path(shutil.copytree(furnished, tmp_path / "home"))
    (home / SHARD).unlink()
    (home / "bundles" / "a" / "composite.json").write_text("{}")
    monkeypatch.setenv("NEORL_HOME", str(home))
    dead = killed_process()
    write_services(Home(home), {"prefect": Service("prefect", "http://127.0.0.1:4200", 4200, dead, "token")})
    assert run(["backup", str(tmp_path / "b.tar"), "--json"]) == 1
    answer = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert sorted(answer["damaged"]) == ["bundles/a/composite.json differs from the ledger", f"{SHARD} is missing"]
    assert run(["restore", str(tmp_path / "b.tar"), "--home", str(tmp_path / "new")]) == 1
    assert "FAIL  files: " in capsys.readouterr().out
    # No service of the new home has run: its doctor would send people to logs that are not there.
    (kept,) = read_services(Home(tmp_path / "new")).values()
    assert (kept.port, kept.process) == (4200, None)
