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
"""Default limit for the size of a JSON file; as Python objects it may take forty times as much memory."""


def canonical_json(value: Any) -> bytes:
    """Encode a JSON value in canonical form: sorted keys, no white space, UTF-8, no NaN."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def sha256_hex(data: bytes) -> str:
    """Return the SHA-256 in lower-case hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def digest_json(value: Any) -> str:
    """Return the SHA-256 of a value's canonical JSON."""
    return sha256_hex(canonical_json(value))


class FileState(NamedTuple):
    """File metadata. Changing a file's bytes changes at least one field."""

    device: int
    inode: int
    size: int
    modified: int
    """ns since 1970"""
    changed: int
    """ns since 1970; unlike `modified`, no ordinary user can set it."""


def file_state(path: Path) -> FileState:
    """Return the state of a file, following links; raise OSError if it is missing."""
    found = path.stat()
    return FileState(found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file, read in blocks."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def unwritable_is_bad_input(path: Path) -> Iterator[None]:
    """Turn errors for a full disk or missing write permission at `path` into `BadInput`; others pass through."""
    try:
        yield
    except OSError as error:
        if error.errno in FULL:
            cure = "free some space there or name another disk"
        elif error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
            cure = "make that folder writable or name another one"
        else:
            raise
        raise BadInput(
            f"cannot write {path.name} in {path.parent} ({error.strerror}): {cure} (NEORL_HOME for the home), then "
            "run the same command again."
        ) from error


def make_folder(path: Path) -> Path:
    """Make a folder and its parents if they are missing; raise BadInput if they cannot be made."""
    with unwritable_is_bad_input(path):
        path.mkdir(parents=True, exist_ok=True)
    return path


def fsync_path(path: Path) -> None:
    """Make a file's content, or renames in a folder, durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def publish(temporary: Path, path: Path) -> None:
    """Rename a finished temporary file durably: readers see either the old file or the whole new one."""
    fsync_path(temporary)
    os.replace(temporary, path)
    fsync_path(path.parent)


SHARED = 0o666
"""Mode of a file that others may read too, as far as the user's umask allows."""


@contextmanager
def writing(path: Path, mode: int = 0o600) -> Iterator[Path]:
    """Write a file atomically: yield the path of an empty temporary file, and rename it when the block ends.

    `tasks.maintenance.retention` recognises the temporary files of killed processes by their names. The folder is made,
    and `mode` counts before the process's umask. Errors are those of `unwritable_is_bad_input`; no temporary file
    remains.
    """
    make_folder(path.parent)
    with unwritable_is_bad_input(path):
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode))
        try:
            yield temporary
            publish(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)


def write_atomic(path: Path, *parts: bytes | memoryview) -> Path:
    """Write parts one after the other as one file with mode 0600, atomically; raise BadInput as `writing`."""
    with writing(path) as temporary, temporary.open("wb") as file:
        file.writelines(parts)
    return path


def write_json(path: Path, value: Any) -> Path:
    """Write a JSON value in canonical form, atomically."""
    return write_atomic(path, canonical_json(value) + b"\n")


def parse_json(data: bytes) -> Any:
    """Parse JSON from an untrusted source; raise ValueError if it is not JSON, too long, or nested too deeply."""
    if len(data) > MAX_JSON_BYTES:
        raise ValueError(f"more than {MAX_JSON_BYTES} bytes")
    try:
        return json.loads(data)
    except RecursionError as error:
        raise ValueError(f"lists or objects nested too deeply in {len(data)} bytes") from error


def read_json(path: Path) -> Any:
    """Read a JSON file; raise BadInput if it is missing, not JSON, too long, or nested too deeply."""
    try:
        with path.open("rb") as file:
            return parse_json(file.read(MAX_JSON_BYTES + 1))
    except FileNotFoundError as error:
        raise BadInput(f"{path} does not exist: check the path.") from error
    except ValueError as error:
        reason = " ".join(str(error).split())[:300]
        raise BadInput(f"{path} is not JSON ({reason}): restore the file or make it again.") from error


def files_in(folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield the relative path and path of every file below a folder, links included, sorted."""
    for path in sorted(folder.rglob("*")):
        if path.is_symlink() or not path.is_dir():
            yield path.relative_to(folder).as_posix(), path


def digests_in(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of every file below a folder, by relative path."""
    return {name: file_sha256(path) for name, path in files_in(folder)}


def folder_differences(folder: Path, recorded: Mapping[str, str]) -> list[str]:
    """List how a folder's files differ from recorded SHA-256 digests by relative path; no file is loaded."""
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
    """Write a file with mode 0600, atomically; a new folder, and an existing one that is ours, gets mode 0700."""
    ours = folder_is_ours or not path.parent.exists()
    make_folder(path.parent)
    if ours:
        with unwritable_is_bad_input(path):
            path.parent.chmod(0o700)
    write_atomic(path, data)
    path.chmod(0o600)
    return path


def read_secret(path: Path) -> bytes:
    """Read a secret file; raise Refused if the mode lets others read or write it."""
    if path.stat().st_mode & 0o077:
        raise Refused(
            f"{path} must have mode 0600, got {path.stat().st_mode & 0o777:04o}: run `chmod 600 {path}`, and replace "
            "the secret if others may have read it."
        )
    return path.read_bytes()


@contextmanager
def exclusive(path: Path, on_held: Callable[[], None] | None = None) -> Iterator[None]:
    """Lock a file during the block; wait while a second process has the lock.

    The kernel frees the lock when the process ends, for whatever reason.

    Args:
        path: the lock file, made with mode 0600 if absent.
        on_held: called once before waiting for another process; an exception from it is raised instead of waiting.

    Raises:
        BadInput: as `unwritable_is_bad_input`.

    Example:
        >>> with exclusive(Path("folder/lock")):  # doctest: +SKIP
        ...     pass
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
    """Format a time with a zone for the ledger: UTC with microseconds, so that texts sort by time.

    Example:
        >>> format_time(datetime(2026, 11, 20, 14, tzinfo=UTC))
        '2026-11-20T14:00:00.000000Z'
    """
    return instant.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def parse_time(text: str) -> datetime:
    """Parse a time of the ledger; raise ValueError if it is not an ISO time."""
    return datetime.fromisoformat(text).astimezone(UTC)


def normalise_time(text: str, *, last: bool) -> str:
    """Convert a user's date or ISO time (UTC without a zone) to the ledger's format.

    Args:
        text: a date or a time; anything else raises BadInput.
        last: use the last microsecond of a date, not the first.
    """
    try:
        instant = datetime.fromisoformat(text)
    except ValueError as error:
        raise BadInput(f"{text!r} is not a date: write 2026-11-20, or 2026-11-20T14:00:00Z with a time.") from error
    if last and len(text) <= len("2026-11-20"):
        instant = datetime.combine(instant.date(), time.max)
    return format_time(instant.replace(tzinfo=UTC) if instant.tzinfo is None else instant)
