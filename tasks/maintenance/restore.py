"""Restore a home from a backup. All digests are verified before the complete home is moved to its place."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sqlite3
import tarfile
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path, PurePosixPath

from pydantic import BaseModel, ConfigDict

from configs.errors import BadInput, NeoRLError, Refused
from configs.home import LAYOUT, Home
from tasks.evidence.audit.audit import AuditReport, audit
from tasks.evidence.certificate import Check
from tasks.evidence.ledger.ledger import Ledger
from tasks.files.canonical import exclusive, fsync_path, make_folder, unwritable_is_bad_input
from tasks.maintenance.backup_file import BLOCK, FORMAT, HEADER, SUMS, Hashing, Header, Megabytes
from tasks.progress import Report

AGAIN = "take another copy of the backup"
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
        checks=tuple(_line(check.name, check.passed, check.detail) for check in report.checks),
        passed=report.passed,
    )


def _unpack(archive: Path, staging: Path, progress: Report) -> tuple[Header, int, int]:
    """Unpack a backup into a folder and verify every file's digest."""
    found: dict[str, str] = {}
    report = Megabytes(archive.stat().st_size, progress)
    header: Header | None = None
    sums: Mapping[str, str] | None = None
    try:
        with archive.open("rb") as file, tarfile.open(fileobj=file, mode="r|", bufsize=BLOCK) as tar:
            for member in tar:
                name = member.name
                if sums is not None or not member.isreg() or not _is_inside(name) or name in found:
                    raise Refused(f"{archive} has the unexpected member {name[:80]!r}: {AGAIN}")
                content = tar.extractfile(member)
                assert content is not None
                if name == SUMS:
                    sums = _read_sums(content.read().decode())
                elif header is None:
                    data = content.read(BLOCK)
                    header, found[name] = _checked_header(name, data), hashlib.sha256(data).hexdigest()
                else:
                    found[name] = _write(staging / name, Hashing(content, report))
    except (tarfile.TarError, EOFError, ValueError, OverflowError) as error:
        message = " ".join(str(error).split())[:120] or type(error).__name__
        raise Refused(f"{archive} is truncated or altered ({message}): {AGAIN}") from error
    if header is None or sums is None:
        raise Refused(f"{archive} ends before the list of digests: {AGAIN}")
    wrong = sorted(name for name in {*found, *sums} if found.get(name) != sums.get(name))
    if wrong:
        raise Refused(
            f"{wrong[0]} in {archive} must have SHA-256 {sums.get(wrong[0], 'unlisted')[:12]}, got "
            f"{found.get(wrong[0], 'no file')[:12]}: {AGAIN}"
        )
    return header, len(found) - 1, header.size


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


def _read_sums(text: str) -> Mapping[str, str]:
    # Split at line feeds only: file names may contain other separators of `splitlines`.
    pairs = (line.split("  ", 1) for line in text.removesuffix("\n").split("\n"))
    return {name: digest for digest, name in pairs}


def _is_inside(name: str) -> bool:
    path = PurePosixPath(name)
    return bool(name) and not path.is_absolute() and ".." not in path.parts and str(path) == name and "\0" not in name


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
