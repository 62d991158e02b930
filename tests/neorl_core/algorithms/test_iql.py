"""IQL and AWAC: expectiles and weighted regression against NumPy, dynamic programming and limiting cases."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads
from scipy.optimize import brentq
from scipy.stats import norm

from neorl_core.algorithms import AWAC, IQL, iql, losses
from neorl_core.networks import NormalActor, normal_log_prob, normal_sample
from neorl_core.training.optimisers import Recipe
from neorl_core.training.population import init_population, make_train_chunk, member, members
from neorl_core.types import Transition
from tests.by_hand import Adam, Layers, backward, batch_of, forward, layers_of, spec, start, tracked

# Losses, one transition each.


def test_expectile_minimises_its_loss() -> None:
    assert float(losses.expectile_loss(jnp.float32(2.0), jnp.float32(0.7))) == pytest.approx(0.7 * 4.0)
    assert float(losses.expectile_loss(jnp.float32(-2.0), jnp.float32(0.7))) == pytest.approx(0.3 * 4.0)
    # The 0.9-expectile of a fair coin's 0 and 1: 0.9 (1 - v) = 0.1 v, so v = 0.9; the 0.5-expectile is the mean.
    coin, grid = jnp.array([0.0, 1.0]), jnp.linspace(0.0, 1.0, 1001)
    for expectile, least in ((0.9, 0.9), (0.5, 0.5), (0.2, 0.2)):
        loss = jax.vmap(lambda v, e=expectile: jnp.sum(losses.expectile_loss(coin - v, jnp.float32(e))))(grid)
        assert float(grid[jnp.argmin(loss)]) == pytest.approx(least, abs=1e-3)


def test_advantages_are_exponentiated_up_to_a_hundred() -> None:
    weight = jax.vmap(losses.advantage_weight, in_axes=(0, None))
    np.testing.assert_allclose(
        weight(jnp.array([-1.0, 0.0, 0.5]), jnp.float32(3.0)), np.exp([-3.0, 0.0, 1.5]), rtol=1e-6
    )
    np.testing.assert_allclose(weight(jnp.array([1.6, 1e30]), jnp.float32(3.0)), [100.0, 100.0], rtol=1e-6)
    assert float(losses.weighted_regression_loss(jnp.float32(-2.0), jnp.float32(3.0))) == 6.0


def test_the_normal_policy_has_a_normal_density_at_the_given_action() -> None:
    rng = np.random.default_rng(0)
    mean, log_std, action = rng.normal(size=(3, 5, 2))
    distribution = jax.tree.map(jnp.float32, iql.normal_apply(*_normal(mean, log_std)))
    expected = norm.logpdf(action, np.tanh(mean), np.exp(log_std[0])).sum(axis=1)
    np.testing.assert_allclose(normal_log_prob(distribution, jnp.float32(action)), expected, rtol=1e-4)
    sample = normal_sample(distribution, jnp.ones((5, 2)))
    np.testing.assert_allclose(sample, np.clip(np.tanh(mean) + np.exp(log_std[0]), -1, 1), rtol=1e-5)


def _normal(mean: np.ndarray, log_std: np.ndarray) -> tuple[NormalActor, jax.Array]:
    """An actor and observations at which its mean, before the tanh, is `mean`."""
    layer = {"kernel": jnp.eye(2), "bias": jnp.zeros(2)}
    return NormalActor({"Dense_0": layer}, jnp.float32(log_std[0])), jnp.float32(mean)


@pytest.mark.slow
def test_gradients_agree_with_finite_differences() -> None:
    with jax.enable_x64(True):
        # Fresh biases are zero, which puts some units exactly on their kink.
        state = apart(start(IQL, IQL.Config(hidden=(5, 4))), "actor", "value", "critics")
        batch = batch_of(np.random.default_rng(2), 16)
        q, weight = (jnp.asarray(x) for x in np.random.default_rng(3).uniform(0.5, 2.0, size=(2, 16)))
        given: dict[str, Any] = {"order": 1, "modes": "rev", "rtol": 1e-5}
        check_grads(jax.jit(lambda v: iql.value_loss(v, batch, q, jnp.asarray(0.8))[0]), (state.value,), **given)
        check_grads(jax.jit(lambda c: iql.critic_loss(c, batch, q)), (state.critics,), **given)
        check_grads(jax.jit(lambda a: iql.actor_loss(a, batch, weight)), (state.actor,), **given)


# A whole update by hand.


def actor_step(actor: NormalActor, o: np.ndarray, a: np.ndarray, weight: np.ndarray, rate: float) -> Any:
    """One Adam step of weighted maximum likelihood under N(tanh(f(o)), exp(log_std)): layers and log_std after it."""
    layers, log_std = layers_of(actor.mean), [[np.array(actor.log_std)]]
    z, inputs = forward(layers, o)
    noise = (a - np.tanh(z)) / np.exp(log_std[0][0])
    # d log N / d mean = noise / std, d log N / d log std = noise^2 - 1.
    grad_z = -weight[:, None] * noise / np.exp(log_std[0][0]) * (1 - np.tanh(z) ** 2) / len(o)
    Adam(layers).step(layers, backward(layers, inputs, grad_z)[0], rate)
    grad_log_std = -(weight[:, None] * (noise**2 - 1)).mean(axis=0)
    Adam(log_std).step(log_std, [[grad_log_std]], rate)
    return layers, log_std[0][0]


def critic_steps(critics: list[Layers], x: np.ndarray, y: np.ndarray, rate: float) -> None:
    for critic in critics:
        q, inputs = forward(critic, x)
        Adam(critic).step(critic, backward(critic, inputs, 2 * (q - y[:, None]) / len(y))[0], rate)


def least(critics: list[Layers], *parts: np.ndarray) -> np.ndarray:
    return np.min([forward(critic, np.concatenate(parts, axis=1))[0][:, 0] for critic in critics], axis=0)


def assert_same(one: Any, other: Any) -> None:
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-11)


def apart(state: Any, *names: str) -> Any:
    """The state with perturbed parameters, as after an update."""
    return state._replace(**{name: jax.tree.map(lambda x: x + 0.1, getattr(state, name)) for name in names})


def test_one_iql_update_equals_the_numpy_derivation() -> None:
    with jax.enable_x64(True):
        c = IQL.Config(hidden=(5, 4), expectile=0.8, beta=2.0, discount=0.9, tau=0.1, actor_lr=0.01, critic_lr=0.02)
        state = apart(start(IQL, c), "critics_target", "value")
        batches = batch_of(np.random.default_rng(2), 1, 16)
        after, _ = jax.jit(IQL.update)(state, batches, jax.random.key(5))

        o, a, r, _, o2, d = (np.asarray(x[0]) for x in batches[:6])
        value = layers_of(state.value)
        critics, target = ([layers_of(p) for p in e] for e in (state.critics, state.critics_target))
        v, inputs = forward(value, o)
        advantage = least(target, o, a) - v[:, 0]
        assert (advantage < 0).any()
        assert (advantage > 0).any()
        y = r + c.discount * (1 - d) * forward(value, o2)[0][:, 0]
        grad_v = -2 * np.where(advantage < 0, 1 - c.expectile, c.expectile) * advantage / len(o)
        Adam(value).step(value, backward(value, inputs, grad_v[:, None])[0], c.critic_lr)
        critic_steps(critics, np.concatenate([o, a], axis=1), y, c.critic_lr)
        actor = actor_step(state.actor, o, a, np.minimum(np.exp(c.beta * advantage), 100), c.actor_lr)
        assert_same((layers_of(after.actor.mean), after.actor.log_std), actor)
        assert_same(layers_of(after.value), value)
        assert_same([layers_of(p) for p in after.critics], critics)
        moved = [tracked(t, p, c.tau) for t, p in zip(target, critics, strict=True)]
        assert_same([layers_of(p) for p in after.critics_target], moved)


def test_one_awac_update_equals_the_numpy_derivation() -> None:
    with jax.enable_x64(True):
        c = AWAC.Config(hidden=(5, 4), temperature=0.5, discount=0.9, tau=0.1, actor_lr=0.01, critic_lr=0.02)
        state = apart(start(AWAC, c), "critics_target")
        state = state._replace(actor=state.actor._replace(log_std=jnp.array([-1.0, 0.3])))
        batches, key = batch_of(np.random.default_rng(2), 1, 16), jax.random.key(5)
        after, _ = jax.jit(AWAC.update)(state, batches, key)

        o, a, r, _, o2, d = (np.asarray(x[0]) for x in batches[:6])
        next_noise, noise = (np.asarray(jax.random.normal(k, (16, 2))) for k in jax.random.split(key))
        critics, target = ([layers_of(p) for p in e] for e in (state.critics, state.critics_target))

        def drawn(o: np.ndarray, noise: np.ndarray) -> np.ndarray:
            mean = np.tanh(forward(layers_of(state.actor.mean), o)[0])
            return np.clip(mean + np.exp(np.asarray(state.actor.log_std)) * noise, -1, 1)

        y = r + c.discount * (1 - d) * least(target, o2, drawn(o2, next_noise))
        critic_steps(critics, np.concatenate([o, a], axis=1), y, c.critic_lr)
        # The actor learns from critics that have seen this batch.
        advantage = least(critics, o, a) - least(critics, o, drawn(o, noise))
        actor = actor_step(state.actor, o, a, np.minimum(np.exp(advantage / c.temperature), 100), c.actor_lr)
        assert_same((layers_of(after.actor.mean), after.actor.log_std), actor)
        assert_same([layers_of(p) for p in after.critics], critics)
        moved = [tracked(t, p, c.tau) for t, p in zip(target, critics, strict=True)]
        assert_same([layers_of(p) for p in after.critics_target], moved)


# Tabular truth.

DISCOUNT = 0.8


def table() -> dict[str, np.ndarray]:
    """Rows of a small MDP: three states, actions -0.5 and 0.5, with chance and logged controller in the counts.

    In state 0, action 0.5 leads to 1 or 2 with equal probability; state 2 with action 0.5 terminates.
    """
    rows = [
        # state, action, reward, next, terminated, count
        (0, -0.5, 0.0, 0, 0, 6),
        (0, 0.5, 1.0, 1, 0, 2),
        (0, 0.5, 1.0, 2, 0, 2),
        (1, -0.5, -1.0, 0, 0, 3),
        (1, 0.5, 0.5, 2, 0, 7),
        (2, -0.5, 0.0, 1, 0, 8),
        (2, 0.5, 2.0, 0, 1, 2),
    ]
    repeated = np.array([row[:5] for row in rows for _ in range(row[5])])
    return dict(zip(("s", "a", "r", "s2", "d"), repeated.T, strict=True))


def solve(t: dict[str, np.ndarray], expectile: float) -> tuple[np.ndarray, np.ndarray]:
    """V (3,) and Q per row by iteration: the mean over chance, the expectile over actions."""
    v = np.zeros(3)
    for _ in range(200):
        backup = t["r"] + DISCOUNT * (1 - t["d"]) * v[t["s2"].astype(int)]
        pairs = [(t["s"] == s) & (t["a"] == a) for s, a in zip(t["s"], t["a"], strict=True)]
        q = np.array([backup[pair].mean() for pair in pairs])

        def imbalance(x: float, at: np.ndarray) -> float:
            return float(np.sum(np.where(at < x, 1 - expectile, expectile) * (at - x)))

        v = np.array([brentq(imbalance, -20, 20, args=(q[t["s"] == s],)) for s in range(3)])
    return v, q


@pytest.mark.slow
def test_iql_finds_expectiles_of_dynamic_programming() -> None:
    t = table()
    one_hot = np.eye(3)
    columns = one_hot[t["s"].astype(int)], t["a"][:, None], t["r"], t["r"], one_hot[t["s2"].astype(int)], t["d"]
    data = Transition(*map(jnp.float32, columns))
    # The 0.5-expectile equals the value of the logged controller, solved separately.
    mean_transition = np.zeros((3, 3))
    for s, s2, d in zip(t["s"].astype(int), t["s2"].astype(int), t["d"], strict=True):
        mean_transition[s, s2] += (1 - d) / np.sum(t["s"] == s)
    mean_reward = np.array([t["r"][t["s"] == s].mean() for s in range(3)])
    np.testing.assert_allclose(
        solve(t, 0.5)[0], np.linalg.solve(np.eye(3) - DISCOUNT * mean_transition, mean_reward), atol=1e-9
    )
    fading = Recipe(schedule="cosine", steps=4000)
    config = IQL.Config(
        hidden=(32,), beta=1.0, discount=DISCOUNT, tau=0.05, actor_lr=3e-3, critic_lr=3e-3,
        actor_recipe=fading, critic_recipe=fading,
    )  # fmt: skip
    expectiles = [0.5, 0.9]
    population = init_population(IQL, spec(3, 1), config, members([0], {"expectile": expectiles}))
    population, _ = make_train_chunk(IQL, 4000, 1000, 64)(population, data)
    for i, expectile in enumerate(expectiles):
        learner = member(population, i).learner
        v, q = solve(t, expectile)
        learned = iql.mlp_apply(learner.value, jnp.eye(3))[:, 0]
        np.testing.assert_allclose(learned, v, atol=0.05)
        for one in iql.critics_apply(learner.critics, data.observation, data.action):
            np.testing.assert_allclose(one, q, atol=0.1)
        # The maximum-likelihood mean is the weighted mean of the logged actions.
        weight = np.minimum(np.exp(q - v[t["s"].astype(int)]), 100)
        mean = [np.average(t["a"][t["s"] == s], weights=weight[t["s"] == s]) for s in range(3)]
        np.testing.assert_allclose(IQL.act(learner, jnp.eye(3))[:, 0], mean, atol=0.05)
    assert np.all(solve(t, 0.9)[0] - solve(t, 0.5)[0] > 0.5), "the two truths must differ by more than the tolerance"


# Known defects of other implementations, and limits of the hyper-parameters.


@pytest.mark.slow
def test_advantage_scales_but_does_not_turn_the_gradient() -> None:
    """Raising every advantage by delta multiplies the actor's gradient by exp(beta delta)."""
    with jax.enable_x64(True):
        state, batch = start(IQL, IQL.Config(hidden=(5, 4))), batch_of(np.random.default_rng(4), 16)
        advantage = jnp.asarray(np.random.default_rng(5).normal(size=16))

        def gradient(advantage: jax.Array) -> Any:
            weight = jax.vmap(losses.advantage_weight, in_axes=(0, None))(advantage, jnp.asarray(2.0))
            return jax.grad(iql.actor_loss)(state.actor, batch, weight)

        raised = jax.tree.map(lambda g: g * np.exp(2.0 * 0.3), gradient(advantage))
        assert_same(gradient(advantage + 0.3), raised)
        # Only the logged action matters: values of other actions do not change the actor.
        batches = jax.tree.map(lambda x: x[None], batch)
        steep = state._replace(critics=jax.tree.map(lambda x: 5.0 * x, state.critics))
        one, other = (jax.jit(IQL.update)(s, batches, jax.random.key(0))[0].actor for s in (state, steep))
        assert_same(one, other)


