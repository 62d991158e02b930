"""Files that somebody else wrote, recognised by what is in them: which format, what it holds, and its rows as blocks.

Recognised by content, never by name: HDF5 of D4RL and DSRL, shards and views of a store like ours, Minari's folders,
npz archives of NeoRL and NeoRL-2, and Parquet or CSV of a historian, which only a mapping can read.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from configs.errors import BadInput
from neorl_core.plants.base import LoggedSignals
from neorl_core.types import Constraint, PlantSpec
from tasks.adapters.files.arrays import open_npz
from tasks.adapters.files.canonical import digest_json, file_sha256, read_json
from tasks.adapters.formats.archives import read_archive, read_archive_layout
from tasks.adapters.formats.hdf5.isolated import has_signature, read_isolated
from tasks.adapters.formats.hdf5.layouts import VECTORS
from tasks.adapters.formats.hdf5.minari import find_folder
from tasks.adapters.formats.hdf5.sources import Blocks, Source, no_horizon
from tasks.adapters.formats.recordings import spec_of
from tasks.adapters.store.schema import ALWAYS
from tasks.adapters.store.scoring import with_costs

HDF5 = b"\x89HDF\r\n\x1a\n"
ZIP = b"PK"
PARQUET = b"PAR1"
TABLES = (".csv", ".parquet", ".tsv", ".txt", ".dat", ".gz", ".zst")
MINARI = ("metadata.json", "main_data.hdf5")
WORKBOOKS = (".xlsx", ".xlsm")


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
        return read_isolated(folder, horizon)
    if not path.is_file():
        raise BadInput(f"expected a source at {path}, got none: check the path.")
    with path.open("rb") as file:
        start = file.read(8)
    ending = path.suffix.lower()
    table = ending in TABLES and start[:2] != ZIP and start != HDF5
    if start.startswith(PARQUET) or table or (ending in WORKBOOKS and start[:2] == ZIP):
        raise BadInput(
            f"expected a mapping for {path.name}, which is a table: a historian's export is read by --mapping, which "
            f"says what its columns and tags mean, and which 'neorl init --from {path.name}' writes; a table without "
            "tags, times and actions is no log of a plant."
        )
    if start.startswith(ZIP):
        return no_horizon(_npz(path), horizon)
    if has_signature(path):
        return read_isolated(path, horizon)
    raise BadInput(
        f"expected HDF5 (D4RL, DSRL, Minari, this store), npz (NeoRL, NeoRL-2) or a historian's table, got "
        f"{path.name}, which starts with {start!r}: export it in one of these."
    )


def _npz(path: Path) -> Source:
    with open_npz(path) as archive:
        names = set(archive.names)
    if {"states", "actions"} <= names and "reward" not in names:
        raise BadInput(
            f"expected rewards and next observations in {path.name}, got recorded states and actions of a simulator "
            f"({', '.join(sorted(names))}): it is a trace to check a plant's equations by, no log to learn from."
        )
    layout = read_archive_layout(path)
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
        lambda: read_archive(path, layout.widths),
    )


def name_of(source: Source) -> str:
    """A name for a dataset of no known plant, from the file's."""
    stem = _minari_id(source.path) or _base(source.path).stem
    name = re.sub(r"[^a-z0-9]+", "_", stem.lower()).strip("_")
    return name if name[:1].isalpha() else f"file_{name}".rstrip("_")


def _minari_id(path: Path) -> str:
    """The id of a Minari dataset, with its namespace: folders of several are called human-v2."""
    if not path.is_dir():
        return ""
    metadata = read_json(path / "metadata.json")
    return str(metadata.get("dataset_id", "")) if isinstance(metadata, dict) else ""


def _base(path: Path) -> Path:
    """The path that bears a source's name: Minari's folders all hold a folder `data`."""
    return path.parent if path.is_dir() and path.name == "data" else path


def files_of(source: Source) -> list[Path]:
    """What is read of a source: the file, or Minari's two of a folder."""
    return [source.path / name for name in MINARI] if source.path.is_dir() else [source.path]


def digest_of(source: Source) -> str:
    """SHA-256 of a source: of the file, or of a folder's files."""
    if source.path.is_dir():
        return digest_json({file.name: file_sha256(file) for file in files_of(source)})
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


def for_plant(source: Source, spec: PlantSpec, logged: LoggedSignals | None) -> Callable[[], Blocks]:
    """A source's blocks as rows of a known plant: costs by its limits, where the source has none of its own.

    Raises:
        BadInput: when its vectors are not as wide as the plant's, or nothing says what its limits cost.
    """
    if logged is None and "constraint_costs" not in source.carries:
        raise BadInput(
            f"expected costs of the limits of {spec.name} in {source.path.name}, got none: add logged_reward and "
            "logged_margins to the plant's file, which compute them."
        )
    for what, got, space in (
        ("observations", source.observations, spec.observation),
        ("actions", source.actions, spec.action),
    ):
        if got != space.size:
            raise BadInput(
                f"expected {space.size} {what} of {spec.name} in {source.path.name}, got {got}: "
                "check that the file belongs to this plant."
            )

    def blocks() -> Blocks:
        for rows in source.blocks():
            if "constraint_costs" in source.carries:
                if rows["constraint_costs"].shape[1:] != (len(spec.constraints),):
                    raise BadInput(
                        f"expected costs of {len(spec.constraints)} limits of {spec.name} in {source.path.name}, got "
                        f"{rows['constraint_costs'].shape[1:]}: check that the file belongs to this plant."
                    )
                yield rows
            else:
                own = {"costs": rows["costs"]} if "costs" in source.carries else {}
                assert logged is not None
                yield with_costs(rows, logged) | own

    return blocks


def survey(source: Source, name: str) -> PlantSpec:
    """A spec for a file of which nothing else is known, made in one pass over it.

    Raises:
        BadInput: when no row can be used.
    """
    bounds: dict[str, list[npt.NDArray[Any]]] = {}
    longest = age = 0
    limits = 0
    for rows in source.blocks():
        sound = np.ones(len(rows["rewards"]), bool)
        for key in ("observations", "actions", "next_observations", "rewards"):
            sound &= np.isfinite(rows[key]).reshape(len(sound), -1).all(axis=1)
        sound &= rows["rejected"] == "" if "rejected" in rows else True
        for key in VECTORS:
            if sound.any():
                edges = [rows[key][sound].min(axis=0), rows[key][sound].max(axis=0)]
                bounds[key] = (
                    [np.minimum(bounds[key][0], edges[0]), np.maximum(bounds[key][1], edges[1])]
                    if key in bounds
                    else edges
                )
        ends = np.flatnonzero((rows["terminals"] != 0) | (rows["timeouts"] != 0))
        lengths = np.diff(np.concatenate([[-1 - age], ends, [len(sound) - 1]]))
        longest, age = max(longest, int(lengths.max())), int(lengths[-1])
        limits = rows["constraint_costs"].shape[1] if "constraint_costs" in source.carries else 0
    if not bounds:
        raise BadInput(f"expected a sound row in {source.path.name}, got none: mend the export.")
    box = {key: np.stack(edges) for key, edges in bounds.items()}
    spec = spec_of(name, box["observations"], box["actions"], box["next_observations"], longest)
    unknown = tuple(Constraint(f"limit_{i}", "", -np.inf, np.inf) for i in range(limits))
    return spec._replace(constraints=unknown)
