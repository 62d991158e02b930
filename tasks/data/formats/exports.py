"""Export datasets to the file formats of D4RL, DSRL, Minari, NeoRL and NeoRL-2.

Every format contains the arrays named in `ALWAYS`. `Export.left_out` lists the contents that a format cannot store.
Files are written atomically.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

from configs.errors import BadInput
from tasks.data.formats.hdf5.minari import INFOS, first_difference, metadata_of, write_episode
from tasks.data.store.reader import StoredDataset
from tasks.data.store.records import Record
from tasks.data.store.schema import ALWAYS, BLOCK_ROWS, Rows, joined, stored_dtype
from tasks.data.store.shards import LIBVER
from tasks.files.canonical import (
    SHARED,
    file_sha256,
    fsync_path,
    make_folder,
    publish,
    unwritable_is_bad_input,
    write_atomic,
    writing,
)

Progress = Callable[[int, int, str], None]
CHUNK_ROWS = 16384
NPZ = {"obs": "observations", "action": "actions", "next_obs": "next_observations", "reward": "rewards"}
MINARI_NAME = re.compile(r"[-_\w]+-v\d+")
NAMESPACE = "namespace_metadata.json"
"""File that marks a folder as a Minari namespace."""
BESIDES = "names, units, limits and provenance, which stay in the manifest"


class Export(Record):
    format: str
    path: Path
    sha256: str
    """SHA-256 of the exported file; for a Minari folder, of main_data.hdf5."""
    rows: int
    episodes: int
    left_out: tuple[str, ...]


def export(dataset: StoredDataset, to: str, out: Path, progress: Progress | None = None) -> Export:
    """Write a dataset in another format; the file or folder `out` must not exist.

    Args:
        to: name of a format in `FORMATS`; a format that cannot store the dataset raises BadInput.
        out: the new file. Minari needs a folder named NAME-v0; namespace folders above become part of the Minari id.
    """
    if to not in FORMATS:
        raise BadInput(f"'{to}' is not an export format: choose from {', '.join(FORMATS)}.")
    if dataset.spec.choices is not None and to != "minari":
        raise BadInput(f"{to} cannot store discrete actions: export the dataset to minari.")
    if out.exists():
        raise BadInput(f"{out} exists already: remove it or name another path.")
    make_folder(out.parent)
    with unwritable_is_bad_input(out):
        main, left_out = FORMATS[to](dataset, out, progress or (lambda done, total, unit: None))
    return Export(
        format=to,
        path=out,
        sha256=file_sha256(main),
        rows=dataset.rows,
        episodes=len(dataset.episodes) - 1,
        left_out=(*left_out, BESIDES),
    )


def _left_out(dataset: StoredDataset, carried: tuple[str, ...]) -> list[str]:
    return [key for key in dataset.keys if key not in carried]


def _prove_room(folder: Path, size: int) -> None:
    """Check that a folder's disk has `size` free bytes, because HDF5 hangs or crashes when a disk is full."""
    with tempfile.TemporaryFile(dir=folder) as file:
        os.posix_fallocate(file.fileno(), 0, max(size, 1))


class Flat:
    """Context manager that writes an HDF5 file with one array per key, as in D4RL and DSRL.

    The file appears at `path` when the block ends. If `rows`, the total number, is given, disk space is checked first.
    """

    def __init__(self, path: Path, keys: tuple[str, ...], rows: int | None = None) -> None:
        self.path, self.keys, self.rows, self.at = path, keys, rows, 0
        self.file: h5py.File

    def _create(self, rows: Rows) -> None:
        size = sum(rows[key][:1].nbytes for key in self.keys)
        _prove_room(self.path.parent, (self.rows or len(rows["rewards"])) * size + 2**16)
        for key in self.keys:
            tail = rows[key].shape[1:]
            grows: dict[str, Any] = {} if self.rows else {"maxshape": (None, *tail), "chunks": (CHUNK_ROWS, *tail)}
            self.file.create_dataset(
                key, (self.rows or 0, *tail), stored_dtype(key, rows[key].dtype), track_times=False, **grows
            )

    def append(self, rows: Rows) -> None:
        """Append n rows: an array (n, ...) for each key."""
        if not len(self.file):
            self._create(rows)
        stop = self.at + len(rows["rewards"])
        for key in self.keys:
            if self.rows is None:
                self.file[key].resize(stop, axis=0)
            self.file[key][self.at : stop] = rows[key]
        self.at = stop

    def __enter__(self) -> Flat:
        with ExitStack() as stack:
            temporary = stack.enter_context(writing(self.path, SHARED))
            self.file = stack.enter_context(h5py.File(temporary, "w", libver=LIBVER))
            self._opened = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._opened.__exit__(kind, error, at)


def _flat(
    dataset: StoredDataset, out: Path, progress: Progress, keys: tuple[str, ...] = ALWAYS
) -> tuple[Path, list[str]]:
    with Flat(out, keys, dataset.rows) as file:
        for rows in dataset.blocks(keys, BLOCK_ROWS):
            file.append(rows)
            progress(file.at, dataset.rows, "rows")
    return out, _left_out(dataset, keys)


