"""Read and write Minari's dataset folders (version 0.5 with HDF5 storage, minari.farama.org).

NAME-v0/data/metadata.json        spaces as JSON in strings, counts, the dataset's id, minari_version
NAME-v0/data/main_data.hdf5       a group per episode, episode_0, episode_1, ... For T steps: observations (T + 1, O),
                                  actions (T, A), rewards, terminations, truncations (T,), infos/* (T + 1,),
                                  attributes id, total_steps

NeoRL stores costs, constraint_costs and timestamps in `infos`. Their first entry belongs to the reset and is zero.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import h5py
import numpy as np
import numpy.typing as npt

from configs.errors import BadInput
from tasks.data.formats.hdf5.guard import find_array, find_member, open_guarded
from tasks.data.formats.reading import Blocks, Source, in_blocks
from tasks.data.store.schema import ALWAYS, BLOCK_ROWS, ROW_KEYS, Rows
from tasks.files.canonical import canonical_json, read_json

if TYPE_CHECKING:
    from neorl_core.types import PlantSpec, Space

VERSION = "0.5.4"
NAMES = {"terminations": "terminals", "truncations": "timeouts"}
INFOS = ("costs", "constraint_costs", "timestamps")
MAX_METADATA = 2**26
"""Largest accepted metadata.json in bytes."""
MAX_EPISODE = 2**28
"""Largest accepted array of an episode in bytes; each array is read as a whole."""


class _Layout(NamedTuple):
    rows: int
    episodes: int
    widths: dict[str, int]
    infos: tuple[str, ...]
    choices: int | None
    """Number of choices of a discrete action; None for continuous actions."""
    begins: int


def find_folder(path: Path) -> Path | None:
    """Return a Minari dataset's `data` folder; `path` is this folder, its parent or its HDF5 file. None if missing."""
    candidates = (path / "data", path) if path.is_dir() else (path.parent,)
    return next((folder for folder in candidates if (folder / "metadata.json").is_file()), None)


def open_minari(folder: Path) -> Source:
    """Open a Minari `data` folder; raise BadInput if the metadata are wrong or the first episode has no vectors."""
    path = folder / "metadata.json"
    if path.stat().st_size > MAX_METADATA:
        raise BadInput(f"{path} has more than {MAX_METADATA} bytes: export the dataset again.")
    metadata = read_json(path)
    if not isinstance(metadata, dict) or metadata.get("data_format", "hdf5") != "hdf5":
        kind = metadata.get("data_format") if isinstance(metadata, dict) else "no object"
        raise BadInput(f"the data_format in {path} is '{kind}', not hdf5: export it with data_format='hdf5'.")
    total, steps = metadata.get("total_episodes"), metadata.get("total_steps")
    if not isinstance(total, int) or not isinstance(steps, int) or not 0 < total <= steps:
        raise BadInput(
            f"total_episodes in {path} must be between 1 and total_steps, got {total} and {steps}: export it again."
        )
    with open_guarded(folder / "main_data.hdf5", "Minari") as file:
        episode = _episode(file, 0, folder)
        observations, actions = (_array(episode, key, folder, 0) for key in ("observations", "actions"))
        infos = find_member(episode, "infos", folder)
        known = (
            tuple(k for k in INFOS if find_array(infos, k, folder) is not None) if isinstance(infos, h5py.Group) else ()
        )
        for key, array in (("observations", observations), ("actions", actions)):
            if len(array.shape) not in (1, 2) or array.dtype.kind not in "fiub" or 0 in array.shape[1:]:
                raise BadInput(
                    f"{key} of {folder} must be vectors of numbers, got {array.dtype} {array.shape}: flatten the space "
                    "before exporting."
                )
        choices, begins = _choices(metadata.get("action_space"))
        if actions.dtype.kind != "f" and (choices is None or actions.dtype.kind == "b" or len(actions.shape) != 1):
            raise BadInput(
                f"actions in {folder} must be floats or have a Discrete space, got {actions.dtype} {actions.shape}: "
                "save continuous actions as float32; encode several discrete actions as one Discrete space."
            )
        widths = {"observations": _width(observations), "actions": _width(actions)}
    name = metadata.get("dataset_id")
    shown = name if isinstance(name, str) and name else (folder.parent if folder.name == "data" else folder).name
    layout = _Layout(steps, total, widths, known, choices if actions.dtype.kind in "iu" else None, begins)
    beside = ", ".join(f"infos/{key}" for key in known) or "none in the file"
    return Source(
        folder,
        "Minari",
        f"the Minari dataset {shown}, {total:,} episode(s)",
        steps,
        widths["observations"],
        widths["actions"],
        (*ALWAYS, *known),
        ("next observations: the following observation", f"costs and times: {beside}"),
        lambda: _read(folder, layout),
        layout.choices,
    )


