"""Tar files of one form only: plain files, no metadata, one byte string for the same content.

A reader that takes any tar file takes links, devices, sparse files and names that lead out of the folder. This one
takes what the writer below writes, byte for byte: whatever else a header says is refused before its file is written.
Nothing is compressed, so that what is unpacked is never larger than the archive.
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
"""Bytes that a header of this form can tell."""
END = bytes(2 * BLOCK)
CURE = "ask for the archive anew"


class Member(NamedTuple):
    """A file of an archive."""

    path: str
    size: int
    sha256: str


def write_member(out: IO[bytes], path: str, source: IO[bytes], size: int) -> Member:
    """Append a file to an archive.

    Args:
        out: the archive, at its end.
        path: the file's path in it.
        source: the file's bytes.
        size: how many there are.

    Raises:
        BadInput: when its name or size has no place in such an archive, or there are more or fewer bytes.
    """
    if (fault := path_fault(path)) or size > MAX_BYTES:
        raise BadInput(f"expected a file that an archive can hold, got {path!r}: {fault or f'{size} bytes'}.")
    out.write(_header(path, size))
    if (sha256 := _copied(source, out, size)) is None:
        raise BadInput(f"expected {size} bytes in {path}, got fewer: export again.")
    out.write(bytes(-size % BLOCK))
    return Member(path, size, sha256)


def extract(archive: Path, folder: Path) -> Iterator[Member]:
    """Write the files of an archive into an empty folder, one after the other.

    Args:
        archive: from anywhere.
        folder: takes the files; whoever stops early finds those before.

    Raises:
        BadInput: when there is no such file, or no room.
        Refused: when it has any other form than `write_member` gives it.
    """
    try:
        source = archive.open("rb")
    except OSError as error:
        raise BadInput(f"expected an archive at {archive}, got {error.strerror}: check the path.") from error
    seen: set[str] = set()
    with source:
        while (block := source.read(BLOCK)) != bytes(BLOCK):
            path, size = _parsed(block, archive)
            if path in seen:
                raise Refused(f"expected each file once in {archive}, got {path!r} again: {CURE}.")
            seen.add(path)
            yield _extracted(source, path, size, folder, archive)
        if block + source.read(BLOCK + 1) != END:
            raise Refused(f"expected {archive} to end after its last file, got other bytes: {CURE}.")


def path_fault(path: str) -> str | None:
    """What a path has that none of an archive has, in words; None of a good one."""
    parts = path.split("/")
    if not path.isprintable() or "\\" in path or len(path.encode()) > LONGEST_PATH:
        return "a character that no path here has, or too many"
    if not all(part and part not in (".", "..") for part in parts):
        return "a path that leads out of the archive's folder"
    return None


def _header(path: str, size: int) -> bytes:
    """The one header of a file: no time, no owner, readable by all."""
    info = tarfile.TarInfo(path)
    info.size, info.mode = size, 0o644
    try:
        return info.tobuf(tarfile.USTAR_FORMAT)
    except ValueError as error:
        raise BadInput(f"expected a path that an archive can hold, got {path!r}: {error}.") from error


def _parsed(block: bytes, archive: Path) -> tuple[str, int]:
    """Path and size that a header tells, if it is the one that would be written for them."""
    try:
        name, prefix = (block[at:end].split(b"\0")[0].decode() for at, end in ((0, 100), (345, 500)))
        size = int(block[124:135], 8)
        path = f"{prefix}/{name}" if prefix else name
        fault = path_fault(path)
        if not fault and _header(path, size) != block:
            fault = "a header of another form, such as a link's"
    except (ValueError, BadInput):
        fault, path = "no header of a file", ""
    if fault:
        raise Refused(f"expected an archive as 'neorl audit export' writes it, got in {archive} {fault}: {CURE}.")
    return path, size


def _extracted(source: IO[bytes], path: str, size: int, folder: Path, archive: Path) -> Member:
    target = folder / path
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with unwritable_is_bad_input(target), target.open("xb") as file:
            sha256 = _copied(source, file, size)
    except (FileExistsError, NotADirectoryError, IsADirectoryError) as error:
        raise Refused(f"expected files and folders of different names in {archive}, got {path!r}: {CURE}.") from error
    if sha256 is None:
        raise Refused(f"expected {size} bytes of {path} in {archive}, got fewer: {CURE}.")
    if any(source.read(-size % BLOCK)):
        raise Refused(f"expected nothing behind {path} in {archive}, got other bytes: {CURE}.")
    return Member(path, size, sha256)


def _copied(source: IO[bytes], out: IO[bytes], size: int) -> str | None:
    """SHA-256 of so many bytes that were copied; None where there are fewer."""
    digest, left = hashlib.sha256(), size
    while left:
        data = source.read(min(CHUNK, left))
        if not data:
            return None
        digest.update(data)
        out.write(data)
        left -= len(data)
    return digest.hexdigest()
