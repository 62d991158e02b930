"""Files that somebody else wrote, recognised by what is in them: which format, what it holds, and its rows as blocks.

Recognised by content, never by name: HDF5 of D4RL, DSRL and d3rlpy, shards and views of a store like ours, Minari's
folders, npz archives of NeoRL and NeoRL-2, and tables of a historian, which only a mapping can read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from configs.errors import BadInput
from configs.expression import Expression
from neorl_core.plants.base import LoggedSignals
from neorl_core.types import Constraint, PlantSpec, Space
from tasks.data.formats.archives import read_archive, read_archive_layout
from tasks.data.formats.hdf5.isolated import has_signature, read_isolated
from tasks.data.formats.hdf5.layouts import VECTORS
from tasks.data.formats.hdf5.minari import find_folder
from tasks.data.formats.hdf5.sources import Blocks, Source, no_horizon
from tasks.data.formats.recordings import spec_of
from tasks.data.store.schema import ALWAYS, MOST_CHOICES, Rows
from tasks.data.store.scoring import with_costs
from tasks.files.arrays import open_npz
from tasks.files.canonical import digest_json, file_sha256, read_json

HDF5 = b"\x89HDF\r\n\x1a\n"
ZIP = b"PK"
PARQUET = b"PAR1"
TABLES = (".csv", ".parquet", ".tsv", ".txt", ".dat", ".gz", ".zst")
FORMS = "D4RL, DSRL, d3rlpy, Minari, this store (HDF5), NeoRL or NeoRL-2 (npz)"
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
            f"expected a mapping for {path.name}, which is a table, got none: a plant's table, with a column of times "
            f"and columns or rows of tags, is read by --mapping, which 'neorl init --from {path.name}' writes, and "
            f"transitions are read from files of {FORMS}."
        )
    if start.startswith(ZIP):
        return no_horizon(_npz(path), horizon)
    if has_signature(path):
        return read_isolated(path, horizon)
    raise BadInput(
        f"expected a file of {FORMS}, or a historian's table with a mapping, got {path.name}, which starts with "
        f"{start!r}: export it in one of these."
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


def in_words(source: Source, spec: PlantSpec, by: str | None) -> list[str]:
    """How a source was read, a line for each thing that a reader should check.

    Args:
        source: the source.
        spec: the plant.
        by: what names its signals and limits: the plant, or a file that declares them; None where nothing does.
    """
    notes = list(source.notes)
    if by is not None and "constraint_costs" not in source.carries and spec.constraints:
        own = "read from 'costs'; " if "costs" in source.carries else ""
        notes = [note for note in notes if not note.startswith("costs:")]
        notes.append(f"costs: {own}by how much each limit is exceeded, by the formulas of {by}")
    made = "bounds made from the data; no unit, limit or score known"
    if by is not None:
        made = f"names, units and limits of {'the plant' if by == spec.name else by}"
    return [
        f"{_base(source.path).name}: {source.family}, for it is {source.how}",
        f"  {source.rows:,} rows of {source.observations} observations, {_acts(source, spec)}",
        *(f"  {note}" for note in notes),
        f"  read as {spec.name}: {made}",
    ]


def _acts(source: Source, spec: PlantSpec) -> str:
    if spec.choices is None:
        return f"{source.actions} actions"
    return f"a discrete action of {len(spec.choices):,} choices"


def for_plant(source: Source, spec: PlantSpec, logged: LoggedSignals | None) -> Callable[[], Blocks]:
    """A source's blocks as rows of a known plant: costs by its limits, where the source has none of its own.

    Raises:
        BadInput: when its vectors are not as wide as the plant's, its actions are discrete and the plant's are not, or
            nothing says what its limits cost.
    """
    if (source.choices is None) != (spec.choices is None):
        kinds = ("continuous", "discrete") if spec.choices is None else ("discrete", "continuous")
        raise BadInput(
            f"expected {kinds[0]} actions of {spec.name} in {source.path.name}, got {kinds[1]} ones: check that the "
            "file belongs to this plant."
        )
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

    return _scored(source, spec, None if logged is None else partial(with_costs, logged=logged))


def for_declared(source: Source, spec: PlantSpec, costs: Mapping[str, Expression]) -> Callable[[], Blocks]:
    """A source's blocks as rows of a plant whose limits a file declares.

    Args:
        source: the source.
        spec: as the file declares it.
        costs: formulas of those of its limits that are no observation's.
    """
    return _scored(source, spec, partial(_with_declared, spec=spec, costs=costs) if spec.constraints else None)


def _with_declared(rows: Rows, spec: PlantSpec, costs: Mapping[str, Expression]) -> Rows:
    """Rows with the excess over each declared limit (n, K), and costs (n,), 1 where there is any."""
    after = dict(zip(spec.observation.names, rows["next_observations"].T.astype(np.float64), strict=True))
    values = dict(zip(spec.observation.names, rows["observations"].T.astype(np.float64), strict=True))
    values |= {f"next.{name}": column for name, column in after.items()}
    values |= dict(zip(spec.action.names, rows["actions"].T.astype(np.float64), strict=True))
    excess: npt.NDArray[Any] = np.zeros((len(rows["rewards"]), len(spec.constraints)), np.float32)
    for i, limit in enumerate(spec.constraints):
        found = costs[limit.name].compute(values) if limit.name in costs else after[limit.name]
        with np.errstate(all="ignore"):  # what is not finite is found by the row checks
            excess[:, i] = np.maximum(np.maximum(limit.low - found, found - limit.high), 0.0)
    violated: npt.NDArray[Any] = np.asarray((excess > 0).any(axis=1), np.float32)
    return rows | {"constraint_costs": excess, "costs": violated}


def _scored(source: Source, spec: PlantSpec, score: Callable[[Rows], Rows] | None) -> Callable[[], Blocks]:
    """A source's blocks with costs: its own, or else by a function; its own single cost goes before the function's."""

    def blocks() -> Blocks:
        for rows in source.blocks():
            if "constraint_costs" in source.carries:
                if rows["constraint_costs"].shape[1:] != (len(spec.constraints),):
                    raise BadInput(
                        f"expected costs of {len(spec.constraints)} limits of {spec.name} in {source.path.name}, got "
                        f"{rows['constraint_costs'].shape[1:]}: check that the file belongs to this plant."
                    )
                yield rows
            elif score is None:
                yield rows
            else:
                own = {"costs": rows["costs"]} if "costs" in source.carries else {}
                yield score(rows) | own

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
    if source.choices is not None:
        spec = with_choices(spec, _numbered(source, box["actions"]))
    unknown = tuple(Constraint(f"limit_{i}", "", -np.inf, np.inf) for i in range(limits))
    return spec._replace(constraints=unknown)


def _numbered(source: Source, chosen: npt.NDArray[Any]) -> tuple[str, ...]:
    """Names of choices, 0 to n - 1: as many as the file says, or up to the greatest that was taken."""
    count = source.choices or int(chosen.max()) + 1
    if not 0 < count <= MOST_CHOICES:
        raise BadInput(
            f"expected 1 to {MOST_CHOICES:,} choices of the discrete action in {source.path.name}, got {count:,}: save "
            "continuous actions as float32."
        )
    return tuple(map(str, range(count)))


def with_choices(spec: PlantSpec, choices: tuple[str, ...]) -> PlantSpec:
    """The spec with a discrete action of these choices in place of its own."""
    return spec._replace(action=Space(spec.action.names[:1], ("1",), (0.0,), (len(choices) - 1.0,)), choices=choices)
