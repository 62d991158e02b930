"""Restore a home from a backup. All digests are verified before the complete home is moved to its place."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sqlite3
import tarfile
from contextlib import closing
from pathlib import Path, PurePosixPath
from typing import IO, Self

from pydantic import BaseModel, ConfigDict

from configs.errors import BadInput, NeoRLError, Refused
from configs.home import LAYOUT, Home
from tasks.evidence.audit.audit import AuditReport, audit
from tasks.evidence.certificate import Check
from tasks.evidence.ledger.ledger import Ledger
from tasks.files.canonical import exclusive, fsync_path, make_folder, unwritable_is_bad_input
from tasks.maintenance.backup_file import BLOCK, FORMAT, HEADER, MEGABYTE, SUMS, Hashing, Header, Megabytes
from tasks.maintenance.restored import hold, work_of
from tasks.progress import Report

AGAIN = "take another copy of the backup"
LONGEST_EXTENSION = 1 << 16
"""Bytes of an extended header, which gives a long name."""
LONGEST_NAME, DEEPEST = 1024, 32
"""Bytes and folders of a file's path in the home."""
LONGEST_LINE = 64 + 2 + LONGEST_NAME + 1
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
            moved = header.root != str(root)
            if moved:
                _drop_absolute_paths(staging, header.root, str(root))
            work = work_of(staging, header.made)
            if work.found:
                hold(staging, work)
            os.sync()
            _put_in_place(staging, root)
        finally:
            shutil.rmtree(staging, ignore_errors=True)
            lock.unlink(missing_ok=True)
    report = _audited(Home(root))
    return Restored(
        home=str(root),
        files=files,
        size=size,
        made=header.made,
        left_out=header.left_out,
        moved=moved,
        work=work.found,
        checks=tuple(_line(check.name, check.passed, check.detail) for check in report.checks),
        passed=report.passed,
    )


class _PlainMember(tarfile.TarInfo):
    """Header of a plain file; everything else that tar can express is refused before it is read."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        """Parse a header.

        Raises:
            tarfile.ReadError: if it is no plain file's, or an extension of more than 64 KiB.
        """
        found = super().frombuf(buf, encoding, errors)
        if found.type == tarfile.XHDTYPE and found.size <= LONGEST_EXTENSION:
            return found
        if found.type != tarfile.REGTYPE:
            raise tarfile.ReadError(f"{found.name[:80]!r} has type {found.type!r} and {found.size} bytes")
        return found


class _Unpacked:
    """Files of a backup so far, within the limits that the header states."""

    def __init__(self, archive: Path, header: Header) -> None:
        self.archive, self.header = archive, header
        self.digests: dict[str, str] = {}
        self._folders: set[str] = set()
        self._size = 0

    def accept(self, member: tarfile.TarInfo) -> None:
        """Account for a file.

        Raises:
            Refused: if the name or the size is unacceptable; nothing is written then.
        """
        name, folders = member.name, [str(folder) for folder in PurePosixPath(member.name).parents][:-1]
        known = name in self.digests or name in self._folders or any(folder in self.digests for folder in folders)
        if member.sparse is not None or known or not _is_inside(name):
            raise Refused(f"{self.archive} has the unexpected member {name[:80]!r}: {AGAIN}")
        self._folders.update(folders)
        self._size += member.size
        # Files may grow while they are copied.
        if len(self.digests) >= 1.1 * self.header.files + 1 or self._size > 1.1 * self.header.size + MEGABYTE:
            raise Refused(
                f"{self.archive} has more than the {self.header.files} files of {self.header.size} bytes that it "
                f"states: {AGAIN}"
            )

    def compare(self, content: IO[bytes]) -> None:
        """Compare the digests with the list in the archive, line by line.

        Raises:
            Refused: if a digest differs, or a file is missing.
        """
        left = dict(self.digests)
        # File names may contain other separators of `splitlines`.
        while line := content.readline(LONGEST_LINE):
            digest, _, name = line.decode().removesuffix("\n").partition("  ")
            got = left.pop(name, None)
            if got != digest:
                raise self._wrong(name, digest, got)
        if left:
            name, got = min(left.items())
            raise self._wrong(name, "unlisted", got)

    def _wrong(self, name: str, listed: str, got: str | None) -> Refused:
        return Refused(
            f"{name[:80]} in {self.archive} must have SHA-256 {listed[:12]}, got {(got or 'no file')[:12]}: {AGAIN}"
        )


def _unpack(archive: Path, staging: Path, progress: Report) -> tuple[Header, int, int]:
    """Unpack a backup into a folder and verify every file's digest."""
    report = Megabytes(archive.stat().st_size, progress)
    found: _Unpacked | None = None
    complete = False
    try:
        with (
            archive.open("rb") as file,
            tarfile.open(fileobj=file, mode="r|", bufsize=BLOCK, tarinfo=_PlainMember) as tar,
        ):
            for member in tar:
                content = tar.extractfile(member)
                assert content is not None
                if complete:
                    raise Refused(f"{archive} has the member {member.name[:80]!r} after the digests: {AGAIN}")
                if found is None:
                    data = content.read(BLOCK)
                    found = _Unpacked(archive, _checked_header(member.name, data))
                    found.digests[HEADER] = hashlib.sha256(data).hexdigest()
                elif member.name == SUMS:
                    found.compare(content)
                    complete = True
                else:
                    found.accept(member)
                    found.digests[member.name] = _write(staging / member.name, Hashing(content, report))
    except (tarfile.TarError, EOFError, ValueError, OverflowError) as error:
        message = " ".join(str(error).split())[:120] or type(error).__name__
        raise Refused(f"{archive} is truncated or altered ({message}): {AGAIN}") from error
    if found is None or not complete:
        raise Refused(f"{archive} ends before the list of digests: {AGAIN}")
    return found.header, len(found.digests) - 1, found.header.size


