"""CQL against a second derivation in NumPy, quadrature and dynamic programming."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads
from scipy.stats import norm

from neorl_core.algorithms import CQL, SAC_N, cql, losses
from neorl_core.networks import critics_apply, gaussian_apply, log_prob
from neorl_core.training.population import init_population, make_train_chunk, member, members
from neorl_core.types import Transition
from tests.by_hand import Layers, backward, batch_of, forward, spec, start
from tests.neorl_core.algorithms.test_sac import (
    PLAIN,
    Chain,
    assert_same,
    assert_state_is,
    away_from_targets,
    drawn,
    joined,
    numpy_update,
)


def test_the_conservative_loss_by_hand() -> None:
    # Two actions of densities 1/2 and 1/4: the integral is (e^0 2 + e^1 4) / 2, the logged action's Q is 3.
    loss = losses.conservative_loss(jnp.array([0.0, 1.0]), jnp.log(jnp.array([0.5, 0.25])), jnp.float32(3.0))
    assert float(loss) == pytest.approx(np.log(1 + 2 * np.e) - 3.0, rel=1e-6)
    # It rises with Q anywhere by the importance weights' shares, and falls one for one with Q of the logged action.
    grad = jax.grad(losses.conservative_loss, argnums=(0, 2))
    shares, logged = grad(jnp.array([0.0, 1.0]), jnp.log(jnp.array([0.5, 0.25])), jnp.float32(3.0))
    np.testing.assert_allclose(shares, np.array([1.0, 2 * np.e]) / (1 + 2 * np.e), rtol=1e-6)
    assert float(logged) == -1.0


@pytest.mark.slow
def test_multiplier_rises_above_the_threshold() -> None:
    slope = jax.grad(losses.multiplier_loss)
    assert float(slope(jnp.log(2.0), jnp.float32(3.0), jnp.float32(1.0))) == pytest.approx(-4.0)
    assert float(slope(jnp.log(2.0), jnp.float32(0.5), jnp.float32(1.0))) == pytest.approx(1.0)
    batches = jax.tree.map(jnp.float32, batch_of(np.random.default_rng(4), 1, 16))
    weights, update = {}, jax.jit(CQL.update)
    for threshold in (-50.0, 50.0):
        config = CQL.Config(hidden=(5,), alpha=2.0, alpha_lr=0.1, threshold=threshold)
        state = start(CQL, config)
        state, metrics = update(state, batches, jax.random.key(1))
        assert float(metrics["alpha"]) == 2.0
        weights[threshold] = float(update(state, batches, jax.random.key(2))[1]["alpha"])
    # Adam's first step is its rate.
    assert weights == pytest.approx({-50.0: 2.0 * np.exp(0.1), 50.0: 2.0 * np.exp(-0.1)}, rel=1e-5)


@pytest.mark.slow
def test_gradients_agree_with_finite_differences() -> None:
    with jax.enable_x64(True):
        rng = np.random.default_rng(1)
        q, density = jnp.asarray(rng.normal(size=5)), jnp.asarray(rng.normal(size=5))
        one = jnp.asarray(0.3)
        check_grads(jax.jit(losses.conservative_loss), (q, density, one), order=1, modes="rev", rtol=1e-6)
        check_grads(jax.jit(losses.multiplier_loss), (one, -one, one / 2), order=1, modes="rev", rtol=1e-6)
        batch: Transition = jax.tree.map(lambda x: x[0], batch_of(rng, 1, 8))
        y, weight = jnp.asarray(rng.normal(size=8)), jnp.asarray(0.7)
        state = start(CQL, CQL.Config(hidden=(5,)))
        uniform, noise = jnp.asarray(rng.uniform(-1, 1, (8, 3, 2))), jnp.asarray(rng.normal(size=(2, 8, 3, 2)))
        proposed = jax.jit(cql.proposals)(state.actor, batch, uniform, noise)
        loss = jax.jit(lambda c: cql.critic_loss(c, batch, y, *proposed, weight)[0])
        check_grads(loss, (state.sac.critics,), order=1, modes="rev", rtol=1e-5)
        # Chunks only change the order of summing.
        chunked, _ = jax.jit(cql.critic_gradient)(state.sac.critics, batch, y, *proposed, weight)
        assert_same(chunked, jax.jit(jax.grad(loss))(state.sac.critics), 1e-12)


def draws(key: jax.Array, rows: int, actions: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Random numbers of one update: SAC's and those of the proposals."""
    first, second = jax.random.split(jax.random.fold_in(key, 1))
    shape = (rows, cql.SAMPLES, actions)
    return (
        np.asarray(jax.random.normal(key, (2, rows, actions))),
        np.asarray(jax.random.uniform(first, shape, minval=-1.0, maxval=1.0)),
        np.asarray(jax.random.normal(second, (2, *shape))),
    )