def _dsrl(dataset: StoredDataset, out: Path, progress: Progress) -> tuple[Path, list[str]]:
    if "costs" not in dataset.keys:
        raise BadInput(
            f"DSRL needs costs, but dataset {dataset.digest[:12]} has none: export it to d4rl, or ingest the source "
            "again with --plant, which computes costs from the plant's limits."
        )
    return _flat(dataset, out, progress, (*ALWAYS, "costs"))


@contextmanager
def _npz_member(
    archive: zipfile.ZipFile, name: str, shape: tuple[int, ...], dtype: str
) -> Iterator[Callable[[npt.NDArray[Any]], int]]:
    """Add an array of a given shape to an npz archive in parts: yield a function that writes the next rows."""
    entry = zipfile.ZipInfo(f"{name}.npy", date_time=(1980, 1, 1, 0, 0, 0))
    entry.create_system = 3
    with archive.open(entry, "w", force_zip64=True) as stream:
        header = {"descr": dtype, "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(stream, header)
        yield lambda part: stream.write(np.ascontiguousarray(part, dtype).tobytes())


def _npz(dataset: StoredDataset, out: Path, progress: Progress, v1: bool) -> tuple[Path, list[str]]:
    first, rows = dataset.read(0, 1, ALWAYS), dataset.rows
    flags = {"done": "terminals"} if v1 else {"done": "terminals", "truncated": "timeouts"}
    names = NPZ | flags
    written = 0
    with writing(out, SHARED) as temporary, zipfile.ZipFile(temporary, "w", zipfile.ZIP_STORED) as archive:
        for name, key in names.items():
            # NeoRL stores scalars as columns (N, 1), NeoRL-2 as (N,).
            tail = first[key].shape[1:] or ((1,) if v1 else ())
            with _npz_member(archive, name, (rows, *tail), "<f4") as write:
                for block in dataset.blocks([key], BLOCK_ROWS):
                    write(block[key].reshape(-1, *tail))
                    written += len(block[key])
                    progress(written, rows * len(names), "rows of arrays")
        if v1:
            ends = dataset.episodes[1:]
            with _npz_member(archive, "index", ends.shape, "<i8") as write:
                write(ends)
    return out, _left_out(dataset, ALWAYS)


def episodes_of(dataset: StoredDataset) -> Iterator[Rows]:
    """Yield the episodes of a dataset in order; an episode of T steps has an array (T, ...) for each key."""
    parts: list[Rows] = []
    for block in dataset.blocks(rows=BLOCK_ROWS):
        start = 0
        for end in np.flatnonzero(block["terminals"] | block["timeouts"]) + 1:
            parts.append({key: values[start:end] for key, values in block.items()})
            yield joined(parts)
            parts, start = [], int(end)
        if start < len(block["rewards"]):
            parts.append({key: values[start:] for key, values in block.items()})


def _minari(dataset: StoredDataset, out: Path, progress: Progress) -> tuple[Path, list[str]]:
    if not MINARI_NAME.fullmatch(out.name):
        raise BadInput(f"'{out.name}' is not a Minari id: name the folder NAME-vNUMBER, for example plant-v0.")
    keys = tuple(key for key in dataset.keys if key in (*ALWAYS, *INFOS))
    episodes = len(dataset.episodes) - 1
    # Groups, attributes and headers take about 4 KiB per episode; observations and infos have one extra row.
    row_bytes = sum(values.nbytes for values in dataset.read(0, 1, keys).values())
    _prove_room(out.parent, (dataset.rows + 2 * episodes) * row_bytes + 6144 * episodes + 2**16)
    temporary = Path(tempfile.mkdtemp(dir=out.parent, prefix=f".{out.name}."))
    differ = done = 0
    try:
        (temporary / "data").mkdir()
        main = temporary / "data" / "main_data.hdf5"
        with h5py.File(main, "w", libver=("v108", "v110"), track_order=True) as file:
            for number, rows in enumerate(episodes_of(dataset)):
                write_episode(file, number, rows)
                differ += len(first_difference(rows))
                done += len(rows["rewards"])
                progress(done, dataset.rows, "rows")
        spec = dataset.spec
        about = {"description": f"{spec.name}, dataset {dataset.digest}", "neorl_dataset": dataset.digest}
        metadata = metadata_of(spec, _minari_id(out), done, episodes, main.stat().st_size, about)
        write_atomic(temporary / "data" / "metadata.json", metadata)
        publish(main, main)
        temporary.chmod(0o755)
        os.rename(temporary, out)
        fsync_path(out.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    left = _left_out(dataset, keys)
    if differ:
        left.append(f"the next observations of {differ} rows, which differ from the following observation")
    return out / "data" / "main_data.hdf5", left


def _minari_id(out: Path) -> str:
    """Return a Minari dataset's id: NAMESPACE/NAME-v0, with a namespace for each marked folder above `out`."""
    name, above = out.name, out.absolute().parent
    while (above / NAMESPACE).is_file():
        name, above = f"{above.name}/{name}", above.parent
    return name


FORMATS: dict[str, Callable[[StoredDataset, Path, Progress], tuple[Path, list[str]]]] = {
    "d4rl": _flat,
    "dsrl": _dsrl,
    "minari": _minari,
    "neorl": partial(_npz, v1=True),
    "neorl2": partial(_npz, v1=False),
}
