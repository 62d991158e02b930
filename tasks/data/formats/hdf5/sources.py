"""HDF5 files and Minari's folders as sources: which format, what it holds, its rows as blocks.

Nothing here may be called in a process that must live on: HDF5's library crashes on some damaged files. The process of
its own that calls it is `tasks.data.formats.hdf5.worker`, which must start quickly: no JAX here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from configs.errors import BadInput
from tasks.data.formats.hdf5.d3rlpy import MARKS, read_d3rlpy, read_d3rlpy_layout
from tasks.data.formats.hdf5.guard import open_guarded
from tasks.data.formats.hdf5.layouts import read_blocks, read_layout
from tasks.data.formats.hdf5.minari import find_folder, read_minari, read_minari_layout
from tasks.data.formats.hdf5.store_files import read_store, read_store_layout
from tasks.data.store.schema import ALWAYS, Rows

Blocks = Iterator[Rows]


class Request(NamedTuple):
    """What the process that reads foreign files is asked."""

    path: str
    what: Literal["source", "recording"]
    horizon: int | None
    rows: bool
    """Whether the rows are wanted, or what the file holds alone."""
    bytes: int
    """Size of what is read, which bounds the time it may take."""


class Source(NamedTuple):
    """A recognised file; its rows are read when `blocks` is called."""

    path: Path
    family: str
    how: str
    """What shows the format, in words."""
    rows: int
    observations: int
    actions: int
    carries: tuple[str, ...]
    """Keys of `ROW_KEYS` that its blocks have."""
    notes: tuple[str, ...]
    """What of it is made or missing, in words."""
    blocks: Callable[[], Blocks]
    choices: int | None = None
    """How many a discrete action chooses among, 0 where the file does not tell; None of continuous actions."""


def open_hdf5(path: Path, horizon: int | None = None) -> Source:
    """The source that an HDF5 file or a Minari folder is.

    Args:
        path: the file or folder.
        horizon: steps after which episodes were cut, for a D4RL file that tells nothing of it.

    Raises:
        BadInput: when it is none of the formats, or damaged.
    """
    return no_horizon(_minari(path), horizon) if path.is_dir() else _hdf5(path, horizon)


def no_horizon(source: Source, horizon: int | None) -> Source:
    """The source itself, which is of a format that tells where episodes end, so that no horizon applies."""
    if horizon is not None:
        raise BadInput(f"expected no horizon for {source.family}, which tells where episodes end: leave it out.")
    return source


def _hdf5(path: Path, horizon: int | None) -> Source:
    with open_guarded(path) as file:
        keys = set(file)
    if "episode_0" in keys and "observations" not in keys:
        if (folder := find_folder(path)) is None:
            raise BadInput(f"expected metadata.json beside {path.name}, got none: keep Minari's folder together.")
        return no_horizon(_minari(folder), horizon)
    if {"episode_starts", "observations"} <= keys:
        return no_horizon(_store(path), horizon)
    if keys >= MARKS:
        return no_horizon(_d3rlpy(path), horizon)
    layout = read_layout(path, horizon)
    marked = "timeouts" in layout.widths or horizon is not None
    made = "next_observations" not in layout.widths
    ends = "in the file" if "timeouts" in layout.widths else f"every {horizon} steps, as told"
    carries = (*ALWAYS, "costs") if "costs" in layout.widths else ALWAYS

    def blocks() -> Blocks:
        rows = read_blocks(path, horizon)
        for block in rows if marked else cut_where_broken(rows):
            yield {key: block[key] for key in (*carries, "rejected")}

    return Source(
        path,
        layout.family,
        f"HDF5 with {', '.join(layout.widths)}",
        layout.rows,
        layout.widths["observations"],
        layout.widths["actions"],
        carries,
        (
            f"next observations: {'made within episodes: a cut episode loses its last row' if made else 'in the file'}",
            "episodes cut by time: " + (ends if marked else "found where next observations do not go on"),
            "costs: " + ("read from 'costs'" if "costs" in layout.widths else "none in the file"),
        ),
        blocks,
        0 if layout.discrete else None,
    )


def _d3rlpy(path: Path) -> Source:
    layout = read_d3rlpy_layout(path)
    return Source(
        path,
        "d3rlpy",
        f"a dumped ReplayBuffer of {layout.episodes:,} episode(s)",
        layout.rows,
        layout.observations,
        layout.actions,
        ALWAYS,
        (
            "next observations: made within episodes: a cut episode loses its last row",
            "episodes cut by time: those that did not terminate",
            "costs: none in the file",
        ),
        lambda: read_d3rlpy(path, layout),
        0 if layout.discrete else None,
    )


def cut_where_broken(blocks: Blocks) -> Blocks:
    """Mark as cut by time what does not go on: a row whose next observation is not the next row's observation.

    For files that hold next observations and no time limits; the last row of all is cut, too, if it ends no episode.
    """
    held: Rows | None = None
    for block in blocks:
        rows = block if held is None else {key: np.concatenate([held[key], block[key]]) for key in block}
        after, now = rows["next_observations"][:-1], rows["observations"][1:]
        broken = ((after != now) & ~(np.isnan(after) & np.isnan(now))).any(axis=1)
        rows["timeouts"] = rows["timeouts"] | (np.append(broken, False) & ~rows["terminals"].astype(bool))
        held = {key: values[-1:] for key, values in rows.items()}
        if len(rows["rewards"]) > 1:
            yield {key: values[:-1] for key, values in rows.items()}
    if held is not None:
        yield held


def _minari(folder: Path) -> Source:
    layout = read_minari_layout(folder)
    beside = ", ".join(f"infos/{key}" for key in layout.infos) or "none in the file"
    return Source(
        folder,
        "Minari",
        f"the Minari dataset {layout.name}, {layout.episodes:,} episode(s)",
        layout.rows,
        layout.widths["observations"],
        layout.widths["actions"],
        (*ALWAYS, *layout.infos),
        ("next observations: the observation that follows", f"costs and times: {beside}"),
        lambda: read_minari(folder, layout),
        layout.choices,
    )


def _store(path: Path) -> Source:
    layout = read_store_layout(path)
    return Source(
        path,
        "this store's",
        f"a {layout.kind} with {', '.join(layout.keys)}",
        layout.rows,
        layout.observations,
        layout.actions,
        layout.keys,
        ("costs: in the file",) if "costs" in layout.keys else ("costs: none in the file",),
        lambda: read_store(path, layout),
        0 if layout.discrete else None,
    )
