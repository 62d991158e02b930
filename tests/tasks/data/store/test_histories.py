"""Observation histories of stored rows, resident and streamed."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from neorl_core.history import episode_starts
from neorl_core.types import History
from tasks.data.store.episodes import read_logs
from tasks.data.store.histories import NO_HISTORY, RowHistory, resting_history
from tasks.data.store.stream import Ring
from tests.tasks.data.store.test_episodes import EPISODES, uneven
from tests.tasks.data.store.test_store import sliced, write

HISTORY = History((4, 0, 1), (2, 0))


def test_streamed_blocks_have_the_same_history_as_resident_rows(tmp_path: Path) -> None:
    rows = uneven(0)
    ends = rows["terminals"] | rows["timeouts"]
    rows["next_observations"][:-1][~ends[:-1]] = rows["observations"][1:][~ends[:-1]]
    held = write(tmp_path, *sliced(rows, 100), shard_bytes=10_000)
    chosen = np.flatnonzero(np.arange(EPISODES) % 4)
    size, acting = held.spec.observation.size, held.spec.action.size
    history = History(tuple(np.resize(HISTORY.observation, size).tolist()), tuple(np.resize([2, 0], acting).tolist()))
    # The action assumed before the first row differs between episodes.
    past = RowHistory(history, lambda x: np.repeat(x[:, :1], acting, axis=1))
    logs = read_logs(held, chosen)
    whole = past.stacked(logs).transitions
    ring = Ring(held, chosen, past)
    for start in (0, 1, 3, 17, 250, len(ring) - 9, len(ring) - 1):
        block = ring.read(start, 30)
        at = np.arange(start, start + 30) % len(ring)
        np.testing.assert_array_equal(block.observation, np.asarray(whole.observation)[at])
        np.testing.assert_array_equal(block.next_observation, np.asarray(whole.next_observation)[at])
    assert ring.moments().observation_mean.shape == (size,)
    plain = Ring(held, chosen).read(5, 30)
    np.testing.assert_array_equal(plain.observation, np.asarray(logs.transitions.observation)[5:35])
    assert NO_HISTORY.stacked(logs).transitions is logs.transitions
    assert NO_HISTORY.longest == 0


def test_a_log_only_plant_begins_with_the_resting_action() -> None:
    past = resting_history(HISTORY, np.array([0.25, -1.0]))
    assert past.applied(np.zeros((3, 3), np.float32)).tolist() == [[0.25, -1.0]] * 3


def test_episodes_found_by_continuity_are_those_of_the_store(tmp_path: Path) -> None:
    rows = uneven(1)
    ends = rows["terminals"] | rows["timeouts"]
    rows["next_observations"][:-1][~ends[:-1]] = rows["observations"][1:][~ends[:-1]]
    held = write(tmp_path, *sliced(rows, 100))
    logs = read_logs(held, np.arange(EPISODES))
    np.testing.assert_array_equal(episode_starts(logs.transitions), logs.starts)
