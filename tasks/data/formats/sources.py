"""Recognise the format of a data file by its content, and read the rows in blocks.

Formats: HDF5 files of D4RL, DSRL and d3rlpy, shards and views of a dataset store, Minari folders, and npz archives of
the benchmarks NeoRL and NeoRL-2. Tables of a historian raise BadInput, because they need a mapping.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from configs.errors import BadInput
from configs.expression import Expression
from neorl_core.plants.base import LoggedSignals
from neorl_core.types import Constraint, PlantSpec, Space
from tasks.data.formats.hdf5.flat_files import VECTORS
from tasks.data.formats.hdf5.isolated import SIGNATURE, has_signature, read_isolated
from tasks.data.formats.hdf5.minari import find_folder
from tasks.data.formats.neorl_npz import open_archive
from tasks.data.formats.reading import Blocks, Source, no_horizon
from tasks.data.formats.recordings import spec_of
from tasks.data.store.schema import MOST_CHOICES, Rows
from tasks.data.store.scoring import with_costs
from tasks.files.canonical import digest_json, file_sha256, read_json

ZIP = b"PK"
PARQUET = b"PAR1"
TABLES = (".csv", ".parquet", ".tsv", ".txt", ".dat", ".gz", ".zst")
FORMS = "D4RL, DSRL, d3rlpy, Minari, NeoRL's store (HDF5), or the benchmarks NeoRL and NeoRL-2 (npz)"
MINARI = ("metadata.json", "main_data.hdf5")
WORKBOOKS = (".xlsx", ".xlsm")


class SourceOptions(NamedTuple):
    """Options of every command that reads a data file."""

    plant: str | None = None
    """Plant that gives names, units and limits: a plant's name, or a plant file in the working directory."""
    mapping: Path | None = None
    """Mapping file for a historian export; the mapping names the plant."""
    horizon: int | None = None
    """Time limit of episodes in steps, for a file with neither timeouts nor next observations."""
    spec: Path | None = None
    """YAML file with names, units, limits and costs for a file of transitions."""


NO_OPTIONS = SourceOptions()


def recognise(path: Path, horizon: int | None = None) -> Source:
    """Recognise the format of a file or Minari folder; raise BadInput if the format is unknown or the file is damaged.

    A file with neither timeouts nor next observations needs `horizon`, the time limit of episodes in steps.
    """
    if path.is_dir():
        if (folder := find_folder(path)) is None:
            raise BadInput(f"folder {path} has no data/metadata.json, so it is not a Minari dataset: name a file.")
        return read_isolated(folder, horizon)
    if not path.is_file():
        raise BadInput(f"{path} does not exist: check the path.")
    with path.open("rb") as file:
        start = file.read(8)
    ending = path.suffix.lower()
    table = ending in TABLES and start[:2] != ZIP and start != SIGNATURE
    if start.startswith(PARQUET) or table or (ending in WORKBOOKS and start[:2] == ZIP):
        raise BadInput(
            f"{path.name} is a table, which needs a mapping: if it has a column of times, run 'neorl init --from "
            f"{path.name}' to write a mapping, then give --mapping. Transitions are read from {FORMS}."
        )
    if start.startswith(ZIP):
        return no_horizon(open_archive(path), horizon)
    if has_signature(path):
        return read_isolated(path, horizon)
    raise BadInput(
        f"{path.name} starts with {start!r} and is in no known format: export it as {FORMS}, or as a historian "
        "table with a mapping."
    )


def name_of(source: Source) -> str:
    """Return a plant's name made from the file's name, for a file of an unknown plant."""
    stem = _minari_id(source.path) or _base(source.path).stem
    name = re.sub(r"[^a-z0-9]+", "_", stem.lower()).strip("_")
    return name if name[:1].isalpha() else f"file_{name}".rstrip("_")


def _minari_id(path: Path) -> str:
    """Return a Minari dataset's id with its namespace, because folder names such as human-v2 are not unique."""
    if not path.is_dir():
        return ""
    metadata = read_json(path / "metadata.json")
    return str(metadata.get("dataset_id", "")) if isinstance(metadata, dict) else ""


def _base(path: Path) -> Path:
    """Return the path after which a source is named: for a Minari dataset, the folder above `data`."""
    return path.parent if path.is_dir() and path.name == "data" else path


def files_of(source: Source) -> list[Path]:
    """Return the files of a source: one, or two in a Minari folder."""
    return [source.path / name for name in MINARI] if source.path.is_dir() else [source.path]


def digest_of(source: Source) -> str:
    if source.path.is_dir():
        return digest_json({file.name: file_sha256(file) for file in files_of(source)})
    return file_sha256(source.path)


def in_words(source: Source, spec: PlantSpec, by: str | None) -> list[str]:
    """Describe for the user how a source was read, one fact per line.

    `by` is the plant or the file that gives names and limits; None if they are unknown.
    """
    notes = list(source.notes)
    if by is not None and "constraint_costs" not in source.keys and spec.constraints:
        own = "read from 'costs'; " if "costs" in source.keys else ""
        notes = [note for note in notes if not note.startswith("costs:")]
        notes.append(f"costs: {own}excess over each limit, by the formulas of {by}")
    origin = "bounds derived from the data; no units, limits or scores known"
    if by is not None:
        origin = f"names, units and limits of {'the plant' if by == spec.name else by}"
    acts = f"{source.actions} actions"
    if spec.choices is not None:
        acts = f"a discrete action of {len(spec.choices):,} choices"
    return [
        f"{_base(source.path).name}: {source.family}, recognised as {source.content}",
        f"  {source.rows:,} rows of {source.observations} observations, {acts}",
        *(f"  {note}" for note in notes),
        f"  read as {spec.name}: {origin}",
    ]


