"""Find the tables of an export: one file, or the files of a folder and its sub-folders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from configs.errors import BadInput
from tasks.files.canonical import digest_json, file_sha256

SUFFIXES = (".parquet", ".csv")
OTHER_SUFFIXES = (".tsv", ".dat", ".xlsx")
"""Used only if a folder has no Parquet or CSV files, because next to those such files may be anything."""


def source_files(path: Path) -> list[Path]:
    """Return the tables of an export, by the endings of file names; raise BadInput if there are none."""
    if path.is_dir():
        files, _ = _tables_and_others(path)
        if not files:
            raise BadInput(f"folder {path} has no Parquet or CSV files: check the path and the names.")
        return files
    if not path.is_file():
        raise BadInput(f"{path} does not exist: give the path of a historian export.")
    return [path]


def skipped_files(path: Path) -> list[Path]:
    """Return the files of a folder that are not tables by their names."""
    return _tables_and_others(path)[1] if path.is_dir() else []


def links_not_followed(path: Path) -> list[Path]:
    """Return links in a folder to other folders or to nothing; their targets are not read."""
    if not path.is_dir():
        return []
    return sorted(p for p in path.rglob("*") if p.is_symlink() and not p.is_file() and not p.name.startswith("."))


def _tables_and_others(folder: Path) -> tuple[list[Path], list[Path]]:
    """Split the files of a folder and its sub-folders into tables and others; names with a leading dot are skipped."""
    inside = sorted(p for p in folder.rglob("*") if p.is_file())
    seen = [p for p in inside if not any(part.startswith(".") for part in p.relative_to(folder).parts)]
    endings = {p: Path(p.name.lower().removesuffix(".gz")).suffix for p in seen}
    wanted = SUFFIXES if any(ending in SUFFIXES for ending in endings.values()) else OTHER_SUFFIXES
    return [p for p in seen if endings[p] in wanted], [p for p in seen if endings[p] not in wanted]


def table_digests(files: Sequence[Path]) -> dict[Path, str]:
    """Return the SHA-256 of each table; hashing releases the GIL."""
    with ThreadPoolExecutor(2) as pool:
        return dict(zip(files, pool.map(file_sha256, files), strict=True))


def digest_of_tables(path: Path, digests: Mapping[Path, str]) -> str:
    """Return the digest of an export: the file's SHA-256, or the digest over those of a folder, whatever the names."""
    return digest_json(sorted(digests.values())) if path.is_dir() else digests[path]
