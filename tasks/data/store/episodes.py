"""A dataset's episodes as arrays for training and evaluation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from configs.errors import BadInput
from neorl_core.types import PlantSpec, Space, Transition
from tasks.data.store.schema import Rows

if TYPE_CHECKING:
    # `recordings` uses this module without the dependencies of the store.
    from tasks.data.store.reader import StoredDataset

KEYS = ("observations", "actions", "rewards", "costs", "next_observations", "terminals")


class Logs(NamedTuple):
    """Rows of some episodes in order, in physical units."""

    transitions: Transition
    """NumPy arrays with leading axis N."""
    episode: npt.NDArray[np.int64]
    """(N,) episode of each row, numbered from 0 within these logs."""
    starts: npt.NDArray[np.int64]
    """(E,) first row of each episode."""
    followed: npt.NDArray[np.bool_]
    """(N,) whether the next row is the next step of the same episode, so that the next action is known."""


def read_logs(dataset: StoredDataset, episodes: npt.NDArray[np.int64]) -> Logs:
    """Read the rows of the episodes with the given numbers (E,), in the order of the dataset."""
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


def new_episodes(newer: StoredDataset, own: StoredDataset) -> npt.NDArray[np.int64]:
    """Return the numbers of the newer dataset's episodes that are not in `own`.

    An episode is in `own` if `own` has an episode with the same digest, or has all the rows, with equal times and
    values. The rows are compared because exports that begin at different times divide the same rows differently.
    """
    seen = set(map(bytes, own.episode_digests))
    unseen = np.flatnonzero([bytes(digest) not in seen for digest in newer.episode_digests])
    if not (unseen.size and "timestamps" in newer.keys and "timestamps" in own.keys):
        return unseen
    keys = ("timestamps", "observations", "actions")
    blocks = list(newer.episode_blocks(unseen, keys))
    rows = {key: np.concatenate([block[key] for block in blocks]) for key in keys}
    order = np.argsort(rows["timestamps"], kind="stable")
    times, known = rows["timestamps"][order], np.zeros(len(order), bool)
    for block in own.blocks(keys):
        place = np.minimum(np.searchsorted(times, block["timestamps"]), len(times) - 1)
        row = order[place]
        same = [(rows[key][row] == block[key]).reshape(len(row), -1).all(axis=1) for key in keys]
        known[row[np.all(same, axis=0)]] = True
    lengths = np.diff(newer.episodes)[unseen]
    new: npt.NDArray[np.int64] = unseen[~np.logical_and.reduceat(known, np.cumsum(lengths) - lengths)]
    return new


def best_episodes(dataset: StoredDataset, episodes: npt.NDArray[np.int64], share: float) -> npt.NDArray[np.int64]:
    """Return the numbers of the episodes with the highest returns that together have a share of the rows, ascending.

    The return is the sum of rewards. An episode that was cut, before a termination or the end of its clock, is
    extrapolated: its return is multiplied by T_max / T, the length of the longest episode divided by its own length.

    Chen et al. 2021, Decision transformer (arXiv 2106.01345), section 5, clone the best 10 % to 40 % of the steps.

    Args:
        episodes: numbers of the episodes to choose from (E,), for example from `StoredDataset.split`.
        share: share of the rows of these episodes, above 0 and at most 1.
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
    """Return the logs of the episodes for which `chosen` (E,) is True, with episodes numbered from 0."""
    rows = chosen[logs.episode]
    lengths = np.bincount(logs.episode, minlength=len(chosen))[chosen]
    columns: list[Any] = [None if column is None else np.asarray(column)[rows] for column in logs.transitions]
    episode = np.repeat(np.arange(len(lengths)), lengths)
    return Logs(Transition(*columns), episode, np.cumsum(lengths) - lengths, logs.followed[rows])


def halves(held_out: Logs) -> tuple[Logs, Logs]:
    """Split held-out episodes into two halves, one for tuning and selecting, one for judging the result.

    The episodes alternate between the halves. Fewer than two episodes raise BadInput.
    """
    count = len(held_out.starts)
    if count < 2:
        raise BadInput(
            f"at least two held-out episodes are needed, to select and to judge a policy, got {count}: add episodes, "
            "or increase data.held_out."
        )
    even = np.arange(count) % 2 == 0
    return select_episodes(held_out, even), select_episodes(held_out, ~even)


def transitions_of(rows: Rows) -> Transition:
    """Return rows as a Transition of NumPy arrays (N, ...) in float32, rewards and costs (N,)."""
    # The core's types name JAX arrays, but NumPy arrays work, too.
    columns: dict[str, Any] = rows | {key: rows[key].astype(np.float32, copy=False) for key in ("actions", "terminals")}
    return Transition(*(columns[key] for key in KEYS))


def vector_space(spec: PlantSpec) -> Space:
    """Return the space of actions as vectors; for a discrete action, each choice is a component from 0 to 1."""
    if spec.choices is None:
        return spec.action
    count = len(spec.choices)
    return Space(spec.choices, ("1",) * count, (0.0,) * count, (1.0,) * count)


def action_vectors(actions: npt.NDArray[Any], spec: PlantSpec) -> npt.NDArray[Any]:
    """Return continuous actions (n, A) unchanged, and a discrete action (n, 1) as one-hot vectors (n, C)."""
    return actions if spec.choices is None else (actions == np.arange(len(spec.choices))).astype(np.float32)
