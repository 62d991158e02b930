"""Canonical bytes, digests and atomic files: what every artefact's identity rests on."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from configs.errors import BadInput


def canonical_json(value: Any) -> bytes:
    """The one byte string that stands for a JSON value: sorted keys, no white space, UTF-8, no NaN."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def sha256_hex(data: bytes) -> str:
    """SHA-256 in lower-case hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def digest_json(value: Any) -> str:
    """SHA-256 of a value's canonical JSON."""
    return sha256_hex(canonical_json(value))


def file_sha256(path: Path) -> str:
    """SHA-256 of a file, read in blocks."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def no_space_is_bad_input(path: Path) -> Iterator[None]:
    """Turn a full disk, or a quota, into one sentence."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
        raise BadInput(
            f"expected room to write {path.name}, got '{error.strerror}' in {path.parent}: "
            "free some space there or point NEORL_HOME to another disk, then run the same command again."
        ) from error


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


def write_atomic(path: Path, *parts: bytes | memoryview) -> Path:
    """Write a file, one part after the other, whole or not at all.

    Raises:
        BadInput: when the disk or the quota is full; nothing is left behind.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with no_space_is_bad_input(path):
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        temporary = Path(name)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.writelines(parts)
            publish(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
    return path


def write_json(path: Path, value: Any) -> Path:
    """Write a JSON value in its canonical form, atomically."""
    return write_atomic(path, canonical_json(value) + b"\n")


def read_json(path: Path) -> Any:
    """Read a JSON file.

    Raises:
        BadInput: when the file is missing or is not JSON.
    """
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise BadInput(f"expected a file at {path}, got none: check the path.") from error
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadInput(f"expected JSON in {path}, got {error}: restore the file or make it again.") from error
