"""SAC-N and EDAC against a second derivation in NumPy, and against values by quadrature."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from neorl_core.algorithms import EDAC, SAC_N, edac, losses, sac_n
from neorl_core.networks import Gaussian, critics_apply, gaussian_apply, log_prob
from neorl_core.training import optimisers
from neorl_core.training.population import init_population, make_train_chunk, member, members
from neorl_core.types import Transition
from tests.by_hand import Adam, Layers, backward, batch_of, forward, layers_of, spec, start

PLAIN = {"actor_recipe": optimisers.TD3, "critic_recipe": optimisers.TD3}
"""Adam without clipping, as the derivations have it."""
CriticGradients = Callable[[list[Layers], dict[str, np.ndarray], np.ndarray], list[Layers]]
"""(critics, batch, targets) -> gradients, written in NumPy."""


def arrays(batches: Transition) -> dict[str, np.ndarray]:
    return {k: np.asarray(x[0]) for k, x in batches._asdict().items()}


def drawn(actor: Layers, o: np.ndarray, noise: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Squashed actions and their log densities by the change of variables."""
    mean, log_std = np.split(forward(actor, o)[0], 2, axis=1)
    assert np.abs(log_std).max() < 2, "no clipping in this test"
    action = np.tanh(mean + np.exp(log_std) * noise)
    normal = -(noise**2) / 2 - log_std - np.log(2 * np.pi) / 2
    return action, (normal - np.log(1 - action**2)).sum(axis=1)


def joined(o: np.ndarray, a: np.ndarray) -> np.ndarray:
    return np.concatenate([o, a], axis=1)


def td_gradients(critics: list[Layers], b: dict[str, np.ndarray], y: np.ndarray) -> list[Layers]:
    found = []
    for critic in critics:
        q, inputs = forward(critic, joined(b["observation"], b["action"]))
        found.append(backward(critic, inputs, 2 * (q - y[:, None]) / len(y))[0])
    return found


def diversity_gradients(critics: list[Layers], o: np.ndarray, a: np.ndarray, eta: float) -> list[Layers]:
    """Gradient of eta / (C - 1) mean sum_{i != j} <u_i, u_j>, through the slopes g = W1 D1 W2 D2 ... w.

    A slope along a direction v is a forward pass of v through the same layers with the ReLUs' masks held, which is
    what is differentiated here.
    """
    masks, slopes = [], []
    for critic in critics:
        _, inputs = forward(critic, joined(o, a))
        masks.append([x > 0 for x in inputs[1:]])
        back = np.ones((len(o), 1))
        for (kernel, _), mask in zip(critic[:0:-1], masks[-1][::-1], strict=True):
            back = (back @ kernel.T) * mask
        slopes.append((back @ critic[0][0].T)[:, o.shape[1] :])
    g = np.stack(slopes)
    length = np.linalg.norm(g, axis=2, keepdims=True)
    length[length == 0] = np.inf  # a critic with only dead units has no gradient
    u = g / length
    down = 2 * eta * (u.sum(axis=0) - u) / (len(o) * (len(critics) - 1))
    down = (down - u * (u * down).sum(axis=2, keepdims=True)) / length
    found = []
    for critic, held, v in zip(critics, masks, down, strict=True):
        passes = [joined(np.zeros_like(o), v)]
        for (kernel, _), mask in zip(critic[:-1], held, strict=True):
            passes.append((passes[-1] @ kernel) * mask)
        grads: Layers = []
        back = np.ones((len(o), 1))
        for i in reversed(range(len(critic))):
            grads.insert(0, [passes[i].T @ back, np.zeros_like(critic[i][1])])
            back = (back @ critic[i][0].T) * held[i - 1] if i else back
        found.append(grads)
    return found


