"""Model-based evaluation of policies: a linear plant whose returns are known in closed form, and paired intervals."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from neorl_core.networks import Normaliser, Policy
from neorl_core.ope import model as model_based
from neorl_core.ope.model import LearnedModel
from neorl_core.types import Transition
from neorl_core.world_model import dynamics

UPDATES = 1500
NORMALISER = Normaliser(jnp.float32([10.0]), jnp.float32([2.0]), jnp.float32([0.0]), jnp.float32([3.0]))
HORIZON, DISCOUNT = 12, 0.9


def policy(gain: float) -> Policy:
    """u = 3 tanh(gain z), z the normalised state."""
    return Policy({"Dense_0": {"kernel": jnp.float32([[gain]]), "bias": jnp.zeros(1)}}, NORMALISER)


@pytest.fixture(scope="module")
def learned() -> LearnedModel:
    """Fitted to x' = 10 + 0.8 (x - 10) + u and a reward of 100 - 5 (x' - 10)^2 in the plant's units."""
    rng = np.random.default_rng(0)
    z, a = rng.normal(size=(5000, 1)), rng.uniform(-1, 1, size=(5000, 1))
    after = 0.8 * z + 1.5 * a
    data = Transition(*map(jnp.float32, (z, a, 100 - 20 * after[:, 0] ** 2, z[:, 0] * 0, after, z[:, 0] * 0)))
    fresh, data = model_based.init(jax.random.key(0), data, UPDATES)
    np.testing.assert_allclose([np.mean(data.reward), np.std(data.reward)], [0.0, 1.0], atol=1e-4)
    model, _ = dynamics.train(fresh.model, jax.random.key(1), data, jnp.int32(0), UPDATES, batch_size=64)
    return fresh._replace(model=model)


def true_returns(gain: float, starts: np.ndarray) -> np.ndarray:
    z, total = starts[:, 0], np.zeros(len(starts))
    for t in range(HORIZON):
        z = 0.8 * z + 1.5 * np.tanh(gain * z)
        total += DISCOUNT**t * (100 - 20 * z**2)
    return total


STARTS = np.random.default_rng(1).normal(size=(40, 1)).astype(np.float32)


def value(learned: LearnedModel, gain: float, seed: int = 0, starts: Any = STARTS) -> model_based.ModelValue:
    run = partial(model_based.evaluate, horizon=HORIZON, discount=DISCOUNT, bootstraps=400)
    return jax.device_get(run(learned, NORMALISER, policy(gain), jnp.asarray(starts), jax.random.key(seed)))


@pytest.mark.slow
def test_values_are_the_plants_own_and_order_the_policies(learned: LearnedModel) -> None:
    gains = [-0.6, -0.5, -0.2, 0.0]
    found = [value(learned, gain) for gain in gains]
    truth = [true_returns(gain, STARTS).mean() for gain in gains]
    np.testing.assert_allclose([v.value for v in found], truth, rtol=0.02)
    assert np.argsort([v.value for v in found]).tolist() == np.argsort(truth).tolist()


@pytest.mark.slow
def test_intervals_are_as_wide_as_starts_and_members_make_them(learned: LearnedModel) -> None:
    found = value(learned, 0.0)
    # Members that agree: what is left is the sampling of the starts, sd / sqrt(40).
    assert found.draws.std() == pytest.approx(true_returns(0.0, STARTS).std() / np.sqrt(40), rel=0.15)
    assert found.draws.mean() == pytest.approx(found.value, rel=0.01)
    # The same key draws the same starts for every policy, so that the same policy differs from itself by nothing.
    np.testing.assert_array_equal(found.draws, value(learned, 0.0).draws)
    assert not np.array_equal(found.draws, value(learned, 0.0, seed=1).draws)
    # From one start alone members make all the difference: here one believes in rewards that are higher by one scale.
    first, *others = learned.model.members
    last = first["outcome"]["Dense_2"]
    lifted = {**first["outcome"], "Dense_2": {**last, "bias": last["bias"].at[0].add(1.0)}}
    members = ({**first, "outcome": lifted}, *others)
    one = value(learned._replace(model=learned.model._replace(members=members)), 0.0, starts=STARTS[:1])
    weight = float(learned.reward_scale) * (1 - DISCOUNT**HORIZON) / (1 - DISCOUNT)
    # A mean of as many draws of a member as there are members, of which one is lifted.
    count = len(members)
    assert one.draws.std() == pytest.approx(weight * np.sqrt((1 - 1 / count) / count / count), rel=0.15)
