"""Datasets on disk: a manifest names immutable shards, and the manifest's SHA-256 is the dataset's name.

<root>/manifests/<digest>.json   spec, provenance, shards
<root>/shards/<sha256>.h5        rows; shared by all manifests, so that an append copies nothing
<root>/views/<sha256>.h5         a virtual file over all shards of a manifest, for other libraries
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt
from pydantic import ValidationError

from configs.errors import BadInput, Refused
from neorl_core.types import PlantSpec
from tasks.data.store.records import Manifest, ShardRecord, SourceRecord
from tasks.data.store.schema import Rows, joined
from tasks.data.store.shards import check_content, check_file, open_shard
from tasks.files.canonical import file_sha256, sha256_hex
from tasks.files.spec import spec_of_record

LEAST_OF_A_SIDE = 2
"""Minimum number of episodes on each side of a split, if there are enough: one episode does not show variation."""
NEAR_ROWS = 4096
"""Longest gap between two chosen episodes, in rows, that is read with them: each read has a fixed cost."""
SCHEMA = 2
"""Since 2, a canonical block ends with its episode, and an episode's digest is the Merkle root over its blocks."""


def dataset_of(folders: Sequence[Path], digest: str) -> StoredDataset:
    """Open the dataset with the first digits `digest` from plants' folders; raise BadInput if none or several match."""
    found = sorted({path for folder in folders for path in folder.glob(f"manifests/{digest}*.json")})
    if len({path.stem for path in found}) != 1:
        cure = "give more digits." if found else "ingest its sources first, or name its folder by --root."
        raise BadInput(f"{len(found) or 'no'} datasets begin with {digest}: {cure}")
    return StoredDataset.open(found[0].parents[1], found[0].stem)


def newest_first(folder: Path) -> list[Path]:
    """Return the manifests in a plant's folder of datasets, newest first."""
    return sorted(folder.glob("manifests/*.json"), key=lambda path: (-path.stat().st_mtime_ns, path.stem))


