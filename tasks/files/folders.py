"""Folders as lists of their files' digests, and what in a folder is not as it was listed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from tasks.files.canonical import file_sha256


def files_in(folder: Path) -> Iterator[tuple[str, Path]]:
    """Every file below a folder, links included, with its path from there, in the order of their paths."""
    for path in sorted(folder.rglob("*")):
        if path.is_symlink() or not path.is_dir():
            yield path.relative_to(folder).as_posix(), path


def digests_in(folder: Path) -> dict[str, str]:
    """SHA-256 of every file below a folder, by its path from there."""
    return {name: file_sha256(path) for name, path in files_in(folder)}


def faults_in(folder: Path, named: Mapping[str, str]) -> list[str]:
    """What differs in a folder from the digests that were named, each in a few words; empty where nothing does.

    Args:
        folder: to look at; nothing in it is loaded.
        named: SHA-256 of each file, by its path from there.
    """
    faults, found = [], dict(files_in(folder))
    for name in sorted(named.keys() | found.keys()):
        if name not in found:
            faults.append(f"{name}: missing")
        elif name not in named:
            faults.append(f"{name}: a file that no entry names")
        elif found[name].is_symlink():
            faults.append(f"{name}: a link in place of the file")
        elif (sha256 := file_sha256(found[name])) != named[name]:
            faults.append(f"{name}: expected SHA-256 {named[name][:12]}, got {sha256[:12]}")
    return faults
