"""What a home may lose: leftovers of killed runs, checkpoints of finished ones, old logs and windows, unnamed datasets.

What an entry of the ledger names stays, whatever its age, for an audit looks at each such file: the bundles of
champions and shadows, certificates, and the datasets that they rest on among them.
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
from tasks.files.canonical import read_json
from tasks.files.locks import exclusive
from tasks.files.stored import objects_of, remove_object
from tasks.maintenance.snapshot import STAGING

Kind = Literal["leftovers", "checkpoints", "windows", "logs", "datasets"]
DAY = 86_400.0
TEMPORARY = re.compile(r"\..+\.[a-z0-9_]{8}|.*\.orbax-checkpoint-tmp.*")
"""Names under which files and folders are written before they get their own, or are removed."""
DIGEST = re.compile(r"\b[0-9a-f]{64}\b")
WRITTEN_ELSEWHERE = ("mlflow", "prefect", "cache", "keys", "witness", "secrets", "locks", "incoming")
"""Folders of the home that other programs write to, or that hold secrets: nothing below them is a leftover."""


class Ages(NamedTuple):
    """From which age on things go, in days."""

    leftovers: float = 1.0
    checkpoints: float = 7.0
    windows: float = 30.0
    """Of the last backfill that used them; they are cut anew from their sources when another one wants them."""
    logs: float = 90.0
    datasets: float | None = None
    """None keeps all datasets."""


class Piece(BaseModel):
    """A file or folder that may go."""

    model_config = ConfigDict(frozen=True)

    kind: Kind
    path: str
    """Under the home."""
    size: int
    """Bytes."""
    bucket: bool = False
    """Whether it lies in the bucket of NEORL_DATASETS_URL in place of the home."""


class Pruned(BaseModel):
    """What may go, or went."""

    model_config = ConfigDict(frozen=True)

    pieces: tuple[Piece, ...]
    kept: int
    """Files that stay for the ledger's sake."""
    busy: tuple[str, ...]
    """Plants that a run holds: nothing of theirs was looked at."""
    removed: bool

    @property
    def size(self) -> int:
        """Bytes."""
        return sum(piece.size for piece in self.pieces)


def prune(home: Home, ages: Ages, *, remove: bool) -> Pruned:
    """Find what nothing needs any more, and remove it if told to.

    Args:
        home: whose files.
        ages: from which age on.
        remove: False only tells what would go.

    Raises:
        Refused: when the ledger cannot be read: nobody knows then what it needs.
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
                    # Anew, for a run that ended before the lock was taken may have named more.
                    needed, digests = _needed(home)
                    done(_datasets(home, plant, ages.datasets, needed, digests))
        except _Busy:
            busy.append(plant)
    return Pruned(pieces=tuple(pieces), kept=len(needed), busy=tuple(busy), removed=remove)


class _Busy(Exception):
    """A run holds the plant."""


def _busy() -> None:
    raise _Busy


def _needed(home: Home) -> tuple[set[str], set[str]]:
    """The files that entries of the ledger name, and every digest that any of them speaks of, whatever it is of."""
    if not Ledger.exists(home):
        return set(), set()
    try:
        entries = Ledger.open(home, write=False).entries()
    except NeoRLError as error:
        raise Refused(f"expected a ledger that says what is needed, got one that cannot be read ({error})") from error
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
    """Files and folders under temporary names, of processes that were killed."""
    with suppress(_Busy), exclusive(home.folder("locks") / "backup.lock", _busy):
        # A backup may go on for days, and holds this lock.
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
    """Those of trainings that came to their end: their curves are there, and what they learned is in bundles.

    Of what a fleet's sites share there are no curves, but the weights that it led to.
    """
    found = []
    for folder in sorted((home.root / "checkpoints" / plant).glob("*-*")):
        key = folder.name.rpartition("-")[0]
        curves = home.root / "runs" / plant / "populations" / key / "curves.npz"
        led_to = [path for path in (home.root / "starts").glob(f"*/{key}.json") if _led_to_weights(home, path)]
        if any(_is_older(ended, days) for ended in (curves, *led_to)):
            found.append(_piece(home, "checkpoints", folder))
    return found


def _windows(home: Home, plant: str, days: float, needed: set[str]) -> list[Piece]:
    """Windows that backfills cut out of logs."""
    cut = sorted((home.root / "backfill" / plant).glob("[!.]*"))
    found = [_piece(home, "windows", path) for path in cut if _is_older(path, days)]
    return [piece for piece in found if piece.path not in needed]


def _led_to_weights(home: Home, told: Path) -> bool:
    """Whether the weights that a training of a fleet led to are there."""
    # Imported here, for it imports JAX and few homes are of fleets.
    from tasks.training.start import start_file

    return start_file(home, str(read_json(told)["start"])).is_file()


def _datasets(home: Home, plant: str, days: float, needed: set[str], digests: set[str]) -> list[Piece]:
    """Datasets that no entry speaks of, with the files that no other dataset has; shards that none names at all."""
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
    free = [path for path in going if not any(_is_below(name, path, home.root) for name in needed)]
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
    """What a dataset consists of besides its manifest."""
    found = {store / "shards" / shard.file for shard in manifest.shards}
    found.add(store / "views" / manifest.view.file)
    for provenance in manifest.provenance:
        for source in provenance.sources:
            found |= {store / file.file for file in (*source.quarantine, *source.raw_quarantine)}
    return found


def _is_below(name: str, path: Path, root: Path) -> bool:
    return (root / name).is_relative_to(path)


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
        # Under another name first: a folder that is removed by half is taken for a whole one by nobody.
        gone = path.with_name(f".{path.name}.pruned__")
        with suppress(FileNotFoundError):
            path.rename(gone)
            shutil.rmtree(gone)
    else:
        path.unlink(missing_ok=True)
