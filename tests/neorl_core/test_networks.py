"""Networks equal NumPy, and normalisation is invertible."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import norm

from neorl_core.networks import (
    Normaliser,
    Params,
    Policy,
    actor_apply,
    actor_init,
    critics_apply,
    critics_init,
    gaussian_apply,
    gaussian_init,
    log_prob,
    mean_actor,
    mlp_apply,
    mlp_init,
    normalise,
    policy_act,
    squash,
    to_physical,
    to_unit,
)

RNG = np.random.default_rng(3)
NORMALISER = Normaliser(
    mean=jnp.array([0.9, 324.0, 0.85]),
    scale=jnp.array([0.02, 1.5, 1.0]),
    action_centre=jnp.array([300.0, 0.0]),
    action_half_range=jnp.array([10.0, 2.5]),
)


def numpy_mlp(params: Params, x: np.ndarray) -> np.ndarray:
    """Written again without flax: x W + b, ReLU between layers."""
    for i in range(len(params)):
        layer = params[f"Dense_{i}"]
        x = x @ np.asarray(layer["kernel"]) + np.asarray(layer["bias"])
        x = np.maximum(x, 0.0) if i < len(params) - 1 else x
    return x


def test_networks_equal_numpy() -> None:
    x, a = RNG.normal(size=(7, 3)).astype(np.float32), RNG.uniform(-1, 1, size=(7, 2)).astype(np.float32)
    params = mlp_init(jax.random.key(0), 3, (5, 4, 2))
    np.testing.assert_allclose(mlp_apply(params, x), numpy_mlp(params, x), atol=1e-6)
    actor = actor_init(jax.random.key(1), 3, 2, (6,))
    np.testing.assert_allclose(actor_apply(actor, x), np.tanh(numpy_mlp(actor, x)), atol=1e-6)
    critics = critics_init(jax.random.key(2), 3, 2, (6,), 3)
    expected = [numpy_mlp(c, np.concatenate([x, a], axis=1))[:, 0] for c in critics]
    np.testing.assert_allclose(critics_apply(critics, x, a), expected, atol=1e-6)
    assert np.std(expected, axis=0).min() > 1e-3, "critics must start apart"


def test_an_actor_without_hidden_layers_is_linear_under_tanh() -> None:
    actor = actor_init(jax.random.key(1), 3, 2, ())
    x = RNG.normal(size=3).astype(np.float32)
    np.testing.assert_allclose(actor_apply(actor, x), np.tanh(x @ actor["Dense_0"]["kernel"]), atol=1e-6)


def test_weights_follow_the_default_precision() -> None:
    with jax.enable_x64(True):
        params = mlp_init(jax.random.key(0), 3, (5, 2))
        assert mlp_apply(params, jnp.ones(3)).dtype == jnp.float64
        assert {x.dtype for x in jax.tree.leaves(params)} == {jnp.dtype("float64")}
    assert mlp_apply(mlp_init(jax.random.key(0), 3, (5, 2)), jnp.ones(3)).dtype == jnp.float32


def test_action_scaling_is_invertible_and_reaches_the_bounds() -> None:
    action = RNG.uniform([290.0, -2.5], [310.0, 2.5], size=(4, 3, 2)).astype(np.float32)
    np.testing.assert_allclose(to_physical(NORMALISER, to_unit(NORMALISER, action)), action, rtol=1e-6)
    np.testing.assert_array_equal(to_physical(NORMALISER, jnp.array([-1.0, 1.0])), [290.0, 2.5])
    np.testing.assert_allclose(normalise(NORMALISER, jnp.array([0.92, 321.0, 0.85])), [1.0, -2.0, 0.0], atol=1e-5)


def test_policy_acts_in_physical_units_over_any_leading_axes() -> None:
    policy = Policy(actor_init(jax.random.key(4), 3, 2, (8, 8)), NORMALISER)
    observation = (RNG.normal(size=(5, 2, 3)) * 50 + [0.9, 324.0, 0.85]).astype(np.float32)
    actions = policy_act(policy, observation)
    assert actions.shape == (5, 2, 2)
    assert np.all(np.abs(actions - NORMALISER.action_centre) <= NORMALISER.action_half_range)
    one = numpy_mlp(policy.params, (observation[3, 1] - np.asarray(NORMALISER.mean)) / np.asarray(NORMALISER.scale))
    np.testing.assert_allclose(actions[3, 1], [300.0, 0.0] + np.array([10.0, 2.5]) * np.tanh(one), rtol=1e-5)
    np.testing.assert_allclose(policy_act(policy, observation[3, 1]), actions[3, 1], rtol=1e-6)


def test_layer_norm_equals_numpy() -> None:
    x = RNG.normal(size=(7, 3)).astype(np.float32)
    params = mlp_init(jax.random.key(0), 3, (5, 4, 2), layer_norm=True)
    params = jax.tree.map(lambda p: p + 0.1, params)
    y = x
    for i in range(3):
        y = y @ np.asarray(params[f"Dense_{i}"]["kernel"]) + np.asarray(params[f"Dense_{i}"]["bias"])
        if i < 2:
            y = np.maximum(y, 0.0)
            y = (y - y.mean(axis=1, keepdims=True)) / np.sqrt(y.var(axis=1, keepdims=True) + 1e-6)
            y = y * np.asarray(params[f"LayerNorm_{i}"]["scale"]) + np.asarray(params[f"LayerNorm_{i}"]["bias"])
    np.testing.assert_allclose(mlp_apply(params, x), y, atol=1e-5)


@pytest.mark.slow
def test_squashed_gaussian_density() -> None:
    # Source: SciPy's normal density and the Jacobian of tanh; a density integrates to one.
    with jax.enable_x64(True):
        params = jax.tree.map(lambda p: p + 0.05, gaussian_init(jax.random.key(3), 3, 1, (6,)))
        x = jnp.asarray(RNG.normal(size=(5, 3)))
        distribution = gaussian_apply(params, x)
        noise = jnp.asarray(RNG.normal(size=(5, 1)))
        action, density = squash(distribution, noise)
        raw = np.arctanh(np.asarray(action))
        mean, std = np.asarray(distribution.mean), np.exp(np.asarray(distribution.log_std))
        expected = (norm.logpdf(raw, mean, std) - np.log(1 - np.asarray(action) ** 2)).sum(axis=1)
        np.testing.assert_allclose(density, expected, rtol=1e-9)
        np.testing.assert_allclose(log_prob(distribution, action), density, rtol=1e-9)
        grid = jnp.linspace(-1 + 1e-9, 1 - 1e-9, 200_001)[:, None]
        one = jax.tree.map(lambda p: jnp.broadcast_to(p[0], (200_001, 1)), distribution)
        area = np.trapezoid(np.exp(np.asarray(log_prob(one, grid))), np.asarray(grid[:, 0]))
        np.testing.assert_allclose(area, 1.0, rtol=1e-3)
        np.testing.assert_allclose(actor_apply(mean_actor(params), x), np.tanh(mean), rtol=1e-9)
    # A logged action at the bound has a finite density.
    single = jax.tree.map(jnp.float32, distribution)
    assert np.isfinite(log_prob(single, jnp.ones((5, 1), jnp.float32))).all()
