"""A shard or a view of a store like ours as a source: flat arrays, a view's drawn from the shards beside it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import h5py

from configs.errors import BadInput
from tasks.data.formats.hdf5.guard import find_array, open_guarded
from tasks.data.store.schema import ALWAYS, ROW_KEYS, Rows, stored_dtype
from tasks.files.canonical import file_sha256

BLOCK_ROWS = 65536
VECTORS = ("observations", "actions", "next_observations", "constraint_costs")
FAMILY = "store's"


class StoreLayout(NamedTuple):
    """What a file holds, known from its headers."""

    kind: str
    """"shard" or "view"."""
    keys: tuple[str, ...]
    rows: int
    observations: int
    actions: int
    discrete: bool


def read_store_layout(path: Path) -> StoreLayout:
    """What a shard or view holds; the shards of a view are held against their names, which are their digests.

    Raises:
        BadInput: when a key is missing or of another type or shape, or a view's shard is not what its name says.
    """
    again = "ingest its source again."
    with open_guarded(path, FAMILY) as file:
        arrays = {key: find_array(file, key, path, shards=True) for key in ROW_KEYS}
        held = {key: array for key, array in arrays.items() if array is not None}
        if missing := [key for key in ALWAYS if key not in held]:
            raise BadInput(f"expected '{missing[0]}' in {path.name}, got a store's file without: {again}")
        shape = held["rewards"].shape or (0,)
        _check_shards(path, {s.file_name for a in held.values() if a.is_virtual for s in a.virtual_sources()})
        for key, array in held.items():
            ranks = 1 + (key in VECTORS)
            if (
                array.dtype != stored_dtype(key, array.dtype)
                or len(array.shape or ()) != ranks
                or array.shape[0] != shape[0]
            ):
                raise BadInput(
                    f"expected '{key}' of {path.name} as {stored_dtype(key, array.dtype)} of {shape[0]} rows, got "
                    f"{array.dtype} {array.shape}: {again}"
                )
            empty = 0 in array.shape and key != "constraint_costs"  # of a plant without limits
            if empty or not shape[0] or held["observations"].shape[1:] != held["next_observations"].shape[1:]:
                raise BadInput(f"expected rows of '{key}' in {path.name}, got the shape {array.shape}: {again}")
            if array.is_virtual:
                _check_view(path, key, array)
        kind = "view" if any(array.is_virtual for array in held.values()) else "shard"
        widths = held["observations"].shape[1], held["actions"].shape[1]
        discrete = held["actions"].dtype.kind == "i"
        if discrete and widths[1] != 1:
            raise BadInput(f"expected one discrete action in {path.name}, got {widths[1]}: {again}")
    return StoreLayout(kind, tuple(held), shape[0], *widths, discrete)


def _check_shards(path: Path, names: set[str]) -> None:
    for name in sorted(names):
        shard = path.parent / name
        if not shard.is_file() or file_sha256(shard) != shard.stem:
            raise BadInput(
                f"expected the shard {shard.name} of {path.name} as its name says, got another file or none: keep the "
                "store's folders together."
            )


def _check_view(path: Path, key: str, array: h5py.Dataset) -> None:
    """Hold what a view draws on against what the shards have: HDF5 makes up what they have not."""
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
            f"expected the shards of {path.name} to hold all of '{key}', got {covered} of {math.prod(array.shape)} "
            "numbers: keep the store's folders together."
        )


def read_store(path: Path, layout: StoreLayout) -> Iterator[Rows]:
    """The rows, block after block, as they stand."""
    with open_guarded(path, FAMILY) as file:
        for start in range(0, layout.rows, BLOCK_ROWS):
            yield {key: file[key][start : start + BLOCK_ROWS] for key in layout.keys}
