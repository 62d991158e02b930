"""Write a dataset: write rows to shards as they arrive, and at the end a manifest that lists the shards."""

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
from tasks.data.store.schema import CHOICE, ROW_KEYS, Rows, joined, stored_dtype
from tasks.data.store.shards import LIBVER, open_shard, write_shard
from tasks.files.canonical import canonical_json, make_folder, sha256_hex, write_atomic
from tasks.files.spec import same_limits, spec_record

SHARD_BYTES = 32 * 2**20
"""Approximate size of a shard in bytes; writing a dataset of any size needs a few times this memory."""
IN_FLIGHT = 3
"""Largest number of shards that are hashed and written in the background."""
FEW_ROWS = 4096
"""Arrays with fewer rows are joined with the next arrays, because each array has a fixed cost."""


class _Buffer:
    """Rows for the next shard. The arrays are not copied."""

    def __init__(self) -> None:
        self.count = self.nbytes = 0
        self._parts: list[Rows] = []
        self._small: list[Rows] = []
        self._small_count = 0

    def append(self, rows: Rows) -> None:
        """Append n rows; raise ValueError if a shape differs. Do not change the arrays afterwards."""
        count = len(rows["rewards"])
        before = next(iter(self._parts or self._small), rows)
        for key, values in rows.items():
            if values.shape != (count, *before[key].shape[1:]):
                raise ValueError(f"{key} must have shape {(count, *before[key].shape[1:])}, got {values.shape}")
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
        if self._small:
            self._parts.append(joined(self._small))
            self._small, self._small_count = [], 0

    def parts(self) -> list[Rows]:
        self._join()
        return self._parts


class DatasetWriter:
    """Context manager that writes a dataset shard by shard; `commit` writes the manifest and returns its digest.

    Without `commit` there is no manifest, so a dataset is either complete or absent. If `parent` is given, rows are
    appended to this dataset: the new manifest lists the parent's shards, too. A shard ends with the first episode that
    ends after `shard_bytes` bytes.
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
                f"dataset {parent.digest[:12]} was ingested with another spec of plant {spec.name}: ingest its sources "
                "again."
            )
        make_folder(root / "shards")

    def __enter__(self) -> DatasetWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._beside.shutdown()

    def append(self, rows: Rows) -> None:
        """Append n consecutive rows; an episode may extend over several calls.

        Arrays are made read-only and kept; views are copied. Keys that differ from those of earlier rows raise
        BadInput, and a different shape raises ValueError.
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
        """Set the keys of the next rows; raise BadInput if earlier rows have different keys."""
        if self.keys and list(keys) != self.keys:
            raise BadInput(
                f"new rows have {', '.join(keys)}, but earlier rows have {', '.join(self.keys)}: ingest sources with "
                "different keys into separate datasets."
            )
        self.keys = list(keys)

    def _hand_over(self) -> None:
        """Start writing the buffered rows as a shard; if `IN_FLIGHT` shards are being written, wait for the first."""
        self._adopt(IN_FLIGHT - 1)
        if self._buffer.count:
            self._waiting.append(self._beside.submit(write_shard, self.root / "shards", self._buffer.parts()))
            self._buffer = _Buffer()

    def _adopt(self, left: int) -> None:
        while len(self._waiting) > left:
            self._written.append(self._waiting.popleft().result())

    def end_source(self) -> None:
        """End a source: write the buffered rows as a shard, and call `adopt_shards` for all shards of the source."""
        self._hand_over()
        self._adopt(0)
        written, self._written = self._written, []
        self.adopt_shards(written)

    def adopt_shards(self, records: Sequence[ShardRecord]) -> None:
        """Add shards of a source, which are already in the folder, to the dataset.

        Two sources may share shards, if they begin with the same rows; these rows are then in the dataset twice. If all
        shards are already in the dataset, the source was probably given twice, and BadInput is raised.
        """
        known = {record.sha256 for record in self.shards}
        if records and all(record.sha256 in known for record in records):
            raise BadInput(
                f"a source was given twice: all its rows are already in the dataset (shard {records[0].file}); give "
                "each source once."
            )
        self.shards.extend(records)

    def commit(self, provenance: Provenance) -> str:
        """Write the view and the manifest, and return the dataset's digest; raise BadInput if there are no rows."""
        self.end_source()
        if not self.shards:
            raise BadInput(f"there are no rows for a dataset of {self.spec.name}: check the sources and the mapping.")
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
    """Return an array of the type `kind` in C order, made read-only; copy it if it is a view or must be converted."""
    if values.base is not None or values.dtype != kind or not values.flags.c_contiguous:
        values = np.array(values, kind, order="C")
    values.flags.writeable = False
    return values


def _virtual_view(folder: Path, shards: Sequence[ShardRecord], keys: Sequence[str]) -> bytes:
    """Return an HDF5 file that joins the shards without copying rows; equal shards give equal bytes."""
    rows = [record.rows for record in shards]
    first = np.cumsum([0, *rows])
    starts, tails, kinds = [], {}, {}
    for record, offset in zip(shards, first, strict=False):
        with open_shard(folder / record.file) as file:
            starts.append(file["episode_starts"][:] + offset)
            tails = {key: file[key].shape[1:] for key in keys}
            kinds = {key: stored_dtype(key, file[key].dtype) for key in keys}
    image = io.BytesIO()
    with h5py.File(image, "w", libver=LIBVER) as view:
        view.create_dataset("episode_starts", data=np.concatenate(starts), track_times=False)
        for key in keys:
            # Use h5py's low-level interface, because the high-level interface stores the time in virtual datasets.
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
