"""Remove files that a home no longer needs: leftovers, old checkpoints, logs, windows and datasets.

Windows are the parts into which a backfill cuts logs. Files that the ledger names are never removed, because audits
verify them: bundles of champions and shadows, certificates and datasets.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Literal, NamedTuple

from pydantic import BaseModel, ConfigDict

from configs.errors import NeoRLError, Refused
from configs.home import Home
from tasks.data.store.records import Manifest
from tasks.evidence.ledger.ledger import Ledger
from tasks.files.canonical import exclusive, read_json
from tasks.files.stored import objects_of, remove_object
from tasks.maintenance.backup_format import STAGING

Kind = Literal["leftovers", "checkpoints", "windows", "logs", "datasets"]
DAY = 86_400.0
TEMPORARY = re.compile(r"\..+\.[a-z0-9_]{8}|.*\.orbax-checkpoint-tmp.*")
"""Pattern of the temporary names of files and folders while they are written or removed."""
DIGEST = re.compile(r"\b[0-9a-f]{64}\b")
WRITTEN_ELSEWHERE = ("mlflow", "prefect", "cache", "keys", "witness", "secrets", "locks", "incoming")
"""Folders that other programs write or that contain secrets. Nothing in these folders is treated as a leftover."""


class Ages(NamedTuple):
    """Age in days from which files of each kind may be removed."""

    leftovers: float = 1.0
    checkpoints: float = 7.0
    windows: float = 30.0
    """Days since the last backfill that used the windows; a later backfill cuts its windows again."""
    logs: float = 90.0
    datasets: float | None = None
    """None keeps all datasets."""


class Piece(BaseModel):
    """A file or folder that can be removed."""

    model_config = ConfigDict(frozen=True)

    kind: Kind
    path: str
    """Path relative to the home."""
    size: int
    bucket: bool = False
    """Whether it is in the bucket of NEORL_DATASETS_URL instead of the home."""


class Pruned(BaseModel):
    """Files that can be removed, or that were removed if `removed` is true."""

    model_config = ConfigDict(frozen=True)

    pieces: tuple[Piece, ...]
    kept: int
    """Number of files that the ledger names."""
    busy: tuple[str, ...]
    """Plants locked by a run, which were skipped."""
    removed: bool

    @property
    def size(self) -> int:
        """Total bytes."""
        return sum(piece.size for piece in self.pieces)


def prune(home: Home, ages: Ages, *, remove: bool) -> Pruned:
    """Find files that are no longer needed, and optionally remove them.

    Args:
        remove: False only lists them.
    """
    needed = _needed(home)[0]
    pieces: list[Piece] = []
    busy: list[str] = []

    def done(found: list[Piece]) -> None:
        for piece in found:
            if remove:
                (remove_object if piece.bucket else _remove)(home.root / piece.path)
        pieces.extend(found)

    done([*_leftovers(home, ages.leftovers), *_logs(home, ages.logs)])
    for plant in _plants(home):
        try:
            with exclusive(home.lock_of(plant), _busy):
                done(_checkpoints(home, plant, ages.checkpoints))
                done(_windows(home, plant, ages.windows, needed))
                if ages.datasets is not None:
                    # Read the ledger again: a run that ended before this lock was taken may have named more files.
                    needed, digests = _needed(home)
                    done(_datasets(home, plant, ages.datasets, needed, digests))
        except _Busy:
            busy.append(plant)
    return Pruned(pieces=tuple(pieces), kept=len(needed), busy=tuple(busy), removed=remove)


class _Busy(Exception):
    """A run has locked the plant."""


def _busy() -> None:
    raise _Busy


def _needed(home: Home) -> tuple[set[str], set[str]]:
    """Return the files named by ledger entries, and every digest that occurs in an entry's body."""
    if not Ledger.exists(home):
        return set(), set()
    try:
        entries = Ledger.open(home, write=False).entries()
    except NeoRLError as error:
        raise Refused(f"the ledger cannot be read, so the files that it needs are unknown: {error}") from error
    files = {file.path for entry in entries for file in entry.artefacts}
    return files, {digest for entry in entries for digest in DIGEST.findall(json.dumps(entry.body))}


def _plants(home: Home) -> list[str]:
    found = {
        path.name
        for name in ("checkpoints", "datasets", "backfill")
        for path in (home.root / name).glob("*")
        if path.is_dir()
    }
    return sorted(found)