def for_plant(source: Source, spec: PlantSpec, logged: LoggedSignals | None) -> Callable[[], Blocks]:
    """Return a function that reads a source's rows for a known plant; missing costs are computed by `logged`.

    Raise BadInput if the source's observations or actions do not fit the plant, or if costs and `logged` are missing.
    """
    if (source.choices is None) != (spec.choices is None):
        kinds = ("continuous", "discrete") if spec.choices is None else ("discrete", "continuous")
        raise BadInput(
            f"{spec.name} has {kinds[0]} actions, {source.path.name} has {kinds[1]} ones: check that the file belongs "
            "to this plant."
        )
    if logged is None and "constraint_costs" not in source.keys:
        raise BadInput(
            f"{source.path.name} has no costs for the limits of {spec.name}: add the functions logged_reward and "
            "logged_margins, which compute costs, to the plant's file."
        )
    for key, got, space in (
        ("observations", source.observations, spec.observation),
        ("actions", source.actions, spec.action),
    ):
        if got != space.size:
            raise BadInput(
                f"{spec.name} has {space.size} {key}, {source.path.name} has {got}: check that the file belongs to "
                "this plant."
            )

    return _scored(source, spec, None if logged is None else partial(with_costs, logged=logged))


def for_declared(source: Source, spec: PlantSpec, costs: Mapping[str, Expression]) -> Callable[[], Blocks]:
    """Return a function that reads a source's rows and adds costs; `costs` has formulas for unobserved limits."""
    return _scored(source, spec, partial(_with_declared, spec=spec, costs=costs) if spec.constraints else None)


def _with_declared(rows: Rows, spec: PlantSpec, costs: Mapping[str, Expression]) -> Rows:
    """Add the excess over each of K limits (n, K), and the cost (n,), which is 1 if any limit is exceeded."""
    after = dict(zip(spec.observation.names, rows["next_observations"].T.astype(np.float64), strict=True))
    values = dict(zip(spec.observation.names, rows["observations"].T.astype(np.float64), strict=True))
    values |= {f"next.{name}": column for name, column in after.items()}
    values |= dict(zip(spec.action.names, rows["actions"].T.astype(np.float64), strict=True))
    excess: npt.NDArray[Any] = np.zeros((len(rows["rewards"]), len(spec.constraints)), np.float32)
    for i, limit in enumerate(spec.constraints):
        value = costs[limit.name].compute(values) if limit.name in costs else after[limit.name]
        with np.errstate(all="ignore"):  # the row checks find values that are not finite
            excess[:, i] = np.maximum(np.maximum(limit.low - value, value - limit.high), 0.0)
    violated: npt.NDArray[Any] = np.asarray((excess > 0).any(axis=1), np.float32)
    return rows | {"constraint_costs": excess, "costs": violated}


def _scored(source: Source, spec: PlantSpec, score: Callable[[Rows], Rows] | None) -> Callable[[], Blocks]:

    def blocks() -> Blocks:
        for rows in source.blocks():
            if "constraint_costs" in source.keys:
                if rows["constraint_costs"].shape[1:] != (len(spec.constraints),):
                    raise BadInput(
                        f"{spec.name} has {len(spec.constraints)} limits, {source.path.name} has costs of shape "
                        f"{rows['constraint_costs'].shape[1:]}: check that the file belongs to this plant."
                    )
                yield rows
            elif score is None:
                yield rows
            else:
                own = {"costs": rows["costs"]} if "costs" in source.keys else {}
                yield score(rows) | own

    return blocks


def survey(source: Source, name: str) -> PlantSpec:
    """Read all rows of an unknown plant's file once and derive a spec; raise BadInput if no row is usable."""
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
        limits = rows["constraint_costs"].shape[1] if "constraint_costs" in source.keys else 0
    if not bounds:
        raise BadInput(f"{source.path.name} has no usable row: all are rejected or have NaN or infinity; export again.")
    box = {key: np.stack(edges) for key, edges in bounds.items()}
    spec = spec_of(name, box["observations"], box["actions"], box["next_observations"], longest)
    if source.choices is not None:
        # If the file does not declare the number of choices, use the largest action.
        count = source.choices or int(box["actions"].max()) + 1
        if not 0 < count <= MOST_CHOICES:
            raise BadInput(
                f"{source.path.name} has a discrete action with {count:,} choices, allowed are 1 to {MOST_CHOICES:,}: "
                "if the action is continuous, save it as float32."
            )
        action = Space(spec.action.names[:1], ("1",), (0.0,), (count - 1.0,))
        spec = spec._replace(action=action, choices=tuple(map(str, range(count))))
    unknown = tuple(Constraint(f"limit_{i}", "", -np.inf, np.inf) for i in range(limits))
    return spec._replace(constraints=unknown)
