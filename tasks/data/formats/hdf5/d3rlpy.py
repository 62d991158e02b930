"""Read HDF5 files of d3rlpy 2 (ReplayBuffer.dump, version 2.1) in blocks.

Keys: columns, num_episodes, version, and for each episode i: observations_i (T, O), actions_i (T, A), rewards_i (T, 1)
and terminated_i. Discrete actions are integers (T, 1). The last next observation of an episode is not in the file, so
the last row is rejected unless it terminated. Observations with several parts, observations_i_0, ..., are refused.
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
"""Keys that identify the format."""
MAX_EPISODE = 2**28
"""Largest accepted array of an episode in bytes, because it is read at once."""


class _Episode(NamedTuple):
    observations: h5py.Dataset
    actions: h5py.Dataset
    rewards: h5py.Dataset
    terminated: bool


def open_d3rlpy(path: Path) -> Source:
    """Open a file; raise BadInput if an episode is missing, damaged, without vectors, or unlike the first."""
    with open_guarded(path, FAMILY) as file:
        total = find_array(file, "num_episodes", path)
        episodes = int(total[()]) if total is not None and total.shape == () and total.dtype.kind in "iu" else 0
        if not 0 < episodes <= len(file):
            raise BadInput(
                f"'num_episodes' of {path.name} is {episodes}, which does not fit the {len(file)} entries of the file: "
                "dump it again."
            )
        first = _episode(file, 0, path)
        rows = 0
        for number in range(episodes):
            one = _episode(file, number, path)
            for key, array in (("observations", one.observations), ("actions", one.actions)):
                wanted = getattr(first, key)
                if array.shape[1:] != wanted.shape[1:] or array.dtype.kind != wanted.dtype.kind:
                    raise BadInput(
                        f"{key} of episode {number} in {path.name} are {array.dtype} {array.shape[1:]}, those of "
                        f"episode 0 {wanted.dtype} {wanted.shape[1:]}: dump the episodes of one plant."
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
            cure = "join its several parts into one vector" if parts else "dump the buffer again"
            raise BadInput(f"{path.name} has no numbers in {key}_{number}: {cure}.")
        arrays[key] = array
    steps = arrays["rewards"].shape[0] if arrays["rewards"].shape else 0
    shapes = {"rewards": [(steps,), (steps, 1)], "terminated": [(), (1,)]}
    shapes |= {key: [(steps, *arrays[key].shape[1:2])] for key in ("observations", "actions")}
    for key, array in arrays.items():
        empty = not steps or 0 in array.shape
        if empty or array.shape not in shapes[key] or (len(array.shape) != 2 and key in ("observations", "actions")):
            raise BadInput(
                f"{key}_{number} of {path.name} must have a vector for each of {steps} steps, got shape {array.shape}: "
                "flatten it, and dump the buffer again."
            )
        if array.nbytes > MAX_EPISODE:
            raise BadInput(
                f"{key}_{number} in {path.name} has {array.nbytes} bytes, the limit is {MAX_EPISODE}: dump shorter "
                "episodes."
            )
    acted = arrays["actions"]
    if acted.dtype.kind == "b" or (acted.dtype.kind in "iu" and acted.shape[1] != 1):
        raise BadInput(
            f"actions in {path.name} must be continuous, or one integer per row, got {acted.dtype} {acted.shape}: save "
            "continuous actions as float32, or combinations of choices as one number."
        )
    return _Episode(arrays["observations"], acted, arrays["rewards"], bool(np.asarray(arrays["terminated"][()]).all()))


def read_d3rlpy(path: Path, episodes: int, block_rows: int = BLOCK_ROWS) -> Blocks:
    """Yield blocks of whole episodes, in order; `rejected` marks the last row of episodes that did not terminate."""
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
