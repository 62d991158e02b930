"""Arrays of an HDF5 file that somebody else wrote: only what lies in the file itself, and no more than it can hold.

HDF5 lets a name lead to another file, an array draw on any path of this machine, and a header of a few bytes declare
numbers without end, which reading would make up. None of that is read here.
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
"""Bytes that one stored byte may stand for: deflate reaches 1032."""
MAX_CHUNK = 2**28
"""Bytes of a chunk, which is what HDF5 decompresses at once."""
MAX_ROW_BYTES = 2**20
"""Bytes of a row of one array: a wider one is no signal of a plant."""
SHARD = re.compile(r"\.\./shards/[0-9a-f]{64}\.h5")


@contextmanager
def open_guarded(path: Path, families: str = "D4RL or DSRL") -> Iterator[h5py.File]:
    """Open an HDF5 file for reading; whatever the library says of it in the `with` ends in one sentence.

    Raises:
        BadInput: when the file is missing, no HDF5 or damaged.
    """
    if not path.is_file():
        raise BadInput(f"expected a {families} file at {path}, got none: check the path.")
    try:
        if not h5py.is_hdf5(path):
            raise BadInput(f"expected an HDF5 file of {families}, got another format in {path.name}: name that file.")
        with h5py.File(path, "r", locking=False) as file:
            yield file
    except (OSError, RuntimeError, ValueError, KeyError, TypeError, OverflowError) as error:
        # h5py turns what HDF5 finds damaged into whichever of these its place suggests, as flipped bytes show
        # (tests/tasks/data/formats/test_fuzz_importers.py). What did not come through h5py is a fault of ours.
        if not _came_through_h5py(error):
            raise
        said = " ".join(str(error).split())[:300]
        raise BadInput(f"expected a whole HDF5 file in {path.name}, got '{said}': copy the file again.") from error


def _came_through_h5py(error: Exception) -> bool:
    """Whether a function of h5py, in Python or compiled, was on the way from the `with` to where an error arose."""
    frames = traceback.walk_tb(error.__traceback__)
    return any("h5py" in Path(frame.f_code.co_filename).parts for frame, _ in frames)


def find_array(group: h5py.Group, key: str, path: Path, shards: bool = False) -> h5py.Dataset | None:
    """The array of a group under `key`, or None where there is none.

    Args:
        group: a group, or the file itself.
        key: one name, not a path.
        path: the file, for messages.
        shards: allow an array that is composed of the shards of a store beside this file.

    Raises:
        BadInput: when the name leads elsewhere, or the array holds more than the file does.
    """
    member = find_member(group, key, path)
    if not isinstance(member, h5py.Dataset):
        return None
    _check_storage(member, key, path, shards)
    return member


def find_member(group: h5py.Group, key: str, path: Path) -> h5py.Group | h5py.Dataset | h5py.Datatype | None:
    """What a group holds under `key`, refusing names that lead elsewhere (external and soft links)."""
    link = group.get(key, getlink=True)
    if link is None:
        return None
    if not isinstance(link, h5py.HardLink):
        kind = "another file" if isinstance(link, h5py.ExternalLink) else "another name"
        raise BadInput(
            f"expected '{key}' in {path.name} itself, got a link to {kind}: copy what it links to into the file."
        )
    return group[key]


def _check_storage(array: h5py.Dataset, key: str, path: Path, shards: bool) -> None:
    if array.dtype.kind not in "fiub" or array.shape is None:
        return  # the reader names the type that it expected
    declared = math.prod(array.shape) * array.dtype.itemsize
    row = math.prod(array.shape[1:]) * array.dtype.itemsize
    if row > MAX_ROW_BYTES:
        raise BadInput(
            f"expected at most {MAX_ROW_BYTES} bytes in a row of '{key}' of {path.name}, got {row}: "
            "export vectors of signals."
        )
    if array.external is not None:
        raise BadInput(f"expected '{key}' in {path.name} itself, got numbers of another file: export it as one file.")
    if array.is_virtual:
        sources = array.virtual_sources()
        if not shards or not all(SHARD.fullmatch(source.file_name) for source in sources):
            raise BadInput(f"expected '{key}' in {path.name} itself, got a view of other files: export it as one file.")
        return
    stored = array.id.get_storage_size()
    whole = stored >= declared
    if array.chunks is not None:
        chunk = math.prod(array.chunks) * array.dtype.itemsize
        if chunk > MAX_CHUNK:
            raise BadInput(
                f"expected chunks of at most {MAX_CHUNK} bytes in '{key}' of {path.name}, got {chunk}: "
                "save it in smaller chunks."
            )
        wanted = math.prod(-(-n // c) for n, c in zip(array.shape, array.chunks, strict=True))
        if _other_filters(array):
            raise BadInput(
                f"expected '{key}' of {path.name} plain, gzip or lzf, got another compression: save it with gzip."
            )
        whole = array.id.get_num_chunks() == wanted and declared <= MAX_RATIO * stored
    # Of the file itself: a path may be the folder that it lies in.
    if not whole or stored > array.file.id.get_filesize():
        raise BadInput(
            f"expected {declared} bytes of '{key}' in {path.name}, got a file that holds {stored} of it: "
            "copy the file again."
        )


def _other_filters(array: h5py.Dataset) -> bool:
    plan = array.id.get_create_plist()
    known = (h5py.h5z.FILTER_DEFLATE, h5py.h5z.FILTER_LZF, h5py.h5z.FILTER_SHUFFLE, h5py.h5z.FILTER_FLETCHER32)
    return any(plan.get_filter(i)[0] not in known for i in range(plan.get_nfilters()))
