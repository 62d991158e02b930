"""The tables that an export consists of: one file, or those of a folder and its sub-folders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from configs.errors import BadInput
from tasks.files.canonical import digest_json, file_sha256

SUFFIXES = (".parquet", ".csv")
OTHER_SUFFIXES = (".tsv", ".dat", ".xlsx")
"""Tables of a folder that has none of the others: beside those they may be anything."""


def source_files(path: Path) -> list[Path]:
    """The tables of an export: the file itself, or all tables of a folder, which their names' endings tell.

    Raises:
        BadInput: when there are none.
    """
    if path.is_dir():
        files, _ = _told_apart(path)
        if not files:
            raise BadInput(f"expected Parquet or CSV files in folder {path}, got none: check the path and the names.")
        return files
    if not path.is_file():
        raise BadInput(f"expected a historian export at {path}, got none: check the path.")
    return [path]


def skipped_files(path: Path) -> list[Path]:
    """The files of a folder that are not read, for they are no tables by their names."""
    return _told_apart(path)[1] if path.is_dir() else []


def links_not_followed(path: Path) -> list[Path]:
    """The links of a folder that lead to other folders or to nothing: what is behind them is not read."""
    if not path.is_dir():
        return []
    return sorted(p for p in path.rglob("*") if p.is_symlink() and not p.is_file() and not p.name.startswith("."))


def _told_apart(folder: Path) -> tuple[list[Path], list[Path]]:
    """Tables and other files of a folder and its sub-folders; what begins with a point is hidden."""
    inside = sorted(p for p in folder.rglob("*") if p.is_file())
    seen = [p for p in inside if not any(part.startswith(".") for part in p.relative_to(folder).parts)]
    endings = {p: Path(p.name.lower().removesuffix(".gz")).suffix for p in seen}
    wanted = SUFFIXES if any(ending in SUFFIXES for ending in endings.values()) else OTHER_SUFFIXES
    return [p for p in seen if endings[p] in wanted], [p for p in seen if endings[p] not in wanted]


def table_digests(files: Sequence[Path]) -> dict[Path, str]:
    """SHA-256 of each table; hashing lets go of the GIL."""
    with ThreadPoolExecutor(2) as pool:
        return dict(zip(files, pool.map(file_sha256, files), strict=True))


def digest_of_tables(path: Path, digests: Mapping[Path, str]) -> str:
    """What names an export: a file's SHA-256, or the digest over those of a folder's tables, whatever their names."""
    return digest_json(sorted(digests.values())) if path.is_dir() else digests[path]
