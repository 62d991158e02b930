"""Read HDF5 files of d3rlpy 2 (ReplayBuffer.dump, version 2.1) in blocks.

Keys: columns, num_episodes, version, and for each episode i of T steps: observations_i (T, O), actions_i (T, A),
rewards_i (T, 1) and terminated_i. Discrete actions are integers (T, 1). The file lacks the observation after an
episode's last step, so this step is rejected unless the episode terminates. Observations that are split into several
arrays (observations_i_0, observations_i_1, ...) raise BadInput.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import h5py
import numpy as np

from configs.errors import BadInput
from tasks.data.formats.hdf5.guard import find_array, open_guarded
from tasks.data.formats.reading import Blocks, Source, in_blocks
from tasks.data.store.schema import ALWAYS, BLOCK_ROWS, NO_SUCCESSOR, Rows

FAMILY = "d3rlpy"
MARKS = {"columns", "num_episodes"}
MAX_EPISODE = 2**28
"""Largest accepted array of an episode in bytes; each array is read as a whole."""


class _Episode(NamedTuple):
    observations: h5py.Dataset
    actions: h5py.Dataset
    rewards: h5py.Dataset
    terminated: bool


def open_d3rlpy(path: Path) -> Source:
    """Open a d3rlpy file; raise BadInput if an episode is missing, damaged or shaped differently from the first."""
    with open_guarded(path, FAMILY) as file:
        total = find_array(file, "num_episodes", path)
        episodes = int(total[()]) if total is not None and total.shape == () and total.dtype.kind in "iu" else 0
        if not 0 < episodes <= len(file):
            raise BadInput(
                f"'num_episodes' of {path.name} must be between 1 and {len(file)}, the number of keys in the file, got "
                f"{episodes}: dump the buffer again."
            )
        first = _episode(file, 0, path)
        rows = 0
        for number in range(episodes):
            one = _episode(file, number, path)
            for key, array in (("observations", one.observations), ("actions", one.actions)):
                wanted = getattr(first, key)
                if array.shape[1:] != wanted.shape[1:] or array.dtype.kind != wanted.dtype.kind:
                    raise BadInput(
                        f"{key} of episode {number} in {path.name} are {array.dtype} {array.shape[1:]}, but those of "
                        f"episode 0 are {wanted.dtype} {wanted.shape[1:]}: dump episodes of only one plant."
                    )
            rows += one.actions.shape[0]
        return Source(
            path,
            FAMILY,
            f"a dumped ReplayBuffer of {episodes:,} episode(s)",
            rows,
            first.observations.shape[1],
            first.actions.shape[1],
            ALWAYS,
            (
                "next observations: derived within episodes; a cut episode loses its last row",
                "episodes cut by time: those that did not terminate",
                "costs: none in the file",
            ),
            lambda: read_d3rlpy(path, episodes),
            0 if first.actions.dtype.kind in "iu" else None,
        )


def _episode(file: h5py.File, number: int, path: Path) -> _Episode:
    arrays = {}
    for key in ("observations", "actions", "rewards", "terminated"):
        array = find_array(file, f"{key}_{number}", path)
        if array is None or array.shape is None or array.dtype.kind not in "fiub":
            parts = key == "observations" and f"{key}_{number}_0" in file
            cure = "join the parts of an observation into one vector" if parts else "dump the buffer again"
            raise BadInput(f"{path.name} has no numeric array {key}_{number}: {cure}.")
        arrays[key] = array
    steps = arrays["rewards"].shape[0] if arrays["rewards"].shape else 0
    shapes = {"rewards": [(steps,), (steps, 1)], "terminated": [(), (1,)]}
    shapes |= {key: [(steps, *arrays[key].shape[1:2])] for key in ("observations", "actions")}
    for key, array in arrays.items():
        empty = not steps or 0 in array.shape
        if empty or array.shape not in shapes[key] or (len(array.shape) != 2 and key in ("observations", "actions")):
            raise BadInput(
                f"{key}_{number} of {path.name} must have one row for each of {steps} steps, got shape {array.shape}: "
                "flatten each row to a vector, and dump the buffer again."
            )
        if array.nbytes > MAX_EPISODE:
            raise BadInput(
                f"{key}_{number} in {path.name} has {array.nbytes} bytes, the limit is {MAX_EPISODE}: dump shorter "
                "episodes."
            )
    acted = arrays["actions"]
    if acted.dtype.kind == "b" or (acted.dtype.kind in "iu" and acted.shape[1] != 1):
        raise BadInput(
            f"actions in {path.name} must be floats, or one integer per row, got {acted.dtype} {acted.shape}: save "
            "continuous actions as float32; encode several discrete actions as one integer."
        )
    return _Episode(arrays["observations"], acted, arrays["rewards"], bool(np.asarray(arrays["terminated"][()]).all()))


def read_d3rlpy(path: Path, episodes: int, block_rows: int = BLOCK_ROWS) -> Blocks:
    """Yield blocks of whole episodes; `rejected` marks the last row of each episode that did not terminate."""
    with open_guarded(path, FAMILY) as file:
        yield from in_blocks((_rows(_episode(file, number, path)) for number in range(episodes)), block_rows)


def _rows(one: _Episode) -> Rows:
    steps = one.rewards.shape[0]
    last = np.arange(steps) == steps - 1
    with np.errstate(over="ignore"):  # values beyond float32 become inf, which the row checks find
        observations = one.observations[()].astype(np.float32)
        actions = one.actions[()]
        return {
            "observations": observations,
            "actions": actions if actions.dtype.kind in "iu" else actions.astype(np.float32),
            "rewards": one.rewards[()].reshape(steps).astype(np.float32),
            "next_observations": np.concatenate([observations[1:], observations[-1:]]),
            "terminals": last & one.terminated,
            "timeouts": last & (not one.terminated),
            "rejected": np.where(last & (not one.terminated), NO_SUCCESSOR, "").astype(object),
        }
