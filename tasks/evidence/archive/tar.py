"""Reproducible tar archives: the same files always give the same bytes.

`extract` reads archives of unknown origin. It accepts only headers that `write_member` writes, so an archive cannot
contain links, devices or paths outside the target folder. Archives are not compressed, so the unpacked files are never
larger than the archive.
"""

from __future__ import annotations

import hashlib
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, NamedTuple

from configs.errors import BadInput, Refused
from tasks.files.canonical import unwritable_is_bad_input

BLOCK = tarfile.BLOCKSIZE
CHUNK = 2**20
LONGEST_PATH = 255
MAX_BYTES = 8**11 - 1
"""Largest size of a file in bytes that a tar header can state."""
END = bytes(2 * BLOCK)
CURE = "ask for a new copy of the archive"


class Member(NamedTuple):
    path: str
    size: int
    sha256: str


def write_member(out: IO[bytes], path: str, source: IO[bytes], size: int) -> Member:
    """Append a file to an open archive; return its path, size and SHA-256."""
    if (fault := path_fault(path)) or size > MAX_BYTES:
        raise BadInput(f"an archive cannot contain {path!r}: {fault or f'{size} bytes are more than {MAX_BYTES}'}")
    out.write(_header(path, size))
    if (sha256 := _copied(source, out, size)) is None:
        raise BadInput(f"{path} became shorter than {size} bytes during the export: export again")
    out.write(bytes(-size % BLOCK))
    return Member(path, size, sha256)


def extract(archive: Path, folder: Path) -> Iterator[Member]:
    """Unpack an archive of unknown origin into a folder; yield each file after it is written.

    Raises:
        BadInput: if the archive does not exist or the disk is full.
        Refused: if the archive was not written with `write_member`.
    """
    try:
        source = archive.open("rb")
    except OSError as error:
        raise BadInput(f"cannot open the archive {archive} ({error.strerror}): check the path") from error
    seen: set[str] = set()
    with source:
        while (block := source.read(BLOCK)) != bytes(BLOCK):
            path, size = _parsed(block, archive)
            if path in seen:
                raise Refused(f"{archive} contains {path!r} twice: {CURE}")
            seen.add(path)
            yield _extracted(source, path, size, folder, archive)
        if block + source.read(BLOCK + 1) != END:
            raise Refused(f"{archive} has bytes after the last file: {CURE}")


def path_fault(path: str) -> str | None:
    """Return the reason why an archive cannot contain a path; None if it can."""
    parts = path.split("/")
    if not path.isprintable() or "\\" in path or len(path.encode()) > LONGEST_PATH:
        return f"the path has forbidden characters or more than {LONGEST_PATH} bytes"
    if not all(part and part not in (".", "..") for part in parts):
        return "the path leads out of the archive's folder"
    return None


def _header(path: str, size: int) -> bytes:
    """Return the tar header of a file: no time, no owner, mode 0644."""
    info = tarfile.TarInfo(path)
    info.size, info.mode = size, 0o644
    try:
        return info.tobuf(tarfile.USTAR_FORMAT)
    except ValueError as error:
        raise BadInput(f"an archive cannot contain the path {path!r}: {error}") from error


def _parsed(block: bytes, archive: Path) -> tuple[str, int]:
    """Return path and size from a header; reject every header that `_header` would not write."""
    try:
        name, prefix = (block[at:end].split(b"\0")[0].decode() for at, end in ((0, 100), (345, 500)))
        size = int(block[124:135], 8)
        path = f"{prefix}/{name}" if prefix else name
        fault = path_fault(path)
        if not fault and _header(path, size) != block:
            fault = "a header has another format, for example that of a link"
    except (ValueError, BadInput):
        fault, path = "a block is not the header of a file", ""
    if fault:
        raise Refused(f"{archive} was not written by 'neorl audit export' ({fault}): {CURE}")
    return path, size


def _extracted(source: IO[bytes], path: str, size: int, folder: Path, archive: Path) -> Member:
    target = folder / path
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with unwritable_is_bad_input(target), target.open("xb") as file:
            sha256 = _copied(source, file, size)
    except (FileExistsError, NotADirectoryError, IsADirectoryError) as error:
        raise Refused(f"{archive} uses {path!r} as file and as folder: {CURE}") from error
    if sha256 is None:
        raise Refused(f"{path} in {archive} has fewer than {size} bytes: {CURE}")
    if any(source.read(-size % BLOCK)):
        raise Refused(f"{archive} has bytes after {path}: {CURE}")
    return Member(path, size, sha256)


def _copied(source: IO[bytes], out: IO[bytes], size: int) -> str | None:
    """Copy `size` bytes; return their SHA-256, or None if the source has fewer bytes."""
    digest, left = hashlib.sha256(), size
    while left:
        data = source.read(min(CHUNK, left))
        if not data:
            return None
        digest.update(data)
        out.write(data)
        left -= len(data)
    return digest.hexdigest()
