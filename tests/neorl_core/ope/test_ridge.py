"""Ridge regression of the dynamics against NumPy: coefficients, leverage and held-out folds."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from neorl_core.ope import ridge


def test_ridge_equals_numpy_and_leverage_grows() -> None:
    rng = np.random.default_rng(0)
    x, change = rng.normal(size=(500, 3)).astype(np.float32), rng.normal(size=(500, 2)).astype(np.float32)
    known, episode = jnp.ones(500, bool), jnp.arange(500)
    found = ridge.fit(jax.random.key(0), jnp.asarray(x), jnp.asarray(change), known, episode, 500, 2)
    phi = np.asarray(ridge.features(found, jnp.asarray(x)), np.float64)
    moments = phi.T @ phi / 500 + np.diag([ridge.RIDGE] * 4 + [ridge.HINGE_RIDGE] * ridge.HINGES)
    expected = np.einsum("nd,de,ne->n", phi, np.linalg.inv(moments), phi)
    np.testing.assert_allclose(ridge.leverage(found, jnp.asarray(x)), expected, rtol=0.02)
    far = ridge.leverage(found, jnp.asarray(4 * x))
    assert float(jnp.median(far)) > 3 * float(np.median(expected))
    # An unknown change does not train the coefficients, but its step counts for the leverage.
    odd, few = change.copy(), known.at[:7].set(False)
    odd[:7] = 1e3
    without = [
        ridge.fit(jax.random.key(0), jnp.asarray(x), jnp.asarray(c), few, episode, 500, 2) for c in (change, odd)
    ]
    np.testing.assert_array_equal(without[0].coefficients, without[1].coefficients)
    assert not np.allclose(without[0].coefficients, found.coefficients)
    np.testing.assert_array_equal(without[0].root, found.root)


def test_held_out_leverage_excludes_the_fold() -> None:
    rng = np.random.default_rng(0)
    # Each episode has its own constant, which the other episodes do not show.
    episode = np.repeat(np.arange(10), 50)
    x = np.concatenate([rng.normal(size=(500, 2)), rng.normal(size=(10, 1))[episode]], axis=1).astype(np.float32)
    found = ridge.fit(
        jax.random.key(0), jnp.asarray(x), jnp.asarray(x[:, :1]), jnp.ones(500, bool), jnp.asarray(episode), 10, 2
    )
    held_out = ridge.held_out_leverage(found, jnp.asarray(x), jnp.asarray(episode), 10)
    phi = np.asarray(ridge.features(found, jnp.asarray(x)), np.float64)
    penalty = np.diag([ridge.RIDGE] * 4 + [ridge.HINGE_RIDGE] * ridge.HINGES)
    for fold in range(ridge.FOLDS):
        rest, own = phi[episode % ridge.FOLDS != fold], phi[episode % ridge.FOLDS == fold]
        inverse = np.linalg.inv(rest.T @ rest / len(rest) + penalty)
        expected = np.einsum("nd,de,ne->n", own, inverse, own)
        np.testing.assert_allclose(np.asarray(held_out)[episode % ridge.FOLDS == fold], expected, rtol=0.02)
    assert np.quantile(held_out, 0.99) > 1.2 * np.quantile(ridge.leverage(found, jnp.asarray(x)), 0.99)
    alone = ridge.held_out_leverage(found, jnp.asarray(x), jnp.zeros(500, jnp.int32), 1)
    np.testing.assert_allclose(alone, ridge.leverage(found, jnp.asarray(x)), rtol=0.02)
