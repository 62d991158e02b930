"""Restore a home from a backup. All digests are verified before the complete home is moved to its place."""

from __future__ import annotations

import hashlib
import os
import shutil
import sqlite3
import tarfile
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import IO, NamedTuple

from pydantic import BaseModel, ConfigDict, ValidationError

from configs.errors import BadInput, Refused, printable
from configs.home import LAYOUT, Home
from tasks.files.canonical import exclusive, fsync_path, make_folder, unwritable_is_bad_input
from tasks.maintenance.backup_format import (
    BLOCK,
    FORMAT,
    GROWTH,
    HEADER,
    LONGEST_NAME,
    MLFLOW,
    SUMS,
    Header,
    Megabytes,
    allowed,
    storable,
)
from tasks.maintenance.limited_audit import Found, limited_audit
from tasks.maintenance.restored import foreign_database, hold, work_of
from tasks.progress import Report

AGAIN = "take another copy of the backup"
LONGEST_EXTENSION = 1 << 16
"""Bytes of an extended header, which gives a long name."""
LONGEST_LINE = 64 + 2 + LONGEST_NAME
SHORT = 16
MOST_EMPTY = 1000
"""Folders in addition to the number of files."""
KEPT = {
    "prefect": ("prefect.db", "deployments.json", "storage"),
    "mlflow": ("mlflow.db", "artifacts"),
}
"""Folder -> names that are restored there. Prefect would execute a `logging.yml`, for example."""
FOUND_BY_PATH = ("prefect/storage", "results")
"""Folders of cached results. They contain absolute paths, so they are removed if the home's path changes."""


class Restored(BaseModel):
    """Result of a restore."""

    model_config = ConfigDict(frozen=True)

    home: str
    files: int
    size: int
    made: str
    """Time of the backup."""
    left_out: tuple[str, ...]
    moved: bool
    """Whether the home's path has changed, so that cached results were removed."""
    work: tuple[str, ...]
    """Schedules, runs, automations and work queues that wait for `neorl up --accept-restored`."""
    checks: tuple[str, ...]
    """One line for each check of the audit."""
    passed: bool


def restore(archive: Path, root: Path, progress: Report) -> Restored:
    """Restore a home from a backup and audit it.

    Args:
        root: folder of the home; it must be missing or empty.

    Raises:
        BadInput: if there is no such file, NEORL_LEDGER_URL is set, or the disk is full.
        Refused: if the folder is not empty, the backup is damaged or too new, or another restore is running. The folder
            is unchanged then.
    """
    root = root.expanduser().resolve()
    if not archive.is_file():
        raise BadInput(f"there is no backup at {archive}: check the path")
    if os.environ.get("NEORL_LEDGER_URL"):
        raise BadInput("NEORL_LEDGER_URL is set, but a backup restores the ledger as a file: unset it")
    if root.exists() and (not root.is_dir() or any(root.iterdir())):
        raise Refused(f"{root} is not an empty folder: restore into another folder")
    make_folder(root.parent)
    staging = root.with_name(f".{root.name}.restoring")
    lock = root.with_name(f"{staging.name}.lock")

    def busy() -> None:
        raise Refused(f"another restore to {root} is running: wait for it")

    with exclusive(lock, busy), unwritable_is_bad_input(root):
        try:
            # A killed restore may have left this folder.
            shutil.rmtree(staging, ignore_errors=True)
            staging.mkdir(mode=0o700)
            header, files, size = _unpack(archive, staging, progress)
            left_out = (*header.left_out, *_drop_foreign(staging))
            moved = header.root != str(root)
            checks = _drop_absolute_paths(staging, header.root, str(root)) if moved else []
            if (work := work_of(staging, header.made)) is not None:
                hold(staging, work)
            os.sync()
            _put_in_place(staging, root)
        finally:
            shutil.rmtree(staging, ignore_errors=True)
            lock.unlink(missing_ok=True)
    checks += limited_audit(Home(root))
    return Restored(
        home=str(root),
        files=files,
        size=size,
        made=header.made,
        left_out=left_out,
        moved=moved,
        work=work.found if work else (),
        checks=tuple(_line(*check) for check in checks),
        passed=all(passed is not False for _, passed, _ in checks),
    )


class _Member(NamedTuple):
    """A plain file in the archive."""

    name: str
    size: int
    blocks: Iterator[bytes]
    """Content; read it before the next member."""


