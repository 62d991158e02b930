"""A backup: one tar file with a header first and the SHA-256 of every file last, written and read as a stream."""

from __future__ import annotations

import hashlib
import io
import json
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
from tasks.maintenance.snapshot import Snapshot, snapshot
from tasks.progress import Report

HEADER, SUMS = "neorl-backup.json", "SHA256SUMS"
"""The first and the last member; the last is what `sha256sum -c` reads."""
FORMAT = 1
MEGABYTE, BLOCK = 1_000_000, 1 << 20


class Header(BaseModel):
    """What a backup says of itself."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: int
    layout: int
    """Of the home."""
    neorl: str
    """Version of the program that made it."""
    made: str
    root: str
    """Where the home lay."""
    files: int
    size: int
    """Bytes of all files."""
    entries: int
    """Of the ledger."""
    left_out: tuple[str, ...]


class Backup(BaseModel):
    """What a backup came to."""

    model_config = ConfigDict(frozen=True)

    file: str
    files: int
    size: int
    entries: int
    left_out: tuple[str, ...]
    damaged: tuple[str, ...] = ()
    """Files that the ledger names and that are missing or others: they are in the backup as they are in the home."""


def backup(home: Home, path: Path, progress: Report) -> Backup:
    """Write everything that a home holds into one file, while its servers run and runs go on.

    Args:
        home: of which nothing is changed.
        path: a file that does not exist, outside the home.
        progress: told of megabytes written.

    Raises:
        BadInput: when there is no home, the file exists or lies in it, a name in the home cannot be written down, or
            there is no room.
    """
    path = path.resolve()
    if not home.root.is_dir():
        raise BadInput(f"expected a home at {home.root}, got none: check NEORL_HOME.")
    if path.is_relative_to(home.root.resolve()) or path.exists():
        got = "one that exists" if path.exists() else "one inside it"
        raise BadInput(f"expected a new file outside the home {home.root}, got {got}, {path}: name another one.")
    if not path.parent.is_dir():
        raise BadInput(f"expected a folder at {path.parent}, got none: make it, or name another file.")
    with writing(path) as temporary, temporary.open("wb") as file, snapshot(home) as found:
        _check_names(home, found)
        ledger = _Named(home, found.files.get("ledger.db"))
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


class _Named:
    """What the copied ledger names, so that a backup that an audit would refuse is told of at once."""

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
        """What is not as the ledger names it, in words."""
        wrong = (
            f"{file} is {'another' if file in sums else 'missing'}"
            for file, digest in self._files
            if sums.get(file) != digest and not self._is_in_bucket(file, digest)
        )
        return (*([self._fault] if self._fault else []), *wrong)

    def _is_in_bucket(self, file: str, digest: str) -> bool:
        path = self._home.root / file
        return not path.exists() and is_stored(path) and stored_sha256(path) == digest


def _check_names(home: Home, found: Snapshot) -> None:
    """Refuse names that the header or the list of digests cannot hold, before anything is written."""
    for name in (str(home.root.resolve()), *found.files):
        try:
            name.encode()
        except UnicodeEncodeError as error:
            raise BadInput(f"expected names in UTF-8, got {name!r} in the home: rename it.") from error
    for name in found.files:
        if "\n" in name or "\\" in name:
            raise BadInput(f"expected names of files without line ends, got {name!r} in the home: rename it.")


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
    told = Megabytes(header.size, progress)
    with tarfile.open(fileobj=file, mode="w|", format=tarfile.PAX_FORMAT, bufsize=BLOCK) as tar:
        tar.copybufsize = BLOCK  # type: ignore[attr-defined]  # which the stubs do not know
        first = header.model_dump_json(indent=1).encode()
        sums[HEADER] = _add(tar, HEADER, io.BytesIO(first), len(first))
        for name, path in found.files.items():
            try:
                content = path.open("rb")
            except FileNotFoundError:
                continue  # a temporary file that has got its name by now
            with content:
                # Of the open file: another one may have got its name since.
                sums[name] = _add(tar, name, content, os.fstat(content.fileno()).st_size, told)
        last = "".join(f"{digest}  {name}\n" for name, digest in sums.items()).encode()
        _add(tar, SUMS, io.BytesIO(last), len(last))
    return sums


def _add(
    tar: tarfile.TarFile, name: str, content: IO[bytes], size: int, told: Callable[[int], None] | None = None
) -> str:
    """Add a file to the archive; its SHA-256."""
    info = tarfile.TarInfo(name)
    info.size, info.mode = size, 0o600
    reader = Hashing(content, told)
    try:
        tar.addfile(info, reader)
    except OSError as error:
        if "unexpected end" not in str(error):
            raise
        raise BadInput(
            f"expected {name} to keep its {size} bytes while it is copied, got fewer: back up again."
        ) from error
    return reader.digest.hexdigest()


class Megabytes:
    """Tells of bytes in megabytes, of each number once.

    Args:
        size: bytes in all.
        progress: told of them.
    """

    def __init__(self, size: int, progress: Report) -> None:
        self._all, self._progress = max(size // MEGABYTE, 1), progress
        self._done, self._said = 0, -1

    def __call__(self, count: int) -> None:
        """So many bytes more are done."""
        self._done += count
        if (now := min(self._done // MEGABYTE, self._all)) != self._said:
            self._said = now
            self._progress(now, self._all, "MB")


class Hashing(io.RawIOBase):
    """A stream that keeps the SHA-256 of what was read from it, and tells of every piece.

    Args:
        content: what is read.
        told: given the bytes of each piece.
    """

    def __init__(self, content: IO[bytes], told: Callable[[int], None] | None = None) -> None:
        self._content, self._told = content, told
        self.digest = hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        """The next bytes."""
        data = self._content.read(size)
        self.digest.update(data)
        if self._told:
            self._told(len(data))
        return data


def read_header(data: bytes) -> Header:
    """The header of a backup.

    Raises:
        ValueError: when it is none.
    """
    return Header.model_validate(json.loads(data))
