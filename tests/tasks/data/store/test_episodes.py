"""Reading and selecting episodes."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from neorl_core.types import Clock
from tasks.data.store import reader
from tasks.data.store.episodes import best_episodes, read_logs
from tasks.data.store.reader import StoredDataset
from tasks.data.store.records import Provenance
from tasks.data.store.schema import Rows
from tasks.data.store.writer import DatasetWriter
from tests.tasks.data.store.test_store import SPEC, make_rows, sliced, write

EPISODES = 60


def uneven(seed: int) -> Rows:
    """Rows in episodes of 1 to 40 steps."""
    rng = np.random.default_rng(seed)
    ends = np.cumsum(rng.integers(1, 41, EPISODES)) - 1
    rows = make_rows(1, steps=int(ends[-1]) + 1, seed=seed)
    rows["terminals"][:] = False
    rows["timeouts"][:] = False
    rows["timeouts"][ends] = True
    rows["terminals"][ends[::3]] = True
    rows["timeouts"][ends[::3]] = False
    rows["costs"][:] = rng.random(len(rows["costs"])) < 0.3
    return rows


@pytest.mark.slow
@pytest.mark.parametrize("near", [0, 30, 4096])
@pytest.mark.parametrize("seed", range(4))
def test_reading_episodes_equals_masking_all_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, near: int
) -> None:
    monkeypatch.setattr(reader, "NEAR_ROWS", near)
    held = write(tmp_path, *sliced(uneven(seed), 100), shard_bytes=10_000)
    assert len(held.manifest.shards) > 3
    rows, bounds = held.arrays(), held.episodes
    rng = np.random.default_rng(seed)
    for count in (0, 1, 7, 30, EPISODES):
        chosen = rng.choice(EPISODES, count, replace=False)
        mask = np.zeros(EPISODES, bool)
        mask[chosen] = True
        lengths = np.diff(bounds)[mask]
        wanted = np.repeat(mask, np.diff(bounds))
        logs = read_logs(held, chosen)
        for got, key in zip(logs.transitions, ("observations", "actions", "rewards", "costs"), strict=False):
            assert got is not None
            assert got.dtype == rows[key].dtype
            np.testing.assert_array_equal(got, rows[key][wanted])
        np.testing.assert_array_equal(logs.transitions.next_observation, rows["next_observations"][wanted])
        np.testing.assert_array_equal(logs.transitions.terminated, rows["terminals"][wanted].astype(np.float32))
        np.testing.assert_array_equal(logs.starts, np.cumsum([0, *lengths])[:-1])
        np.testing.assert_array_equal(logs.episode, np.repeat(np.arange(count), lengths))
        ends = (rows["terminals"] | rows["timeouts"])[wanted]
        np.testing.assert_array_equal(logs.followed, ~ends)
        # In small blocks, too.
        parts = list(held.episode_blocks(chosen, ["rewards"], rows=7))
        assert all(0 < len(part["rewards"]) <= 7 for part in parts)
        found = np.concatenate([part["rewards"] for part in parts]) if parts else np.zeros(0)
        np.testing.assert_array_equal(found, rows["rewards"][wanted])


def test_best_episodes_have_the_highest_returns(tmp_path: Path) -> None:
    rows = make_rows(5, steps=4)
    ends = np.array([3, 5, 9, 12, 15])  # 4, 2, 4, 3 and 3 steps; the second and the last are cut, the fourth terminates
    rows = {key: values[:16] for key, values in rows.items()}
    rows["terminals"], rows["timeouts"] = np.zeros(16, bool), np.isin(np.arange(16), ends)
    rows["terminals"][12], rows["timeouts"][12] = True, False
    rows["rewards"][:] = [1, 1, 1, 1, 2, 2, 0, 0, 0, 5, 2, 2, 2, -3, -3, -3]
    held = write(tmp_path, rows)
    # Returns, all but the fourth extrapolated to 4 steps: 4, 8, 5, 6 and -12.
    # The smallest sets with the share of the 16 steps.
    steps = ((1, [1]), (2, [1]), (3, [1, 3]), (5, [1, 3]), (6, [1, 2, 3]), (13, [0, 1, 2, 3]), (16, [0, 1, 2, 3, 4]))
    for share, wanted in ((count / 16, numbers) for count, numbers in steps):
        np.testing.assert_array_equal(best_episodes(held, np.arange(5), share), wanted)
    np.testing.assert_array_equal(best_episodes(held, np.array([4, 0, 3]), 0.5), [0, 3])
    # Equal returns are in the order of the dataset; negative rewards work, too.
    rows["rewards"][:] = -1
    alike = write(tmp_path / "alike", rows)
    np.testing.assert_array_equal(best_episodes(alike, np.arange(5), 0.4), [0, 3])
    # An episode whose clock reads its end is complete: the last one's return is -3.
    rows["next_observations"][:, 0] = 0.5
    rows["next_observations"][-1, 0] = 1.0
    with DatasetWriter(tmp_path / "timed", SPEC._replace(clock=Clock(SPEC.observation.names[0], 1.0))) as writer:
        writer.append(rows)
        timed = StoredDataset.open(tmp_path / "timed", writer.commit(Provenance()))
    np.testing.assert_array_equal(best_episodes(timed, np.arange(5), 0.375), [3, 4])


@pytest.mark.parametrize("seed", range(3))
def test_best_episodes_do_not_depend_on_shards_and_blocks(tmp_path: Path, seed: int) -> None:
    rows = uneven(seed)
    held = write(tmp_path, *sliced(rows, 100), shard_bytes=10_000)
    bounds = held.episodes
    chosen = np.random.default_rng(seed).choice(EPISODES, 31, replace=False)
    longest = max(bounds[e + 1] - bounds[e] for e in chosen)

    def whole(episode: int) -> float:
        span = slice(bounds[episode], bounds[episode + 1])
        total = float(np.sum(rows["rewards"][span], dtype=np.float64))
        return total if rows["terminals"][span][-1] else total * longest / (span.stop - span.start)

    ordered, wanted = sorted(chosen, key=whole, reverse=True), list[int]()
    rows_of = {e: bounds[e + 1] - bounds[e] for e in chosen}
    while sum(rows_of[e] for e in wanted) < 0.25 * sum(rows_of.values()):
        wanted.append(ordered[len(wanted)])
    wanted.sort()
    np.testing.assert_array_equal(best_episodes(held, chosen, 0.25), wanted)


def test_only_shards_with_chosen_episodes_are_opened(tmp_path: Path) -> None:
    held = write(tmp_path, *sliced(make_rows(40), 50))
    expected = held.arrays()["rewards"][:150]
    for record in held.manifest.shards[1:]:
        held.shard_path(record).write_bytes(b"")
    assert held.manifest.shards[0].episodes >= 3
    np.testing.assert_array_equal(read_logs(held, np.arange(3)).transitions.reward, expected)


def test_reading_few_episodes_takes_little_memory(tmp_path: Path) -> None:
    def peak(held: StoredDataset) -> int:
        tracemalloc.start()
        read_logs(held, np.arange(0, len(held.episodes) - 1, 100))
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    rows = make_rows(400, steps=500)
    held = write(tmp_path, rows, shard_bytes=10**9)
    size = sum(values.nbytes for values in rows.values())
    assert peak(held) < 0.1 * size
