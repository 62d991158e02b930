"""A home from its backup: every digest is compared before it is put in place, whole or not at all."""

from __future__ import annotations

import hashlib
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
from tasks.evidence.ledger.ledger import Ledger
from tasks.files.canonical import fsync_folder, make_folder, unwritable_is_bad_input
from tasks.files.locks import exclusive
from tasks.maintenance.backup_file import BLOCK, FORMAT, HEADER, SUMS, Hashing, Header, Megabytes, read_header
from tasks.progress import Report

AGAIN = "take another copy of the backup"
FOUND_BY_PATH = ("prefect/storage", "results")
"""Stored results of stages: they name files by their whole path, and are computed again in another place."""


class Restored(BaseModel):
    """What a restore came to."""

    model_config = ConfigDict(frozen=True)

    home: str
    files: int
    size: int
    made: str
    """When the backup was made."""
    left_out: tuple[str, ...]
    moved: bool
    """Whether the home lies elsewhere now, so that stored results of stages were left behind."""
    checks: tuple[str, ...]
    """The audit, a line for each check."""
    passed: bool


def restore(archive: Path, root: Path, progress: Report) -> Restored:
    """Make a home of a backup, and audit it.

    Args:
        archive: from `neorl backup`.
        root: the home's folder: absent or empty.
        progress: told of megabytes read.

    Raises:
        BadInput: when there is no such file, the ledger's place is set to a team's database, or there is no room.
        Refused: when the folder holds something, the backup is damaged or of a newer version, or another restore goes
            on there; nothing has been put in place then.
    """
    root = root.expanduser().resolve()
    if not archive.is_file():
        raise BadInput(f"expected a backup at {archive}, got no such file: check the path.")
    if os.environ.get("NEORL_LEDGER_URL"):
        raise BadInput("expected NEORL_LEDGER_URL to be unset, got it set: unset it, for a backup's ledger is a file.")
    _check_empty(root)
    make_folder(root.parent)
    staging = root.with_name(f".{root.name}.restoring")
    lock = root.with_name(f"{staging.name}.lock")

    def held() -> None:
        raise Refused(f"expected no other restore to {root}, got one that goes on: wait for it.")

    with exclusive(lock, held), unwritable_is_bad_input(root):
        try:
            # What a killed one left.
            shutil.rmtree(staging, ignore_errors=True)
            staging.mkdir(mode=0o700)
            header, files, size = _unpack(archive, staging, progress)
            moved = header.root != str(root)
            if moved:
                _leave_behind(staging, header.root, str(root))
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


def _check_empty(root: Path) -> None:
    if root.exists() and (not root.is_dir() or any(root.iterdir())):
        raise Refused(
            f"expected an empty folder or none at {root}, got one that holds something: restore beside it, and compare."
        )


def _unpack(archive: Path, staging: Path, progress: Report) -> tuple[Header, int, int]:
    """Write every file of a backup below a folder, and compare each with its digest."""
    found: dict[str, str] = {}
    told = Megabytes(archive.stat().st_size, progress)
    header: Header | None = None
    sums: Mapping[str, str] | None = None
    try:
        with archive.open("rb") as file, tarfile.open(fileobj=file, mode="r|", bufsize=BLOCK) as tar:
            for member in tar:
                name = member.name
                if sums is not None or not member.isreg() or not _is_inside(name) or name in found:
                    raise Refused(f"expected a backup at {archive}, got the odd member {name[:80]!r}: {AGAIN}.")
                content = tar.extractfile(member)
                assert content is not None
                if name == SUMS:
                    sums = _read_sums(content.read().decode())
                elif header is None:
                    data = content.read(BLOCK)
                    header, found[name] = _checked_header(name, data), hashlib.sha256(data).hexdigest()
                else:
                    found[name] = _write(staging / name, Hashing(content, told))
    except (tarfile.TarError, EOFError, ValueError, OverflowError) as error:
        raise Refused(f"expected a whole backup at {archive}, got {_said(error)}: {AGAIN}.") from error
    if header is None or sums is None:
        raise Refused(f"expected a whole backup at {archive}, got one that ends before its list of digests: {AGAIN}.")
    wrong = sorted(name for name in {*found, *sums} if found.get(name) != sums.get(name))
    if wrong:
        raise Refused(
            f"expected {wrong[0]} with SHA-256 {sums.get(wrong[0], 'of no list')[:12]} in {archive}, got "
            f"{found.get(wrong[0], 'no such file')[:12]}: {AGAIN}."
        )
    return header, len(found) - 1, header.size


def _checked_header(name: str, data: bytes) -> Header:
    if name != HEADER:
        raise Refused(f"expected a backup that begins with {HEADER}, got {name[:80]!r}: give a file of 'neorl backup'.")
    header = read_header(data)
    if header.format > FORMAT or header.layout > LAYOUT:
        raise Refused(
            f"expected a backup of format {FORMAT} and layout {LAYOUT} at most, got {header.format} and "
            f"{header.layout}, by NeoRL {header.neorl}: install that version, and restore with it."
        )
    return header


def _read_sums(text: str) -> Mapping[str, str]:
    # Only a line feed ends a line: a file's name may hold any other character at which `splitlines` splits.
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


def _leave_behind(staging: Path, before: str, now: str) -> None:
    """What names files by the place where the home was: results are computed again, MLflow's pages name the new one."""
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
        os.rename(staging, root)  # takes the place of an empty folder, and of no other
    except OSError as error:
        raise Refused(
            f"expected an empty folder or none at {root}, got '{error.strerror}': restore beside it, and compare."
        ) from error
    fsync_folder(root.parent)


def _audited(home: Home) -> AuditReport:
    if not Ledger.exists(home):
        return AuditReport([])
    try:
        return audit(home)
    except NeoRLError as error:
        from tasks.evidence.certificate import Check

        return AuditReport([Check("audit", False, str(error))])


def _line(name: str, passed: bool | None, detail: str) -> str:
    return f"{'ok  ' if passed else '--  ' if passed is None else 'FAIL'}  {name}: {detail}"


def _said(error: Exception) -> str:
    said = " ".join(str(error).split())[:120]
    return f"one that is cut short or altered ({said or type(error).__name__})"