def _leftovers(home: Home, days: float) -> Iterator[Piece]:
    """Yield temporary files and folders of killed processes."""
    with suppress(_Busy), exclusive(home.folder("locks") / "backup.lock", _busy):
        # While a backup has this lock, its copies are in use.
        yield from [_piece(home, "leftovers", path) for path in sorted(home.root.glob(f"{STAGING}*"))]
    for here, names, files in os.walk(home.root):
        folder = Path(here)
        if folder == home.root:
            names[:] = [name for name in names if name not in WRITTEN_ELSEWHERE]
        for name in sorted([*names, *files]):
            if TEMPORARY.fullmatch(name) and not name.startswith(STAGING) and _is_older(folder / name, days):
                yield _piece(home, "leftovers", folder / name)
        names[:] = [name for name in names if not (TEMPORARY.fullmatch(name) or name.startswith(STAGING))]


def _logs(home: Home, days: float) -> Iterator[Piece]:
    for path in sorted((home.root / "logs").rglob("*")):
        if path.is_file() and _is_older(path, days):
            yield _piece(home, "logs", path)


def _checkpoints(home: Home, plant: str, days: float) -> list[Piece]:
    """Return checkpoints of finished trainings, which have stored curves or, for a fleet's shared training, weights."""
    found = []
    for folder in sorted((home.root / "checkpoints" / plant).glob("*-*")):
        key = folder.name.rpartition("-")[0]
        curves = home.root / "runs" / plant / "populations" / key / "curves.npz"
        shared = [path for path in (home.root / "starts").glob(f"*/{key}.json") if _has_weights(home, path)]
        if any(_is_older(ended, days) for ended in (curves, *shared)):
            found.append(_piece(home, "checkpoints", folder))
    return found


def _windows(home: Home, plant: str, days: float, needed: set[str]) -> list[Piece]:
    """Return old windows (parts of logs that backfills cut) that no ledger entry names."""
    cut = sorted((home.root / "backfill" / plant).glob("[!.]*"))
    found = [_piece(home, "windows", path) for path in cut if _is_older(path, days)]
    return [piece for piece in found if piece.path not in needed]


def _has_weights(home: Home, record: Path) -> bool:
    """Return whether the weights of a fleet's shared training exist."""
    # Imported late: it loads JAX, and few homes have fleets.
    from tasks.training.start import start_file

    return start_file(home, str(read_json(record)["start"])).is_file()


def _datasets(home: Home, plant: str, days: float, needed: set[str], digests: set[str]) -> list[Piece]:
    """Return datasets that no ledger entry names, and shards and quarantine files that no other dataset uses."""
    store = home.root / "datasets" / plant
    kept: set[Path] = set()
    going: list[Path] = []
    for path in sorted((store / "manifests").glob("*.json")):
        named = path.relative_to(home.root).as_posix() in needed or path.stem in digests
        if named or not _is_older(path, days):
            kept |= _files_of(store, Manifest.model_validate(read_json(path)))
        else:
            going += [path, *sorted((store / "cards").glob(f"{path.stem}*"))]
    for part in ("views", "shards"):
        going += [p for p in sorted((store / part).glob("*.h5")) if p not in kept and _is_older(p, days)]
    for folder in sorted((store / "quarantine").glob("*")):
        if not any(path.is_relative_to(folder) for path in kept) and _is_older(folder, days):
            going.append(folder)
    free = [path for path in going if not any((home.root / name).is_relative_to(path) for name in needed)]
    old = time.time() - days * DAY
    unnamed = [(path, size) for path, size, at in objects_of(store / "shards") if path not in kept and at < old]
    return [
        *(_piece(home, "datasets", path) for path in free),
        *(
            Piece(kind="datasets", path=name, size=size, bucket=True)
            for path, size in unnamed
            if (name := path.relative_to(home.root).as_posix()) not in needed
        ),
    ]


def _files_of(store: Path, manifest: Manifest) -> set[Path]:
    """Return the files of a dataset except the manifest."""
    found = {store / "shards" / shard.file for shard in manifest.shards}
    found.add(store / "views" / manifest.view.file)
    for provenance in manifest.provenance:
        for source in provenance.sources:
            found |= {store / file.file for file in (*source.quarantine, *source.raw_quarantine)}
    return found


def _is_older(path: Path, days: float) -> bool:
    try:
        return time.time() - path.lstat().st_mtime > days * DAY
    except FileNotFoundError:
        return False


def _piece(home: Home, kind: Kind, path: Path) -> Piece:
    size = path.lstat().st_size if path.is_file() else sum(p.lstat().st_size for p in path.rglob("*") if p.is_file())
    return Piece(kind=kind, path=path.relative_to(home.root).as_posix(), size=size)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        # Rename first, so that a half-removed folder is never mistaken for a complete one.
        gone = path.with_name(f".{path.name}.pruned__")
        with suppress(FileNotFoundError):
            path.rename(gone)
            shutil.rmtree(gone)
    else:
        path.unlink(missing_ok=True)
