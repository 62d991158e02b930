"""Fitted Q evaluation with rewards in any unit, and constant rewards."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from neorl_core.ope import fqe
from tests.neorl_core.ope.test_fqe import DISCOUNT, KEY, guessed, linear_decisions, linear_logs


def test_value_scales_with_rewards() -> None:
    """A power of two changes no bit of a sum or product, so any number that does not scale has its own unit."""
    unit, logs = 2.0**-30, linear_logs(0, 20, 10)
    logs = logs._replace(cost=-logs.reward)
    other = logs._replace(reward=logs.reward * unit, cost=logs.cost * unit)
    decisions = linear_decisions(logs)
    scores = jax.tree.map(lambda x: x.sum(axis=1, keepdims=True), guessed(logs, decisions))
    found = fqe.evaluate(logs, decisions, scores, KEY, 10, DISCOUNT, 50)
    scaled = fqe.evaluate(other, decisions, jax.tree.map(lambda x: x * unit, scores), KEY, 10, DISCOUNT, 50)
    np.testing.assert_array_equal(scaled.value, found.value * unit)
    np.testing.assert_array_equal(scaled.draws, found.draws * unit)
    assert bool(found.supported)
    assert bool(scaled.supported)


@pytest.mark.parametrize("reward", [3.0, 3e8, -3e-8])
def test_constant_reward_has_its_sum_as_value(reward: float) -> None:
    logs = linear_logs(0, 20, 10)
    logs = logs._replace(reward=jnp.full_like(logs.reward, reward))
    decisions = linear_decisions(logs)
    found = fqe.evaluate(logs, decisions, guessed(logs, decisions), KEY, 10, DISCOUNT, 50)
    np.testing.assert_allclose(found.value[0], reward * (1 - DISCOUNT**10) / (1 - DISCOUNT), rtol=1e-5)
    assert bool(found.supported)