def numpy_update(
    state: sac_n.State,
    batches: Transition,
    noise: np.ndarray,
    c: Any,
    gradients: CriticGradients,
    entropy: float = 1.0,
) -> Any:
    """Actor, critics, targets and log temperature after one update, with backward passes by hand."""
    b = arrays(batches)
    o, a, rows = b["observation"], b["action"], len(b["reward"])
    actor = layers_of(state.actor)
    critics, targets = ([layers_of(p) for p in e] for e in (state.critics, state.critics_target))
    temperature = float(np.exp(state.log_temperature))
    a2, density2 = drawn(actor, b["next_observation"], noise[0])
    q2 = np.min([forward(t, joined(b["next_observation"], a2))[0][:, 0] for t in targets], axis=0)
    y = b["reward"] + c.discount * (1 - b["terminated"]) * (q2 - entropy * temperature * density2)
    for critic, grads in zip(critics, gradients(critics, b, y), strict=True):
        Adam(critic).step(critic, grads, c.critic_lr)
    out, actor_inputs = forward(actor, o)
    std = np.exp(np.split(out, 2, axis=1)[1])
    action, density = drawn(actor, o, noise[1])
    passes = [forward(critic, joined(o, action)) for critic in critics]
    least = np.argmin([q[:, 0] for q, _ in passes], axis=0)
    grad_action = np.zeros_like(a)
    for k, (critic, (_, inputs)) in enumerate(zip(critics, passes, strict=True)):
        grad_action += backward(critic, inputs, (least == k)[:, None] / -rows)[1][:, o.shape[1] :]
    # log(1 - tanh^2) has the slope -2 tanh.
    grad_raw = grad_action * (1 - action**2) + temperature * 2 * action / rows
    grad_out = joined(grad_raw, grad_raw * std * noise[1] - temperature / rows)
    Adam(actor).step(actor, backward(actor, actor_inputs, grad_out)[0], c.actor_lr)
    heat: Layers = [[np.asarray(state.log_temperature)]]
    Adam(heat).step(heat, [[np.asarray(-temperature * (density.mean() - a.shape[1]))]], c.temperature_lr)
    tracked = [
        [[(1 - c.tau) * t + c.tau * p for t, p in zip(ts, ps, strict=True)] for ts, ps in zip(old, new, strict=True)]
        for old, new in zip(targets, critics, strict=True)
    ]
    return actor, critics, tracked, heat[0][0]


def assert_state_is(state: sac_n.State, expected: Any) -> None:
    got = (
        layers_of(state.actor),
        [layers_of(p) for p in state.critics],
        [layers_of(p) for p in state.critics_target],
        np.asarray(state.log_temperature),
    )
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-8, atol=1e-10)


def assert_same(one: Any, other: Any, tolerance: float = 0.0) -> None:
    for x, y in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_allclose(x, y, rtol=tolerance, atol=tolerance)


def away_from_targets(state: sac_n.State) -> sac_n.State:
    return state._replace(critics_target=jax.tree.map(lambda x: x - 0.1, state.critics))


# Losses, one transition each: values worked by hand from the cited equations.


def test_soft_target_subtracts_the_tempered_log_density_unless_terminated() -> None:
    q = jnp.array([3.0, 1.0])
    reward, discount, density, temperature = (jnp.float32(x) for x in (0.5, 0.9, -2.0, 0.25))
    target = [losses.soft_td_target(reward, discount, jnp.float32(d), q, density, temperature) for d in (0.0, 1.0)]
    np.testing.assert_allclose(target, [0.5 + 0.9 * 1.5, 0.5], rtol=1e-6)
    assert float(losses.sac_actor_loss(q, density, temperature)) == pytest.approx(-1.5)
    # Entropy 2 exceeds the target 1: the loss falls with the log temperature.
    assert float(losses.temperature_loss(jnp.log(0.25), density, jnp.float32(1.0))) == pytest.approx(0.25)