def _checked_header(name: str, data: bytes) -> Header:
    if name != HEADER:
        raise Refused(f"a backup must begin with {HEADER}, got {name[:80]!r}: give a file of 'neorl backup'")
    header = Header.model_validate(json.loads(data))
    if header.format > FORMAT or header.layout > LAYOUT:
        raise Refused(
            f"the backup has format {header.format} and layout {header.layout}, this NeoRL reads formats up to "
            f"{FORMAT} and layouts up to {LAYOUT}: install NeoRL {header.neorl}"
        )
    return header


def _is_inside(name: str) -> bool:
    path = PurePosixPath(name)
    plain = bool(name) and not path.is_absolute() and ".." not in path.parts and str(path) == name and "\0" not in name
    return plain and len(name.encode()) <= LONGEST_NAME and len(path.parts) <= DEEPEST


def _write(path: Path, content: Hashing) -> str:
    for folder in reversed([p for p in path.parents if not p.exists()]):
        folder.mkdir(mode=0o700)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(descriptor, "wb") as file:
        while data := content.read(BLOCK):
            file.write(data)
    return content.digest.hexdigest()


def _drop_absolute_paths(staging: Path, before: str, now: str) -> None:
    """Remove cached results and update paths in MLflow's database after a move."""
    for name in FOUND_BY_PATH:
        shutil.rmtree(staging / name, ignore_errors=True)
    database = staging / "mlflow" / "mlflow.db"
    if database.exists():
        with closing(sqlite3.connect(database)) as connection, connection:
            connection.execute(
                "UPDATE datasets SET dataset_source = replace(dataset_source, ?, ?)", (f"{before}/", f"{now}/")
            )


def _put_in_place(staging: Path, root: Path) -> None:
    try:
        os.rename(staging, root)  # replaces an empty folder only
    except OSError as error:
        raise Refused(f"{root} is not an empty folder ('{error.strerror}'): restore into another folder") from error
    fsync_path(root.parent)


def _audited(home: Home) -> AuditReport:
    if not Ledger.exists(home):
        return AuditReport([])
    try:
        return audit(home)
    except NeoRLError as error:
        return AuditReport([Check("audit", False, str(error))])


def _line(name: str, passed: bool | None, detail: str) -> str:
    return f"{'ok  ' if passed else '--  ' if passed is None else 'FAIL'}  {name}: {detail}"
