"""The learned model of a log-only plant: bootstrapped members, open-loop errors, and episodes."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from neorl_core.networks import Normaliser
from neorl_core.safety.composite import PolicyState
from neorl_core.training.optimisers import Recipe
from neorl_core.types import Controller, Transition
from neorl_core.world_model import bootstrap, dynamics
from neorl_core.world_model.dynamics import Reach
from neorl_core.world_model.episodes import model_episodes
from neorl_core.world_model.prediction import (
    episode_errors,
    error_ratios,
    fit_autoregression,
    squared_errors,
    windows,
)

EVERYWHERE = Reach(jnp.full(1, -jnp.inf), jnp.full(1, jnp.inf))


def linear_member(a: float, b: float) -> Any:
    """A member that predicts x' = x + a x + b u exactly."""
    model = dynamics.init(jax.random.key(0), 1, 1, (4,), 1, Recipe())
    member = jax.tree.map(jnp.zeros_like, model.members[0])
    return {**member, "linear": {"kernel": jnp.asarray([[a], [b]])}}


def test_members_resample_whole_episodes() -> None:
    episode = jnp.asarray([0, 0, 0, 1, 2, 2], jnp.int32)
    counts = np.diff(np.asarray(bootstrap.resample(jax.random.key(1), episode, 3, 50)), axis=1, prepend=0)
    assert np.all(counts[:, 0] == counts[:, 1])
    assert np.all(counts[:, 4] == counts[:, 5])
    assert np.all(counts[:, 0] + counts[:, 3] + counts[:, 4] == 3)
    assert len({tuple(row) for row in counts.tolist()}) > 5


@pytest.mark.slow
def test_members_learn_only_from_their_resample() -> None:
    """Episodes of two plants, x' = x + u and x' = x - u: a member that drew only one of them is certain."""
    rng = np.random.default_rng(0)
    x, u = rng.normal(size=(400, 1)), rng.uniform(-1, 1, (400, 1))
    sign = np.where(np.arange(400) < 200, 1.0, -1.0)[:, None]
    zero = jnp.zeros(400)
    data = Transition(jnp.asarray(x), jnp.asarray(u), zero, zero, jnp.asarray(x + sign * u), zero)
    counts = jnp.stack([jnp.cumsum(jnp.asarray(sign[:, 0] > 0)), jnp.cumsum(jnp.asarray(sign[:, 0] < 0))])
    model = dynamics.init(jax.random.key(0), 1, 1, (8,), 2, Recipe(schedule="cosine", steps=600))
    model = bootstrap.train(model, jax.random.key(2), data, counts, 600, batch_size=64)
    moved = [float(dynamics.transition(m, jnp.zeros(1), jnp.asarray([0.5]))[0][0]) for m in model.members]
    assert moved == pytest.approx([0.5, -0.5], abs=0.05)
    assert model.low == pytest.approx(min(x.min(), (x + sign * u).min()))


def test_free_runs_by_hand() -> None:
    """x' = x / 2 + u from 8 with actions 1, 0 | 2 (the next episode): 5, 2.5; persistence stays at 8."""
    logged = np.asarray([[8.0], [5.0], [1.0]], np.float32)
    following = np.asarray([[5.0], [2.5], [2.5]], np.float32)
    found = windows(logged, np.asarray([[1.0], [0.0], [2.0]], np.float32), following, np.asarray([0, 0, 1]), 2)
    np.testing.assert_array_equal(found.valid, [[True, True], [True, False], [True, False]])
    # The autoregression is persistence here; the member is exact except for 0.1 too much of u.
    still = fit_autoregression(logged, np.zeros((3, 1)), logged)
    errors = np.asarray(squared_errors((linear_member(-0.5, 1.1),), EVERYWHERE, still, found))
    # After one step 5.1, after two 2.55.
    np.testing.assert_allclose(errors[0, 0, :, 0], [0.01, 0.0025], rtol=1e-3)
    np.testing.assert_allclose(errors[1, 0, :, 0], [9.0, 30.25])
    np.testing.assert_allclose(errors[2, 0, :, 0], [9.0, 30.25], rtol=1e-4)
    assert np.isnan(errors[:, 1, 1]).all()
    sums, counts = episode_errors(errors, found.episode, [2.0], (1, 2))
    np.testing.assert_array_equal(counts, [[2, 1], [1, 0]])
    assert sums.shape == (3, 2, 1, 2)
    assert sums[1, 0, 0, 0] == pytest.approx((9.0 + 6.25) / 4)


def test_an_autoregression_finds_a_linear_plant() -> None:
    rng = np.random.default_rng(1)
    x, u = rng.normal(size=(300, 2)), rng.normal(size=(300, 1))
    a, b = np.asarray([[-0.2, 0.1], [0.0, -0.3]]), np.asarray([[0.5, 0.0]])
    found = fit_autoregression(x, u, x + x @ a + u @ b + 0.25, ridge=1e-9)
    np.testing.assert_allclose(found.weights, np.vstack([a, b]), atol=1e-4)
    np.testing.assert_allclose(found.offset, [0.25, 0.25], atol=1e-4)


