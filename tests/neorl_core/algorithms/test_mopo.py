"""MOPO and COMBO: penalty, mixture and loss by hand, and the limits where they are SAC."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from neorl_core.algorithms import COMBO, MOPO, combo, losses, mopo, sac_n
from neorl_core.networks import critics_apply
from neorl_core.types import Transition
from neorl_core.world_model import dynamics
from tests.by_hand import batch_of, start

SMALL: dict[str, Any] = {"hidden": (4,), "model_hidden": (4,), "members": 2, "elites": 2, "horizon": 2}

LINEAR = {**SMALL, "hidden": (), "model_hidden": ()}


def single(seed: int, *shape: int) -> Transition:
    return jax.tree.map(jnp.float32, batch_of(np.random.default_rng(seed), *shape))


def test_model_reward_is_penalised_by_uncertainty() -> None:
    steps = single(0, 3)._replace(reward=jnp.array([1.0, 2.0, -1.0]))
    uncertain = jnp.array([0.5, 0.0, 4.0])
    np.testing.assert_allclose(mopo.penalise(steps, uncertain, jnp.float32(2.0)).reward, [0.0, 2.0, -9.0])
    np.testing.assert_array_equal(mopo.penalise(steps, uncertain, jnp.float32(0.0)).reward, steps.reward)
    assert float(losses.penalised_reward(jnp.float32(1.0), jnp.float32(3.0), jnp.float32(0.25))) == 0.25


@pytest.mark.parametrize(("real", "kept"), [(0.0, 0), (0.05, 1), (0.5, 4), (1.0, 8)])
def test_batches_mix_whole_rows(real: float, kept: int) -> None:
    logged, modelled = single(1, 8), single(2, 8)._replace(next_action=None)
    mixed = mopo.mix(logged, modelled, jnp.float32(real))
    assert mixed.next_action is None
    for whole, ours, theirs in zip(mixed[:6], logged[:6], modelled[:6], strict=True):
        np.testing.assert_array_equal(whole, np.concatenate([ours[:kept], theirs[kept:]]))


def test_the_loss_of_combo_by_hand() -> None:
    """Two linear critics: mean over the batch of both squared errors, plus beta times the difference of mean Q."""
    state = start(COMBO, combo.Config(**(SMALL | {"hidden": ()}), beta=0.7))
    mixed, logged, modelled = (single(seed, 5) for seed in (3, 4, 5))
    target = jnp.arange(5.0)

    error = np.mean(np.sum((linear_q(state, mixed) - np.arange(5.0)) ** 2, axis=0))
    gap = np.mean(np.sum(linear_q(state, modelled) - linear_q(state, logged), axis=0))
    loss, metrics = combo.critic_loss(state.sac.critics, state.sac, mixed, target, logged, modelled)
    assert float(metrics["gap"]) == pytest.approx(gap, rel=1e-5)
    assert float(loss) == pytest.approx(error + 0.7 * gap, rel=1e-5)
    free = state.sac._replace(hyper=state.sac.hyper | {"beta": jnp.float32(0.0)})
    without, _ = combo.critic_loss(state.sac.critics, free, mixed, target, logged, modelled)
    assert float(without) == pytest.approx(error, rel=1e-5), "a weight of zero: SAC on the mixture"
    # One gradient step lowers model values relative to logged values.
    slope = jax.grad(lambda c: combo.critic_loss(c, state.sac, mixed, target, logged, modelled)[1]["gap"])
    moved = jax.tree.map(lambda p, g: p - 0.1 * g, state.sac.critics, slope(state.sac.critics))
    after = critics_apply(moved, modelled.observation, modelled.action)
    after = after - critics_apply(moved, logged.observation, logged.action)
    assert float(jnp.mean(jnp.sum(after, axis=0))) < gap


def drawn_in_the_model(state: mopo.State, logged: Transition, key: jax.Array) -> tuple[Transition, np.ndarray, Any]:
    """Rows, uncertainty and noise of one gradient step of the update."""
    of_rollouts, of_steps = jax.random.split(key)
    fresh, uncertainty = jax.jit(mopo.model_rollouts)(state, logged, of_rollouts)
    of_rows, of_noise = jax.random.split(jax.random.split(of_steps, 1)[0])
    rows = logged.reward.shape[0]
    drawn = jax.random.randint(of_rows, (rows,), 0, fresh.reward.shape[0])
    noise = jax.random.normal(of_noise, (2, *logged.action.shape))
    return jax.tree.map(lambda x: x[drawn], fresh), np.asarray(uncertainty[drawn]), noise[0]


def linear_q(state: mopo.State, batch: Transition) -> np.ndarray:
    x = np.concatenate([batch.observation, batch.action], axis=1)
    return np.stack([x @ c["Dense_0"]["kernel"] + c["Dense_0"]["bias"] for c in state.sac.critics])[..., 0]


@pytest.mark.parametrize("penalty", [0.0, 3.0])
def test_mopo_critics_learn_penalised_rewards(penalty: float) -> None:
    """One update on model steps alone with linear networks, against NumPy."""
    state = start(MOPO, mopo.Config(**LINEAR, real=0.0, penalty=penalty))
    batches, key = single(8, 1, 8), jax.random.key(4)
    _, metrics = jax.jit(MOPO.update)(state, batches, key)
    rows, uncertain, noise = drawn_in_the_model(state, jax.tree.map(lambda x: x[0], batches), key)
    assert np.all(uncertain > 0.1)
    paid = rows._replace(reward=rows.reward - penalty * uncertain)
    target = np.asarray(sac_n.targets(state.sac, paid, noise, jnp.ones(())))
    error = np.mean(np.sum((linear_q(state, rows) - target) ** 2, axis=0))
    assert float(metrics["critic_loss"]) == pytest.approx(error, rel=1e-4)
    assert float(metrics["q"]) == pytest.approx(np.mean(target), rel=1e-4)


def test_combo_lowers_model_values_and_raises_logged_values() -> None:
    """Half of the mixed rows are logged; their values are not lowered."""
    state = start(COMBO, combo.Config(**LINEAR, real=0.5))
    batches, key = single(9, 1, 8), jax.random.key(5)
    _, metrics = jax.jit(COMBO.update)(state, batches, key)
    logged = jax.tree.map(lambda x: x[0], batches)
    modelled, _, _ = drawn_in_the_model(state, logged, key)
    gap = np.mean(np.sum(linear_q(state, modelled) - linear_q(state, logged), axis=0))
    assert abs(gap) > 0.01
    assert float(metrics["gap"]) == pytest.approx(gap, rel=1e-4)


@pytest.mark.slow
def test_mopo_on_logged_rows_is_sac() -> None:
    config = mopo.Config(**SMALL, real=1.0, actor_lr=0.01, critic_lr=0.02)
    state, batches, key = start(MOPO, config), single(6, 1, 8), jax.random.key(3)
    after, metrics = jax.jit(MOPO.update)(state, batches, key)
    _, of_steps = jax.random.split(key)
    _, of_noise = jax.random.split(jax.random.split(of_steps, 1)[0])
    noise = jax.random.normal(of_noise, (2, 8, 2))
    batch = jax.tree.map(lambda x: x[0], batches)

    @jax.jit
    def plain(sac: sac_n.State) -> sac_n.State:
        target = sac_n.targets(sac, batch, noise[0], jnp.ones(()))
        gradient, _ = jax.grad(sac_n.critic_loss, has_aux=True)(sac.critics, sac, batch, target)
        return sac_n.update_actor(sac_n.step_critics(sac, gradient), batch, noise[1])[0]

    for ours, theirs in zip(jax.tree.leaves(after.sac), jax.tree.leaves(plain(state.sac)), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
    assert sorted(metrics) == sorted((*mopo.METRICS, "model_error"))


@pytest.mark.slow
def test_model_steps_follow_model_and_policy() -> None:
    """With negligible deviations and one member, each step is the member's mean and reward."""
    state = start(MOPO, mopo.Config(**(SMALL | {"members": 1, "elites": 1, "horizon": 3})))
    member = state.model.members[0]
    still = {**member, "least": jnp.full(3, -20.0), "most": jnp.full(3, -19.9)}
    state = state._replace(model=state.model._replace(members=(still,)))
    logged = single(7, 16)
    steps, uncertain = jax.jit(mopo.model_rollouts)(state, logged, jax.random.key(0))
    assert steps.reward.shape == (48,)
    np.testing.assert_array_equal(steps.observation.reshape(16, 3, 3)[:, 0], logged.observation)
    expected = jax.vmap(dynamics.predict, in_axes=(None, 0, 0))(still, steps.observation, steps.action)
    np.testing.assert_allclose(steps.next_observation, expected.next_observation, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(steps.reward, expected.reward, rtol=1e-3, atol=1e-4)
    assert np.all(np.abs(steps.action) <= 1.0)
    assert np.std(steps.action) > 0.1
    paid = np.exp(member["reward_log_deviation"])
    deviations = np.append(np.exp(expected.log_deviation), np.full((48, 1), paid), axis=1)
    np.testing.assert_allclose(uncertain, np.linalg.norm(deviations, axis=-1), rtol=1e-3)
