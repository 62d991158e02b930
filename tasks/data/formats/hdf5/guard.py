"""Read untrusted HDF5 files safely: accept an array only if its data are completely inside the file.

In HDF5 a name can link to another file, and an array can read its data from any file of the computer. A small header
can declare a huge array, which HDF5 fills with zeros. All of these raise BadInput.
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
"""Largest accepted compression ratio: decompressed divided by stored bytes. Deflate reaches 1032."""
MAX_CHUNK = 2**28
"""Largest accepted chunk in bytes; HDF5 decompresses each chunk as a whole."""
MAX_ROW_BYTES = 2**20
"""Largest accepted row of an array in bytes."""
FILTERS = (h5py.h5z.FILTER_DEFLATE, h5py.h5z.FILTER_LZF, h5py.h5z.FILTER_SHUFFLE, h5py.h5z.FILTER_FLETCHER32)
SHARD = re.compile(r"\.\./shards/[0-9a-f]{64}\.h5")


@contextmanager
def open_guarded(path: Path, families: str = "D4RL or DSRL") -> Iterator[h5py.File]:
    """Open an HDF5 file; a missing or damaged file, and HDF5 errors inside the `with` block, raise BadInput."""
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
    """Return a group's array named `key`, or None if there is none.

    A link, and an array larger than its data in the file, raise BadInput. With `shards`, the array may also be a view
    of shards, if the file belongs to a dataset store.
    """
    member = find_member(group, key, path)
    if not isinstance(member, h5py.Dataset):
        return None
    _check_storage(member, key, path, shards)
    return member


def find_member(group: h5py.Group, key: str, path: Path) -> h5py.Group | h5py.Dataset | h5py.Datatype | None:
    """Return a group's member named `key`, or None if there is none; raise BadInput if the name is a link."""
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
            f"a row of '{key}' of {path.name} has {row} bytes, the limit is {MAX_ROW_BYTES}: export fewer values."
        )
    if array.external is not None:
        raise BadInput(f"'{key}' in {path.name} takes its data from another file: export it as one file.")
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
            raise BadInput(f"'{key}' of {path.name} is compressed with a filter other than gzip or lzf: use gzip.")
        whole = array.id.get_num_chunks() == wanted and declared <= MAX_RATIO * stored
    # Take the size from HDF5, because `path` may be a folder.
    if not whole or stored > array.file.id.get_filesize():
        raise BadInput(
            f"'{key}' in {path.name} declares {declared} bytes, but the file stores {stored}: copy the file again."
        )