@pytest.mark.slow
def test_policy_moves_towards_the_logged_action() -> None:
    state = start(IQL, IQL.Config(hidden=(5, 4)))
    gradient = jax.jit(jax.grad(iql.actor_loss))
    batch = jax.tree.map(jnp.float32, batch_of(np.random.default_rng(6), 1))
    mean = np.asarray(IQL.act(state, batch.observation))[0]
    for action in ([-0.9, 0.2], [0.7, -1.0], [1.0, 1.0]):
        bias = gradient(state.actor, batch._replace(action=jnp.float32([action])), jnp.ones(1)).mean["Dense_2"]["bias"]
        assert np.all(-np.asarray(bias) * (np.asarray(action) - mean) > 0)


def test_zero_advantage_weight_clones() -> None:
    with jax.enable_x64(True):
        batches = batch_of(np.random.default_rng(7), 1, 16)
        clone = start(IQL, IQL.Config(hidden=(5, 4), beta=0.0, actor_lr=1e-2))
        hot = start(AWAC, AWAC.Config(hidden=(5, 4), temperature=1e12, actor_lr=1e-2))._replace(actor=clone.actor)
        one, _ = jax.jit(IQL.update)(clone, batches, jax.random.key(0))
        other, _ = jax.jit(AWAC.update)(hot, batches, jax.random.key(0))
        o, a = np.asarray(batches.observation[0]), np.asarray(batches.action[0])
        layers, log_std = actor_step(clone.actor, o, a, np.ones(16), 1e-2)
        for found in (one.actor, other.actor):
            assert_same((layers_of(found.mean), found.log_std), (layers, log_std))
        assert not np.allclose(one.actor.log_std, clone.actor.log_std)
