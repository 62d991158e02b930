"""Streaming of data larger than memory: contents of the window, reproducibility, uniform draws."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from configs.errors import BadInput, Refused
from neorl_core.training.loop import Plan, train
from neorl_core.training.population import Algorithm, init_population, members
from neorl_core.training.preparation import make_scaling, merge_moments, moments, scale_rows
from neorl_core.types import Transition
from tasks.data.store.episodes import KEYS
from tasks.data.store.reader import StoredDataset
from tasks.data.store.stream import Ring, Shape, Stream, row_bytes, window_shape
from tests.tasks.data.store.test_store import SPEC, make_rows, sliced, write

EPISODES, STEPS = 40, 50
OUT = np.array([3, 17, 18, 39])
KEPT = np.delete(np.arange(EPISODES), OUT)
ROWS = len(KEPT) * STEPS
SHAPE = Shape(block=70, slots=8, turn=3)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> StoredDataset:
    """Continuous episodes in several shards; the costs number the rows of the kept episodes."""
    rows = make_rows(EPISODES, STEPS)
    follows = ~(rows["terminals"] | rows["timeouts"])[:-1]
    rows["next_observations"][:-1][follows] = rows["observations"][1:][follows]
    kept = np.repeat(~np.isin(np.arange(EPISODES), OUT), STEPS)
    rows["costs"] = np.where(kept, np.cumsum(kept) - 1, -1).astype(np.float32)
    held = write(tmp_path_factory.mktemp("stream"), *sliced(rows, 150))
    assert len(held.manifest.shards) > 3
    return held


@pytest.fixture(scope="module")
def all_rows(dataset: StoredDataset) -> Transition:
    """The kept rows, resident."""
    rows = dataset.arrays()
    kept = rows["costs"] >= 0
    picked = {key: rows[key][kept] for key in KEYS}
    return Transition(*(picked[key] for key in (*KEYS[:5], "terminals")))


def stream_of(dataset: StoredDataset, all_rows: Transition, shape: Shape = SHAPE, seed: int = 0) -> Stream:
    return Stream(Ring(dataset, KEPT), make_scaling(moments(all_rows), SPEC), shape, every=10, seed=seed)


def numbers(window: Transition) -> np.ndarray:
    return np.asarray(window.cost).astype(int)


def test_moments_in_one_pass_equal_those_of_all_rows(dataset: StoredDataset, all_rows: Transition) -> None:
    ring = Ring(dataset, KEPT)
    assert len(ring) == ROWS
    whole = ring.moments()
    observation, reward = np.float64(all_rows.observation), np.float64(all_rows.reward)
    np.testing.assert_allclose(whole.observation_mean, observation.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(whole.observation_deviation, observation.std(axis=0), rtol=1e-12)
    np.testing.assert_allclose([whole.reward_mean, whole.reward_deviation], [reward.mean(), reward.std()], rtol=1e-12)
    assert whole.terminates
    np.testing.assert_array_equal(whole.action_high, all_rows.action.max(axis=0))
    # Far from zero, where sums of squares would lose all digits.
    far = all_rows._replace(reward=(reward + 1e9))
    halves = [moments(jax.tree.map(lambda x, part=part: x[part], far)) for part in (slice(0, 7), slice(7, None))]
    np.testing.assert_allclose(merge_moments(*halves).reward_deviation, reward.std(), rtol=1e-6)


def test_a_window_contains_prepared_rows(dataset: StoredDataset, all_rows: Transition) -> None:
    prepared = scale_rows(make_scaling(moments(all_rows), SPEC), all_rows)
    with stream_of(dataset, all_rows) as stream:
        for done in (0, 10, 200):
            window = stream.at(done)
            for name, values in window._asdict().items():
                expected = np.asarray(getattr(prepared, name))[numbers(window)]
                np.testing.assert_allclose(values, expected, rtol=1e-6, atol=1e-6, err_msg=name)
            assert np.isinf(window.next_action).any()
            assert np.isfinite(window.next_action).mean() > 0.9


def test_a_window_depends_only_on_seed_and_step(dataset: StoredDataset, all_rows: Transition) -> None:
    def bits(window: Transition) -> list[bytes]:
        return [np.asarray(x).tobytes() for x in window]

    with stream_of(dataset, all_rows) as stream, stream_of(dataset, all_rows, seed=1) as other:
        passed = [bits(stream.at(done)) for done in range(0, 300, 10)]
        assert len({part[0] for part in passed}) == 30, "the window must move"
        assert bits(other.at(0)) != passed[0]
        for step in (7, 0, 29):
            with stream_of(dataset, all_rows) as resumed:
                assert bits(resumed.at(10 * step)) == passed[step]
                if step < 29:
                    assert bits(resumed.at(10 * step + 10)) == passed[step + 1]


def test_an_epoch_contains_every_row_once_except_a_remainder(dataset: StoredDataset, all_rows: Transition) -> None:
    shape = Shape(block=70, slots=5, turn=5)
    blocks = ROWS // 70
    assert blocks % 5 == 0
    with stream_of(dataset, all_rows, shape) as stream:
        epochs = [
            np.concatenate([numbers(stream.at(10 * (epoch * blocks // 5 + i))) for i in range(blocks // 5)])
            for epoch in range(3)
        ]
    missing = []
    for epoch in epochs:
        assert len(set(epoch)) == len(epoch) == 70 * blocks
        missing.append(np.setdiff1d(np.arange(ROWS), epoch))
    assert len(missing[0]) == ROWS % 70 > 0
    assert not np.array_equal(missing[0], missing[1])
    assert not np.array_equal(epochs[0], epochs[1])


class NoConfig(NamedTuple):
    """No options."""


class Census(NamedTuple):
    drawn: jax.Array


def count(state: Census, batches: Transition, key: jax.Array) -> tuple[Census, dict[str, jax.Array]]:
    """Count the rows instead of learning."""
    return Census(state.drawn.at[batches.cost.astype(jnp.int32)].add(1)), {"one": jnp.ones(())}


CENSUS = Algorithm(
    name="census",
    Config=NoConfig,
    batches_per_update=1,
    init=lambda key, spec, config: Census(jnp.zeros(ROWS, jnp.int32)),
    update=count,
    act=lambda state, x: x,
    actor=lambda state: {},
)


@pytest.mark.slow
def test_draws_of_a_run_are_uniform_over_all_rows(dataset: StoredDataset, all_rows: Transition) -> None:
    """Pearson's test over rows, and the variation over blocks, which would reveal a window that advances too slowly."""
    steps = 300
    with stream_of(dataset, all_rows) as stream:
        fresh = init_population(CENSUS, SPEC, NoConfig(), members([0], {}))
        end = train(CENSUS, fresh, stream.source(), Plan(10, 10, 10 * steps), 8)
    drawn = np.asarray(end.population.learner.drawn)[0]
    assert drawn.sum() == 80 * steps
    assert stats.chisquare(drawn).pvalue > 0.01
    # Neighbours enter and leave together, so that their sums vary a little more than with draws from all rows.
    assert stats.variation(drawn.reshape(-1, 20).sum(axis=1)) < 0.1