class _Unpacked:
    """Files of a backup so far, within the limits that the header states; constant memory for each file."""

    def __init__(self, archive: Path, header: Header) -> None:
        self.archive, self.header = archive, header
        self.files = self._size = self._folders = 0
        self._lines = bytearray()
        """First 16 bytes of the SHA-256 of each line that the list of digests must have."""

    def accept(self, member: _Member) -> None:
        """Account for a file.

        Raises:
            Refused: if the name or the size is unacceptable; nothing is written then.
        """
        if not storable(member.name):
            raise _unexpected(self.archive, member)
        self.files += 1
        self._size += member.size
        if self.files > allowed(self.header.files, 100) or self._size > allowed(self.header.size, GROWTH):
            raise Refused(
                f"{self.archive} has more than the {self.header.files} files of {self.header.size} bytes that it "
                f"states: {AGAIN}"
            )

    def make_folders(self, path: Path) -> None:
        """Make the folders of a file.

        Raises:
            Refused: if there are many more folders than files. Each takes a block of the disk.
        """
        missing = []
        for folder in path.parents:
            if folder.exists():
                break
            missing.append(folder)
        self._folders += len(missing)
        if self._folders > self.header.files + MOST_EMPTY:
            raise Refused(f"{self.archive} has many more folders than the {self.header.files} files: {AGAIN}")
        for folder in reversed(missing):
            folder.mkdir(mode=0o700)

    def add(self, name: str, digest: str) -> None:
        """Expect this digest in the list."""
        self._lines += _short(f"{digest}  {name}".encode())

    def compare(self, blocks: Iterator[bytes]) -> None:
        """Compare the digests with the list in the archive, line by line.

        Raises:
            Refused: if a digest differs, or a file is missing.
        """
        at, rest = 0, b""
        for block in chain(blocks, [b""]):
            # File names may contain other separators of `splitlines`.
            *lines, rest = (rest + block).split(b"\n")
            for line in lines:
                if self._lines[at : at + SHORT] != _short(line):
                    raise self._wrong(line)
                at += SHORT
            if len(rest) > LONGEST_LINE:
                raise self._wrong(rest)
        if rest or at != len(self._lines):
            raise self._wrong(rest or b"the end")

    def _wrong(self, line: bytes) -> Refused:
        text = line[:LONGEST_LINE].decode(errors="replace")
        digest, two, name = text.partition("  ")
        listed = f"{name[:80]} with SHA-256 {digest[:12]}" if two else text[:80]
        return Refused(f"{SUMS} of {self.archive} lists {listed}, but the archive has other files: {AGAIN}")


def _short(line: bytes) -> bytes:
    return hashlib.sha256(line).digest()[:SHORT]


def _unexpected(archive: Path, member: _Member) -> Refused:
    return Refused(f"{archive} has the unexpected member {member.name[:80]!r}: {AGAIN}")


def _unpack(archive: Path, staging: Path, progress: Report) -> tuple[Header, int, int]:
    """Unpack a backup into a folder and verify every file's digest."""
    report = Megabytes(archive.stat().st_size, progress)
    found: _Unpacked | None = None
    complete = False
    try:
        with archive.open("rb") as file:
            for member in _members(file):
                if complete:
                    raise Refused(f"{archive} has the member {member.name[:80]!r} after the digests: {AGAIN}")
                if found is None:
                    data = next(member.blocks, b"") if member.size <= BLOCK else b""
                    found = _Unpacked(archive, _checked_header(member.name, data))
                    found.add(HEADER, hashlib.sha256(data).hexdigest())
                elif member.name == SUMS:
                    found.compare(member.blocks)
                    complete = True
                else:
                    found.accept(member)
                    try:
                        found.make_folders(staging / member.name)
                        found.add(member.name, _write(staging / member.name, member.blocks, report))
                    except (FileExistsError, NotADirectoryError, IsADirectoryError) as error:
                        raise _unexpected(archive, member) from error
    except (tarfile.TarError, ValueError) as error:
        message = " ".join(str(error).split())[:120] or type(error).__name__
        raise Refused(f"{archive} is truncated or altered ({message}): {AGAIN}") from error
    if found is None or not complete:
        raise Refused(f"{archive} ends before the list of digests: {AGAIN}")
    return found.header, found.files, found.header.size


def _members(file: IO[bytes]) -> Iterator[_Member]:
    """Yield the plain files of a tar archive in order.

    `tarfile` reads more than backups contain, such as sparse files, and keeps all members in memory.

    Raises:
        tarfile.TarError: if the archive is truncated, or has other members than files with a name and a size.
    """
    extended: dict[str, str] = {}
    while (head := _exactly(file, tarfile.BLOCKSIZE)) != bytes(tarfile.BLOCKSIZE):
        info = tarfile.TarInfo.frombuf(head, "utf-8", "strict")
        if info.type == tarfile.XHDTYPE and 0 <= info.size <= LONGEST_EXTENSION and not extended:
            extended = _extended(b"".join(_blocks(file, info.size)))
            continue
        size = int(extended.get("size", info.size))
        if info.type != tarfile.REGTYPE or size < 0:
            raise tarfile.ReadError(f"{info.name[:80]!r} has type {info.type!r} and {size} bytes")
        member = _Member(extended.get("path", info.name), size, _blocks(file, size))
        yield member
        for _ in member.blocks:
            pass
        extended = {}


