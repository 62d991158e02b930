"""Files that somebody else wrote, recognised by what is in them: which format, what it holds, and its rows as blocks.

Recognised by content, never by name: HDF5 of D4RL and DSRL, shards and views of a store like ours, Minari's folders,
npz archives of NeoRL and NeoRL-2, and Parquet or CSV of a historian, which only a mapping can read.
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import h5py

from configs.errors import BadInput
from neorl_core.types import PlantSpec
from tasks.adapters.canonical import digest_json, file_sha256
from tasks.adapters.formats import read_npz, read_npz_layout
from tasks.adapters.hdf5_formats import read_blocks, read_layout
from tasks.adapters.hdf5_guard import open_guarded
from tasks.adapters.minari_format import find_folder, read_minari, read_minari_layout
from tasks.adapters.shards import ALWAYS
from tasks.adapters.source_rows import Blocks, cut_where_broken
from tasks.adapters.store_files import read_store, read_store_layout

HDF5 = b"\x89HDF\r\n\x1a\n"
ZIP = b"PK"
PARQUET = b"PAR1"
TABLES = (".csv", ".parquet", ".tsv", ".gz", ".zst")


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


def recognise(path: Path, horizon: int | None = None) -> Source:
    """What a file or folder is.

    Args:
        path: the file, or Minari's folder.
        horizon: steps after which episodes were cut, for a D4RL file that tells nothing of it.

    Raises:
        BadInput: when it is none of the formats, or damaged; the sentence says what was found.
    """
    if path.is_dir():
        if (folder := find_folder(path)) is None:
            raise BadInput(
                f"expected a Minari dataset (data/metadata.json) in folder {path}, got none: name a file or its folder."
            )
        return _no_horizon(_minari(folder), horizon)
    if not path.is_file():
        raise BadInput(f"expected a source at {path}, got none: check the path.")
    with path.open("rb") as file:
        start = file.read(8)
    if start.startswith(PARQUET) or (path.suffix.lower() in TABLES and start[:2] != ZIP and start != HDF5):
        raise BadInput(
            f"expected a mapping for {path.name}, which is a table: a historian's export is read by --mapping, which "
            "says what its columns and tags mean; a table without tags, times and actions is no log of a plant."
        )
    if start.startswith(ZIP):
        return _no_horizon(_npz(path), horizon)
    if h5py.is_hdf5(path):
        return _hdf5(path, horizon)
    raise BadInput(
        f"expected HDF5 (D4RL, DSRL, Minari, this store), npz (NeoRL, NeoRL-2) or a historian's table, got "
        f"{path.name}, which starts with {start!r}: export it in one of these."
    )


def _no_horizon(source: Source, horizon: int | None) -> Source:
    if horizon is not None:
        raise BadInput(f"expected no horizon for {source.family}, which tells where episodes end: leave it out.")
    return source


def _npz(path: Path) -> Source:
    try:
        with zipfile.ZipFile(path) as archive:
            names = {name.removesuffix(".npy") for name in archive.namelist()}
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as error:
        raise BadInput(f"expected a whole npz archive in {path.name}, got '{error}': copy the file again.") from error
    if {"states", "actions"} <= names and "reward" not in names:
        raise BadInput(
            f"expected rewards and next observations in {path.name}, got recorded states and actions of a simulator "
            f"({', '.join(sorted(names))}): it is a trace to check a plant's equations by, no log to learn from."
        )
    layout = read_npz_layout(path)
    divided = "'truncated'" if "truncated" in layout.widths else "'index'"
    return Source(
        path,
        layout.family,
        f"an npz archive with {', '.join(layout.widths)}{', index' if layout.family == 'NeoRL' else ''}",
        layout.rows,
        layout.widths["obs"],
        layout.widths["action"],
        ALWAYS,
        (f"episodes cut by time: from {divided}", "costs: none in the file"),
        lambda: read_npz(path, layout.widths),
    )


def _hdf5(path: Path, horizon: int | None) -> Source:
    with open_guarded(path) as file:
        keys = set(file)
    if "episode_0" in keys and "observations" not in keys:
        if (folder := find_folder(path)) is None:
            raise BadInput(f"expected metadata.json beside {path.name}, got none: keep Minari's folder together.")
        return _no_horizon(_minari(folder), horizon)
    if {"episode_starts", "observations"} <= keys:
        return _no_horizon(_store(path), horizon)
    layout = read_layout(path, horizon)
    told = "timeouts" in layout.widths or horizon is not None
    made = "next_observations" not in layout.widths
    ends = "in the file" if "timeouts" in layout.widths else f"every {horizon} steps, as told"
    carries = (*ALWAYS, "costs") if "costs" in layout.widths else ALWAYS

    def blocks() -> Blocks:
        rows = read_blocks(path, horizon)
        for block in rows if told else cut_where_broken(rows):
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
            "episodes cut by time: " + (ends if told else "found where next observations do not go on"),
            "costs: " + ("read from 'costs'" if "costs" in layout.widths else "none in the file"),
        ),
        blocks,
    )


def _minari(folder: Path) -> Source:
    layout = read_minari_layout(folder)
    name = folder.parent.name if folder.name == "data" else folder.name
    beside = ", ".join(f"infos/{key}" for key in layout.infos) or "none in the file"
    return Source(
        folder,
        "Minari",
        f"the Minari dataset {name}, {layout.episodes:,} episode(s)",
        layout.rows,
        layout.widths["observations"],
        layout.widths["actions"],
        (*ALWAYS, *layout.infos),
        ("next observations: the observation that follows", f"costs and times: {beside}"),
        lambda: read_minari(folder, layout),
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
    )


def name_of(source: Source) -> str:
    """A name for a dataset of no known plant, from the file's."""
    stem = _base(source.path).stem
    name = re.sub(r"[^a-z0-9]+", "_", stem.lower()).strip("_")
    return name if name[:1].isalpha() else f"file_{name}".rstrip("_")


def _base(path: Path) -> Path:
    """The path that bears a source's name: Minari's folders all hold a folder `data`."""
    return path.parent if path.is_dir() and path.name == "data" else path


def digest_of(source: Source) -> str:
    """SHA-256 of a source: of the file, or of a folder's files."""
    if source.path.is_dir():
        names = ("metadata.json", "main_data.hdf5")
        return digest_json({name: file_sha256(source.path / name) for name in names})
    return file_sha256(source.path)


def in_words(source: Source, spec: PlantSpec, known: bool) -> list[str]:
    """How a source was read, a line for each thing that a reader should check."""
    notes = [note for note in source.notes if not (known and note == "costs: none in the file")]
    if known and "constraint_costs" not in source.carries:
        own = "read from 'costs'; " if "costs" in source.carries else ""
        notes = [note for note in notes if not note.startswith("costs:")]
        notes.append(f"costs: {own}by how much each limit is exceeded, by the formulas of {spec.name}")
    made = (
        "names, units and limits of the plant" if known else "bounds made from the data; no unit, limit or score known"
    )
    return [
        f"{_base(source.path).name}: {source.family}, for it is {source.how}",
        f"  {source.rows:,} rows of {source.observations} observations, {source.actions} actions",
        *(f"  {note}" for note in notes),
        f"  read as {spec.name}: {made}",
    ]
