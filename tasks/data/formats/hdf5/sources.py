"""Recognise and open HDF5 files and Minari folders.

Use this module only in the worker process (`tasks.data.formats.hdf5.worker`), because the HDF5 library crashes on some
damaged files. The worker must start quickly, so do not import JAX here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from configs.errors import BadInput
from tasks.data.formats.hdf5.d3rlpy import MARKS, open_d3rlpy
from tasks.data.formats.hdf5.flat_files import read_blocks, read_layout
from tasks.data.formats.hdf5.guard import open_guarded
from tasks.data.formats.hdf5.minari import find_folder, open_minari
from tasks.data.formats.hdf5.store_files import open_store
from tasks.data.formats.reading import Blocks, Source, no_horizon
from tasks.data.store.schema import ALWAYS, Rows, joined


class Request(NamedTuple):
    """Request to the worker process: describe a file and, if `rows` is set, send its rows."""

    path: str
    what: Literal["source", "recording"]
    horizon: int | None
    rows: bool
    bytes: int
    """Total size of the files; the worker derives its time limit from this size."""


def open_hdf5(path: Path, horizon: int | None = None) -> Source:
    """Open an HDF5 file or a Minari folder; raise BadInput if the format is unknown or the file is damaged."""
    if path.is_dir():
        return no_horizon(open_minari(path), horizon)
    with open_guarded(path) as file:
        keys = set(file)
    if "episode_0" in keys and "observations" not in keys:
        if (folder := find_folder(path)) is None:
            raise BadInput(f"there is no metadata.json beside {path.name}: keep the files of a Minari folder together.")
        return no_horizon(open_minari(folder), horizon)
    if {"episode_starts", "observations"} <= keys:
        return no_horizon(open_store(path), horizon)
    if keys >= MARKS:
        return no_horizon(open_d3rlpy(path), horizon)
    layout = read_layout(path, horizon)
    marked = "timeouts" in layout.widths or horizon is not None
    derived = "next_observations" not in layout.widths
    ends = "in the file" if "timeouts" in layout.widths else f"every {horizon} steps, as given"
    present = (*ALWAYS, "costs") if "costs" in layout.widths else ALWAYS

    def blocks() -> Blocks:
        rows = read_blocks(path, horizon)
        for block in rows if marked else cut_where_broken(rows):
            yield {key: block[key] for key in (*present, "rejected")}

    return Source(
        path,
        layout.family,
        f"HDF5 with {', '.join(layout.widths)}",
        layout.rows,
        layout.widths["observations"],
        layout.widths["actions"],
        present,
        (
            "next observations: "
            + ("derived within episodes; a cut episode loses its last row" if derived else "in the file"),
            "episodes cut by time: " + (ends if marked else "found by interruptions of next observations"),
            "costs: " + ("read from 'costs'" if "costs" in layout.widths else "none in the file"),
        ),
        blocks,
        0 if layout.discrete else None,
    )


def cut_where_broken(blocks: Blocks) -> Blocks:
    """Mark a row as a timeout if its next observation differs from the observation of the next row.

    Use this for files with next observations but without timeouts.
    """
    last: Rows | None = None
    for block in blocks:
        rows = block if last is None else joined([last, block])
        after, now = rows["next_observations"][:-1], rows["observations"][1:]
        broken = ((after != now) & ~(np.isnan(after) & np.isnan(now))).any(axis=1)
        rows["timeouts"] = rows["timeouts"] | (np.append(broken, False) & ~rows["terminals"].astype(bool))
        last = {key: values[-1:] for key, values in rows.items()}
        if len(rows["rewards"]) > 1:
            yield {key: values[:-1] for key, values in rows.items()}
    if last is not None:
        yield last