@pytest.mark.parametrize(
    ("slopes", "expected"),
    [
        ([[3.0, 4.0], [-4.0, 3.0]], 0.0),  # orthogonal
        ([[1.0, 0.0], [5.0, 0.0]], 2.0),  # parallel, of any length: both ordered pairs count
        ([[2.0, 0.0], [-0.1, 0.0]], -2.0),  # opposed
        ([[1.0, 0.0], [0.5, np.sqrt(0.75)], [0.5, -np.sqrt(0.75)]], 2 * (0.5 + 0.5 - 0.5) / 2),  # 60 and 120 degrees
        ([[1.0, 2.0]], 0.0),  # one critic has no pair
        ([[0.0, 0.0], [1.0, 0.0]], 0.0),  # a zero gradient counts as zero
    ],
)
def test_diversity_is_the_mean_cosine_between_critics(slopes: list[list[float]], expected: float) -> None:
    assert float(losses.diversity_loss(jnp.array(slopes))) == pytest.approx(expected, abs=1e-6)
    assert np.isfinite(jax.jit(jax.grad(losses.diversity_loss))(jnp.array(slopes))).all()


def test_gradients_of_losses_agree_with_finite_differences() -> None:
    with jax.enable_x64(True):
        rng = np.random.default_rng(1)
        q, slopes = jnp.asarray(rng.normal(size=3)), jnp.asarray(rng.normal(size=(4, 2)))
        for loss, inputs in (
            (lambda q, p, t: losses.soft_td_target(0.5, 0.9, 0.0, q, p, t), (q, jnp.asarray(0.3), jnp.asarray(0.7))),
            (losses.sac_actor_loss, (q, jnp.asarray(0.3), jnp.asarray(0.7))),
            (losses.temperature_loss, (jnp.asarray(-0.4), jnp.asarray(1.3), jnp.asarray(-2.0))),
            (losses.diversity_loss, (slopes,)),
        ):
            check_grads(jax.jit(loss), inputs, order=1, modes="rev", atol=1e-6, rtol=1e-6)


# Whole updates.


def test_one_sac_n_update_equals_numpy() -> None:
    with jax.enable_x64(True):
        config = SAC_N.Config(
            hidden=(5, 4),
            critics=1,
            tau=0.1,
            actor_lr=0.01,
            critic_lr=0.02,
            temperature=0.5,
            temperature_lr=0.03,
            **PLAIN,
        )
        state = away_from_targets(start(SAC_N, config))
        batches, key = batch_of(np.random.default_rng(2), 1, 16), jax.random.key(5)
        after, metrics = jax.jit(SAC_N.update)(state, batches, key)
        noise = np.asarray(jax.random.normal(key, (2, 16, 2)))
        assert_state_is(after, numpy_update(state, batches, noise, config, td_gradients))
        assert sorted(metrics) == ["actor_loss", "critic_loss", "entropy", "q", "temperature"]


@pytest.mark.slow
def test_one_edac_update_equals_numpy() -> None:
    with jax.enable_x64(True):
        config = EDAC.Config(hidden=(6, 5), critics=4, diversity=3.0, actor_lr=0.01, critic_lr=0.02, **PLAIN)
        state = away_from_targets(start(EDAC, config))
        batches, key = batch_of(np.random.default_rng(2), 1, 16), jax.random.key(5)

        def gradients(critics: list[Layers], b: dict[str, np.ndarray], y: np.ndarray) -> list[Layers]:
            apart = diversity_gradients(critics, b["observation"], b["action"], config.diversity)
            return jax.tree.map(np.add, td_gradients(critics, b, y), apart)

        noise = np.asarray(jax.random.normal(key, (2, 16, 2)))
        after, _ = jax.jit(EDAC.update)(state, batches, key)
        assert_state_is(after, numpy_update(state, batches, noise, config, gradients))


@pytest.mark.slow
def test_gradients_of_network_losses_agree_with_finite_differences() -> None:
    with jax.enable_x64(True):
        rng = np.random.default_rng(2)
        batch: Transition = jax.tree.map(lambda x: x[0], batch_of(rng, 1, 8))
        y, noise = jnp.asarray(rng.normal(size=8)), jnp.asarray(rng.normal(size=(8, 2)))
        state = start(EDAC, EDAC.Config(hidden=(5,), critics=3, diversity=2.0))
        of_critics = jax.jit(lambda c: edac.critic_loss(c, state, batch, y)[0])
        check_grads(of_critics, (state.critics,), order=1, modes="rev", rtol=1e-5)
        of_actor = jax.jit(lambda a: sac_n.actor_loss(a, state.critics, batch, noise, jnp.asarray(0.3))[0])
        check_grads(of_actor, (state.actor,), order=1, modes="rev", rtol=1e-5)