def _choices(space: object) -> tuple[int | None, int]:
    """Return the number of choices and the first choice of a Discrete space; (None, 0) for any other space."""
    try:
        record = json.loads(space) if isinstance(space, str) else space
    except (ValueError, RecursionError):
        record = None
    if not isinstance(record, dict) or record.get("type") != "Discrete":
        return None, 0
    count, begins = record.get("n"), record.get("start", 0)
    valid = isinstance(count, int) and isinstance(begins, int) and count > 0 and abs(begins) < 2**31
    return (count, begins) if valid else (None, 0)


def _read(folder: Path, layout: _Layout) -> Blocks:
    """Yield blocks of whole episodes; the last row of an episode that did not terminate is marked as a timeout."""
    with open_guarded(folder / "main_data.hdf5", "Minari") as file:
        yield from in_blocks(_episodes(file, layout, folder), BLOCK_ROWS)


def _episodes(file: h5py.File, layout: _Layout, folder: Path) -> Iterator[Rows]:
    seen = 0
    for number in range(layout.episodes):
        rows = _read_episode(file, number, layout, folder)
        seen += len(rows["rewards"])
        if seen > layout.rows:
            break
        yield rows
    if seen != layout.rows:
        raise BadInput(
            f"the metadata of {folder} declare {layout.rows} steps, but {seen} steps were read: export it again."
        )


def _read_episode(file: h5py.File, number: int, layout: _Layout, folder: Path) -> Rows:
    group = _episode(file, number, folder)
    arrays = {key: _array(group, key, folder, number) for key in ("observations", "actions", "rewards", *NAMES)}
    steps = arrays["rewards"].shape[0] if len(arrays["rewards"].shape) == 1 else 0
    shapes = {"observations": steps + 1, "actions": steps, "rewards": steps, **dict.fromkeys(NAMES, steps)}
    for key, array in arrays.items():
        vector = key in layout.widths
        fits = len(array.shape) == (2 if array.shape[1:] else 1) and (not vector or _width(array) == layout.widths[key])
        if not steps or not fits or array.shape[0] != shapes[key] or (array.shape[1:] and not vector):
            raise BadInput(
                f"{key} in episode {number} of {folder} must have {shapes[key]} rows, got shape {array.shape}: export "
                "it again."
            )
        if array.nbytes > MAX_EPISODE:
            raise BadInput(
                f"{key} in episode {number} of {folder} has {array.nbytes} bytes, the limit is {MAX_EPISODE}: export "
                "shorter episodes."
            )
        if array.dtype.kind not in ("iu" if key == "actions" and layout.choices is not None else "fiub"):
            raise BadInput(
                f"{key} of episode {number} of {folder} must be numeric, got {array.dtype}: export it again."
            )
    with np.errstate(over="ignore"):
        observations = arrays["observations"][()].reshape(steps + 1, -1).astype(np.float32)
        actions = arrays["actions"][()].reshape(steps, -1)
        rows: Rows = {
            "observations": observations[:-1],
            "actions": actions.astype(np.float32)
            if layout.choices is None
            else actions.astype(np.int64) - layout.begins,
            "rewards": arrays["rewards"][()].astype(np.float32),
            "next_observations": observations[1:],
        }
    for key, name in NAMES.items():
        values = arrays[key][()]
        if len(wrong := np.setdiff1d(values, (0, 1))):
            raise BadInput(f"{key} in episode {number} of {folder} must be 0 or 1, got {wrong[0]}: export it again.")
        rows[name] = values.astype(bool)
    rows["timeouts"][-1] |= not rows["terminals"][-1]
    if layout.infos:
        infos = find_member(group, "infos", folder)
        for key in layout.infos:
            info = find_array(infos, key, folder) if isinstance(infos, h5py.Group) else None
            if info is None or info.shape is None or info.shape[:1] != (steps + 1,) or info.dtype.kind not in "fiub":
                raise BadInput(
                    f"infos/{key} in episode {number} of {folder} must have {steps + 1} numeric rows: export it again."
                )
            rows[key] = info[1:].astype(ROW_KEYS[key])
    return rows


