"""Write a home into one backup file: a tar archive that begins with a header and ends with the SHA-256 of all files."""

from __future__ import annotations

import hashlib
import io
import os
import tarfile
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import IO

from pydantic import BaseModel, ConfigDict

from configs.errors import BadInput, NeoRLError
from configs.home import Home
from tasks.evidence.ledger import table
from tasks.evidence.ledger.ledger import Ledger
from tasks.evidence.ledger.signing import TrustRoot
from tasks.files.canonical import writing
from tasks.files.stored import is_stored, stored_sha256
from tasks.maintenance.backup_format import (
    BLOCK,
    DEEPEST,
    FORMAT,
    GROWTH,
    HEADER,
    LONGEST_NAME,
    SUMS,
    Header,
    Megabytes,
    allowed,
    storable,
)
from tasks.maintenance.snapshot import Snapshot, snapshot
from tasks.progress import Report


class Backup(BaseModel):
    """Result of a backup."""

    model_config = ConfigDict(frozen=True)

    file: str
    files: int
    size: int
    entries: int
    left_out: tuple[str, ...]
    damaged: tuple[str, ...] = ()
    """Messages about files that are missing or differ from the ledger; the backup contains these files unchanged."""


def backup(home: Home, path: Path, progress: Report) -> Backup:
    """Write a home into one file while servers and runs continue.

    Args:
        path: file to write, outside the home; it must not exist.

    Raises:
        BadInput: if there is no home, the path is unsuitable, a file name cannot be stored, or the disk is full.
    """
    path = path.resolve()
    if not home.root.is_dir():
        raise BadInput(f"there is no home at {home.root}: check NEORL_HOME")
    if path.exists():
        raise BadInput(f"{path} already exists: choose another file")
    if path.is_relative_to(home.root.resolve()):
        raise BadInput(f"{path} is inside the home {home.root}: choose a file outside")
    if not path.parent.is_dir():
        raise BadInput(f"the folder {path.parent} does not exist: make it, or choose another file")
    with writing(path) as temporary, temporary.open("wb") as file, snapshot(home) as found:
        _check_names(home, found)
        ledger = _NamedFiles(home, found.files.get("ledger.db"))
        header = _header(home, found, ledger.entries)
        sums = _write(file, header, found, progress)
    return Backup(
        file=str(path),
        files=header.files,
        size=header.size,
        entries=header.entries,
        left_out=found.left_out,
        damaged=ledger.damaged(sums),
    )


class _NamedFiles:
    """Files that the copied ledger names. The backup reports damaged files at once, not only after a restore."""

    def __init__(self, home: Home, copy: Path | None) -> None:
        self._home = home
        self._files: dict[tuple[str, str], None] = {}
        self._fault: str | None = None
        self.entries = 0
        if copy is None:
            return
        try:
            entries = Ledger(home, table.connect(f"sqlite:///{copy}"), TrustRoot.locate(home), None).entries()
            self.entries = len(entries)
            self._files = {(file.path, file.sha256): None for entry in entries for file in entry.artefacts}
        except NeoRLError as error:
            self._fault = str(error)

    def damaged(self, sums: Mapping[str, str]) -> tuple[str, ...]:
        """Return a message for each file that differs from the ledger."""
        wrong = (
            f"{file} {'differs from the ledger' if file in sums else 'is missing'}"
            for file, digest in self._files
            if sums.get(file) != digest and not self._is_in_bucket(file, digest)
        )
        return (*([self._fault] if self._fault else []), *wrong)

    def _is_in_bucket(self, file: str, digest: str) -> bool:
        path = self._home.root / file
        return not path.exists() and is_stored(path) and stored_sha256(path) == digest


def _check_names(home: Home, found: Snapshot) -> None:
    """Reject file names that the header or the list of digests cannot store, before anything is written."""
    for name in (str(home.root.resolve()), *found.files):
        try:
            name.encode()
        except UnicodeEncodeError as error:
            raise BadInput(f"file names must be UTF-8, got {name!r} in the home: rename it") from error
    for name in found.files:
        if not storable(name):
            raise BadInput(
                "file names must not contain line ends or backslashes, and have at most "
                f"{LONGEST_NAME} bytes and {DEEPEST} folders, got {name[:200]!r}: rename it"
            )


def _header(home: Home, found: Snapshot, entries: int) -> Header:
    return Header(
        format=FORMAT,
        layout=home.layout,
        neorl=metadata.version("neorl"),
        made=datetime.now(UTC).isoformat(timespec="seconds"),
        root=str(home.root.resolve()),
        files=len(found.files),
        size=sum(path.stat().st_size for path in found.files.values() if path.exists()),
        entries=entries,
        left_out=found.left_out,
    )


def _write(file: IO[bytes], header: Header, found: Snapshot, progress: Report) -> Mapping[str, str]:
    sums: dict[str, str] = {}
    report = Megabytes(header.size, progress)
    copied = 0
    with tarfile.open(fileobj=file, mode="w|", format=tarfile.PAX_FORMAT, bufsize=BLOCK) as tar:
        tar.copybufsize = BLOCK  # type: ignore[attr-defined]  # missing in the stubs
        first = header.model_dump_json(indent=1).encode()
        sums[HEADER] = _add(tar, HEADER, io.BytesIO(first), len(first))
        for name, path in found.files.items():
            try:
                content = path.open("rb")
            except FileNotFoundError:
                continue  # a temporary file that was renamed meanwhile
            with content:
                # Use the size of the open file, because another file may have taken this name meanwhile.
                size = os.fstat(content.fileno()).st_size
                if (copied := copied + size) > allowed(header.size, GROWTH):
                    raise BadInput(f"the home grew from {header.size} to {copied} bytes during the copy: back up again")
                sums[name] = _add(tar, name, content, size, report)
        last = "".join(f"{digest}  {name}\n" for name, digest in sums.items()).encode()
        _add(tar, SUMS, io.BytesIO(last), len(last))
    return sums


def _add(
    tar: tarfile.TarFile, name: str, content: IO[bytes], size: int, report: Callable[[int], None] | None = None
) -> str:
    """Add a file to the archive; return the SHA-256."""
    info = tarfile.TarInfo(name)
    info.size, info.mode = size, 0o600
    reader = Hashing(content, report)
    try:
        tar.addfile(info, reader)
    except OSError as error:
        if "unexpected end" not in str(error):
            raise
        raise BadInput(f"{name} became shorter than {size} bytes while it was copied: back up again") from error
    return reader.digest.hexdigest()


class Hashing(io.RawIOBase):
    """Read-only stream that computes the SHA-256 of the data read."""

    def __init__(self, content: IO[bytes], report: Callable[[int], None] | None = None) -> None:
        self._content, self._report = content, report
        self.digest = hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        """Return the next bytes."""
        data = self._content.read(size)
        self.digest.update(data)
        if self._report:
            self._report(len(data))
        return data