def test_action_gradients_are_slopes_along_the_action() -> None:
    with jax.enable_x64(True):
        state = start(EDAC, EDAC.Config(hidden=(5,), critics=3))
        batch: Transition = jax.tree.map(lambda x: x[0], batch_of(np.random.default_rng(2), 1, 6))
        slopes = jax.jit(edac.action_gradients)(state.critics, batch.observation, batch.action)
        apply = jax.jit(critics_apply)
        for i in range(2):
            step = 1e-6 * np.eye(2)[i]
            ahead, behind = (apply(state.critics, batch.observation, batch.action + s) for s in (step, -step))
            np.testing.assert_allclose(slopes[..., i], (ahead - behind) / 2e-6, rtol=1e-6, atol=1e-9)


@pytest.mark.slow
def test_edac_without_diversity_is_sac_n() -> None:
    batches, key = jax.tree.map(jnp.float32, batch_of(np.random.default_rng(4), 1, 16)), jax.random.key(2)
    state = start(EDAC, EDAC.Config(hidden=(5,), critics=3, diversity=0.0))
    edac_update, sac_update = jax.jit(EDAC.update), jax.jit(SAC_N.update)
    assert_same(edac_update(state, batches, key)[0], sac_update(state, batches, key)[0], 1e-6)
    pressed = state._replace(hyper={**state.hyper, "diversity": jnp.asarray(1.0)})
    kernels = [f(pressed, batches, key)[0].critics[0]["Dense_0"]["kernel"] for f in (edac_update, sac_update)]
    assert np.abs(kernels[0] - kernels[1]).max() > 1e-5


def test_a_time_limit_bootstraps_and_a_termination_does_not() -> None:
    state = start(SAC_N, SAC_N.Config(hidden=(8,), critics=2))
    batch: Transition = jax.tree.map(lambda x: jnp.float32(x[0]), batch_of(np.random.default_rng(5), 1, 6))
    noise, one = jnp.zeros((6, 2)), jnp.float32(1.0)
    targets = jax.jit(sac_n.targets)
    ended = targets(state, batch._replace(terminated=jnp.ones(6)), noise, one)
    np.testing.assert_allclose(ended, batch.reward, rtol=1e-6)
    going = targets(state, batch._replace(terminated=jnp.zeros(6)), noise, one)
    assert np.abs(going - batch.reward).min() > 1e-3


@pytest.mark.slow
def test_temperature_reaches_the_target_entropy() -> None:
    # With constant critics only the temperature changes.
    config = SAC_N.Config(hidden=(), critics=1, actor_lr=0.01, critic_lr=0.0, temperature_lr=0.01, temperature=0.3)
    population = init_population(SAC_N, spec(3, 2), config, members([0], {}))
    flat = jax.tree.map(jnp.zeros_like, population.learner.critics)
    slope = jax.tree.map(lambda x: x.at[:, 3:].set(0.5) if x.ndim == 3 else x, flat)
    population = population._replace(learner=population.learner._replace(critics=slope))
    data = jax.tree.map(jnp.float32, batch_of(np.random.default_rng(5), 64))
    _, metrics = make_train_chunk(SAC_N, 3000, 500, 64)(population, data)
    entropy, temperature = np.asarray(metrics["entropy"])[0], np.asarray(metrics["temperature"])[0]
    np.testing.assert_allclose(entropy[-1], -2.0, atol=0.1)
    assert 0.01 < temperature[-1] < 0.3, "it must have come down from where it started"


