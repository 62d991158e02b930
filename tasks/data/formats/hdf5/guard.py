"""Safe reading of foreign HDF5 files: only arrays inside the file, no larger than the file allows.

In HDF5 a name may link to another file, an array may draw on any path of the machine, and a small header may declare
endless numbers that reading would invent. All of these are refused.
"""

from __future__ import annotations

import math
import re
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import h5py

from configs.errors import BadInput

MAX_RATIO = 1100
"""Largest accepted ratio of inflated to stored bytes; deflate reaches 1032."""
MAX_CHUNK = 2**28
"""Largest accepted chunk in bytes, because HDF5 decompresses a chunk at once."""
MAX_ROW_BYTES = 2**20
"""Largest accepted row of an array in bytes."""
FILTERS = (h5py.h5z.FILTER_DEFLATE, h5py.h5z.FILTER_LZF, h5py.h5z.FILTER_SHUFFLE, h5py.h5z.FILTER_FLETCHER32)
SHARD = re.compile(r"\.\./shards/[0-9a-f]{64}\.h5")


@contextmanager
def open_guarded(path: Path, families: str = "D4RL or DSRL") -> Iterator[h5py.File]:
    """Open an HDF5 file; a missing file, and errors of the library inside the `with` block, raise BadInput."""
    if not path.is_file():
        raise BadInput(f"{path} does not exist: give the path of a {families} file.")
    try:
        if not h5py.is_hdf5(path):
            raise BadInput(f"{path.name} is not HDF5: name a {families} file.")
        with h5py.File(path, "r", locking=False) as file:
            yield file
    except (OSError, RuntimeError, ValueError, KeyError, TypeError, OverflowError) as error:
        # h5py raises any of these for damaged files (tests/tasks/data/formats/test_fuzz_importers.py). An error that
        # did not pass through h5py is a bug of NeoRL.
        frames = traceback.walk_tb(error.__traceback__)
        if not any("h5py" in Path(frame.f_code.co_filename).parts for frame, _ in frames):
            raise
        reason = " ".join(str(error).split())[:300]
        raise BadInput(f"{path.name} is not a complete HDF5 file ({reason}): copy the file again.") from error


def find_array(group: h5py.Group, key: str, path: Path, shards: bool = False) -> h5py.Dataset | None:
    """Return the array under a group's `key`, which is a name and not a path, or None.

    An array over the `shards` of a store beside the file is accepted on request. A link to elsewhere, and an array that
    declares more than the file contains, raise BadInput.
    """
    member = find_member(group, key, path)
    if not isinstance(member, h5py.Dataset):
        return None
    _check_storage(member, key, path, shards)
    return member


def find_member(group: h5py.Group, key: str, path: Path) -> h5py.Group | h5py.Dataset | h5py.Datatype | None:
    """Return the member of a group, or None; external and soft links are refused."""
    link = group.get(key, getlink=True)
    if link is None:
        return None
    if not isinstance(link, h5py.HardLink):
        kind = "another file" if isinstance(link, h5py.ExternalLink) else "another name"
        raise BadInput(f"'{key}' in {path.name} is a link to {kind}: copy the linked data into the file.")
    return group[key]


def _check_storage(array: h5py.Dataset, key: str, path: Path, shards: bool) -> None:
    if array.dtype.kind not in "fiub" or array.shape is None:
        return  # the reader reports the wrong type
    declared = math.prod(array.shape) * array.dtype.itemsize
    row = math.prod(array.shape[1:]) * array.dtype.itemsize
    if row > MAX_ROW_BYTES:
        raise BadInput(
            f"a row of '{key}' of {path.name} has {row} bytes, the limit is {MAX_ROW_BYTES}: export vectors of signals."
        )
    if array.external is not None:
        raise BadInput(f"'{key}' in {path.name} refers to numbers in another file: export it as one file.")
    if array.is_virtual:
        sources = array.virtual_sources()
        if not shards or not all(SHARD.fullmatch(source.file_name) for source in sources):
            raise BadInput(f"'{key}' in {path.name} is a view of other files: export it as one file.")
        return
    stored = array.id.get_storage_size()
    whole = stored >= declared
    if array.chunks is not None:
        chunk = math.prod(array.chunks) * array.dtype.itemsize
        if chunk > MAX_CHUNK:
            raise BadInput(
                f"'{key}' of {path.name} has chunks of {chunk} bytes, the limit is {MAX_CHUNK}: save it in smaller "
                "chunks."
            )
        wanted = math.prod(-(-n // c) for n, c in zip(array.shape, array.chunks, strict=True))
        plan = array.id.get_create_plist()
        if any(plan.get_filter(i)[0] not in FILTERS for i in range(plan.get_nfilters())):
            raise BadInput(f"'{key}' of {path.name} uses another compression than gzip or lzf: save it with gzip.")
        whole = array.id.get_num_chunks() == wanted and declared <= MAX_RATIO * stored
    # Take the size from HDF5, because `path` may be a folder.
    if not whole or stored > array.file.id.get_filesize():
        raise BadInput(
            f"'{key}' in {path.name} declares {declared} bytes, but the file contains {stored}: copy the file again."
        )