@pytest.mark.parametrize("entropy", [0.0, 1.0])
def test_one_update_equals_the_numpy_derivation(entropy: float) -> None:
    with jax.enable_x64(True):
        config = CQL.Config(
            hidden=(6, 5),
            alpha=1.5,
            entropy_backup=entropy,
            tau=0.1,
            actor_lr=0.01,
            critic_lr=0.02,
            temperature=0.5,
            **PLAIN,
        )
        state = start(CQL, config)
        state = state._replace(sac=away_from_targets(state.sac))
        batches, key = batch_of(np.random.default_rng(2), 1, 16), jax.random.key(5)
        sac_noise, uniform, noise = draws(key, 16, 2)

        def gradients(critics: list[Layers], b: dict[str, np.ndarray], y: np.ndarray) -> list[Layers]:
            """Kumar et al. 2020: down by the softmax of Q - log density, up at the LOGGED action."""
            o, rows = b["observation"], len(y)
            actor = [[np.asarray(layer[k]) for k in ("kernel", "bias")] for layer in state.actor.values()]
            pairs = [(uniform[:, k], np.full(rows, -2 * np.log(2.0))) for k in range(cql.SAMPLES)]
            for i, where in enumerate((o, b["next_observation"])):
                pairs += [drawn(actor, where, noise[i, :, k]) for k in range(cql.SAMPLES)]
            found = []
            for critic in critics:
                logged, inputs = forward(critic, joined(o, b["action"]))
                total = backward(critic, inputs, (2 * (logged - y[:, None]) - config.alpha) / rows)[0]
                exponents = np.stack([forward(critic, joined(o, a))[0][:, 0] - density for a, density in pairs])
                shares = np.exp(exponents) / np.exp(exponents).sum(axis=0)
                for (a, _), share in zip(pairs, shares, strict=True):
                    _, inputs = forward(critic, joined(o, a))
                    down = backward(critic, inputs, config.alpha * share[:, None] / rows)[0]
                    total = jax.tree.map(np.add, total, down)
                found.append(total)
            return found

        after, metrics = jax.jit(CQL.update)(state, batches, key)
        assert_state_is(after.sac, numpy_update(state.sac, batches, sac_noise, config, gradients, entropy))
        assert float(after.log_multiplier) == 0.0, "alpha is fixed unless it is given a rate"
        assert {"actor_loss", "alpha", "conservative_loss", "critic_loss", "q", "temperature"} <= set(metrics)


@pytest.mark.slow
def test_without_conservative_loss_it_is_sac() -> None:
    with jax.enable_x64(True):
        shared = {"hidden": (6, 5), "actor_lr": 3e-3, "critic_lr": 3e-3, "temperature_lr": 1e-2, "critics": 2}
        batches, key = batch_of(np.random.default_rng(4), 1, 16), jax.random.key(2)
        sac = start(SAC_N, SAC_N.Config(**shared))
        state = start(CQL, CQL.Config(**shared, alpha=0.0, entropy_backup=1.0))
        sac_update, update = jax.jit(SAC_N.update), jax.jit(CQL.update)
        for i in range(3):
            sac, _ = sac_update(sac, batches, jax.random.fold_in(key, i))
            state, _ = update(state, batches, jax.random.fold_in(key, i))
        assert_same(state.sac._replace(hyper=sac.hyper), sac, 1e-9)


@pytest.mark.slow
def test_proposals_have_their_policy_density() -> None:
    with jax.enable_x64(True):
        rng = np.random.default_rng(3)
        batch: Transition = jax.tree.map(lambda x: 0.3 * x[0], batch_of(rng, 1, 6))
        actor = start(CQL, CQL.Config(hidden=(5,))).actor
        uniform, noise = jnp.asarray(rng.uniform(-1, 1, (6, 4, 2))), jnp.asarray(rng.uniform(-2, 2, (2, 6, 4, 2)))
        actions, density = jax.jit(cql.proposals)(actor, batch, uniform, noise)
        assert actions.shape == (6, 12, 2)
        np.testing.assert_allclose(density[:, :4], np.log(0.25), rtol=1e-12)
        for part, where in ((slice(4, 8), batch.observation), (slice(8, 12), batch.next_observation)):
            policy = gaussian_apply(actor, where)
            for k in range(part.start, part.stop):
                a = np.asarray(actions[:, k])
                normal = norm.logpdf(np.arctanh(a), policy.mean, np.exp(policy.log_std))
                np.testing.assert_allclose(density[:, k], (normal - np.log(1 - a**2)).sum(axis=1), rtol=1e-7)
                np.testing.assert_allclose(density[:, k], log_prob(policy, actions[:, k]), rtol=1e-7)
        assert np.abs(actions[:, 4] - actions[:, 8]).min() > 1e-3