def test_error_ratio_is_within_its_interval() -> None:
    rng = np.random.default_rng(2)
    sums = np.asarray([4.0, 16.0])[:, None, None, None] * rng.uniform(0.5, 2.0, (1, 1, 1, 40))
    # Both predictors share the difficulty of an episode, so the ratio of the roots is exact.
    (found,) = error_ratios(sums, np.ones((1, 40)), seed=0)
    assert (found.value, found.lower, found.upper) == pytest.approx((0.5, 0.5, 0.5), rel=1e-4)
    noisy = sums * rng.lognormal(0, 0.5, sums.shape)
    (apart,) = error_ratios(noisy, np.ones((1, 40)), seed=0)
    assert apart.lower < apart.value < apart.upper
    for episodes, bounded in ((1, False), (2, False), (4, False), (5, True)):
        (few,) = error_ratios(sums[..., :episodes], np.ones((1, episodes)), seed=0)
        assert few.value == pytest.approx(0.5, rel=1e-4)
        assert np.isfinite(few.upper) == (few.lower > 0) == bounded


def test_unpredictable_signals_do_not_hide_others() -> None:
    """One signal is noise to both predictors; on the other the model errs a tenth: sqrt(0.1 * 1)."""
    sums = np.ones((2, 1, 2, 20))
    sums[0, 0, 1] = 0.01
    (found,) = error_ratios(sums, np.ones((1, 20)), seed=0)
    assert found.value == pytest.approx(np.sqrt(np.sqrt((0.01 + 1e-4) / (1 + 1e-4))))


@pytest.mark.parametrize(("ends", "paid", "violated"), [(-7.0, 12.0, [True, False]), (7.0, 3.0, [False, False])])
def test_episodes_in_a_learned_model_by_hand(ends: float, paid: float, violated: list[bool]) -> None:
    """x' = x + u without noise, u = 1, limit 2.5, constant reward 3: H = 4 pays 12.

    If every state terminates, the episode has one step, and the fallback acted in all of it.
    """
    member = linear_member(0.0, 1.0)
    member = {**member, "least": jnp.full(1, -30.0), "most": jnp.full(1, -30.0)}
    last = max(member["outcome"])
    bias = jnp.asarray([0.0, ends])
    member["outcome"] = {**member["outcome"], last: {**member["outcome"][last], "bias": bias}}
    n = Normaliser(jnp.zeros(1), jnp.ones(1), jnp.zeros(1), jnp.ones(1))
    empty = PolicyState(jnp.asarray(True), jnp.int32(0), jnp.ones(1), ())
    ones = Controller(lambda params, x: empty, lambda params, state, x, applied: (state, jnp.ones(1)))
    starts = jnp.asarray([[0.0], [-3.0]])
    limits = (jnp.asarray([-jnp.inf]), jnp.asarray([2.5]))
    found = model_episodes(
        (member, member), EVERYWHERE, n, (3.0, 1.0), ones, (), starts, jnp.zeros((2, 1)), limits, jax.random.key(0), 4
    )
    np.testing.assert_allclose(found.ret, np.full((2, 2), paid))
    np.testing.assert_array_equal(found.violated, [violated, violated])
    np.testing.assert_allclose(found.handed_over, 1.0)


def walks(law: Any, episodes: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """(observations, actions, next observations, episode) of episodes of 40 steps."""
    draw = np.random.default_rng(seed)
    x, rows = np.zeros(episodes), []
    for _ in range(40):
        u = draw.uniform(-1, 1, episodes)
        following = law(x, u) + 0.1 * draw.normal(size=episodes)
        rows.append((x, u, following))
        x = following
    logged = np.asarray(rows, np.float32).transpose(2, 0, 1).reshape(-1, 3)
    return logged[:, :1], logged[:, 1:2], logged[:, 2:], np.repeat(np.arange(episodes), 40)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("law", "better"),
    [
        (lambda x, u: 0.7 * x + 1.5 * np.sin(3 * u), True),
        # Noise and a linear plant: no learned model is better.
        pytest.param(lambda x, u: x, False, marks=pytest.mark.slow),
        pytest.param(lambda x, u: 0.8 * x + 0.5 * u, False, marks=pytest.mark.slow),
    ],
    ids=["bent", "random walk", "linear"],
)
def test_learned_model_wins_only_on_nonlinear_plants(law: Any, better: bool) -> None:
    x, u, following, episode = walks(law, 60, seed=0)
    zero = jnp.zeros(len(x))
    data = Transition(jnp.asarray(x), jnp.asarray(u), zero, zero, jnp.asarray(following), zero)
    model = dynamics.init(jax.random.key(0), 1, 1, (16, 16), 3, Recipe(schedule="cosine", steps=800))
    counts = bootstrap.resample(jax.random.key(1), jnp.asarray(episode, jnp.int32), 60, 3)
    model = bootstrap.train(model, jax.random.key(2), data, counts, 800, batch_size=128)
    *unseen, held_out = walks(law, 30, seed=1)
    found = windows(*unseen, held_out, 20)
    linear = fit_autoregression(x, u, following)
    errors = squared_errors(model.members, dynamics.reach(model), linear, found)
    sums, counted = episode_errors(errors, found.episode, unseen[0].std(axis=0), (1, 5, 20))
    ratios = error_ratios(sums, counted, seed=0)
    assert all(ratio.upper < 1 for ratio in ratios) is better
