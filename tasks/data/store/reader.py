"""The dataset store: a manifest names immutable shards, and the manifest's SHA-256 is the dataset's name.

<root>/manifests/<digest>.json   what the dataset is: spec, provenance, shards
<root>/shards/<sha256>.h5        rows; shared by all manifests, so an append copies nothing
<root>/views/<sha256>.h5         one virtual file over all shards of a manifest, for other libraries
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic import ValidationError

from configs.errors import BadInput, Refused
from neorl_core.types import PlantSpec
from tasks.data.store.records import Manifest, ShardRecord, SourceRecord
from tasks.data.store.schema import Rows
from tasks.data.store.shards import check_content, check_file, open_shard
from tasks.files.canonical import file_sha256, sha256_hex
from tasks.files.spec import spec_of_record

LEAST_OF_A_SIDE = 2
"""Episodes that either side of a split gets where there are enough: one says nothing of how results vary."""
NEAR_ROWS = 4096
"""Rows between two chosen episodes up to which both are read at once: every reading has its price."""
SCHEMA = 2
"""2: a canonical block ends where its episode does, and an episode's digest is the Merkle root over its blocks."""


def dataset_of(folders: Sequence[Path], digest: str) -> StoredDataset:
    """Open the dataset whose digest begins so.

    Args:
        folders: of plants' datasets.
        digest: some of its first hexadecimal digits.

    Raises:
        BadInput: when none or several begin so.
        Refused: as `StoredDataset.open`.
    """
    found = sorted({path for folder in folders for path in folder.glob(f"manifests/{digest}*.json")})
    if len({path.stem for path in found}) != 1:
        cure = "give more of its digits." if found else "ingest its sources first, or name its folder by --root."
        raise BadInput(f"expected one dataset {digest}, got {len(found)}: {cure}")
    return StoredDataset.open(found[0].parents[1], found[0].stem)


def newest_first(folder: Path) -> list[Path]:
    """The manifests of a plant's folder of datasets."""
    return sorted(folder.glob("manifests/*.json"), key=lambda path: (-path.stat().st_mtime_ns, path.stem))


