"""Fitted Q evaluation rejects policies for which feature errors count too much."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from neorl_core.ope import fqe
from tests.neorl_core.ope.test_fqe import KEY, guessed, linear_decisions, linear_logs, logs_of


def test_a_policy_that_leaves_the_logs_is_not_supported() -> None:
    logs = linear_logs(1, 30, 20)
    runaway, near = (
        fqe.evaluate(logs, decisions, guessed(logs, decisions), KEY, 20, 0.99, 11)
        for decisions in (linear_decisions(logs, np.array([[0.0, 1.0]])), linear_decisions(logs))
    )
    # A + B K has an eigenvalue of 1.3, so the quadratic cost diverges.
    assert float(runaway.amplification) > 1e3
    assert not bool(runaway.supported)
    assert bool(near.supported)
    assert 10 < float(near.effective_rows) < 30 * 19


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("discount", [1.0, 0.8])
def test_growing_controller_supports_its_own_value(discount: float) -> None:
    # Source: the mean logged return. For x' = 1.15 x the rounds grow by 1.15^2 each, as the logs show.
    rng = np.random.default_rng(4)
    x, steps = 1.15 ** np.arange(13) * rng.normal(1.0, 0.1, (50, 1)), 12
    o, n = (part.reshape(-1, 1) for part in (x[:, :-1], x[:, 1:]))
    u = 0.1 * rng.normal(size=(50, steps + 1, 1))
    reward = -(o[:, 0] ** 2) - u[:, :-1].reshape(-1) ** 2
    logs = logs_of(o, u[:, :-1].reshape(-1, 1), reward, n, [steps] * 50)
    decisions = fqe.Decisions(jnp.asarray(u[:, 1:].reshape(-1, 1)), jnp.asarray(u[:, 0]))
    got = fqe.evaluate(logs, decisions, guessed(logs, decisions), KEY, steps, discount, 10, 0.0)
    returns = reward.reshape(50, steps) @ discount ** np.arange(steps)
    np.testing.assert_allclose(got.value[0], returns.mean(), rtol=1e-3)
    np.testing.assert_allclose(got.amplification, 1.0, rtol=0.02)
    assert bool(got.supported)


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize(("share", "supported"), [(0.5, True), (0.1, False)])
def test_amplification_equals_density_ratios(share: float, supported: bool) -> None:
    # By hand, discount 1. All 20 episodes of two steps start in A, where a share turns left to L and the others right
    # to R. A policy that always turns left visits share / 2 of the rows at each step, with a density ratio of 2 /
    # share: sqrt(2 / share) in the root mean square. The logs visit half of the rows at each step, with a ratio of 2.
    left = np.arange(20) < 20 * share
    states = np.stack([np.zeros(20, int), np.where(left, 1, 2)], 1)
    turns = np.stack([left, np.zeros(20, bool)], 1).reshape(-1)
    one_hot = np.eye(4)
    o, n = one_hot[states.reshape(-1)], one_hot[np.stack([states[:, 1], np.full(20, 3)], 1).reshape(-1)]
    action = turns[:, None] * 1.0
    logs = logs_of(o, action, o[:, 1], n, [2] * 20)
    decisions = fqe.Decisions(jnp.zeros((40, 1)), jnp.ones((20, 1)))
    got = fqe.evaluate(logs, decisions, guessed(logs, decisions), KEY, 2, 1.0, 10, 0.0)
    np.testing.assert_allclose(got.value[0], 1.0, rtol=1e-8)
    np.testing.assert_allclose(got.amplification, np.sqrt(2 / share) / np.sqrt(2), rtol=1e-8)
    assert bool(got.supported) is supported


@pytest.mark.usefixtures("double")
def test_surviving_policies_amplify_errors() -> None:
    # By hand, discount 1. All 20 episodes start in A, where half turn left and terminate and half go right to R, in 30
    # rows. The logs visit two thirds of the rows first, with a density ratio of 1.5, then half of them visit a third,
    # with the same ratio. A policy that always turns right visits a third of the rows at each step, with a ratio of 3.
    left = np.repeat([1.0, 0.0], 10)
    state = np.concatenate([np.zeros(10, int), np.tile([0, 1], 10)])
    following = np.concatenate([np.full(10, 2), np.tile([1, 2], 10)])
    action = np.concatenate([left[:10], np.zeros(20)])[:, None]
    one_hot, ends = np.eye(3), np.concatenate([np.ones(10), np.zeros(20)])
    lengths = [1] * 10 + [2] * 10
    logs = logs_of(one_hot[state], action, 1.0 * state, one_hot[following], lengths, terminated=ends)
    nothing = jnp.zeros((30, 1))
    for first, value, expected in (
        (jnp.asarray(left[:, None]), 0.5, 1.0),
        (jnp.zeros((20, 1)), 1.0, 2 * np.sqrt(3) / (np.sqrt(1.5) + np.sqrt(0.75))),
    ):
        decisions = fqe.Decisions(nothing, first)
        got = fqe.evaluate(logs, decisions, guessed(logs, decisions), KEY, 2, 1.0, 10, 0.0)
        np.testing.assert_allclose(got.value[0], value, rtol=1e-8)
        np.testing.assert_allclose(got.amplification, expected, rtol=1e-8)


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize(("action", "supported"), [(1.0, True), (1.2, False)])
def test_impossible_values_are_unsupported(action: float, supported: bool) -> None:
    # By hand: r = a with a between 0 and 1, one step. No logged reward is 1.2. With a linear feature, the density ratio
    # of a single action has a root mean square of sqrt(1 + z^2), and that of the logs 1.
    a = np.linspace(0.0, 1.0, 101)[:, None]
    logs = logs_of(np.zeros_like(a), a, a[:, 0], np.zeros_like(a), [1] * 101)
    decisions = fqe.Decisions(jnp.zeros((101, 1)), jnp.full((101, 1), action))
    nothing = fqe.Guesses(*(jnp.zeros((101, 1)),) * 3)
    got = fqe.evaluate(logs, decisions, nothing, KEY, 1, 1.0, 10, 0.0)
    expected = np.sqrt(1 + ((action - a.mean()) / a.std()) ** 2)
    np.testing.assert_allclose(got.amplification, expected, rtol=1e-6)
    assert expected < fqe.MOST_AMPLIFIED
    assert bool(got.supported) is supported
