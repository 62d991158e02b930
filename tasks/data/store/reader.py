"""Datasets on disk: a manifest names immutable shards, and the manifest's SHA-256 is the dataset's name.

<root>/manifests/<digest>.json   spec, provenance, shards
<root>/shards/<sha256>.h5        rows; several manifests can share a shard, so that an append copies nothing
<root>/views/<sha256>.h5         an HDF5 file that joins all shards of a manifest, for other libraries
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
"""Minimum number of episodes for training and in the held-out split, if the dataset has enough episodes."""
NEAR_ROWS = 4096
"""Largest number of rows between two chosen episodes that are read together, because each read has a fixed cost."""
SCHEMA = 2
"""Version of the manifest format; a manifest with another version is refused."""


def dataset_of(folders: Sequence[Path], digest: str) -> StoredDataset:
    """Open a dataset by the first digits of its digest; raise BadInput if none or several in the folders match."""
    found = sorted({path for folder in folders for path in folder.glob(f"manifests/{digest}*.json")})
    if len({path.stem for path in found}) != 1:
        cure = "give more digits." if found else "ingest the sources first, or give the folder with --root."
        raise BadInput(f"{len(found) or 'no'} datasets have a digest that begins with {digest}: {cure}")
    return StoredDataset.open(found[0].parents[1], found[0].stem)


def newest_first(folder: Path) -> list[Path]:
    return sorted(folder.glob("manifests/*.json"), key=lambda path: (-path.stat().st_mtime_ns, path.stem))


@dataclass(frozen=True)
class StoredDataset:
    """A dataset on disk. Files are checked against their digests before they are read."""

    root: Path
    digest: str
    manifest: Manifest

    @classmethod
    def open(cls, root: Path, digest: str, verify: bool = True) -> StoredDataset:
        """Open a dataset in a plant's folder by its digest; with `verify`, check the SHA-256 of every shard.

        An unknown digest raises BadInput. A manifest or shard that does not match its digest raises Refused.
        """
        path = root / "manifests" / f"{digest}.json"
        if not path.exists():
            raise BadInput(f"no dataset {digest[:12]} in {root}: ingest its sources again.")
        data = path.read_bytes()
        if (got := sha256_hex(data)) != digest:
            raise Refused(
                f"manifest {path.name} has SHA-256 {got}, unlike its name: restore it from a backup or ingest again."
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
        """Check the SHA-256 of every shard; raise Refused for the first shard that differs."""
        records = self.manifest.shards
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(check_file, map(self.shard_path, records), records))

    @property
    def spec(self) -> PlantSpec:
        """Spec of the plant at the time when the dataset was written."""
        return spec_of_record(self.manifest.spec)

    @property
    def manifest_path(self) -> Path:
        return self.root / "manifests" / f"{self.digest}.json"

    def shard_path(self, record: ShardRecord) -> Path:
        return self.root / "shards" / record.file

    @property
    def view_path(self) -> Path:
        return self.root / "views" / self.manifest.view.file

    @property
    def rows(self) -> int:
        return sum(record.rows for record in self.manifest.shards)

    @property
    def keys(self) -> tuple[str, ...]:
        return self.manifest.keys

    @cached_property
    def episodes(self) -> npt.NDArray[np.int64]:
        """First row of each of E episodes, and the number of rows: (E + 1,)."""
        return np.append(self._per_episode("episode_starts"), self.rows).astype(np.int64)

    @cached_property
    def episode_digests(self) -> npt.NDArray[np.uint8]:
        """Digest of each episode's rows, as bytes: (E, 32)."""
        return self._per_episode("episode_digests")

    def _per_episode(self, key: str) -> npt.NDArray[Any]:
        starts = key == "episode_starts"
        return np.concatenate([file[key][:] + (first if starts else 0) for file, first, _ in self._shards()])

    def _shards(self) -> Iterator[tuple[h5py.File, int, int]]:
        """Yield (open file, first row, one past the last row) of each shard; rows are numbered over the dataset."""
        first = 0
        for record in self.manifest.shards:
            with open_shard(self.shard_path(record)) as file:
                yield file, first, first + record.rows
            first += record.rows

    def blocks(self, keys: Sequence[str] | None = None, rows: int = 65536) -> Iterator[Rows]:
        """Yield all rows in blocks of at most `rows` rows of one shard; all keys are read by default."""
        names = self._known(keys)
        for file, first, last in self._shards():
            for start in range(0, last - first, rows):
                yield {key: file[key][start : start + rows] for key in names}

    def episode_blocks(
        self, episodes: npt.NDArray[np.int64], keys: Sequence[str] | None = None, rows: int = 65536
    ) -> Iterator[Rows]:
        """Yield the rows of the episodes with the given numbers (E,), in the order of the dataset.

        Each block has at most `rows` rows of one shard. All keys are read by default.
        """
        names, chosen = self._known(keys), np.unique(episodes)
        starts, stops = self.episodes[:-1][chosen], self.episodes[1:][chosen]
        first = 0
        for record in self.manifest.shards:
            # An episode is never divided between shards.
            low, high = np.searchsorted(starts, [first, first + record.rows])
            if low < high:
                with open_shard(self.shard_path(record)) as file:
                    for span, kept in _spans(starts[low:high] - first, stops[low:high] - first, rows):
                        yield {key: file[key][span][kept] for key in names}
            first += record.rows

    def read(self, start: int, stop: int, keys: Sequence[str] | None = None) -> Rows:
        """Return the rows from `start` up to, but not including, `stop`; all keys are read by default."""
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
        """Return all N rows, an array (N, ...) for each key, and `episode_starts` (E,)."""
        names = self._known(keys)
        return joined(list(self.blocks(names))) | {"episode_starts": self.episodes[:-1]}

    def _known(self, keys: Sequence[str] | None) -> tuple[str, ...]:
        names = tuple(key for key in (keys or self.keys) if key != "episode_starts")
        if unknown := [key for key in names if key not in self.keys]:
            raise BadInput(f"'{unknown[0]}' is not a key of the dataset: choose from {', '.join(self.keys)}.")
        return names

    @property
    def sources(self) -> list[SourceRecord]:
        return [source for entry in self.manifest.provenance for source in entry.sources]

    def split(self, held_out: float = 0.2) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return the numbers of the training episodes and of the held-out episodes.

        An episode is held out if its digest, as a number from 0 to 1, is below `held_out`. Appended episodes do not
        change this. Each side has at least two of four or more episodes, and one of two or three. If a side has fewer,
        the episodes nearest to the threshold move to this side.
        """
        position = self.episode_digests[:, :8].copy().view(">u8")[:, 0] / 2.0**64
        out = position < held_out
        least, order = min(len(out) // 2, LEAST_OF_A_SIDE), np.argsort(position, kind="stable")
        out[order[:least]] = True
        out[order[len(out) - least :]] = False
        return np.flatnonzero(~out), np.flatnonzero(out)

    def verify(self) -> None:
        """Check the SHA-256 of every file and the content digest of every shard; raise Refused if one differs."""
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
    """Yield slices of rows to read, each with a mask of the rows inside the E ascending ranges [start, stop)."""
    far = np.flatnonzero(starts[1:] - stops[:-1] > NEAR_ROWS) + 1
    for begins, ends in zip(np.split(starts, far), np.split(stops, far), strict=True):
        for at in range(int(begins[0]), int(ends[-1]), rows):
            index = np.arange(at, min(at + rows, int(ends[-1])))
            kept = index >= begins[np.searchsorted(ends, index, side="right")]
            if kept.any():
                yield slice(at, at + len(index)), slice(None) if kept.all() else kept
