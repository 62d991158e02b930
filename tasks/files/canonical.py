"""Canonical bytes, digests and atomic files: what every artefact's identity rests on."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from configs.errors import BadInput
from configs.home import FULL

MAX_JSON_BYTES = 2**26
"""Length of a JSON file that is read unless told otherwise; as Python objects it may take forty times as much."""


def canonical_json(value: Any) -> bytes:
    """The one byte string that stands for a JSON value: sorted keys, no white space, UTF-8, no NaN."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def sha256_hex(data: bytes) -> str:
    """SHA-256 in lower-case hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def digest_json(value: Any) -> str:
    """SHA-256 of a value's canonical JSON."""
    return sha256_hex(canonical_json(value))


class FileState(NamedTuple):
    """What the file system says of a file: whoever changes its bytes changes one of these."""

    device: int
    inode: int
    size: int
    modified: int
    """ns since 1970"""
    changed: int
    """ns since 1970; unlike `modified`, no ordinary user can set it."""


def file_state(path: Path) -> FileState:
    """The state of a file; that of a link's target.

    Raises:
        OSError: when there is none.
    """
    found = path.stat()
    return FileState(found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


def file_sha256(path: Path) -> str:
    """SHA-256 of a file, read in blocks."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def unwritable_is_bad_input(path: Path) -> Iterator[None]:
    """Turn a disk or a quota that is full, and a folder that nobody or somebody else may write to, into one sentence.

    Args:
        path: what is to be written, for the message.

    Raises:
        BadInput: in place of such an `OSError`; any other goes on.
    """
    try:
        yield
    except OSError as error:
        if error.errno in FULL:
            raise BadInput(
                f"expected room to write {path.name}, got '{error.strerror}' in {path.parent}: "
                "free some space there or name another disk (NEORL_HOME for the home), then run the same command again."
            ) from error
        if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
            raise BadInput(
                f"expected to be allowed to write {path.name}, got '{error.strerror}' in {path.parent}: make that "
                "folder writable or name another one (NEORL_HOME for the home), then run the same command again."
            ) from error
        raise


def make_folder(path: Path) -> Path:
    """Make a folder and those above it, where they are not there.

    Raises:
        BadInput: as `unwritable_is_bad_input`.
    """
    with unwritable_is_bad_input(path):
        path.mkdir(parents=True, exist_ok=True)
    return path


def fsync_folder(folder: Path) -> None:
    """Make renames in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def publish(temporary: Path, path: Path) -> None:
    """Give a finished temporary file its name, durably: readers see the old file or the whole new one."""
    descriptor = os.open(temporary, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    os.replace(temporary, path)
    fsync_folder(path.parent)


SHARED = 0o666
"""Mode of a file that others may read too, as far as its user's umask lets them."""


@contextmanager
def writing(path: Path, mode: int = 0o600) -> Iterator[Path]:
    """Write a file whole or not at all: a block gets the path of an empty one to fill, and its end gives it its name.

    What a killed process leaves behind has a name by which it is known as a leftover (`tasks.maintenance.retention`).

    Args:
        path: the file; its folder is made.
        mode: of the file, before the process's umask.

    Raises:
        BadInput: as `unwritable_is_bad_input`; nothing is left behind.
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
    """Write a file for its owner alone, one part after the other, whole or not at all.

    Raises:
        BadInput: as `unwritable_is_bad_input`; nothing is left behind.
    """
    with writing(path) as temporary, temporary.open("wb") as file:
        file.writelines(parts)
    return path


def write_json(path: Path, value: Any) -> Path:
    """Write a JSON value in its canonical form, atomically."""
    return write_atomic(path, canonical_json(value) + b"\n")


def parse_json(data: bytes) -> Any:
    """A JSON value that may come from anywhere.

    Raises:
        ValueError: when it is not JSON, too long, or nested too deeply.
    """
    if len(data) > MAX_JSON_BYTES:
        raise ValueError(f"more than {MAX_JSON_BYTES} bytes")
    try:
        return json.loads(data)
    except RecursionError as error:
        raise ValueError("lists or objects nested too deeply") from error


def read_json(path: Path) -> Any:
    """Read a JSON file.

    Raises:
        BadInput: when the file is missing, is not JSON, too long, or nested too deeply.
    """
    try:
        with path.open("rb") as file:
            return parse_json(file.read(MAX_JSON_BYTES + 1))
    except FileNotFoundError as error:
        raise BadInput(f"expected a file at {path}, got none: check the path.") from error
    except ValueError as error:
        said = " ".join(str(error).split())[:300]
        raise BadInput(f"expected JSON in {path}, got {said}: restore the file or make it again.") from error
