"""Mutated backups, for attacks on `neorl restore`. The same number gives the same archive."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import lzma
import sqlite3
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from random import Random
from typing import NamedTuple

from benchmarks.redteam.stage import Stage
from configs.home import Home
from flows.services.foreground import serve
from tasks.maintenance.backup_file import backup as write_backup
from tasks.maintenance.backup_format import HEADER, SUMS
from tasks.maintenance.restore import restore

MEGABYTE = 1_000_000


class Member(NamedTuple):
    """A member of an archive."""

    name: str
    data: bytes = b""
    fields: Mapping[str, object] = {}
    """Other fields of the tar header; `size` also replaces the length of the data."""
    format: int = tarfile.PAX_FORMAT

    def written(self) -> bytes:
        """Return header, content and padding."""
        info = tarfile.TarInfo(self.name)
        info.size = len(self.data)
        for field, value in self.fields.items():
            setattr(info, field, value)
        return info.tobuf(self.format, "utf-8", "surrogateescape") + self.data + bytes(-len(self.data) % 512)


class Backup(NamedTuple):
    """A backup to mutate."""

    raw: bytes
    header: dict[str, object]
    files: dict[str, bytes]

    @classmethod
    def read(cls, archive: Path) -> Backup:
        """Read a small, valid backup."""
        with tarfile.open(archive) as tar:
            found = {member.name: tar.extractfile(member).read() for member in tar}  # type: ignore[union-attr]
        header = json.loads(found.pop(HEADER))
        del found[SUMS]
        return cls(archive.read_bytes(), header, found)

    def sealed(self, *more: Member, kept: Mapping[str, bytes] | None = None, **header: object) -> bytes:
        """Return an archive of other files, with correct digests and a header that states number and size."""
        members = [Member(name, data) for name, data in (self.files if kept is None else kept).items()] + list(more)
        stated = {"files": len(members), "size": sum(len(member.data) for member in members)}
        return self.written(json.dumps({**self.header, **stated, **header}).encode(), members)

    def written(self, first: bytes, members: list[Member], last: bytes | None = None) -> bytes:
        """Return an archive with this header, and correct digests unless `last` replaces them."""
        members = [Member(HEADER, first), *members]
        if last is None:
            lines = (f"{hashlib.sha256(m.data).hexdigest()}  {m.name}\n" for m in members)
            last = "".join(lines).encode(errors="surrogateescape")
        return b"".join(m.written() for m in [*members, Member(SUMS, last)]) + bytes(1024)

    def plain(self) -> list[Member]:
        """Return the unchanged members."""
        return [Member(name, data) for name, data in self.files.items()]


Mutate = Callable[[Backup, Random], bytes]


def _flip(data: bytes, random: Random, count: int, *, headers: bool) -> bytes:
    """Flip bits in headers or contents."""
    places: list[int] = []
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        for member in tar:
            places += range(member.offset, member.offset_data) if headers else ()
            places += [] if headers or not member.size else [member.offset_data + random.randrange(member.size)]
    changed = bytearray(data)
    for place in random.sample(places, min(count, len(places))):
        changed[place] ^= 1 << random.randrange(8)
    return bytes(changed)


def _spliced(data: bytes, random: Random, between: bytes, left_out: int) -> bytes:
    at = 512 * random.randrange(len(data) // 512 - 40)
    return data[:at] + between + data[at + left_out :]


def _stated(**fields: Callable[[Random], object]) -> Mutate:
    """State other values in the header."""

    def mutate(backup: Backup, random: Random) -> bytes:
        return backup.sealed(**{name: value(random) for name, value in fields.items()})

    return mutate


def _without_field(backup: Backup, random: Random) -> bytes:
    field = random.choice(sorted(backup.header))
    kept = {name: value for name, value in backup.header.items() if name != field}
    return backup.written(json.dumps(kept).encode(), backup.plain())


def _wrong_type(backup: Backup, random: Random) -> bytes:
    field = random.choice(sorted(backup.header))
    return backup.sealed(**{field: random.choice([None, True, [], {}, [[]], "x", -7, 1.5, {"a": 1}, "1e999"])})


def _header_text(text: Callable[[str, Random], str]) -> Mutate:
    return lambda backup, random: backup.written(text(json.dumps(backup.header), random).encode(), backup.plain())


def _number(words: tuple[str, ...]) -> Callable[[str, Random], str]:
    def change(text: str, random: Random) -> str:
        field = random.choice(["files", "size", "entries", "format", "layout"])
        before, found, after = text.partition(f'"{field}": ')
        return before + found + random.choice(words) + after[len(after) - len(after.lstrip("0123456789")) :]

    return change


def _add(*members: Member, **header: object) -> Mutate:
    return lambda backup, _: backup.sealed(*members, **header)


def _named(*names: str) -> Mutate:
    return lambda backup, random: backup.sealed(Member(random.choice(names), b"x"))


def _typed(kind: bytes, target: str = "") -> Mutate:
    def mutate(backup: Backup, random: Random) -> bytes:
        name = random.choice(["link", "bundles/link", "ledger.db.new"])
        return backup.sealed(Member(name, fields={"type": kind, "linkname": target, "devmajor": 1, "devminor": 3}))

    return mutate


def _sparse(headers: Mapping[str, str], body: bytes) -> Mutate:
    return _add(Member("sparse", body, {"pax_headers": headers}))


def _old_sparse(backup: Backup, random: Random) -> bytes:
    member = bytearray(Member("sparse", bytes(512), {"type": b"S"}, tarfile.GNU_FORMAT).written())
    member[386:410] = b"%011o\0%011o\0" % (0, 512)
    member[483:495] = b"%011o\0" % (2**31 + random.randrange(2**20))
    member[148:156] = b"%06o\0 " % (sum(member[:148]) + 256 + sum(member[156:512]))
    first = Member(HEADER, json.dumps(backup.header).encode())
    return first.written() + bytes(member) + bytes(1024)


def _pax_size(size: str) -> Mutate:
    return lambda backup, _: backup.sealed(Member("bundles/big", b"x" * 600, {"pax_headers": {"size": size}}))


def _sums(change: Callable[[list[str], Random], object]) -> Mutate:
    def mutate(backup: Backup, random: Random) -> bytes:
        first = json.dumps(backup.header).encode()
        members = backup.plain()
        lines = [f"{hashlib.sha256(m.data).hexdigest()}  {m.name}\n" for m in [Member(HEADER, first), *members]]
        changed = change(lines, random)
        text = changed if isinstance(changed, str) else "".join(lines)
        return backup.written(first, members, text.encode())

    return mutate


def _swap(lines: list[str], random: Random) -> None:
    a, b = random.sample(range(len(lines)), 2)
    lines[a], lines[b] = lines[b], lines[a]


def _other_digest(lines: list[str], random: Random) -> None:
    number = random.randrange(len(lines))
    lines[number] = random.choice("0123456789abcdef") * 64 + lines[number][64:]


READ = (
    "ledger.db",
    "ledger.head",
    "mlflow/mlflow.db",
    "prefect/prefect.db",
    "services.json",
    "trust.yaml",
    "keys/signing.pem",
    "layout",
    "witnesses.yaml",
    "witnessed.head",
    "restored.json",
    "bundles/a/composite.json",
)
"""Files that a restore reads or that its audit reads."""


def _content(change: Callable[[bytes, Random], bytes]) -> Mutate:
    """Change the content of a file that the restore reads; digests are correct."""

    def mutate(backup: Backup, random: Random) -> bytes:
        name = random.choice(READ)
        return backup.sealed(kept={**backup.files, name: change(backup.files.get(name, b""), random)})

    return mutate


def _scrambled(data: bytes, random: Random) -> bytes:
    changed = bytearray(data or b"x")
    for _ in range(random.choice([1, 20, 400])):
        changed[random.randrange(len(changed))] = random.randrange(256)
    return bytes(changed)


def _folder_instead(backup: Backup, random: Random) -> bytes:
    name = random.choice(READ[:-1])
    files = {key: data for key, data in backup.files.items() if key != name}
    return backup.sealed(Member(f"{name}/x", b"x"), kept=files)


def _database(name: str, *statements: str) -> Mutate:
    """Execute SQL in a database of the backup."""

    def mutate(backup: Backup, random: Random) -> bytes:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "x.db"
            path.write_bytes(backup.files[name])
            connection = sqlite3.connect(path, isolation_level=None)
            connection.execute("PRAGMA writable_schema = ON")
            for statement in statements:
                connection.execute(statement)
            connection.close()
            return backup.sealed(kept={**backup.files, name: path.read_bytes()})

    return mutate


ENDLESS = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT"
STRUCTURES: dict[str, Mutate] = {
    "file and folder of one name": _add(Member("a"), Member("a/b")),
    "folder and file of one name": _add(Member("a/b/c"), Member("a/b")),
    "same name twice": lambda b, r: b.sealed(Member(r.choice(list(b.files)), b"x")),
    "names that differ by case": _add(Member("bundles/Name", b"1"), Member("bundles/nAME", b"2")),
    "names that differ by normalisation": _add(Member("bundles/\u00e9", b"1"), Member("bundles/e\u0301", b"2")),
    "3,000 nested folders": _add(Member("/".join(["d"] * 3000) + "/f")),
    "33 nested folders": _add(Member("/".join(["d"] * 33))),
    "more folders than files": lambda b, r: b.sealed(*(Member(f"{r.random()}/" * 30 + "f") for _ in range(100))),
    "long PAX name": lambda b, r: b.sealed(Member("n" * r.choice([256, 1100, 60_000]))),
    "long GNU name": lambda b, r: b.sealed(Member("n/" * r.choice([60, 200, 5000]) + "x", format=tarfile.GNU_FORMAT)),
    "absolute name": _named("/etc/neorl", "//etc/neorl", "/tmp/neorl-escape"),
    "name that leaves the home": _named("../x", "a/../../x", "..", "bundles/../../../x"),
    "unusual spelling": _named("a//b", "a/./b", "./a", ".", "a/", "a\\b", "a\nb", "\x1b[2J"),
    "empty name": _add(Member("")),
    "name of invalid bytes": _add(Member("bundles/\udcff\udcfe", format=tarfile.GNU_FORMAT)),
    "hard link": _typed(tarfile.LNKTYPE, "ledger.db"),
    "symbolic link": _typed(tarfile.SYMTYPE, "/etc/passwd"),
    "character device": _typed(tarfile.CHRTYPE),
    "block device": _typed(tarfile.BLKTYPE),
    "pipe": _typed(tarfile.FIFOTYPE),
    "folder entry": _typed(tarfile.DIRTYPE),
    "contiguous or unknown type": lambda b, r: _typed(r.choice([b"7", b"Z", b"V", b"M", b"K", b"\xff"]))(b, r),
    "sparse, old GNU": _old_sparse,
    "sparse 0.0": _sparse({"GNU.sparse.size": str(2**31), "GNU.sparse.numblocks": "0"}, b""),
    "sparse 0.1": _sparse({"GNU.sparse.map": "0,1,2147483647,1", "GNU.sparse.size": str(2**31)}, b"xx"),
    "sparse 1.0": _sparse(
        {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": str(2**31)}, b"1\n0\n0\n" + bytes(506)
    ),
    "sparse 1.0 with a long map": _sparse(
        {"GNU.sparse.major": "1", "GNU.sparse.minor": "0"}, b"9999999\n" + b"0\n" * 10_000_000
    ),
    "PAX size above the content": _pax_size(str(10**10)),
    "PAX size below the content": _pax_size("5"),
    "PAX size that is no size": lambda b, r: _pax_size(r.choice(["-5", "nan", "1e9", "", "0x10", "9" * 5000]))(b, r),
    "PAX header of 200 kB": _add(Member("h", fields={"pax_headers": {"comment": "x" * 200_000}})),
    "PAX header with other fields": _add(
        Member("h", fields={"pax_headers": {"hdrcharset": "BINARY", "mtime": "1e400"}})
    ),
    "global PAX header": lambda b, r: tarfile.TarInfo.create_pax_global_header({"path": "../x"}) + b.raw,
    "negative size": lambda b, r: b.sealed(Member("m", fields={"size": -512}, format=tarfile.GNU_FORMAT)),
    "size beyond the end": _add(Member("m", b"x", {"size": 2**40}, tarfile.GNU_FORMAT)),
    "more bytes than stated": lambda b, r: b.sealed(
        Member("big", bytes(r.randrange(8, 30) * MEGABYTE)), size=4_000_000
    ),
    "more files than stated": lambda b, r: b.sealed(
        *(Member(f"many/{i}") for i in range(r.randrange(400, 9000))), files=9
    ),
    "200,000 files": lambda b, r: b.sealed(*(Member(f"{i}") for i in range(200_000 if r.random() < 0.2 else 20_000))),
    "fewer files than stated": _stated(files=lambda r: r.choice([10**6, 10**18]), size=lambda r: 10**15),
    "size 0": _stated(size=lambda r: 0, files=lambda r: 0),
    "files: -1": _stated(files=lambda r: -1),
    "negative number": _stated(size=lambda r: -r.randrange(1, 10**9), entries=lambda r: -1),
    "number that is no number": _header_text(_number(("NaN", "Infinity", "-Infinity", "1e999", "1e400", "0x1"))),
    "huge number": _header_text(_number(("9" * 400, "9" * 5000, "-" + "9" * 400))),
    "other JSON type": _wrong_type,
    "header without a field": _without_field,
    "header with another field": _stated(other=lambda r: 1),
    "nested JSON": _header_text(lambda text, r: "[" * 500_000),
    "header of 30 MB": _header_text(lambda text, r: text + " " * 30 * MEGABYTE),
    "header that is no JSON": _header_text(
        lambda text, r: r.choice(["", "null", "[]", text[:-5], "\x00", "\ufeff" + text])
    ),
    "terminal codes": _stated(
        neorl=lambda r: "\x1b[2J\nok", made=lambda r: "\x1b]0;x\x07\n--", left_out=lambda r: ["\r\x1b[1A"]
    ),
    "newer format": _stated(format=lambda r: r.choice([2, 99]), neorl=lambda r: "\x1b[2J9.9"),
    "two headers": lambda b, r: b.sealed(Member(HEADER, json.dumps(b.header).encode())),
    "no header": lambda b, r: b"".join(m.written() for m in b.plain()) + bytes(1024),
    "digests of 300 MB": lambda b, r: b.written(
        json.dumps(b.header).encode(), b.plain(), r.choice([b"0", b"\n"]) * (300 * MEGABYTE)
    ),
    "no digests": lambda b, r: b"".join(
        m.written() for m in [Member(HEADER, json.dumps(b.header).encode()), *b.plain()]
    ),
    "empty digests": _sums(lambda lines, r: lines.clear()),
    "swapped digests": _sums(_swap),
    "another digest": _sums(_other_digest),
    "digest missing": _sums(lambda lines, r: lines.pop(r.randrange(len(lines))) and None),
    "digest of a stranger": _sums(lambda lines, r: lines.append("0" * 64 + "  stranger\n")),
    "digests without line end": _sums(lambda lines, r: "".join(lines)[:-1]),
    "digests with other line ends": _sums(lambda lines, r: "".join(lines).replace("\n", "\r\n")),
    "member after the digests": lambda b, r: (
        b.raw.rstrip(b"\0") + bytes(-len(b.raw.rstrip(b"\0")) % 512) + Member("x").written()
    ),
    "two archives": lambda b, r: b.raw + b.raw,
    "two archives without an end": lambda b, r: b.sealed()[:-1024] + b.raw,
    "rubbish at the end": lambda b, r: b.raw + r.randbytes(r.randrange(1, 5000)),
    "truncated": lambda b, r: b.raw[: r.randrange(len(b.raw) - 10240)],
    "no bytes": lambda b, r: b"",
    "zeros or noise": lambda b, r: r.choice([bytes(r.randrange(1, 5000)), r.randbytes(r.randrange(1, 5000))]),
    "gzip": lambda b, r: gzip.compress(b.raw, 1, mtime=0)[: r.choice([None, 1000, 10])],
    "xz": lambda b, r: lzma.compress(b.raw, preset=0)[: r.choice([None, 1000])],
    "zstd": lambda b, r: b"\x28\xb5\x2f\xfd" + r.randbytes(r.randrange(500)),
    "gzip bomb": lambda b, r: gzip.compress(bytes(50 * MEGABYTE), 1, mtime=0),
    "bit flips in headers": lambda b, r: _flip(b.raw, r, r.choice([1, 1, 10]), headers=True),
    "bit flips in contents": lambda b, r: _flip(b.raw, r, r.choice([1, 1, 10]), headers=False),
    "missing block": lambda b, r: _spliced(b.raw, r, b"", 512),
    "inserted zeros": lambda b, r: _spliced(b.raw, r, bytes(1024), 0),
    "unneeded folder": _named(
        "cache/jax/x", "logs/prefect.log", "locks/x", ".backup.x/y", "ledger.db-wal", "prefect/prefect.db-journal"
    ),
    "settings and code for servers": lambda b, r: b.sealed(
        Member(
            r.choice(
                [
                    "prefect/logging.yml",
                    "prefect/profiles.toml",
                    "prefect/.env",
                    "prefect/prefect.toml",
                    "prefect/prefect.py",
                    "prefect/uvicorn/__init__.py",
                    "mlflow/mlflow.py",
                ]
            ),
            b"raise SystemExit",
        )
    ),
    "empty file": _content(lambda data, r: b""),
    "noise in a file": _content(lambda data, r: r.randbytes(r.choice([1, 100, 100_000]))),
    "changed bytes in a file": _content(_scrambled),
    "half a file": _content(lambda data, r: data[: len(data) // 2]),
    "nested JSON in a file": _content(lambda data, r: r.choice([b"[", b'{"a":', b"- "]) * 200_000),
    "text of 20 or 60 MB in a file": _content(lambda data, r: r.choice([b"a", b"1", b"[]\n", b"\n"]) * (20 * MEGABYTE)),
    "folder instead of a file": _folder_instead,
    "ledger with an endless view": _database(
        "ledger.db", "ALTER TABLE ledger RENAME TO l", f"CREATE VIEW ledger AS {ENDLESS} x AS sequence FROM n"
    ),
    "ledger with an entry of 60 MB": _database(
        "ledger.db",
        "DROP TRIGGER ledger_no_update",
        "UPDATE ledger SET envelope = hex(zeroblob(30000000)) WHERE sequence = 3",
    ),
    "endless view in Prefect's database": _database(
        "prefect/prefect.db",
        "ALTER TABLE variable RENAME TO v",
        f"CREATE VIEW variable AS {ENDLESS} 'x' AS name, x AS value FROM n WHERE x < 0",
    ),
    "huge values in Prefect's database": _database(
        "prefect/prefect.db",
        "DROP TABLE variable",
        "CREATE VIEW variable AS SELECT hex(zeroblob(400000000)) AS name, 1 AS value",
    ),
    "trigger that fills MLflow's database": _database(
        "mlflow/mlflow.db",
        "CREATE TABLE waste (x)",
        "CREATE TRIGGER waste AFTER UPDATE ON datasets BEGIN INSERT INTO waste VALUES (zeroblob(9000000)); END",
    ),
    "endless trigger in MLflow's database": _database(
        "mlflow/mlflow.db",
        f"CREATE TRIGGER waste AFTER UPDATE ON datasets BEGIN SELECT count(*) FROM ({ENDLESS} x FROM n); END",
    ),
}


def mutated(archive: Path, count: int, folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield kind and path of mutated copies of a backup, every kind in turn; a copy is removed after its turn."""
    backup, kinds = Backup.read(archive), list(STRUCTURES.items())
    for number in range(count):
        kind, mutate = kinds[number % len(kinds)]
        path = folder / f"{number}.tar"
        path.write_bytes(mutate(backup, Random(number)))
        yield kind, path
        path.unlink()


