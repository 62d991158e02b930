"""PPO: advantages and loss by hand, CartPole, and a linear plant."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.cartpole.online import SEEDS, learned, mean_return
from neorl_core.online.copies import scales
from neorl_core.online.ppo import Config, Rows, Setting, State, advantages, init, make_chunk, policy_of, surrogate
from neorl_core.plants.base import rollouts
from neorl_core.safety.composite import make_composite, unshielded_controller
from neorl_core.types import Plant
from tests.neorl_core.online.test_analytic_gradient import IDLE, LINEAR, riccati_gain

FEW = Config(updates=4, copies=4, steps=8, epochs=2, parts=2)


def setting(plant: Plant, config: Config) -> tuple[Setting, State]:
    found = Setting(plant, scales(plant, jax.random.key(9), config.discount), config)
    return found, init(jax.random.key(0), found)


def test_advantages_by_hand() -> None:
    # γ = 0.5 and λ = 0.5. The first copy runs on; the second is cut by the time limit; the third has terminated.
    reward = jnp.array([[1.0, 1.0, 1.0], [2.0, 2.0, 2.0]])
    value, after = jnp.array([[4.0] * 3, [6.0] * 3]), jnp.array([[6.0, 8.0, 8.0], [10.0] * 3])
    ended = jnp.array([[False, True, True], [False] * 3])
    terminated = jnp.array([[False, False, True], [False] * 3])
    nothing = jnp.zeros((2, 3))
    rows = Rows(nothing, nothing, nothing, nothing, reward, nothing, terminated, ended)
    found = advantages(rows, value, after, FEW._replace(discount=0.5, decay=0.5))
    # Last row: 2 + 0.5 · 10 − 6 = 1. First row: 1 + 0.5 · 6 − 4 + 0.25 · 1 = 0.25; 1 + 4 − 4 = 1; 1 − 4 = −3.
    np.testing.assert_allclose(found, [[0.25, 1.0, -3.0], [1.0, 1.0, 1.0]])


def test_the_surrogate_rewards_no_larger_change() -> None:
    # The six cases of Schulman et al. 2017, figure 1.
    ratio, advantage = jnp.array([0.5, 1.0, 1.5, 0.5, 1.0, 1.5]), jnp.array([2.0, 2.0, 2.0, -2.0, -2.0, -2.0])
    np.testing.assert_allclose(surrogate(ratio, advantage, 0.2), [1.0, 2.0, 2.4, -1.6, -2.0, -3.0])
    slope = jax.vmap(jax.grad(lambda r, a: surrogate(r, a, 0.2)))(ratio, advantage)
    np.testing.assert_allclose(slope, [2.0, 2.0, 0.0, 0.0, -2.0, -2.0])


def test_a_run_in_parts_gives_the_same_bits() -> None:
    found, state = setting(LINEAR, FEW)
    chunk: Any = make_chunk(found, 2)
    once, _ = chunk(chunk(state)[0])
    stored = jax.tree.map(np.asarray, chunk(state)[0])
    again, _ = chunk(jax.tree.map(jnp.asarray, stored))
    for one, other in zip(jax.tree.leaves(once), jax.tree.leaves(again), strict=True):
        np.testing.assert_array_equal(one, other)
    assert int(again.step) == 4
    assert chunk.func._cache_size() == 1


def test_values_start_at_the_returns_of_the_controller() -> None:
    # Without noise and with u = −0.5 x: x(t+1) = 0.75 x(t), so the returns are known.
    found, _ = setting(LINEAR, FEW)
    keys = jax.random.split(jax.random.key(9), 64)
    seen = rollouts(LINEAR, IDLE, (), keys, (), trace=True).trajectory
    assert seen is not None
    rewards = np.asarray(seen.rewards, np.float64)
    steps = rewards.shape[1]
    weights = np.triu(0.99 ** np.maximum(np.subtract.outer(np.arange(steps), np.arange(steps)).T, 0))
    returns = rewards @ weights.T
    np.testing.assert_allclose(float(found.scales.value_mean), returns.mean(), rtol=1e-5)
    np.testing.assert_allclose(float(found.scales.value_scale), returns.std(), rtol=1e-5)


@pytest.mark.slow
def test_corrections_approach_the_optimal_linear_controller() -> None:
    found, state = setting(LINEAR, Config(updates=150, margin_weight=0.0))
    state, _ = make_chunk(found, 150)(state)
    correction = found.scales.normaliser.action_half_range
    composite = make_composite(LINEAR, policy_of(state.weights, found), correction=correction)
    keys = jax.random.split(jax.random.key(5), 256)
    learned_returns = rollouts(LINEAR, unshielded_controller(LINEAR), composite, keys, ()).ret
    gain = riccati_gain()
    best = IDLE._replace(act=lambda p, s, o, a: (s, -gain * o))
    optimal, idle = (rollouts(LINEAR, c, (), keys, ()).ret for c in (best, IDLE))
    lost = float(jnp.mean(optimal - learned_returns))
    assert lost < 0.02 * float(jnp.mean(optimal - idle))


@pytest.mark.slow
def test_the_pole_is_balanced() -> None:
    # Random choices keep it up for about 22 steps. A single seed may fail on some processors.
    assert np.mean([mean_return(learned(seed)) for seed in range(SEEDS)]) >= 400.0