@pytest.mark.slow
def test_sampled_integral_equals_quadrature() -> None:
    """The mean over 30 000 proposals of all three kinds: each third alone estimates the same integral."""
    rng = np.random.default_rng(3)
    n = 10_000
    state = start(CQL, CQL.Config(hidden=(16,)), actions=1)
    critics = jax.tree.map(lambda x: 2.0 * x, state.sac.critics)
    batch: Transition = jax.tree.map(lambda x: jnp.float32(x[0]), batch_of(rng, 1, 2, actions=1))
    uniform, noise = rng.uniform(-1, 1, (2, n, 1)).astype(np.float32), rng.normal(size=(2, 2, n, 1)).astype(np.float32)
    actions, density = jax.jit(cql.proposals)(state.actor, batch, uniform, noise)
    nodes, weights = np.polynomial.legendre.leggauss(60)
    for row in range(2):

        def q_of(a: Any, row: int = row) -> jax.Array:
            o = jnp.broadcast_to(batch.observation[row], (len(a), 3))
            return critics_apply(critics, o, jnp.asarray(a, jnp.float32))[0]

        truth = np.log(weights @ np.exp(np.asarray(q_of(nodes[:, None]))))
        for part in (slice(0, n), slice(n, 2 * n), slice(2 * n, 3 * n), slice(0, 3 * n)):
            estimate = losses.conservative_loss(q_of(actions[row, part]), density[row, part], jnp.float32(0.0))
            assert float(estimate) == pytest.approx(truth, abs=0.03)


def trained_on_chain(alpha: float, chain: Chain) -> Any:
    """Critics of a fixed policy, from logged actions in [0.4, 0.9], where the policy seldom acts."""
    config = CQL.Config(hidden=(), alpha=alpha, discount=chain.discount, tau=0.1, actor_lr=0.0, critic_lr=0.01)
    population = init_population(CQL, spec(6, 1), config, members([0], {}))
    sac = population.learner.sac._replace(actor=jax.tree.map(lambda x: x[None], chain.actor()))
    population = population._replace(learner=population.learner._replace(sac=sac))
    population, _ = make_train_chunk(CQL, 4000, 1000, 64)(population, chain.data(0.4, 0.9))
    return member(population, 0).learner


@pytest.mark.slow
def test_values_equal_dynamic_programming_or_are_below_with_conservatism() -> None:
    chain = Chain()
    chain.mean = chain.mean - 0.8
    q_truth, v_truth = chain.values(0.0)
    policy = gaussian_apply(chain.actor(), jnp.eye(6))
    noise = jnp.asarray(np.random.default_rng(0).normal(size=(400, 6, 1)), jnp.float32)
    action = jnp.tanh(policy.mean + jnp.exp(policy.log_std) * noise)

    def values(learner: Any) -> tuple[np.ndarray, np.ndarray]:
        """Q at action 0.65, amid the logged ones, and the mean of Q over the policy's actions; least of critics."""
        o = jnp.broadcast_to(jnp.eye(6), (400, 6, 6))
        logged = critics_apply(learner.sac.critics, jnp.eye(6), jnp.full((6, 1), 0.65))
        return np.asarray(logged).min(axis=0), np.asarray(critics_apply(learner.sac.critics, o, action)).mean(
            axis=(0, 1)
        )

    plain_logged, plain = values(trained_on_chain(0.0, chain))
    np.testing.assert_allclose(plain_logged, q_truth + 0.65 * chain.slope, atol=0.08)
    np.testing.assert_allclose(plain, v_truth, atol=0.12)
    logged, conservative = values(trained_on_chain(0.5, chain))
    # Values are low at the actions of the policy, in every state, and higher at logged actions.
    assert np.all(conservative < v_truth - 0.1)
    assert np.all((logged - conservative) > (plain_logged - plain) + 0.1)
