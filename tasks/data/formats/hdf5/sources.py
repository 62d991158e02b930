"""Open HDF5 files and Minari folders as sources.

Only call this module from `tasks.data.formats.hdf5.worker`, because HDF5's library crashes on some damaged files. The
worker must start quickly, so do not import JAX here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from configs.errors import BadInput
from tasks.data.formats.hdf5.d3rlpy import MARKS, read_d3rlpy, read_d3rlpy_layout
from tasks.data.formats.hdf5.flat_files import read_blocks, read_layout
from tasks.data.formats.hdf5.guard import open_guarded
from tasks.data.formats.hdf5.minari import find_folder, read_minari, read_minari_layout
from tasks.data.formats.hdf5.store_files import read_store, read_store_layout
from tasks.data.store.schema import ALWAYS, Rows

Blocks = Iterator[Rows]


class Request(NamedTuple):
    """Request to the worker process."""

    path: str
    what: Literal["source", "recording"]
    horizon: int | None
    rows: bool
    bytes: int
    """Size of the files, which sets the time limit."""


class Source(NamedTuple):
    """A recognised file; call `blocks` to read the rows."""

    path: Path
    family: str
    how: str
    """Description of the content that identifies the format."""
    rows: int
    observations: int
    actions: int
    carries: tuple[str, ...]
    """Keys of `ROW_KEYS` in the blocks."""
    notes: tuple[str, ...]
    """Derived and missing contents, as text."""
    blocks: Callable[[], Blocks]
    choices: int | None = None
    """Number of choices of a discrete action, 0 if unknown; None for continuous actions."""


def open_hdf5(path: Path, horizon: int | None = None) -> Source:
    """Open an HDF5 file or a Minari folder.

    Args:
        path: the file or folder.
        horizon: time limit of episodes in steps, for a D4RL file without time limits.

    Raises:
        BadInput: if it is of another format or damaged.
    """
    return no_horizon(_minari(path), horizon) if path.is_dir() else _hdf5(path, horizon)


def no_horizon(source: Source, horizon: int | None) -> Source:
    """Refuse a horizon for a format that marks the ends of episodes."""
    if horizon is not None:
        raise BadInput(f"{source.family} marks the ends of episodes, so a horizon does not apply: leave it out.")
    return source


def _hdf5(path: Path, horizon: int | None) -> Source:
    with open_guarded(path) as file:
        keys = set(file)
    if "episode_0" in keys and "observations" not in keys:
        if (folder := find_folder(path)) is None:
            raise BadInput(f"there is no metadata.json beside {path.name}: keep the files of a Minari folder together.")
        return no_horizon(_minari(folder), horizon)
    if {"episode_starts", "observations"} <= keys:
        return no_horizon(_store(path), horizon)
    if keys >= MARKS:
        return no_horizon(_d3rlpy(path), horizon)
    layout = read_layout(path, horizon)
    marked = "timeouts" in layout.widths or horizon is not None
    derived = "next_observations" not in layout.widths
    ends = "in the file" if "timeouts" in layout.widths else f"every {horizon} steps, as given"
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
            "next observations: "
            + ("derived within episodes; a cut episode loses its last row" if derived else "in the file"),
            "episodes cut by time: " + (ends if marked else "found by interruptions of next observations"),
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
            "next observations: derived within episodes; a cut episode loses its last row",
            "episodes cut by time: those that did not terminate",
            "costs: none in the file",
        ),
        lambda: read_d3rlpy(path, layout),
        0 if layout.discrete else None,
    )


def cut_where_broken(blocks: Blocks) -> Blocks:
    """Mark rows as timeouts whose next observation is not the next row's observation, and the very last row.

    For files with next observations and without time limits.
    """
    last: Rows | None = None
    for block in blocks:
        rows = block if last is None else {key: np.concatenate([last[key], block[key]]) for key in block}
        after, now = rows["next_observations"][:-1], rows["observations"][1:]
        broken = ((after != now) & ~(np.isnan(after) & np.isnan(now))).any(axis=1)
        rows["timeouts"] = rows["timeouts"] | (np.append(broken, False) & ~rows["terminals"].astype(bool))
        last = {key: values[-1:] for key, values in rows.items()}
        if len(rows["rewards"]) > 1:
            yield {key: values[:-1] for key, values in rows.items()}
    if last is not None:
        yield last


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
        ("next observations: the following observation", f"costs and times: {beside}"),
        lambda: read_minari(folder, layout),
        layout.choices,
    )


def _store(path: Path) -> Source:
    layout = read_store_layout(path)
    return Source(
        path,
        "a dataset store's",
        f"a {layout.kind} with {', '.join(layout.keys)}",
        layout.rows,
        layout.observations,
        layout.actions,
        layout.keys,
        ("costs: in the file",) if "costs" in layout.keys else ("costs: none in the file",),
        lambda: read_store(path, layout),
        0 if layout.discrete else None,
    )
