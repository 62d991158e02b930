"""Read flat HDF5 files (D4RL, DSRL, d3rlpy 1) in blocks; derive next observations that a file lacks.

Each array has one row per step, over all N steps of all episodes. Scalars are stored as (N,) or (N, 1).
D4RL (Fu et al. 2020, arXiv 2004.07219): observations, actions, rewards, terminals, usually timeouts, sometimes
next_observations; infos/* and metadata/* are ignored.
DSRL (Liu et al. 2023, arXiv 2306.09303): the arrays of D4RL and costs; next_observations and timeouts always exist.
MDPDataset.dump of d3rlpy 1 (Seno and Imai 2022, JMLR 23): observations, actions, rewards, terminals, and
episode_terminals, which is 1 in the last row of each episode. Discrete actions are integers.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np
import numpy.typing as npt

from configs.errors import BadInput
from tasks.data.formats.hdf5.guard import find_array, open_guarded
from tasks.data.store.schema import BLOCK_ROWS, NO_SUCCESSOR, Rows

BLOCK_NUMBERS = 2**26
REQUIRED = ("observations", "actions", "rewards", "terminals")
OPTIONAL = ("next_observations", "timeouts", "costs")
VECTORS = ("observations", "actions", "next_observations")
FLAGS = ("terminals", "timeouts")
ENDS = "episode_terminals"
"""Key of d3rlpy 1 that marks the last row of each episode; it is read as timeouts."""


class Layout(NamedTuple):
    family: str
    """"d3rlpy" if the key of `ENDS` exists, "DSRL" if all keys of `OPTIONAL` exist, otherwise "D4RL"."""
    rows: int
    widths: dict[str, int]
    """Values per row, for each key in the file."""
    discrete: bool
    """Whether actions are integers; each integer is the number of a choice."""


def read_blocks(path: Path, horizon: int | None = None, block_rows: int = BLOCK_ROWS) -> Iterator[Rows]:
    """Read a flat HDF5 file in blocks of rows.

    If next observations are missing, they are taken from the next row. Where an episode terminates, the row's own
    observation is used, because no learner reads the next observation there. The last row before a time limit or the
    end of the file is rejected.

    Args:
        path: the HDF5 file; a damaged file, and a missing key, a wrong shape or a wrong flag, raise BadInput.
        horizon: time limit of episodes in steps; required if the file has neither timeouts nor next_observations, and
            otherwise not allowed.

    Returns:
        Blocks: for each key of `REQUIRED` and `OPTIONAL` an array (n, ...) of float32 or bool. Discrete actions stay
        integers, missing costs are 0. `rejected` has the reason why a row is unusable, or ''.
    """
    with open_guarded(path) as file:
        layout = _layout(file, path, horizon)
        block_rows = min(block_rows, max(BLOCK_NUMBERS // sum(layout.widths.values()), 1))
        age = 0  # steps since the last termination, or since the start of the file
        for start in range(0, layout.rows, block_rows):
            stop = min(start + block_rows, layout.rows)
            rows = {key: _read(file, key, start, stop, path) for key in layout.widths}
            if horizon is not None:
                ages = _ages(rows["terminals"], age)
                rows["timeouts"] = ages % horizon == horizon - 1
                age = 0 if rows["terminals"][-1] else int(ages[-1]) + 1
            zeros = np.zeros(stop - start, np.float32)
            rows = {"costs": zeros, "timeouts": zeros.astype(bool)} | rows
            rejected = np.full(stop - start, "", dtype=object)
            if "next_observations" not in rows:
                following = rows["observations"].copy()
                following[:-1] = rows["observations"][1:]
                lost = rows["timeouts"] & ~rows["terminals"]
                if stop < layout.rows:
                    following[-1:] = _read(file, "observations", stop, stop + 1, path)
                else:
                    lost[-1] |= not rows["terminals"][-1]
                stays = rows["terminals"] | lost
                following[stays] = rows["observations"][stays]
                rows["next_observations"] = following
                rejected[lost] = NO_SUCCESSOR
            for key in ("observations", "actions", "rewards", "next_observations", "costs"):
                bad = ~np.isfinite(rows[key]).reshape(stop - start, -1).all(axis=1)
                rejected[bad & (rejected == "")] = f"NaN or infinity in {key}"
            yield rows | {"rejected": rejected}


def read_layout(path: Path, horizon: int | None = None) -> Layout:
    """Read the layout of a flat HDF5 file; raise BadInput if a key, shape or type is wrong."""
    with open_guarded(path) as file:
        return _layout(file, path, horizon)


def _layout(file: h5py.File, path: Path, horizon: int | None) -> Layout:
    arrays = {key: find_array(file, key, path) for key in (*REQUIRED, *OPTIONAL)}
    ends = find_array(file, ENDS, path)
    if arrays["timeouts"] is None:
        arrays["timeouts"] = ends
    found = {key: array for key, array in arrays.items() if array is not None}
    for key in REQUIRED:
        if key not in found:
            listed = list(file)
            shown = ", ".join(listed[:8]) + (", ..." if len(listed) > 8 else "")
            if found:
                raise BadInput(
                    f"{path.name} has no array '{key}', only {shown}: export it with the names of D4RL or DSRL."
                )
            raise BadInput(
                f"{path.name} is not an HDF5 file of D4RL, DSRL, d3rlpy, Minari or NeoRL's store, it contains "
                f"{shown or 'nothing'}: export it in one of these formats. If it is a table of a plant, save it as CSV "
                "or Parquet, and run 'neorl init --from TABLE' to write a mapping."
            )
    if found["observations"].shape is None:
        raise BadInput(f"'observations' of {path.name} has no rows: export it again.")
    count = found["observations"].shape[0] if found["observations"].shape else 0
    widths = {key: _width(path, key, array, count) for key, array in found.items()}
    if count == 0:
        raise BadInput(f"{path.name} has no rows: export it again.")
    if widths.get("next_observations", widths["observations"]) != widths["observations"]:
        raise BadInput(
            f"'next_observations' of {path.name} has {widths['next_observations']} columns, 'observations' has "
            f"{widths['observations']}: export it again."
        )
    family = "d3rlpy" if ends is not None else "DSRL" if all(key in found for key in OPTIONAL) else "D4RL"
    tells = [f"'{key}'" for key in ("timeouts", "next_observations") if key in found]
    if not tells and horizon is None:
        raise BadInput(
            f"{path.name} has neither 'timeouts' nor 'next_observations', so ends of episodes are unknown: give the "
            "time limit in steps, for example --horizon 1000."
        )
    if tells and horizon is not None:
        raise BadInput(f"{path.name} has {' and '.join(tells)}, which give the ends of episodes: omit --horizon.")
    if horizon is not None and horizon < 1:
        raise BadInput(f"the horizon must be at least one step, got {horizon}: give the environment's time limit.")
    return Layout(family, count, widths, found["actions"].dtype.kind in "iu")


def _width(path: Path, key: str, array: h5py.Dataset, count: int) -> int:
    if array.dtype.kind not in "fiub":
        raise BadInput(f"'{key}' of {path.name} must be numeric, got {array.dtype}: save it as float32.")
    if (
        key == "actions"
        and array.dtype.kind != "f"
        and (array.dtype.kind == "b" or array.shape not in ((count,), (count, 1)))
    ):
        raise BadInput(
            f"actions in {path.name} must be floats, or one integer per row, got {array.dtype} {array.shape}: save "
            "continuous actions as float32; encode several discrete actions as one integer."
        )
    vector = key in VECTORS
    tails = [(), (1,)] if not vector else [(), array.shape[1:2]] if array.shape else []
    if array.shape is None or array.shape[:1] != (count,) or array.shape[1:] not in tails:
        expected = f"({count}, n)" if vector else f"({count},) or ({count}, 1)"
        raise BadInput(f"'{key}' of {path.name} must have shape {expected}, got {array.shape}: export it again.")
    if array.shape[1:] == (0,):
        raise BadInput(f"'{key}' of {path.name} has no columns: export it again.")
    return int(array.shape[1]) if array.shape[1:] else 1


def _read(file: h5py.File, key: str, start: int, stop: int, path: Path) -> npt.NDArray[Any]:
    stored = file[key] if key in file else file[ENDS]
    values: npt.NDArray[Any] = stored[start:stop]
    if len(values) != stop - start:
        raise BadInput(f"'{key}' in {path.name} has fewer than {stop} rows: copy the file again.")
    if key in FLAGS:
        values = values.reshape(stop - start)
        wrong = np.flatnonzero((values != 0) & (values != 1))
        if len(wrong):
            raise BadInput(
                f"'{key}' of {path.name} must be 0 or 1, got {values[wrong[0]]} in row {start + wrong[0]}: export it "
                "again."
            )
        return values.astype(bool)
    if key == "actions" and values.dtype.kind in "iu":
        return values.reshape(stop - start, 1)
    with np.errstate(over="ignore"):  # values beyond float32 become inf, and their rows are rejected
        return values.reshape((stop - start, -1) if key in VECTORS else stop - start).astype(np.float32)


def _ages(terminals: npt.NDArray[np.bool_], age: int) -> npt.NDArray[np.int64]:
    """Return, for each row, the steps since the last termination; `age` is the number for the first row."""
    index = np.arange(len(terminals))
    last = np.maximum.accumulate(np.where(terminals, index, -1))
    before = np.append(-1, last[:-1])
    return np.where(before >= 0, index - before - 1, index + age)