def test_window_shape_by_hand_and_too_little_memory() -> None:
    # Six observations and two actions: 4 (12 + 4 + 3) bytes.
    assert row_bytes(SPEC) == 76
    # 10^6 / 2 / 76 = 6578 rows; 64 blocks of 6578 // 64 = 102 rows; 4096 draws are eight of 512 rows, 5 blocks.
    assert window_shape(1_000_000, SPEC, 4096) == Shape(102, 64, 5)
    assert window_shape(1_000_000, SPEC, 1).turn == 1
    assert window_shape(1_000_000, SPEC, 10**9).turn == 16
    assert window_shape(10**9, SPEC, 1024).block == 4096
    with pytest.raises(BadInput, match="allows 9,000 bytes, but 128 rows of 76 bytes must fit"):
        window_shape(9_000, SPEC, 1024)


def test_errors_of_the_reading_thread_are_raised(dataset: StoredDataset, all_rows: Transition, tmp_path: Path) -> None:
    gone: Any = StoredDataset(tmp_path, dataset.digest, dataset.manifest)
    with stream_of(dataset, all_rows) as stream:
        stream.at(0)
        stream._ring._dataset = gone

        def go_on() -> None:
            for done in (10, 20):  # the blocks for 10 may have been read before
                stream.at(done)

        with pytest.raises(Refused, match="is not a complete HDF5 file"):
            go_on()