@dataclass(frozen=True)
class StoredDataset:
    """A dataset on disk, opened by its digest; nothing is read before its files' digests are checked."""

    root: Path
    digest: str
    manifest: Manifest

    @classmethod
    def open(cls, root: Path, digest: str, verify: bool = True) -> StoredDataset:
        """Open a dataset.

        Args:
            root: the plant's folder of datasets.
            digest: the dataset's name.
            verify: hold every shard's file against its SHA-256 first.

        Raises:
            BadInput: when there is no such dataset.
            Refused: when a manifest, shard or view is not what its digest says.
        """
        path = root / "manifests" / f"{digest}.json"
        if not path.exists():
            raise BadInput(f"expected dataset {digest} in {root}, got no such manifest: ingest its sources again.")
        data = path.read_bytes()
        if (got := sha256_hex(data)) != digest:
            raise Refused(
                f"expected manifest {path.name} to have SHA-256 {digest}, got {got}: "
                "restore it from a backup or ingest its sources again."
            )
        found = json.loads(data)
        if (version := found.get("schema")) != SCHEMA:
            raise Refused(f"expected a dataset of schema {SCHEMA}, got {version}: ingest its sources again.")
        try:
            dataset = cls(root, digest, Manifest.model_validate(found))
        except ValidationError as error:
            wrong = error.errors()[0]
            raise Refused(
                f"expected a whole manifest in {path.name}, got '{wrong['msg']}' at "
                f"{'.'.join(map(str, wrong['loc']))}: ingest its sources again."
            ) from error
        if verify:
            dataset.check_files()
        return dataset

    def check_files(self) -> None:
        """Hold every shard's file against its SHA-256, two at a time.

        Raises:
            Refused: naming the first shard that differs.
        """
        records = self.manifest.shards
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(check_file, map(self.shard_path, records), records))

    @property
    def spec(self) -> PlantSpec:
        """The plant's spec as it was when the dataset was made."""
        return spec_of_record(self.manifest.spec)

    @property
    def manifest_path(self) -> Path:
        """The file that says what the dataset is."""
        return self.root / "manifests" / f"{self.digest}.json"

    def shard_path(self, record: ShardRecord) -> Path:
        """The file of a shard's record in the manifest."""
        return self.root / "shards" / record.file

    @property
    def view_path(self) -> Path:
        """The virtual file that shows all shards as one."""
        return self.root / "views" / self.manifest.view.file

    @property
    def rows(self) -> int:
        """How many rows all shards hold."""
        return sum(record.rows for record in self.manifest.shards)

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys that have one entry per row."""
        return self.manifest.keys

    @cached_property
    def episodes(self) -> npt.NDArray[np.int64]:
        """Where episodes begin, and one past the last row: (E + 1,)."""
        return np.append(self._per_episode("episode_starts"), self.rows).astype(np.int64)

    @cached_property
    def episode_digests(self) -> npt.NDArray[np.uint8]:
        """What names each episode by its rows: (E, 32)."""
        return self._per_episode("episode_digests")

    def _per_episode(self, key: str) -> npt.NDArray[Any]:
        parts, first = [], 0
        for record in self.manifest.shards:
            with open_shard(self.shard_path(record)) as file:
                parts.append(file[key][:] + (first if key == "episode_starts" else 0))
            first += record.rows
        return np.concatenate(parts)

    def blocks(self, keys: Sequence[str] | None = None, rows: int = 65536) -> Iterator[Rows]:
        """Consecutive blocks of at most `rows` rows, in order; a block never spans shards."""
        names = self._known(keys)
        for record in self.manifest.shards:
            with open_shard(self.shard_path(record)) as file:
                for start in range(0, record.rows, rows):
                    yield {key: file[key][start : start + rows] for key in names}

    def episode_blocks(
        self, episodes: npt.NDArray[np.int64], keys: Sequence[str] | None = None, rows: int = 65536
    ) -> Iterator[Rows]:
        """The rows of some episodes in the order of the dataset; no shard is opened that holds none of them.

        Args:
            episodes: (E,) episode numbers, in any order.
            keys: arrays to read; all when not given.
            rows: rows that are read at once.

        Returns:
            Blocks of at most `rows` rows; a block never spans shards.
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
        """Rows [start, stop), wherever shards end."""
        names, first, parts = self._known(keys), 0, []
        for record in self.manifest.shards:
            last = first + record.rows
            if first < stop and start < last:
                with open_shard(self.shard_path(record)) as file:
                    inside = slice(max(start - first, 0), min(stop, last) - first)
                    parts.append({key: file[key][inside] for key in names})
            first = last
        return {key: np.concatenate([part[key] for part in parts]) for key in names}

    def arrays(self, keys: Sequence[str] | None = None) -> Rows:
        """All rows, resident, with `episode_starts` (E,): every array (N, ...)."""
        names = self._known(keys)
        parts = list(self.blocks(names))
        arrays = {key: np.concatenate([part[key] for part in parts]) for key in names}
        return arrays | {"episode_starts": self.episodes[:-1]}

    def _known(self, keys: Sequence[str] | None) -> tuple[str, ...]:
        names = tuple(key for key in (keys or self.keys) if key != "episode_starts")
        if unknown := [key for key in names if key not in self.keys]:
            raise BadInput(f"expected keys among {', '.join(self.keys)}, got '{unknown[0]}': ask for one of those.")
        return names

    @property
    def sources(self) -> list[SourceRecord]:
        """What became of the rows that it was made of, by source."""
        return [source for entry in self.manifest.provenance for source in entry.sources]

    def split(self, held_out: float = 0.2) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Divide episodes by a hash of what they hold, so that an append moves no episode from one side to the other.

        Args:
            held_out: share of episodes to hold out, between 0 and 1.

        Returns:
            Episode numbers for training (E - h,) and held out (h,). Each side gets two where there are four or more,
            and one where there are two: a small dataset whose hashes fall on one side gives up its nearest episodes.
        """
        position = self.episode_digests[:, :8].copy().view(">u8")[:, 0] / 2.0**64
        out = position < held_out
        least, order = min(len(out) // 2, LEAST_OF_A_SIDE), np.argsort(position, kind="stable")
        out[order[:least]] = True
        out[order[len(out) - least :]] = False
        return np.flatnonzero(~out), np.flatnonzero(out)

    def verify(self) -> None:
        """Hold every file against its SHA-256 and every shard's rows against their content digest.

        Raises:
            Refused: naming the shard, view or quarantine file that is not what the manifest says.
        """
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
                    f"expected {path.parent.name}/{path.name} to have SHA-256 {sha256}, got another file or none: "
                    "remove it and ingest the sources again."
                )


def _spans(
    starts: npt.NDArray[np.int64], stops: npt.NDArray[np.int64], rows: int
) -> Iterator[tuple[slice, slice | npt.NDArray[np.bool_]]]:
    """Which rows to read at once, and which of those belong to the ranges [start, stop), which increase (E,)."""
    far = np.flatnonzero(starts[1:] - stops[:-1] > NEAR_ROWS) + 1
    for begins, ends in zip(np.split(starts, far), np.split(stops, far), strict=True):
        for at in range(int(begins[0]), int(ends[-1]), rows):
            index = np.arange(at, min(at + rows, int(ends[-1])))
            kept = index >= begins[np.searchsorted(ends, index, side="right")]
            if kept.any():
                yield slice(at, at + len(index)), slice(None) if kept.all() else kept
