"""Losses and updates of BC and TD3+BC against a second derivation in NumPy."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.test_util import check_grads

from neorl_core.algorithms import BC, TD3_BC, losses, td3_bc
from neorl_core.networks import critics_apply, policy_act
from neorl_core.training.population import init_population, make_train_chunk, member, members, policies
from neorl_core.training.preparation import prepare
from neorl_core.types import Space, Transition
from tests.by_hand import Adam, backward, batch_of, forward, layers_of, spec, start, tracked

# Losses, one transition each: values worked by hand from the cited equations.


def test_td_target_uses_minimum_critic_unless_terminated() -> None:
    q = jnp.array([3.0, -1.0, 2.0])
    assert float(losses.td_target(jnp.float32(0.5), jnp.float32(0.9), jnp.float32(0.0), q)) == pytest.approx(-0.4)
    assert float(losses.td_target(jnp.float32(0.5), jnp.float32(0.9), jnp.float32(1.0), q)) == 0.5


def test_td_loss_sums_over_critics() -> None:
    assert float(losses.td_loss(jnp.array([1.0, 4.0]), jnp.float32(2.0))) == 5.0


def test_smoothing_clips_the_noise_and_then_the_action() -> None:
    action, noise = jnp.array([0.0, 0.9, -0.9, 0.2]), jnp.array([0.5, 9.0, -9.0, 9.0])
    smoothed = losses.smoothed_action(action, noise, jnp.float32(0.2), jnp.float32(0.5))
    np.testing.assert_allclose(smoothed, [0.1, 1.0, -1.0, 0.7], atol=1e-6)


def test_actor_loss_weighs_q_against_cloning() -> None:
    weight = losses.q_weight(jnp.float32(2.5), jnp.array([-1.0, 4.0]))
    assert float(weight) == 1.0
    action, logged = jnp.array([0.5, 0.0]), jnp.array([0.0, 1.0])
    assert float(losses.behaviour_cloning_loss(action, logged)) == pytest.approx(0.625)
    assert float(losses.td3_bc_actor_loss(jnp.float32(3.0), weight, action, logged)) == pytest.approx(-2.375)
    assert np.isfinite(losses.q_weight(jnp.float32(2.5), jnp.zeros(4))), "all-zero Q must not divide by zero"


def test_a_robust_clone_counts_large_errors_linearly() -> None:
    # By hand: .3^2 = .09 within the threshold of .5, and .5 (2 x .9 - .5) = .65 beyond it.
    action, logged = jnp.array([0.3, 0.4]), jnp.array([0.0, -0.5])
    assert float(losses.robust_cloning_loss(action, logged, jnp.float32(0.5))) == pytest.approx(0.37)
    # Unit actions differ by at most 2, so a threshold of 2 gives the squared error.
    squared = losses.behaviour_cloning_loss(action, logged)
    assert float(losses.robust_cloning_loss(action, logged, jnp.float32(2.0))) == float(squared)
    drawn = jax.random.uniform(jax.random.key(0), (2, 64), minval=-1.0, maxval=1.0)
    for threshold in (0.05, 0.2, 1.0):
        twice = 2.0 * jnp.mean(optax.losses.huber_loss(*drawn, delta=threshold))
        assert float(losses.robust_cloning_loss(*drawn, jnp.float32(threshold))) == pytest.approx(float(twice))


@pytest.mark.parametrize(
    ("huber", "logged", "least"),
    [
        # One state, three controllers: none acts as their mean; the second acts as their median.
        (2.0, [-0.8, 0.4, 0.7], 0.1),
        (0.05, [-0.8, 0.4, 0.7], 0.4),
        # A controller at its bound with clipped noise: 1 in three of four.
        (2.0, [0.6, 1.0, 1.0, 1.0], 0.9),
        (0.05, [0.6, 1.0, 1.0, 1.0], 1.0),
    ],
)
def test_clone_is_mean_or_median_of_logged_actions(huber: float, logged: list[float], least: float) -> None:
    actions = np.linspace(-1.0, 1.0, 2_001, dtype=np.float32)
    loss = jax.vmap(jax.vmap(losses.robust_cloning_loss, in_axes=(None, 0, None)), in_axes=(0, None, None))
    means = loss(actions[:, None], jnp.asarray(logged)[:, None], jnp.float32(huber)).mean(axis=1)
    # The minimiser of the Huber loss lies within the threshold of the median.
    assert actions[np.argmin(means)] == pytest.approx(least, abs=1e-3 if huber == 2.0 else huber)


def test_gradients_of_losses_agree_with_finite_differences() -> None:
    with jax.enable_x64(True):
        rng = np.random.default_rng(1)
        q, a, b = (jnp.asarray(rng.normal(size=n)) for n in (3, 2, 2))
        for loss, inputs in (
            (lambda q: losses.td_target(0.5, 0.9, 0.0, q), (q,)),
            (losses.td_loss, (q, jnp.asarray(0.3))),
            (losses.behaviour_cloning_loss, (a, b)),
            (losses.robust_cloning_loss, (a, b, jnp.asarray(0.5))),
            (losses.td3_bc_actor_loss, (q[0], jnp.asarray(0.7), a, b)),
        ):
            check_grads(jax.jit(loss), inputs, order=1, atol=1e-6, rtol=1e-6)


# A second TD3+BC.


def numpy_update(state: td3_bc.State, batches: Transition, noises: list[np.ndarray], c: td3_bc.Config) -> Any:
    """Fujimoto & Gu 2021 over one pair of batches; returns actor, critics and their targets as layers."""
    actor, actor_target = layers_of(state.actor), layers_of(state.actor_target)
    critics, critics_target = ([layers_of(p) for p in e] for e in (state.critics, state.critics_target))
    adams = [Adam(critic) for critic in critics]
    for i, noise in enumerate(noises):
        o, a, r, _, o2, d = (np.asarray(x[i]) for x in batches[:6])
        a2 = np.tanh(forward(actor_target, o2)[0]) + np.clip(c.noise * noise, -c.noise_clip, c.noise_clip)
        x2 = np.concatenate([o2, np.clip(a2, -1, 1)], axis=1)
        q2 = np.min([forward(critic, x2)[0][:, 0] for critic in critics_target], axis=0)
        y = r + c.discount * (1 - d) * q2
        for critic, adam in zip(critics, adams, strict=True):
            q, inputs = forward(critic, np.concatenate([o, a], axis=1))
            grads, _ = backward(critic, inputs, 2 * (q - y[:, None]) / len(y))
            adam.step(critic, grads, c.critic_lr)
    z, actor_inputs = forward(actor, o)
    pi = np.tanh(z)
    passes = [forward(critic, np.concatenate([o, pi], axis=1)) for critic in critics]
    q_all = np.stack([q[:, 0] for q, _ in passes])
    least = q_all.argmin(axis=0)
    weight = c.alpha / np.abs(q_all.min(axis=0)).mean()
    grad_pi = 2 * (pi - a) / pi.size
    for k, (critic, (_, inputs)) in enumerate(zip(critics, passes, strict=True)):
        chosen = -weight * (least == k)[:, None] / len(o)
        grad_pi = grad_pi + backward(critic, inputs, chosen)[1][:, o.shape[1] :]
    grads, _ = backward(actor, actor_inputs, grad_pi * (1 - pi**2))
    Adam(actor).step(actor, grads, c.actor_lr)

    moved = [tracked(t, p, c.tau) for t, p in zip(critics_target, critics, strict=True)]
    return actor, critics, tracked(actor_target, actor, c.tau), moved


def test_one_update_equals_the_numpy_derivation() -> None:
    with jax.enable_x64(True):
        config = TD3_BC.Config(hidden=(5, 4), critics=3, alpha=2.0, tau=0.1, actor_lr=0.01, critic_lr=0.02, noise=0.4)
        state = start(TD3_BC, config)
        # Targets that differ from the online networks, as they do after the first update.
        state = state._replace(
            actor_target=jax.tree.map(lambda x: x + 0.1, state.actor),
            critics_target=jax.tree.map(lambda x: x - 0.1, state.critics),
        )
        batches = batch_of(np.random.default_rng(2), 2, 16)
        key = jax.random.key(5)
        noises = [np.asarray(jax.random.normal(k, (16, 2))) for k in jax.random.split(key)]
        after, metrics = jax.jit(TD3_BC.update)(state, batches, key)
        expected = numpy_update(state, batches, noises, config)
        got = (
            layers_of(after.actor),
            [layers_of(p) for p in after.critics],
            layers_of(after.actor_target),
            [layers_of(p) for p in after.critics_target],
        )
        for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-11)
        assert sorted(metrics) == ["actor_loss", "critic_loss", "q"]


@pytest.mark.slow
def test_gradients_of_network_losses_agree_with_finite_differences() -> None:
    with jax.enable_x64(True):
        state = start(TD3_BC, TD3_BC.Config(hidden=(5,), critics=3))
        batch = batch_of(np.random.default_rng(2), 8)
        y = jnp.asarray(np.random.default_rng(3).normal(size=8))
        loss = jax.jit(lambda c: td3_bc.critic_loss(c, batch, y))
        check_grads(loss, (state.critics,), order=1, modes="rev", rtol=1e-5)
        # lambda is a constant of the step (footnote of the paper), so finite differences keep it fixed.
        q = jnp.min(critics_apply(state.critics, batch.observation, TD3_BC.act(state, batch.observation)), axis=0)
        weight = losses.q_weight(jnp.asarray(2.5), q)

        def fixed(actor: Any) -> jax.Array:
            action = TD3_BC.act(state._replace(actor=actor), batch.observation)
            q = jnp.min(critics_apply(state.critics, batch.observation, action), axis=0)
            return jnp.mean(jax.vmap(losses.td3_bc_actor_loss, (0, None, 0, 0))(q, weight, action, batch.action))

        check_grads(jax.jit(fixed), (state.actor,), order=1, modes="rev", rtol=1e-5)
        ours = jax.jit(jax.grad(td3_bc.actor_loss))(state.actor, state.critics, batch, jnp.asarray(2.5))
        expected = jax.jit(jax.grad(fixed))(state.actor)
        for one, other in zip(jax.tree.leaves(ours), jax.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-9)


def test_actor_uses_first_twin_critic_or_ensemble_minimum() -> None:
    batch = batch_of(np.random.default_rng(2), 8)
    for critics, seen in ((2, 1), (3, 3)):
        state = start(TD3_BC, TD3_BC.Config(hidden=(5,), critics=critics))
        slope = jax.jit(jax.grad(td3_bc.actor_loss, argnums=1))
        gradient = slope(state.actor, state.critics, batch, jnp.asarray(2.5))
        sizes = [max(float(jnp.abs(x).max()) for x in jax.tree.leaves(critic)) for critic in gradient]
        assert [size > 0 for size in sizes] == [i < seen for i in range(critics)]


def test_without_q_weight_td3_bc_is_bc() -> None:
    batches = batch_of(np.random.default_rng(4), 2, 16)
    state = start(TD3_BC, TD3_BC.Config(hidden=(5,), alpha=0.0, actor_lr=1e-2))
    clone = start(BC, BC.Config(hidden=(5,), actor_lr=1e-2))._replace(actor=state.actor)
    after, _ = jax.jit(TD3_BC.update)(state, batches, jax.random.key(2))
    cloned, _ = jax.jit(BC.update)(clone, jax.tree.map(lambda x: x[1:], batches), jax.random.key(3))
    for one, other in zip(jax.tree.leaves(after.actor), jax.tree.leaves(cloned.actor), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-7)
    assert not np.allclose(after.actor["Dense_0"]["kernel"], state.actor["Dense_0"]["kernel"])


def test_a_time_limit_bootstraps_and_a_termination_does_not() -> None:
    state = start(TD3_BC, TD3_BC.Config(hidden=(16,), noise=0.0))
    batch = batch_of(np.random.default_rng(5), 6)
    targets = jax.jit(td3_bc.targets)
    ended = targets(state, batch._replace(terminated=jnp.ones(6)), jax.random.key(0))
    np.testing.assert_allclose(ended, batch.reward, rtol=1e-6)
    # A time limit is not part of a transition: to the learner it is any other step.
    cut = targets(state, batch._replace(terminated=jnp.zeros(6)), jax.random.key(0))
    o2 = np.asarray(batch.next_observation)
    x2 = np.concatenate([o2, np.tanh(forward(layers_of(state.actor), o2)[0])], axis=1)
    least = np.min([forward(layers_of(critic), x2)[0][:, 0] for critic in state.critics], axis=0)
    np.testing.assert_allclose(cut, np.asarray(batch.reward) + 0.99 * least, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_the_critic_finds_the_values_of_a_tabular_mdp() -> None:
    """States as one-hot observations and one action each: a linear critic is exact, so dynamic programming is truth.

    Chain 0 -> 1 -> 2 -> 3, where 3 terminates, and 4 -> 5 -> 4 for ever. Cloning (alpha = 0) gives the behaviour.
    """
    successor, reward = np.array([1, 2, 3, 3, 5, 4]), np.array([0.0, 1.0, -0.5, 2.0, 1.0, 0.0])
    terminated, discount = np.array([0.0, 0, 0, 1, 0, 0]), 0.8
    action = np.array([0.5, -0.5, 0.2, 0.0, -0.3, 0.4])
    transition = np.eye(6)[successor] * (1 - terminated)[:, None]
    value = np.linalg.solve(np.eye(6) - discount * transition, reward)
    np.testing.assert_allclose(value[3:], [2.0, 1 / 0.36, 0.8 / 0.36])  # by hand: 1 + .64 v, .8 v
    data = Transition(*map(jnp.float32, (np.eye(6), action[:, None], reward, reward, np.eye(6)[successor], terminated)))
    config = TD3_BC.Config(
        hidden=(), alpha=0.0, discount=discount, tau=0.1, actor_lr=0.01, critic_lr=0.01, noise=0.0, critics=2
    )
    population = init_population(TD3_BC, spec(6, 1), config, members([0], {}))
    population, _ = make_train_chunk(TD3_BC, 4000, 1000, 32)(population, data)
    learner = member(population, 0).learner
    np.testing.assert_allclose(TD3_BC.act(learner, np.eye(6, dtype=np.float32))[:, 0], action, atol=0.02)
    q = critics_apply(learner.critics, data.observation, data.action)
    np.testing.assert_allclose(q, [value, value], atol=0.05)


@pytest.mark.slow
def test_cloning_recovers_a_linear_expert() -> None:
    rng = np.random.default_rng(7)
    observation = rng.normal(size=(2000, 2)) * [2.0, 30.0] + [1.0, 300.0]
    gain = np.array([[0.25], [-0.012]])

    def expert(o: np.ndarray) -> np.ndarray:
        return np.clip((o - [1.0, 300.0]) @ gain, -4, 4)

    zeros = np.zeros(2000, np.float32)
    raw = Transition(*map(np.float32, (observation, expert(observation), zeros, zeros, observation, zeros)))
    plant = spec(2, 1)._replace(action=Space(("u",), ("V",), (-5.0,), (5.0,)))
    normaliser, data = prepare(raw, plant)
    population = init_population(BC, plant, BC.Config(hidden=(32, 32), actor_lr=1e-3), members([0, 1], {}))
    population, _ = make_train_chunk(BC, 6000, 500, 128)(population, data)
    unseen = (rng.normal(size=(500, 2)) * [2.0, 30.0] + [1.0, 300.0]).astype(np.float32)
    for policy in policies(BC, population, normaliser):
        # The expert's standard deviation is 0.6 V; the error is a fortieth of it.
        assert np.sqrt(np.mean((policy_act(policy, unseen) - expert(unseen)) ** 2)) < 0.015
