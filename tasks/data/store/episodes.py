"""A dataset's episodes as the arrays that training and evaluation read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from configs.errors import BadInput
from neorl_core.types import PlantSpec, Space, Transition
from tasks.data.store.schema import Rows

if TYPE_CHECKING:
    # Recordings are read where the store's own dependencies are not installed.
    from tasks.data.store.reader import StoredDataset

KEYS = ("observations", "actions", "rewards", "costs", "next_observations", "terminals")


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
    """Rows of the named episodes; no other rows are loaded, and little memory is taken besides theirs.

    Args:
        dataset: the store.
        episodes: (E,) episode numbers, as `StoredDataset.split` gives them.

    Returns:
        The rows in the order of the dataset.
    """
    lengths = np.diff(dataset.episodes)[np.unique(episodes)]
    total, shapes = int(lengths.sum()), dataset.read(0, 1, KEYS)
    rows = {key: np.empty((total, *one.shape[1:]), one.dtype) for key, one in shapes.items()}
    at = 0
    for block in dataset.episode_blocks(episodes, KEYS):
        for key, values in block.items():
            rows[key][at : at + len(values)] = values
        at += len(block["rewards"])
    episode = np.repeat(np.arange(len(lengths)), lengths)
    followed = np.append(episode[1:] == episode[:-1], False)[:total]
    return Logs(transitions_of(rows), episode, np.cumsum(lengths) - lengths, followed)


def unseen_of(newer: StoredDataset, own: StoredDataset) -> npt.NDArray[np.int64]:
    """The numbers of the newer episodes that another dataset does not hold.

    It holds an episode with the same digest, and one all of whose rows it has at their times: an export that begins at
    another moment cuts the same rows into other episodes.
    """
    seen = set(map(bytes, own.episode_digests))
    unseen = np.flatnonzero([bytes(digest) not in seen for digest in newer.episode_digests])
    if not (unseen.size and "timestamps" in newer.keys and "timestamps" in own.keys):
        return unseen
    keys = ("timestamps", "observations", "actions")
    blocks = list(newer.episode_blocks(unseen, keys))
    rows = {key: np.concatenate([block[key] for block in blocks]) for key in keys}
    order = np.argsort(rows["timestamps"], kind="stable")
    times, held = rows["timestamps"][order], np.zeros(len(order), bool)
    for block in own.blocks(keys):
        place = np.minimum(np.searchsorted(times, block["timestamps"]), len(times) - 1)
        row = order[place]
        same = [(rows[key][row] == block[key]).reshape(len(row), -1).all(axis=1) for key in keys]
        held[row[np.all(same, axis=0)]] = True
    lengths = np.diff(newer.episodes)[unseen]
    found: npt.NDArray[np.int64] = unseen[~np.logical_and.reduceat(held, np.cumsum(lengths) - lengths)]
    return found


def best_episodes(dataset: StoredDataset, episodes: npt.NDArray[np.int64], share: float) -> npt.NDArray[np.int64]:
    """The episodes of the highest returns that hold a share of the rows, in one pass over their rewards.

    An episode that was cut before the longest goes on as it went: `R = T_max / T sum r`. One that terminated, or whose
    clock read its end, has had all that it was to have: `R = sum r`.

    Chen et al. 2021, Decision transformer (arXiv 2106.01345), section 5, clone the best tenth to two fifths of the
    steps of logs.

    Args:
        dataset: the store.
        episodes: (E,) episode numbers, as `StoredDataset.split` gives them.
        share: above 0 and at most 1.

    Returns:
        Numbers, ascending, of as few of the best as hold the share or more.
    """
    numbers = np.unique(episodes)
    lengths = np.diff(dataset.episodes)[numbers]
    ends = np.cumsum(lengths)
    returns, over, at = np.zeros(len(numbers)), np.zeros(len(numbers), bool), 0
    keys = ("rewards", "terminals", *(("next_observations",) if dataset.spec.clock else ()))
    for block in dataset.episode_blocks(numbers, keys):
        of = np.searchsorted(ends, np.arange(at, at + len(block["rewards"])), side="right")
        returns += np.bincount(of, block["rewards"].astype(np.float64), len(numbers))
        over[of[block["terminals"].astype(bool)]] = True
        if dataset.spec.clock:
            over[of[dataset.spec.over(block["next_observations"])]] = True
        at += len(of)
    whole = np.where(over, returns, returns / lengths * lengths.max())
    order = np.argsort(-whole, kind="stable")
    count = 1 + int(np.searchsorted(np.cumsum(lengths[order]), (1.0 - 1e-9) * share * lengths.sum()))
    return np.sort(numbers[order[:count]])


def select_episodes(logs: Logs, chosen: npt.NDArray[np.bool_]) -> Logs:
    """The logs of some of their episodes, numbered anew from 0.

    Args:
        logs: of E episodes.
        chosen: (E,) whether an episode is kept.
    """
    rows = chosen[logs.episode]
    lengths = np.bincount(logs.episode, minlength=len(chosen))[chosen]
    columns: list[Any] = [None if column is None else np.asarray(column)[rows] for column in logs.transitions]
    episode = np.repeat(np.arange(len(lengths)), lengths)
    return Logs(Transition(*columns), episode, np.cumsum(lengths) - lengths, logs.followed[rows])


def halves(held_out: Logs) -> tuple[Logs, Logs]:
    """Every second held-out episode, and the others: what is set or chosen by the one half is judged by the other.

    Args:
        held_out: in the order of the dataset.

    Raises:
        BadInput: when there are fewer than two.
    """
    count = len(held_out.starts)
    if count < 2:
        raise BadInput(
            "expected two held-out episodes at least, to choose by one and judge by another, "
            f"got {count}: give more episodes, or raise data.held_out."
        )
    even = np.arange(count) % 2 == 0
    return select_episodes(held_out, even), select_episodes(held_out, ~even)


def transitions_of(rows: Rows) -> Transition:
    """Rows as the core takes them: NumPy arrays (N, ...) in float32, rewards and costs (N,)."""
    # The core's types name JAX arrays; it takes NumPy's alike.
    columns: dict[str, Any] = rows | {key: rows[key].astype(np.float32, copy=False) for key in ("actions", "terminals")}
    return Transition(*(columns[key] for key in KEYS))


def vector_space(spec: PlantSpec) -> Space:
    """Actions as vectors: the plant's own space, or of a discrete action a component from 0 to 1 for each choice."""
    if spec.choices is None:
        return spec.action
    count = len(spec.choices)
    return Space(spec.choices, ("1",) * count, (0.0,) * count, (1.0,) * count)


def action_vectors(actions: npt.NDArray[Any], spec: PlantSpec) -> npt.NDArray[Any]:
    """Stored actions as vectors: as they are, or of a discrete action one-hot.

    Args:
        actions: (n, A); of a discrete action (n, 1), the numbers of its choices.
        spec: of the plant, with C choices.

    Returns:
        (n, A), or (n, C): 1 at the choice and 0 elsewhere.
    """
    return actions if spec.choices is None else (actions == np.arange(len(spec.choices))).astype(np.float32)
