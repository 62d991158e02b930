"""Writing a dataset: rows become shards while further ones come, and a manifest names them when all are there."""

from __future__ import annotations

import io
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

from configs.errors import BadInput
from neorl_core.types import PlantSpec
from tasks.data.store.reader import SCHEMA, StoredDataset
from tasks.data.store.records import FileRecord, Manifest, Provenance, ShardRecord
from tasks.data.store.schema import CHOICE, ROW_KEYS, Rows, kept_as
from tasks.data.store.shards import LIBVER, open_shard, write_shard
from tasks.files.canonical import canonical_json, make_folder, sha256_hex, write_atomic
from tasks.files.spec import same_limits, spec_record

SHARD_BYTES = 32 * 2**20
"""Rows of about this many bytes make a shard; some of them are the memory that writing takes, whatever the size."""
IN_FLIGHT = 3
"""Shards that are hashed and written while the next one's rows come."""


FEW_ROWS = 4096
"""Fewer rows than these are joined with their neighbours, for every array has its price."""


class _Buffer:
    """The rows of a shard that is being filled: kept and not copied, for fresh memory costs time."""

    def __init__(self) -> None:
        self.count = self.nbytes = 0
        self._parts: list[Rows] = []
        self._small: list[Rows] = []
        self._small_count = 0

    def append(self, rows: Rows) -> None:
        """Put rows (n, ...) behind those that are there; they are not to be written to any more.

        Raises:
            ValueError: when arrays differ in their number of rows, or in shape from those that are there.
        """
        count = len(rows["rewards"])
        before = next(iter(self._parts or self._small), rows)
        for key, values in rows.items():
            if values.shape != (count, *before[key].shape[1:]):
                raise ValueError(f"expected {key} of shape {(count, *before[key].shape[1:])}, got {values.shape}")
        if count >= FEW_ROWS:
            self._join()
            self._parts.append(rows)
        elif count:
            self._small.append(rows)
            self._small_count += count
            if self._small_count >= FEW_ROWS:
                self._join()
        self.count += count
        self.nbytes += sum(values.nbytes for values in rows.values())

    def _join(self) -> None:
        """Make one part of the small ones."""
        if self._small:
            self._parts.append({key: np.concatenate([part[key] for part in self._small]) for key in self._small[0]})
            self._small, self._small_count = [], 0

    def parts(self) -> list[Rows]:
        """All rows, in blocks one after the other."""
        self._join()
        return self._parts


