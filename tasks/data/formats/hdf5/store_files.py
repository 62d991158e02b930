"""Read one HDF5 file of NeoRL's dataset store: a shard, or a view, which joins all shards of a dataset."""

from __future__ import annotations

import math
from pathlib import Path

import h5py

from configs.errors import BadInput
from tasks.data.formats.hdf5.guard import find_array, open_guarded
from tasks.data.formats.reading import Blocks, Source
from tasks.data.store.schema import ALWAYS, BLOCK_ROWS, ROW_KEYS, stored_dtype
from tasks.files.canonical import file_sha256

VECTORS = ("observations", "actions", "next_observations", "constraint_costs")
FAMILY = "store's"


def open_store(path: Path) -> Source:
    """Open a shard or view; raise BadInput if a key is missing or a shard does not match the SHA-256 in its name."""
    again = "ingest its source again."
    with open_guarded(path, FAMILY) as file:
        arrays = {key: find_array(file, key, path, shards=True) for key in ROW_KEYS}
        found = {key: array for key, array in arrays.items() if array is not None}
        if missing := [key for key in ALWAYS if key not in found]:
            raise BadInput(f"{path.name} is a file of a dataset store, but lacks '{missing[0]}': {again}")
        shape = found["rewards"].shape or (0,)
        _check_shards(path, {s.file_name for a in found.values() if a.is_virtual for s in a.virtual_sources()})
        for key, array in found.items():
            ranks = 1 + (key in VECTORS)
            if (
                array.dtype != stored_dtype(key, array.dtype)
                or len(array.shape or ()) != ranks
                or array.shape[0] != shape[0]
            ):
                raise BadInput(
                    f"'{key}' of {path.name} must be {stored_dtype(key, array.dtype)} with {shape[0]} rows, got "
                    f"{array.dtype} {array.shape}: {again}"
                )
            empty = 0 in array.shape and key != "constraint_costs"  # plants without limits have (n, 0)
            if empty or not shape[0] or found["observations"].shape[1:] != found["next_observations"].shape[1:]:
                raise BadInput(f"'{key}' in {path.name} has shape {array.shape}, so no row is usable: {again}")
            if array.is_virtual:
                _check_view(path, key, array)
        kind = "view" if any(array.is_virtual for array in found.values()) else "shard"
        widths = found["observations"].shape[1], found["actions"].shape[1]
        discrete = found["actions"].dtype.kind == "i"
        if discrete and widths[1] != 1:
            raise BadInput(f"{path.name} has {widths[1]} discrete actions per row, only one is allowed: {again}")
    return Source(
        path,
        "a dataset store's",
        f"a {kind} with {', '.join(found)}",
        shape[0],
        *widths,
        tuple(found),
        ("costs: in the file" if "costs" in found else "costs: none in the file",),
        lambda: _read(path, shape[0], tuple(found)),
        0 if discrete else None,
    )


def _check_shards(path: Path, names: set[str]) -> None:
    for name in sorted(names):
        shard = path.parent / name
        if not shard.is_file() or file_sha256(shard) != shard.stem:
            raise BadInput(
                f"shard {shard.name} of {path.name} is missing or does not match the SHA-256 in its name: copy the "
                "folders of the store again."
            )


def _check_view(path: Path, key: str, array: h5py.Dataset) -> None:
    """Check that the shards contain all values that a view declares, because HDF5 fills gaps with zeros."""
    covered = 0
    for source in array.virtual_sources():
        shard = path.parent / source.file_name
        with open_guarded(shard, FAMILY) as file:
            drawn = find_array(file, key, shard)
            size = source.vspace.get_select_npoints()
            if drawn is not None and source.dset_name == key and math.prod(drawn.shape) == size:
                covered += size
    if covered != math.prod(array.shape):
        raise BadInput(
            f"the shards of {path.name} contain {covered} of {math.prod(array.shape)} values of '{key}': copy the "
            "folders of the store again."
        )


def _read(path: Path, rows: int, keys: tuple[str, ...]) -> Blocks:
    with open_guarded(path, FAMILY) as file:
        for start in range(0, rows, BLOCK_ROWS):
            yield {key: file[key][start : start + BLOCK_ROWS] for key in keys}
