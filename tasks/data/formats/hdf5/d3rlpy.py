"""The HDF5 files of d3rlpy 2, written by ReplayBuffer.dump (version 2.1), as blocks of rows.

columns, num_episodes, version; for each episode i: observations_i (T, O), actions_i (T, A), rewards_i (T, 1) and
terminated_i. Discrete actions are integers (T, 1). What followed the last row of an episode is not in the file: it is
left out, unless it terminated, for then nothing follows. Observations of several parts lie in observations_i_0, ...
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import h5py
import numpy as np

from configs.errors import BadInput
from tasks.data.formats.hdf5.guard import find_array, open_guarded
from tasks.data.store.schema import NO_SUCCESSOR, Rows

FAMILY = "d3rlpy"
BLOCK_ROWS = 65536
MARKS = {"columns", "num_episodes"}
"""Keys by which a file is known."""
MAX_EPISODE = 2**28
"""Bytes of an array of one episode, which is read at once."""


class D3rlpyLayout(NamedTuple):
    """What a file holds, known from its headers."""

    rows: int
    episodes: int
    observations: int
    actions: int
    discrete: bool


class _Episode(NamedTuple):
    observations: h5py.Dataset
    actions: h5py.Dataset
    rewards: h5py.Dataset
    terminated: bool


def read_d3rlpy_layout(path: Path) -> D3rlpyLayout:
    """What a file holds; every episode's headers are looked at.

    Raises:
        BadInput: when an episode is missing, damaged, of another shape than the first, or not of vectors.
    """
    with open_guarded(path, FAMILY) as file:
        total = find_array(file, "num_episodes", path)
        episodes = int(total[()]) if total is not None and total.shape == () and total.dtype.kind in "iu" else 0
        if not 0 < episodes <= len(file):
            raise BadInput(
                f"expected 'num_episodes' of {path.name} to be as many as it has, got {episodes}: dump it again."
            )
        first = _episode(file, 0, path)
        rows = 0
        for number in range(episodes):
            one = _episode(file, number, path)
            for key, array in (("observations", one.observations), ("actions", one.actions)):
                wanted = getattr(first, key)
                if array.shape[1:] != wanted.shape[1:] or array.dtype.kind != wanted.dtype.kind:
                    raise BadInput(
                        f"expected {key} of episode {number} in {path.name} as those of episode 0, {wanted.dtype} of "
                        f"{wanted.shape[1:]}, got {array.dtype} of {array.shape[1:]}: dump one plant's episodes."
                    )
            rows += one.actions.shape[0]
        return D3rlpyLayout(
            rows, episodes, first.observations.shape[1], first.actions.shape[1], first.actions.dtype.kind in "iu"
        )


def _episode(file: h5py.File, number: int, path: Path) -> _Episode:
    arrays = {}
    for key in ("observations", "actions", "rewards", "terminated"):
        array = find_array(file, f"{key}_{number}", path)
        if array is None or array.shape is None or array.dtype.kind not in "fiub":
            parts = key == "observations" and f"{key}_{number}_0" in file
            got = "several parts: join them into one vector" if parts else "none: dump the buffer again"
            raise BadInput(f"expected numbers in {key}_{number} of {path.name}, got {got}.")
        arrays[key] = array
    steps = arrays["rewards"].shape[0] if arrays["rewards"].shape else 0
    shapes = {"rewards": [(steps,), (steps, 1)], "terminated": [(), (1,)]}
    shapes |= {key: [(steps, *arrays[key].shape[1:2])] for key in ("observations", "actions")}
    for key, array in arrays.items():
        empty = not steps or 0 in array.shape
        if empty or array.shape not in shapes[key] or (len(array.shape) != 2 and key in ("observations", "actions")):
            raise BadInput(
                f"expected {key}_{number} of {path.name} with a vector for each of {steps} steps, got the shape "
                f"{array.shape}: flatten what is no vector, and dump the buffer again."
            )
        if array.nbytes > MAX_EPISODE:
            raise BadInput(
                f"expected at most {MAX_EPISODE} bytes of {key}_{number} in {path.name}, got {array.nbytes}: dump "
                "shorter episodes."
            )
    acted = arrays["actions"]
    if acted.dtype.kind == "b" or (acted.dtype.kind in "iu" and acted.shape[1] != 1):
        raise BadInput(
            f"expected continuous actions, or one discrete action of integers, in {path.name}, got {acted.dtype} "
            f"{acted.shape}: save continuous ones as float32, or combinations of choices as one number."
        )
    return _Episode(arrays["observations"], acted, arrays["rewards"], bool(np.asarray(arrays["terminated"][()]).all()))


def read_d3rlpy(path: Path, layout: D3rlpyLayout, block_rows: int = BLOCK_ROWS) -> Iterator[Rows]:
    """Stream the episodes in the order of their numbers.

    Args:
        path: the file.
        layout: from `read_d3rlpy_layout`.
        block_rows: rows after which a block is passed on, at the next episode's end.

    Returns:
        Blocks with `rejected`, which names the last row of an episode that did not terminate.
    """
    parts: list[Rows] = []
    held = 0
    with open_guarded(path, FAMILY) as file:
        for number in range(layout.episodes):
            parts.append(_rows(_episode(file, number, path)))
            held += len(parts[-1]["rewards"])
            if held >= block_rows or number == layout.episodes - 1:
                yield {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}
                parts, held = [], 0


def _rows(one: _Episode) -> Rows:
    steps = one.rewards.shape[0]
    last = np.arange(steps) == steps - 1
    with np.errstate(over="ignore"):  # what float32 cannot hold becomes inf, and the row checks find it
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