class DatasetWriter:
    """Writes a dataset shard by shard; used as a context manager, and `commit` gives it its name.

    Without `commit` no manifest is written, so a dataset exists whole or not at all; shards left by an interrupted
    writer are found again by their digest.

    Args:
        root: the plant's folder of datasets.
        spec: the plant.
        parent: the dataset to append to; its shards are named again, not copied.
        shard_bytes: size at which a shard is closed, at the next end of an episode.
    """

    def __init__(
        self, root: Path, spec: PlantSpec, parent: StoredDataset | None = None, shard_bytes: int = SHARD_BYTES
    ) -> None:
        self.root, self.spec, self.shard_bytes = root, spec, shard_bytes
        self.shards: list[ShardRecord] = list(parent.manifest.shards) if parent else []
        self.provenance: list[Provenance] = list(parent.manifest.provenance) if parent else []
        self.keys: list[str] = list(parent.manifest.keys) if parent else []
        self._buffer = _Buffer()
        self._written: list[ShardRecord] = []
        self._beside = ThreadPoolExecutor(IN_FLIGHT)
        self._waiting: deque[Future[ShardRecord]] = deque()
        if parent and not same_limits(parent.spec, spec):
            raise BadInput(
                f"expected dataset {parent.digest} to be of plant {spec.name} as it is now, got another spec: "
                "ingest its sources again."
            )
        make_folder(root / "shards")

    def __enter__(self) -> DatasetWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._beside.shutdown()

    def append(self, rows: Rows) -> None:
        """Add consecutive rows (n, ...); an episode may go on over several calls.

        Arrays that own their memory are kept, and no longer writeable; views are copied.

        Raises:
            BadInput: when there are other keys than in the rows before.
            ValueError: when arrays differ in their number of rows, or in shape from the rows before.
        """
        keys = [key for key in ROW_KEYS if key in rows]
        self.adopt_keys(keys)
        kinds = ROW_KEYS if self.spec.choices is None else ROW_KEYS | {"actions": CHOICE}
        rows = {key: _owned(rows[key], kinds[key]) for key in keys}
        ends = np.flatnonzero(rows["terminals"] | rows["timeouts"])
        size = sum(rows[key].nbytes for key in keys)
        if len(ends) and self._buffer.nbytes + size >= self.shard_bytes:
            cut = int(ends[-1]) + 1
            self._buffer.append({key: rows[key][:cut] for key in keys})
            self._hand_over()
            rows = {key: rows[key][cut:] for key in keys}
        self._buffer.append({key: rows[key] for key in keys})

    def adopt_keys(self, keys: Sequence[str]) -> None:
        """Hold the keys of rows to come against those already there."""
        if self.keys and list(keys) != self.keys:
            raise BadInput(
                f"expected rows with {', '.join(self.keys)}, got {', '.join(keys)}: "
                "ingest sources with and without timestamps into datasets of their own."
            )
        self.keys = list(keys)

    def _hand_over(self) -> None:
        """Have the rows at hand written as a shard while further ones come, `IN_FLIGHT` shards at a time."""
        self._adopt(IN_FLIGHT - 1)
        if self._buffer.count:
            self._waiting.append(self._beside.submit(write_shard, self.root / "shards", self._buffer.parts()))
            self._buffer = _Buffer()

    def _adopt(self, left: int) -> None:
        """Take shards in their order until only so many are still being written."""
        while len(self._waiting) > left:
            self._written.append(self._waiting.popleft().result())

    def end_source(self) -> None:
        """Write the rows at hand as a shard, and name all that were written since the source before.

        Raises:
            BadInput: as `adopt_shards`.
        """
        self._hand_over()
        self._adopt(0)
        written, self._written = self._written, []
        self.adopt_shards(written)

    def adopt_shards(self, records: Sequence[ShardRecord]) -> None:
        """Name the shards that a source became, which are in the folder already.

        Exports of one log that begin at one moment begin with the same shards, which are named once for each: rows
        count as often as sources have them. A source that has no others is the caller's mistake.

        Raises:
            BadInput: when every shard is named before.
        """
        known = {record.sha256 for record in self.shards}
        if records and all(record.sha256 in known for record in records):
            raise BadInput(
                f"expected new rows of every source, got only those of shard {records[0].file} a second time: give "
                "each source once."
            )
        self.shards.extend(records)

    def commit(self, provenance: Provenance) -> str:
        """Write the view and the manifest.

        Args:
            provenance: where the rows came from.

        Returns:
            The dataset's digest.

        Raises:
            BadInput: when there are no rows, or no room to write.
        """
        self.end_source()
        if not self.shards:
            raise BadInput("expected at least one row, got an empty dataset: check the sources and the mapping.")
        view = _virtual_view(self.root / "shards", self.shards, self.keys)
        view_sha256 = sha256_hex(view)
        manifest = Manifest(
            schema=SCHEMA,
            spec=spec_record(self.spec),
            provenance=(*self.provenance, provenance),
            keys=tuple(self.keys),
            shards=tuple(self.shards),
            view=FileRecord(file=f"{view_sha256}.h5", sha256=view_sha256),
        )
        data = canonical_json(manifest.model_dump(mode="json", by_alias=True, exclude_unset=True))
        digest = sha256_hex(data)
        write_atomic(self.root / "views" / f"{view_sha256}.h5", view)
        write_atomic(self.root / "manifests" / f"{digest}.json", data)
        return digest


def _owned(values: npt.NDArray[Any], kind: np.dtype[Any]) -> npt.NDArray[Any]:
    """The array itself, locked, where it is as the store wants it and no view of another's memory; else a copy."""
    if values.base is not None or values.dtype != kind or not values.flags.c_contiguous:
        values = np.array(values, kind, order="C")
    values.flags.writeable = False
    return values


def _virtual_view(folder: Path, shards: Sequence[ShardRecord], keys: Sequence[str]) -> bytes:
    """An HDF5 file whose datasets lie in the shards; the same shards make the same bytes."""
    rows = [record.rows for record in shards]
    first = np.cumsum([0, *rows])
    starts, tails, kinds = [], {}, {}
    for record, offset in zip(shards, first, strict=False):
        with open_shard(folder / record.file) as file:
            starts.append(file["episode_starts"][:] + offset)
            tails = {key: file[key].shape[1:] for key in keys}
            kinds = {key: kept_as(key, file[key].dtype) for key in keys}
    image = io.BytesIO()
    with h5py.File(image, "w", libver=LIBVER) as view:
        view.create_dataset("episode_starts", data=np.concatenate(starts), track_times=False)
        for key in keys:
            # The low-level interface, because the high-level one stamps virtual datasets with the time.
            plan = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
            plan.set_obj_track_times(False)
            space = h5py.h5s.create_simple((int(first[-1]), *tails[key]))
            for record, offset, count in zip(shards, first, rows, strict=False):
                shape = (count, *tails[key])
                space.select_hyperslab((int(offset), *(0 for _ in tails[key])), shape)
                source = f"../shards/{record.file}".encode()
                plan.set_virtual(space, source, key.encode(), h5py.h5s.create_simple(shape))
            space.select_all()
            kind = h5py.h5t.py_create(kinds[key], logical=True)
            h5py.h5d.create(view.id, name=key.encode(), tid=kind, space=space, dcpl=plan)
    return image.getvalue()