@dataclass(frozen=True)
class StoredDataset:
    """A dataset on disk. Files are checked against their digests before they are read."""

    root: Path
    digest: str
    manifest: Manifest

    @classmethod
    def open(cls, root: Path, digest: str, verify: bool = True) -> StoredDataset:
        """Open a dataset of a plant's folder by its digest; `verify` checks every shard's SHA-256 first.

        An unknown dataset raises BadInput, and one with a manifest or shard unlike its digest Refused.
        """
        path = root / "manifests" / f"{digest}.json"
        if not path.exists():
            raise BadInput(f"no dataset {digest[:12]} in {root}: ingest its sources again.")
        data = path.read_bytes()
        if (got := sha256_hex(data)) != digest:
            raise Refused(
                f"manifest {path.name} has SHA-256 {got}: restore it from a backup or ingest its sources again."
            )
        found = json.loads(data)
        if (version := found.get("schema")) != SCHEMA:
            raise Refused(f"dataset {digest[:12]} has schema {version}, not {SCHEMA}: ingest its sources again.")
        try:
            dataset = cls(root, digest, Manifest.model_validate(found))
        except ValidationError as error:
            wrong = error.errors()[0]
            raise Refused(
                f"manifest {path.name} is invalid at {'.'.join(map(str, wrong['loc']))} ({wrong['msg']}): ingest its "
                "sources again."
            ) from error
        if verify:
            dataset.check_files()
        return dataset

    def check_files(self) -> None:
        """Check every shard's SHA-256, two at a time; raise Refused for the first that differs."""
        records = self.manifest.shards
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(check_file, map(self.shard_path, records), records))

    @property
    def spec(self) -> PlantSpec:
        """The plant's spec when the dataset was made."""
        return spec_of_record(self.manifest.spec)

    @property
    def manifest_path(self) -> Path:
        return self.root / "manifests" / f"{self.digest}.json"

    def shard_path(self, record: ShardRecord) -> Path:
        """Return the file of a shard."""
        return self.root / "shards" / record.file

    @property
    def view_path(self) -> Path:
        """The virtual file over all shards."""
        return self.root / "views" / self.manifest.view.file

    @property
    def rows(self) -> int:
        return sum(record.rows for record in self.manifest.shards)

    @property
    def keys(self) -> tuple[str, ...]:
        """Keys with one entry per row."""
        return self.manifest.keys

    @cached_property
    def episodes(self) -> npt.NDArray[np.int64]:
        """First row of each episode, and one past the last row: (E + 1,)."""
        return np.append(self._per_episode("episode_starts"), self.rows).astype(np.int64)

    @cached_property
    def episode_digests(self) -> npt.NDArray[np.uint8]:
        """Digest of each episode's rows: (E, 32)."""
        return self._per_episode("episode_digests")

    def _per_episode(self, key: str) -> npt.NDArray[Any]:
        starts = key == "episode_starts"
        return np.concatenate([file[key][:] + (first if starts else 0) for file, first, _ in self._shards()])

    def _shards(self) -> Iterator[tuple[h5py.File, int, int]]:
        """Yield each shard, open, with its first row in the dataset and one past its last."""
        first = 0
        for record in self.manifest.shards:
            with open_shard(self.shard_path(record)) as file:
                yield file, first, first + record.rows
            first += record.rows

    def blocks(self, keys: Sequence[str] | None = None, rows: int = 65536) -> Iterator[Rows]:
        """Yield consecutive blocks of at most `rows` rows; a block never spans shards."""
        names = self._known(keys)
        for file, first, last in self._shards():
            for start in range(0, last - first, rows):
                yield {key: file[key][start : start + rows] for key in names}

    def episode_blocks(
        self, episodes: npt.NDArray[np.int64], keys: Sequence[str] | None = None, rows: int = 65536
    ) -> Iterator[Rows]:
        """Yield the rows of some episodes (E,), given in any order, in the order of the dataset.

        Only their shards are opened, and a block of at most `rows` rows never spans shards. All keys are read by
        default.
        """
        names, chosen = self._known(keys), np.unique(episodes)
        starts, stops = self.episodes[:-1][chosen], self.episodes[1:][chosen]
        first = 0
        for record in self.manifest.shards:
            # An episode lies in one shard.
            low, high = np.searchsorted(starts, [first, first + record.rows])
            if low < high:
                with open_shard(self.shard_path(record)) as file:
                    for span, kept in _spans(starts[low:high] - first, stops[low:high] - first, rows):
                        yield {key: file[key][span][kept] for key in names}
            first += record.rows

    def read(self, start: int, stop: int, keys: Sequence[str] | None = None) -> Rows:
        """Return rows [start, stop), across shards."""
        names, first, parts = self._known(keys), 0, []
        for record in self.manifest.shards:
            last = first + record.rows
            if first < stop and start < last:
                with open_shard(self.shard_path(record)) as file:
                    inside = slice(max(start - first, 0), min(stop, last) - first)
                    parts.append({key: file[key][inside] for key in names})
            first = last
        return joined(parts)

    def arrays(self, keys: Sequence[str] | None = None) -> Rows:
        """Return all rows (N, ...), and `episode_starts` (E,)."""
        names = self._known(keys)
        return joined(list(self.blocks(names))) | {"episode_starts": self.episodes[:-1]}

    def _known(self, keys: Sequence[str] | None) -> tuple[str, ...]:
        names = tuple(key for key in (keys or self.keys) if key != "episode_starts")
        if unknown := [key for key in names if key not in self.keys]:
            raise BadInput(f"'{unknown[0]}' is not a key of the dataset: choose from {', '.join(self.keys)}.")
        return names

    @property
    def sources(self) -> list[SourceRecord]:
        """Accounts of the dataset's sources."""
        return [source for entry in self.manifest.provenance for source in entry.sources]

    def split(self, held_out: float = 0.2) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return episode numbers for training (E - h,) and held out (h,), by a hash of their rows.

        An append never moves an episode to the other side. Each side gets at least two of four or more episodes, and
        one of two: if too few hashes fall on one side, it gets the episodes nearest to the threshold, the share
        `held_out`.
        """
        position = self.episode_digests[:, :8].copy().view(">u8")[:, 0] / 2.0**64
        out = position < held_out
        least, order = min(len(out) // 2, LEAST_OF_A_SIDE), np.argsort(position, kind="stable")
        out[order[:least]] = True
        out[order[len(out) - least :]] = False
        return np.flatnonzero(~out), np.flatnonzero(out)

    def verify(self) -> None:
        """Check every file's SHA-256 and every shard's content digest; raise Refused for the first that differs."""
        self.check_files()
        records = self.manifest.shards
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(check_content, map(self.shard_path, records), records))
        others = [(self.view_path, self.manifest.view.sha256)]
        for entry in self.manifest.provenance:
            for source in entry.sources:
                parts = (*source.quarantine, *source.raw_quarantine)
                others += [(self.root / part.file, part.sha256) for part in parts]
        for path, sha256 in others:
            if not path.exists() or file_sha256(path) != sha256:
                raise Refused(
                    f"{path.parent.name}/{path.name} is missing or does not have SHA-256 {sha256}: remove it and "
                    "ingest the sources again."
                )


def _spans(
    starts: npt.NDArray[np.int64], stops: npt.NDArray[np.int64], rows: int
) -> Iterator[tuple[slice, slice | npt.NDArray[np.bool_]]]:
    """Yield slices to read, and which of their rows belong to the ascending ranges [start, stop) (E,)."""
    far = np.flatnonzero(starts[1:] - stops[:-1] > NEAR_ROWS) + 1
    for begins, ends in zip(np.split(starts, far), np.split(stops, far), strict=True):
        for at in range(int(begins[0]), int(ends[-1]), rows):
            index = np.arange(at, min(at + rows, int(ends[-1])))
            kept = index >= begins[np.searchsorted(ends, index, side="right")]
            if kept.any():
                yield slice(at, at + len(index)), slice(None) if kept.all() else kept