def _extended(data: bytes) -> dict[str, str]:
    """Return the fields of a PAX header; only a path and a size are known."""
    fields: dict[str, str] = {}
    while data:
        length, _, _ = data.partition(b" ")
        record, data = data[: int(length)], data[int(length) :]
        key, equals, value = record[len(length) + 1 : -1].decode().partition("=")
        if key not in ("path", "size") or key in fields or not equals or record[-1:] != b"\n":
            raise tarfile.ReadError(f"extended header {key[:80]!r}")
        fields[key] = value
    return fields


def _blocks(file: IO[bytes], size: int) -> Iterator[bytes]:
    """Yield the next bytes in blocks, and skip the padding."""
    for start in range(0, size, BLOCK):
        yield _exactly(file, min(BLOCK, size - start))
    _exactly(file, -size % tarfile.BLOCKSIZE)


def _exactly(file: IO[bytes], size: int) -> bytes:
    data = file.read(size)
    if len(data) != size:
        raise tarfile.ReadError(f"unexpected end of data after {len(data)} of {size} bytes")
    return data


def _checked_header(name: str, data: bytes) -> Header:
    if name != HEADER:
        raise Refused(f"a backup must begin with {HEADER}, got {name[:80]!r}: give a file of 'neorl backup'")
    try:
        header = Header.model_validate_json(data)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = " ".join(map(str, first["loc"]))
        got = f", got {str(first['input'])[:40]!r}" if place else ""
        raise ValueError(f"{HEADER}: {place} {first['msg']}{got}") from error
    if header.format > FORMAT or header.layout > LAYOUT:
        raise Refused(
            f"the backup has format {header.format} and layout {header.layout}, this NeoRL reads formats up to "
            f"{FORMAT} and layouts up to {LAYOUT}: install NeoRL {header.neorl}"
        )
    return header


def _write(path: Path, blocks: Iterator[bytes], report: Callable[[int], None]) -> str:
    """Write a new file; return the SHA-256."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    digest = hashlib.sha256()
    with open(descriptor, "wb") as file:
        for data in blocks:
            file.write(data)
            digest.update(data)
            report(len(data))
    return digest.hexdigest()


def _drop_foreign(staging: Path) -> Iterator[str]:
    """Remove files that servers would read as settings or code; yield a line for each."""
    for folder, kept in KEPT.items():
        for path in sorted((staging / folder).glob("*")):
            if path.name not in kept:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
                yield f"{folder}/{path.name}, because only the servers' databases and results are restored there"


TRIGGERS = "SELECT name FROM sqlite_master WHERE type = 'trigger' AND lower(tbl_name) = 'datasets' LIMIT 1"
TABLE = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'datasets'"
BATCH_END = "SELECT max(rowid) FROM (SELECT rowid FROM datasets WHERE rowid > ? ORDER BY rowid LIMIT 1000)"
"""Last row of the next thousand."""
MOVE_PATHS = """UPDATE datasets SET dataset_source = replace(dataset_source, ?, ?)
WHERE rowid > ? AND rowid <= ? AND length(CAST(dataset_source AS BLOB)) < 65536"""
LEFT = "SELECT count(*) FROM datasets WHERE instr(dataset_source, ?)"
FIRST = -(2**63)


def _drop_absolute_paths(staging: Path, before: str, now: str) -> list[Found]:
    """Remove cached results and update paths in MLflow's database after a move; return a failed check if it cannot."""
    for name in FOUND_BY_PATH:
        shutil.rmtree(staging / name, ignore_errors=True)
    database = staging / MLFLOW
    if not database.exists():
        return []
    try:
        with foreign_database(database, write=True) as connection:
            if found := connection.execute(TRIGGERS).fetchone():
                name = printable(str(found[0]), but="")[:80]
                raise sqlite3.DatabaseError(f"table 'datasets' has the trigger '{name}', which MLflow's does not have")
            if not connection.execute(TABLE).fetchone():
                raise sqlite3.DatabaseError(f"{database.name} has no table 'datasets'")
            # A journal on disk could double the size of the database, so it is in memory and of few rows.
            connection.execute("PRAGMA journal_mode = MEMORY")
            last: int | None = FIRST
            while (last := connection.execute(BATCH_END, [first := last]).fetchone()[0]) is not None:
                with connection:
                    connection.execute(MOVE_PATHS, (f"{before}/", f"{now}/", first, last))
            if before not in now and (left := connection.execute(LEFT, (f"{before}/",)).fetchone()[0]):
                raise sqlite3.DatabaseError(f"{left:,} rows of 'datasets' are too long")
    except sqlite3.Error as error:
        return [("mlflow", False, f"{MLFLOW} cannot be updated ({error}): {AGAIN}")]
    return []


def _put_in_place(staging: Path, root: Path) -> None:
    try:
        os.rename(staging, root)  # replaces an empty folder only
    except OSError as error:
        raise Refused(f"{root} is not an empty folder ('{error.strerror}'): restore into another folder") from error
    fsync_path(root.parent)


def _line(name: str, passed: bool | None, detail: str) -> str:
    return f"{'ok  ' if passed else '--  ' if passed is None else 'FAIL'}  {name}: {detail}"