RESTORED = (
    "file and folder of one name",
    "3,000 nested folders",
    "name that leaves the home",
    "symbolic link",
    "sparse 1.0",
    "more bytes than stated",
    "files: -1",
    "digests of 300 MB",
    "unneeded folder",
    "settings and code for servers",
    "ledger with an endless view",
    "trigger that fills MLflow's database",
)
"""Kinds of which `make redteam` tries one archive each."""


def restore_mutated(kind: str) -> Callable[[Stage], str | None]:
    """Restore a mutated backup of a home."""

    def play(stage: Stage) -> str | None:
        path = stage.home.root.with_name("mutated.tar")
        database = stage.home.folder("mlflow") / "mlflow.db"
        with closing(sqlite3.connect(database)) as connection, connection:
            connection.execute("CREATE TABLE IF NOT EXISTS datasets (dataset_source TEXT)")
            connection.execute("INSERT INTO datasets VALUES ('x')")
        write_backup(stage.home, path, lambda *_: None)
        path.write_bytes(STRUCTURES[kind](Backup.read(path), Random(0)))
        done = restore(path, stage.home.root.with_name("restored"), lambda *_: None)
        found = [check for check in done.checks if check.startswith("FAIL")]
        found += [line for line in done.left_out if "because only the servers' databases" in line]
        return found[0] if found else None

    return play


def plant_run(stage: Stage) -> str | None:
    """Plant a run with a shell step, and start a worker in the restored home. The Prefect server is not started."""
    with closing(sqlite3.connect(stage.home.folder("prefect") / "prefect.db")) as connection, connection:
        connection.executescript(
            """
            CREATE TABLE deployment (id TEXT, name TEXT, pull_steps TEXT);
            CREATE TABLE flow_run (name TEXT, state_type TEXT, deployment_id TEXT, job_variables TEXT);
            INSERT INTO deployment VALUES ('1', 'planted', '[{"run_shell_script": {"script": "touch x"}}]');
            INSERT INTO flow_run VALUES ('planted', 'SCHEDULED', '1', '{}');
            """
        )
    path = stage.home.root.with_name("planted.tar")
    write_backup(stage.home, path, lambda *_: None)
    done = restore(path, stage.home.root.with_name("restored"), lambda *_: None)
    if any("waiting run: planted" in line and "touch x" in line for line in done.work):
        serve(Home(Path(done.home)), "worker", "127.0.0.1", 8080, ())
    return None