def _episode(file: h5py.File, number: int, folder: Path) -> h5py.Group:
    group = find_member(file, f"episode_{number}", folder)
    if not isinstance(group, h5py.Group):
        raise BadInput(f"{folder} has no group episode_{number}: export the dataset again.")
    return group


def _array(group: h5py.Group, key: str, folder: Path, number: int) -> h5py.Dataset:
    array = find_array(group, key, folder)
    if array is None or array.shape is None:
        raise BadInput(
            f"episode {number} of {folder} has no array '{key}': if the space is nested, flatten it before the export, "
            "because NeoRL reads only vectors."
        )
    return array


def _width(array: h5py.Dataset) -> int:
    return int(array.shape[1]) if array.shape[1:] else 1


def write_episode(file: h5py.File, number: int, rows: Rows) -> None:
    """Append an episode of T steps, arrays (T, ...), to an open main_data.hdf5, with T + 1 observations."""
    group = file.create_group(f"episode_{number}")
    steps = len(rows["rewards"])
    group.attrs.update({"id": number, "total_steps": steps})
    arrays = {
        "observations": np.concatenate([rows["observations"], rows["next_observations"][-1:]]),
        "actions": rows["actions"] if rows["actions"].dtype.kind == "f" else rows["actions"][:, 0].astype(np.int64),
        "rewards": rows["rewards"],
        **{key: rows[name] for key, name in NAMES.items()},
    }
    for key in INFOS:
        if key in rows:
            arrays[f"infos/{key}"] = np.concatenate([np.zeros_like(rows[key][:1]), rows[key]])
    for key, values in arrays.items():
        group.create_dataset(key, data=values, track_times=False)


def metadata_of(spec: PlantSpec, name: str, rows: int, episodes: int, size: int, about: dict[str, str]) -> bytes:
    """Return the content of Minari's metadata.json for an HDF5 file of `size` bytes.

    `about` gives additional entries.
    """
    return canonical_json(
        {
            "total_episodes": episodes,
            "total_steps": rows,
            "data_format": "hdf5",
            "jpeg_encoding": False,
            "observation_space": _box(spec.observation),
            "action_space": _box(spec.action)
            if spec.choices is None
            else json.dumps({"type": "Discrete", "dtype": "int64", "start": 0, "n": len(spec.choices)}),
            "dataset_id": name,
            "minari_version": VERSION,
            "dataset_size": round(size / 1e6, 1),
            **about,
        }
    )


def _box(space: Space) -> str:
    # Minari reads JSON with Infinity, as Python writes it.
    low, high = (np.asarray(bound, np.float32).tolist() for bound in (space.low, space.high))
    return json.dumps({"type": "Box", "dtype": "float32", "shape": [space.size], "low": low, "high": high})


def first_difference(rows: Rows) -> npt.NDArray[np.int64]:
    """Return the rows whose next observation differs from the observation of the following row.

    Minari stores only observations, so it would lose these next observations.
    """
    inside = ~(rows["terminals"] | rows["timeouts"])[:-1]
    differ = (rows["next_observations"][:-1].view(np.uint32) != rows["observations"][1:].view(np.uint32)).any(axis=1)
    return np.flatnonzero(inside & differ)