def moments(mean: np.ndarray, std: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and entropy of tanh(N(mean, std)), by Gauss-Hermite quadrature."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(80)
    weights = weights / weights.sum()
    raw = mean[:, None] + std[:, None] * nodes
    entropy = np.log(std) + np.log(2 * np.pi * np.e) / 2 + np.log(1 - np.tanh(raw) ** 2) @ weights
    return np.tanh(raw) @ weights, entropy


class Chain:
    """States as one-hot observations, two actions' worth of data in each: a linear critic is exact.

    Chain 0 -> 1 -> 2 -> 3, where 3 terminates, and 4 -> 5 -> 4 for ever; the reward is `r + slope a`. A policy that
    never learns has values that dynamic programming with quadrature over its actions gives.
    """

    successor, reward = np.array([1, 2, 3, 3, 5, 4]), np.array([0.0, 1.0, -0.5, 2.0, 1.0, 0.0])
    terminated, discount, slope = np.array([0.0, 0, 0, 1, 0, 0]), 0.8, 0.7
    mean, std = np.array([0.5, -0.5, 0.2, 0.0, -0.3, 0.4]), np.array([0.5, 0.8, 0.6, 1.0, 0.7, 0.9])

    def data(self, low: float = -1.0, high: float = 1.0, rows: int = 20) -> Transition:
        action = np.tile(np.linspace(low, high, rows), 6)
        at = np.repeat(np.arange(6), rows)
        reward = self.reward[at] + self.slope * action
        columns = (np.eye(6)[at], action[:, None], reward, reward, np.eye(6)[self.successor[at]], self.terminated[at])
        return Transition(*map(jnp.float32, columns))

    def actor(self) -> Any:
        """Weights of the policy that has this mean and deviation before the tanh."""
        return {"Dense_0": {"kernel": jnp.float32(np.stack([self.mean, np.log(self.std)], 1)), "bias": jnp.zeros(2)}}

    def values(self, temperature: float) -> tuple[np.ndarray, np.ndarray]:
        """Q at action 0, and V, of the policy; V counts the entropy with `temperature`."""
        action, entropy = moments(self.mean, self.std)
        onward = self.discount * np.eye(6)[self.successor] * (1 - self.terminated)[:, None]
        own = self.slope * action + temperature * entropy
        q = np.linalg.solve(np.eye(6) - onward, self.reward + onward @ own)
        return q, q + own


@pytest.mark.slow
def test_the_critics_find_the_soft_values_of_a_tabular_mdp() -> None:
    chain = Chain()
    config = SAC_N.Config(
        hidden=(), critics=2, discount=chain.discount, tau=0.1, actor_lr=0.0, critic_lr=0.01, temperature=0.4,
        temperature_lr=0.0,
    )  # fmt: skip
    population = init_population(SAC_N, spec(6, 1), config, members([0], {}))
    actor = jax.tree.map(lambda x: x[None], chain.actor())
    population = population._replace(learner=population.learner._replace(actor=actor))
    population, _ = make_train_chunk(SAC_N, 4000, 1000, 64)(population, chain.data())
    learner = member(population, 0).learner
    q = critics_apply(learner.critics, jnp.eye(6), jnp.zeros((6, 1)))
    truth, _ = chain.values(0.4)
    np.testing.assert_allclose(q, [truth, truth], atol=0.08)
    assert np.abs(truth - chain.values(0.0)[0]).max() > 0.3, "the entropy must matter for this to be a test of it"
    mean = np.asarray(SAC_N.act(learner, jnp.eye(6)))[:, 0]
    np.testing.assert_allclose(mean, np.tanh(chain.mean), rtol=1e-5)


def test_shipped_actor_is_the_mean_action() -> None:
    state = start(SAC_N, SAC_N.Config(hidden=(8,), critics=2))
    o = jnp.asarray(np.random.default_rng(5).normal(size=(6, 3)), jnp.float32)
    distribution = gaussian_apply(state.actor, o)
    np.testing.assert_allclose(SAC_N.act(state, o), np.tanh(distribution.mean), rtol=1e-6)
    # The density belongs to the given action, not to a new sample.
    certain = Gaussian(distribution.mean, jnp.full_like(distribution.mean, -3.0))
    near, far = log_prob(certain, SAC_N.act(state, o)), log_prob(certain, -jnp.sign(SAC_N.act(state, o)) * 0.9)
    assert np.min(near - far) > 10.0
