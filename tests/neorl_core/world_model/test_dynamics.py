"""The learned ensemble against a second derivation in NumPy, and on a linear system."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from neorl_core.training.optimisers import Recipe
from neorl_core.types import Transition
from neorl_core.world_model import dynamics, rollouts
from neorl_core.world_model.dynamics import Model
from tests.by_hand import batch_of, forward, layers_of

A = np.array([[0.9, 0.2], [-0.1, 0.8]])
B = np.array([[0.0], [0.5]])
NOISE = np.array([0.05, 0.1])
FAR = dynamics.Reach(jnp.float32(-100.0), jnp.float32(100.0))
ONE = jnp.zeros(1, int)
"""The first member alone makes steps."""


def fresh(hidden: tuple[int, ...] = (5,), members: int = 2) -> Model:
    return dynamics.init(jax.random.key(0), 3, 2, hidden, members, Recipe())


def linear_log(rows: int, jumps: float = 0.0) -> Transition:
    """x' = A x + B u + noise, reward -|x'|^2 + x_1; in some steps the first state jumps."""
    rng = np.random.default_rng(0)
    x, u = rng.normal(size=(rows, 2)), rng.uniform(-1, 1, size=(rows, 1))
    after = x @ A.T + u @ B.T + NOISE * rng.normal(size=(rows, 2))
    after[:, 0] = np.where(rng.random(rows) < jumps, 3.0, after[:, 0])
    reward = x[:, 0] - np.sum(after**2, axis=1)
    return Transition(*map(jnp.float32, (x, u, reward, 0 * reward, after, 0 * reward)))


def softplus(x: Any) -> Any:
    return np.log1p(np.exp(x))


def numpy_loss(member: Any, t: Transition) -> float:
    """The negative log likelihood of one transition, from the formulas."""
    s, a, r, after, ended = (np.asarray(x) for x in (*t[:3], *t[4:6]))
    x = np.concatenate([s, a])
    out = forward(layers_of(member["dynamics"]), x)[0]
    mean = s + x @ np.asarray(member["linear"]["kernel"]) + out[:3]
    most, least = np.asarray(member["most"]), np.asarray(member["least"])
    log_deviation = least + softplus(most - softplus(most - out[3:]) - least)
    z = forward(layers_of(member["projection"]), np.concatenate([x, after]))[0]
    features = np.concatenate([z, *(np.sign(z) * np.log(1 + np.abs(z) / c) for c in (1.0, 0.1, 0.01))])
    reward, logit = forward(layers_of(member["outcome"]), features)[0]

    def huber(error: Any, log_deviation: Any) -> Any:
        size = np.abs(error) / np.exp(log_deviation)
        return np.where(size < 3, size**2 / 2, 3 * size - 4.5) + log_deviation

    p = 1 / (1 + np.exp(-logit))
    likelihood = huber(after - mean, log_deviation).sum() + huber(r - reward, float(member["reward_log_deviation"]))
    return float(likelihood - np.log(p if ended else 1 - p) + 0.01 * np.sum(most - least))


@pytest.mark.slow
def test_loss_and_gradient_equal_numpy() -> None:
    with jax.enable_x64(True):
        member = fresh().members[0]
        member = jax.tree.map(lambda x: x + 0.1, member)
        batch = batch_of(np.random.default_rng(2), 6)
        ours = jax.vmap(dynamics.loss, in_axes=(None, 0))(member, batch)
        rows = [jax.tree.map(lambda x, i=i: x[i], batch) for i in range(6)]
        np.testing.assert_allclose(ours, [numpy_loss(member, row) for row in rows], rtol=1e-9)
        assert {int(row.terminated) for row in rows} == {0, 1}
        check_grads(jax.jit(lambda m: dynamics.loss(m, rows[0])), (member,), order=1, modes="rev", rtol=1e-4)


def test_unknown_successor_trains_no_dynamics() -> None:
    with jax.enable_x64(True):
        member = jax.tree.map(lambda x: x + 0.1, fresh().members[0])
        row = jax.tree.map(lambda x: x[0], batch_of(np.random.default_rng(2), 6))
        ended = row._replace(terminated=jnp.ones(()))
        mean, log_deviation = dynamics.transition(member, row.observation, row.action)
        # Source: the likelihood of a step to the predicted state, without the dynamics term.
        expected = numpy_loss(member, ended._replace(next_observation=mean)) - float(np.sum(log_deviation))
        stands_in = ended._replace(next_observation=row.observation)
        assert float(dynamics.loss(member, stands_in)) == pytest.approx(expected, rel=1e-9)
        moved = jax.grad(dynamics.loss)(member, stands_in)["dynamics"]
        np.testing.assert_array_equal(np.concatenate([np.ravel(x) for x in leaves(moved)]), 0.0)
        # A true standstill is not terminated.
        resting = row._replace(next_observation=row.observation, terminated=jnp.zeros(()))
        assert float(dynamics.loss(member, resting)) == pytest.approx(numpy_loss(member, resting), rel=1e-9)


@pytest.mark.parametrize(("error", "expected"), [(0.5, 0.5), (-1.5, 4.5), (2.5, 3 * 5 - 4.5), (-50.0, 300 - 4.5)])
def test_an_error_beyond_three_deviations_counts_linearly(error: float, expected: float) -> None:
    log_deviation = np.log(0.5)
    found = dynamics.robust_gaussian_loss(jnp.float32(error), jnp.float32(log_deviation))
    assert float(found) == pytest.approx(expected + log_deviation, rel=1e-5)


@pytest.fixture(scope="module")
def learned() -> Model:
    steps = 2000
    model = dynamics.init(jax.random.key(1), 2, 1, (8,), 2, Recipe(schedule="cosine", steps=steps))
    # One step in fifty moves the first state to 3, like a set-point change by an operator.
    return dynamics.train(model, jax.random.key(2), linear_log(20_000, jumps=0.02), jnp.int32(0), steps)[0]


@pytest.mark.slow
def test_linear_system_is_recovered_despite_jumps(learned: Model) -> None:
    log = linear_log(500)
    for member in learned.members:
        mean, log_deviation = jax.vmap(dynamics.transition, in_axes=(None, 0, 0))(member, log.observation, log.action)
        truth = log.observation @ A.T + log.action @ B.T
        assert np.sqrt(np.mean((mean - truth) ** 2)) < 0.02
        slope = jax.vmap(jax.jacobian(lambda x, m=member: dynamics.transition(m, x[:2], x[2:])[0]))
        found = jnp.mean(slope(jnp.concatenate([log.observation, log.action], axis=1)), axis=0)
        np.testing.assert_allclose(found, np.hstack([A, B]), atol=0.02)
        # Least squares would be biased by the jumps: their pull is 0.02 (3 - mean).
        deviation = np.exp(np.mean(log_deviation, axis=0))
        # The likelihood of a deviation d is flat where 0.98 (0.05 / d)^2 + 0.02 * 3 * 3 / d = 1. Least squares: 0.42.
        assert deviation[0] == pytest.approx(0.09 + np.sqrt(0.09**2 + 0.98 * NOISE[0] ** 2), rel=0.1)
        assert deviation[1] == pytest.approx(NOISE[1], rel=0.1)
        assert member["projection"]["Dense_0"]["kernel"].shape == (5, dynamics.DIRECTIONS)


@pytest.mark.slow
def test_the_reward_is_learned_from_the_outcome(learned: Model) -> None:
    log = linear_log(500)
    outcome = jax.vmap(dynamics.reward_and_termination, in_axes=(None, 0, 0, 0))
    for member in learned.members:
        reward, logit = outcome(member, log.observation, log.action, log.next_observation)
        assert np.sqrt(np.mean((reward - log.reward) ** 2)) < 0.1 * np.std(log.reward)
        assert np.max(logit) < -5.0, "nothing terminated"


@pytest.mark.slow
def test_a_tenth_is_held_out_of_any_batch(learned: Model) -> None:
    log = linear_log(20_000)
    apart = np.asarray(dynamics.held_out(log))
    assert abs(apart.mean() - dynamics.HELD_OUT) < 0.01
    chosen = np.random.default_rng(3).permutation(20_000)[:500]
    again = dynamics.held_out(jax.tree.map(lambda x: x[chosen], log))
    assert np.mean(np.asarray(again) == apart[chosen]) > 0.99, "last bits of a product may move a row at the border"
    # Held-out rows do not train: other outcomes there change no weight.
    model, batch = fresh_linear(), jax.tree.map(lambda x: x[:64], log)
    mask = dynamics.held_out(batch)
    assert 0 < int(mask.sum()) < 64
    step = jax.jit(dynamics.update)
    key = jax.random.key(5)
    after, _ = step(model, batch, jnp.float32(0.1), key)
    for where, same in ((mask, True), (~mask, False)):
        other, _ = step(model, batch._replace(reward=jnp.where(where, 9.0, batch.reward)), jnp.float32(0.1), key)
        equal = [np.array_equal(a, b) for a, b in zip(leaves(other.members), leaves(after.members), strict=True)]
        assert all(equal) is same
        assert not np.array_equal(other.error, after.error) or not same


@pytest.mark.slow
def test_members_learn_from_separate_rows() -> None:
    # Two members with equal weights would stay equal on the same rows.
    model = fresh_linear()
    model = model._replace(members=(model.members[0],) * 2)
    batch = jax.tree.map(lambda x: x[:64], linear_log(64))
    one, other = dynamics.update(model, batch, jnp.float32(0.1), jax.random.key(0))[0].members
    assert not all(np.array_equal(a, b) for a, b in zip(leaves(one), leaves(other), strict=True))


def fresh_linear() -> Model:
    return dynamics.init(jax.random.key(1), 2, 1, (8,), 2, Recipe())


def leaves(tree: Any) -> list[np.ndarray]:
    return [np.asarray(x) for x in jax.tree.leaves(tree)]


@pytest.mark.slow
def test_elites_have_the_lowest_held_out_loss() -> None:
    model = fresh(members=4)._replace(error=jnp.array([3.0, 1.0, 2.0, 0.5]))
    chosen = dynamics.elites(model, 2)
    for found, expected in zip(chosen, (model.members[3], model.members[1]), strict=True):
        assert all(np.array_equal(a, b) for a, b in zip(leaves(found), leaves(expected), strict=True))


def test_disagreement_and_uncertainty_by_hand() -> None:
    means = jnp.array([[0.0, 1.0], [2.0, 1.0]])
    # Variances 1 and 0: the root of their mean.
    assert float(rollouts.disagreement(means)) == pytest.approx(np.sqrt(0.5), rel=1e-6)
    assert float(rollouts.disagreement(means[:1])) < 1e-5, "one member agrees with itself"
    deviations = jnp.log(jnp.array([[3.0, 4.0], [6.0, 2.0]]))
    assert float(rollouts.uncertainty(deviations)) == pytest.approx(np.sqrt(40.0), rel=1e-6)


@pytest.mark.slow
def test_rollouts_repeat_the_members_own_steps() -> None:
    members = fresh().members
    starts = jnp.asarray(np.random.default_rng(4).normal(size=(2, 4, 3)), jnp.float32)

    def policy(observation: jax.Array) -> jax.Array:
        return jnp.tanh(observation[:2])

    steps = jax.jit(lambda m, s: rollouts.expected_rollouts(m, FAR, policy, s, 3))(members, starts)
    for number, member in enumerate(members):
        observation, alive = starts[number, 1], 1.0
        for t in range(3):
            expected = dynamics.predict(member, observation, policy(observation))
            np.testing.assert_allclose(steps.observation[number, 1, t], observation, rtol=1e-5, atol=1e-6)
            np.testing.assert_allclose(steps.next_observation[number, 1, t], expected.next_observation, rtol=1e-4)
            np.testing.assert_allclose(steps.reward[number, 1, t], expected.reward, rtol=1e-4, atol=1e-5)
            np.testing.assert_allclose(steps.alive[number, 1, t], alive, rtol=1e-5)
            # Next state of each member, and its reward for the step taken.
            after = expected.next_observation
            means = [dynamics.transition(m, observation, policy(observation))[0] for m in members]
            paid = [dynamics.reward_and_termination(m, observation, policy(observation), after)[0] for m in members]
            apart = np.sqrt(np.mean(np.var(means, axis=0))) + np.std(paid)
            np.testing.assert_allclose(steps.disagreement[number, 1, t], apart, rtol=1e-3)
            observation, alive = expected.next_observation, alive * (1 - expected.ending)


@pytest.mark.slow
def test_branches_have_noise_and_restart_after_termination(learned: Model) -> None:
    starts = jnp.zeros((2000, 2)) + jnp.array([1.0, -1.0])
    branch = jax.jit(
        lambda m, s: rollouts.branched_rollouts(m, ONE, FAR, lambda s, n: jnp.tanh(n), 1, s, jax.random.key(5), 2)
    )
    # With one member, because differences between random members would add to the noise.
    steps, uncertain = branch(learned.members, starts)
    expected = jax.vmap(dynamics.transition, in_axes=(None, 0, 0))(learned.members[0], starts, steps.action[:, 0])
    residual = np.asarray(steps.next_observation[:, 0] - expected[0])
    # The uncertainty uses all members, whichever makes the step.
    every = [jax.vmap(dynamics.transition, (None, 0, 0))(m, starts, steps.action[:, 0])[1] for m in learned.members]
    paid = np.array([m["reward_log_deviation"] for m in learned.members])[:, None]
    sizes = np.sqrt(np.sum(np.exp(2 * np.asarray(every)), axis=-1) + np.exp(2 * paid))
    np.testing.assert_allclose(uncertain[:, 0], sizes.max(axis=0), rtol=1e-5)
    assert np.any(sizes.argmax(axis=0) > 0), "the one that makes the steps would hide the others"
    np.testing.assert_allclose(residual.std(axis=0), np.exp(expected[1]).mean(axis=0), rtol=0.05)
    np.testing.assert_array_equal(steps.observation[:, 1], steps.next_observation[:, 0])
    assert np.std(steps.action[:, 0]) > 0.5, "the policy is given noise"
    ending = tuple(certain(member) for member in learned.members)
    steps, _ = branch(ending, starts)
    np.testing.assert_array_equal(steps.terminated, 1.0)
    np.testing.assert_array_equal(steps.observation[:, 1], starts)


def test_rollouts_accept_single_precision_starts() -> None:
    """With JAX in double precision, weights are double and logs stay single."""
    with jax.enable_x64(True):
        members, rows = fresh().members, jnp.zeros((2, 4, 3), jnp.float32)
        steps = rollouts.expected_rollouts(members, FAR, lambda s: jnp.tanh(s[:2]), rows, 2)
        noisy, _ = rollouts.branched_rollouts(
            members, ONE, FAR, lambda s, n: jnp.tanh(n), 2, rows[0], jax.random.key(0), 2
        )
    assert steps.next_observation.dtype == noisy.next_observation.dtype == np.float64


def certain(member: Any) -> Any:
    """A member that predicts termination at every step."""
    last = member["outcome"]["Dense_1"]
    return {**member, "outcome": {**member["outcome"], "Dense_1": {**last, "bias": last["bias"].at[1].set(1e3)}}}


@pytest.mark.slow
def test_rollouts_stay_within_the_data(learned: Model) -> None:
    log = linear_log(20_000, jumps=0.02)
    seen = np.concatenate([log.observation, log.next_observation])
    low, high = seen.min(axis=0), seen.max(axis=0)
    # Batches sampled with replacement contain almost every row.
    np.testing.assert_allclose([learned.low, learned.high], [low, high], atol=0.3)
    near = dynamics.reach(learned)
    room = dynamics.WIDENING * (np.asarray(learned.high) - learned.low)
    np.testing.assert_allclose([near.low, near.high], [learned.low - room, learned.high + room], rtol=1e-6)
    assert not np.isfinite(dynamics.reach(fresh())[:2]).any(), "before training nothing is known of the data"
    steps = rollouts.expected_rollouts(learned.members[:1], near, lambda s: 50.0 * jnp.ones(1), jnp.zeros((1, 1, 2)), 3)
    np.testing.assert_allclose(steps.next_observation[0, 0, -1, 1], near.high[1])
