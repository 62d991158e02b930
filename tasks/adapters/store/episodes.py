"""A dataset's episodes as the arrays that training and evaluation read."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from neorl_core.types import Transition
from tasks.adapters.store.reader import StoredDataset

KEYS = ("observations", "actions", "rewards", "costs", "next_observations", "terminals", "timeouts")


class Logs(NamedTuple):
    """Rows of some episodes in order, in physical units."""

    transitions: Transition
    """NumPy arrays with leading axis N."""
    episode: npt.NDArray[np.int64]
    """(N,) which episode a row belongs to, counted from 0 within these logs."""
    starts: npt.NDArray[np.int64]
    """(E,) first row of each episode."""
    followed: npt.NDArray[np.bool_]
    """(N,) whether the next row is the next step of the same episode, so that its action was logged."""


def read_logs(dataset: StoredDataset, episodes: npt.NDArray[np.int64]) -> Logs:
    """Rows of the named episodes.

    Args:
        dataset: the store.
        episodes: (E,) episode numbers, as `StoredDataset.split` gives them.

    Returns:
        The rows in the order of the dataset.
    """
    rows = dataset.arrays(KEYS)
    bounds = dataset.episodes
    lengths = np.diff(bounds)
    keep = np.zeros(len(lengths), bool)
    keep[episodes] = True
    mask = np.repeat(keep, lengths)
    kept = lengths[keep]
    starts = np.concatenate([[0], np.cumsum(kept)[:-1]]).astype(np.int64)
    episode = np.repeat(np.arange(len(kept)), kept)
    followed = np.append(episode[1:] == episode[:-1], False)
    transitions = Transition(
        observation=rows["observations"][mask],
        action=rows["actions"][mask],
        reward=rows["rewards"][mask],
        cost=rows["costs"][mask],
        next_observation=rows["next_observations"][mask],
        terminated=rows["terminals"][mask].astype(np.float32),
    )
    return Logs(transitions, episode, starts, followed)
