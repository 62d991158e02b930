"""Canonical JSON and times, SHA-256 digests, atomic writes, secret files, and file locks."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, time
from pathlib import Path
from typing import Any, NamedTuple

from configs.errors import BadInput, Refused
from configs.home import FULL

MAX_JSON_BYTES = 2**26
"""Largest accepted JSON text in bytes; the parsed value may need forty times as much memory."""


def canonical_json(value: Any) -> bytes:
    """Encode a value as JSON in UTF-8 with sorted keys and no white space, so that equal values give equal bytes."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def sha256_hex(data: bytes) -> str:
    """Return the SHA-256 of `data` as 64 lower-case hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()


def digest_json(value: Any) -> str:
    """Return the SHA-256 of a value's `canonical_json`."""
    return sha256_hex(canonical_json(value))


class FileState(NamedTuple):
    """Metadata that shows whether a file has changed: every write to the file changes at least one field."""

    device: int
    inode: int
    size: int
    modified: int
    """Last change of the content, in ns since 1970; the user can set this time."""
    changed: int
    """Last change of content or metadata, in ns since 1970; an ordinary user cannot set this time."""


def file_state(path: Path) -> FileState:
    """Return the metadata of a file, or of the file that a link points to; raise OSError if the file is missing."""
    found = path.stat()
    return FileState(found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def unwritable_is_bad_input(path: Path) -> Iterator[None]:
    """Turn an error about a full disk or a missing write permission into `BadInput`; raise other errors unchanged."""
    try:
        yield
    except OSError as error:
        if error.errno in FULL:
            cure = "free some space there, or choose a folder on another disk"
        elif error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
            cure = "make this folder writable, or choose another folder"
        else:
            raise
        raise BadInput(
            f"cannot write {path.name} in {path.parent} ({error.strerror}): {cure} (NEORL_HOME sets the home folder), "
            "then run the same command again."
        ) from error


def make_folder(path: Path) -> Path:
    """Create a folder and its parents if missing, with the mode of the nearest existing folder; return the path.

    Raises:
        BadInput: if the disk is not writable.
    """
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    with unwritable_is_bad_input(path):
        mode = missing[-1].parent.stat().st_mode & 0o777 if missing else 0
        for folder in reversed(missing):
            folder.mkdir(mode, exist_ok=True)
        path.mkdir(exist_ok=True)
    return path


def fsync_path(path: Path) -> None:
    """Flush a file's content, or a folder's list of files, to the disk, so that a power failure cannot lose it."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def publish(temporary: Path, path: Path) -> None:
    """Rename a finished temporary file to `path`, durably; readers see either the old file or the complete new file."""
    fsync_path(temporary)
    os.replace(temporary, path)
    fsync_path(path.parent)


SHARED = 0o666
"""File mode for exported files: other users may read the file if the umask allows it."""


@contextmanager
def writing(path: Path, mode: int = 0o600) -> Iterator[Path]:
    """Write a file atomically: yield the path of an empty temporary file, and rename it to `path` when the block ends.

    A missing folder is created. If the block raises an error, `path` stays unchanged and the temporary file is removed.
    A disk that is full or not writable raises BadInput.
    """
    make_folder(path.parent)
    with unwritable_is_bad_input(path):
        # `tasks.maintenance.retention` recognises temporary files of killed processes by this form of the name.
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode))
        try:
            yield temporary
            publish(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)


def write_atomic(path: Path, *parts: bytes | memoryview) -> Path:
    """Write the joined parts to a file with mode 0600, atomically; raise BadInput if the disk is not writable."""
    with writing(path) as temporary, temporary.open("wb") as file:
        file.writelines(parts)
    return path


def write_json(path: Path, value: Any) -> Path:
    """Write a value as `canonical_json` and a newline to a file with mode 0600, atomically."""
    return write_atomic(path, canonical_json(value) + b"\n")


def parse_json(data: bytes) -> Any:
    """Parse JSON from an untrusted source; raise ValueError if the text is invalid, too long or nested too deeply."""
    if len(data) > MAX_JSON_BYTES:
        raise ValueError(f"longer than {MAX_JSON_BYTES} bytes")
    try:
        return json.loads(data)
    except RecursionError as error:
        raise ValueError(f"lists or objects nested too deeply in {len(data)} bytes") from error


def read_json(path: Path) -> Any:
    """Read a JSON file; raise BadInput if the file is missing, invalid, too long or nested too deeply."""
    try:
        with path.open("rb") as file:
            return parse_json(file.read(MAX_JSON_BYTES + 1))
    except FileNotFoundError as error:
        raise BadInput(f"{path} does not exist: check the path.") from error
    except ValueError as error:
        reason = " ".join(str(error).split())[:300]
        raise BadInput(f"{path} is not valid JSON ({reason}): restore or recreate the file.") from error


def files_in(folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield every file and link below a folder as (path relative to the folder, full path), sorted."""
    for path in sorted(folder.rglob("*")):
        if path.is_symlink() or not path.is_dir():
            yield path.relative_to(folder).as_posix(), path


def digests_in(folder: Path) -> dict[str, str]:
    """Return a dictionary from each file's path, relative to the folder, to the file's SHA-256."""
    return {name: file_sha256(path) for name, path in files_in(folder)}


def folder_differences(folder: Path, recorded: Mapping[str, str]) -> list[str]:
    """List the missing, extra and changed files of a folder; `recorded` has the SHA-256 of each relative path."""
    faults, found = [], dict(files_in(folder))
    for name in sorted(recorded.keys() | found.keys()):
        if name not in found:
            faults.append(f"{name}: missing")
        elif name not in recorded:
            faults.append(f"{name}: a file that no entry names")
        elif found[name].is_symlink():
            faults.append(f"{name}: a link in place of the file")
        elif (sha256 := file_sha256(found[name])) != recorded[name]:
            faults.append(f"{name}: expected SHA-256 {recorded[name][:12]}, got {sha256[:12]}")
    return faults


def write_secret(path: Path, data: bytes, *, folder_is_ours: bool = True) -> Path:
    """Write a file with mode 0600, atomically; its folder gets mode 0700 if it is new or `folder_is_ours`."""
    ours = folder_is_ours or not path.parent.exists()
    make_folder(path.parent)
    if ours:
        with unwritable_is_bad_input(path):
            path.parent.chmod(0o700)
    write_atomic(path, data)
    path.chmod(0o600)
    return path


def read_secret(path: Path) -> bytes:
    """Read a secret file; raise Refused if its mode gives other users any access."""
    if path.stat().st_mode & 0o077:
        raise Refused(
            f"{path} must have mode 0600, got {path.stat().st_mode & 0o777:04o}: run `chmod 600 {path}`, and replace "
            "the secret if others may have read it."
        )
    return path.read_bytes()


@contextmanager
def exclusive(path: Path, on_held: Callable[[], None] | None = None) -> Iterator[None]:
    """Hold a file lock during the block; if another process holds the lock, wait for it.

    The kernel releases the lock when the process ends, even after a crash.

    Args:
        path: the lock file, created with mode 0600 if missing.
        on_held: called once if another process holds the lock, before waiting; it may raise an error to avoid the wait.

    Raises:
        BadInput: the lock file cannot be created, because the disk is full or not writable.
    """
    make_folder(path.parent)
    with unwritable_is_bad_input(path):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if on_held:
                on_held()
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def format_time(instant: datetime) -> str:
    """Format a time that has a time zone as text for the ledger: UTC with microseconds, so that texts sort by time.

    Example:
        >>> format_time(datetime(2026, 11, 20, 14, tzinfo=UTC))
        '2026-11-20T14:00:00.000000Z'
    """
    return instant.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def parse_time(text: str) -> datetime:
    """Parse a time from the ledger; raise ValueError if the text is not an ISO 8601 time."""
    return datetime.fromisoformat(text).astimezone(UTC)


def normalise_time(text: str, *, last: bool) -> str:
    """Convert a date or time that a user typed to the ledger's format; without a time zone the text means UTC.

    Args:
        text: 2026-11-20 or 2026-11-20T14:00:00Z, for example; other text raises BadInput.
        last: if True, a date means the end of the day; if False, the start of the day.
    """
    try:
        instant = datetime.fromisoformat(text)
    except ValueError as error:
        raise BadInput(f"{text!r} is not a date: write 2026-11-20, or 2026-11-20T14:00:00Z with a time.") from error
    if last and len(text) <= len("2026-11-20"):
        instant = datetime.combine(instant.date(), time.max)
    return format_time(instant.replace(tzinfo=UTC) if instant.tzinfo is None else instant)
