"""Distance of a step from the logs, against the hat matrix of a regression in NumPy."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax.test_util import check_grads

from neorl_core.world_model import support
from neorl_core.world_model.support import Support


def logged(rows: int = 400) -> np.ndarray:
    """Steps of three numbers; the second hardly varies."""
    return (np.random.default_rng(0).normal(size=(rows, 3)) * [1.0, 0.05, 1.0]).astype(np.float32)


def of(steps: np.ndarray, batches: int = 4) -> Support:
    found = support.init(jax.random.key(0), steps.shape[1])
    for batch in np.split(steps, batches):
        found = support.accumulate(found, jnp.asarray(batch))
    return found


def test_distance_equals_ridge_leverage() -> None:
    steps, known = logged(), of(logged())
    edge = support.edge(known, jnp.asarray(steps))

    def features(x: np.ndarray) -> np.ndarray:
        hinges = np.maximum(0.0, x @ np.asarray(known.directions) + np.asarray(known.offsets))
        return np.concatenate([np.ones_like(x[:, :1]), x, hinges], axis=1).astype(np.float64)

    phi = features(steps)
    size = phi.shape[1]
    inverse = np.linalg.inv(phi.T @ phi / len(phi) + support.RIDGE * np.eye(size))
    away = np.array([[0.3, 0.0, -0.2], [0.0, 1.0, 0.0], [6.0, 0.0, 0.0]], np.float32)
    expected = np.sqrt(np.einsum("nd,de,ne->n", features(away), inverse, features(away)))
    np.testing.assert_allclose(support.distance(edge, jnp.asarray(away)), expected, rtol=2e-2)
    own = np.sqrt(np.einsum("nd,de,ne->n", phi, inverse, phi))
    np.testing.assert_allclose(edge.radius, np.quantile(own, support.LOGGED), rtol=2e-2)


def test_excess_grows_with_distance_from_logs() -> None:
    steps = logged()
    edge = support.edge(of(steps), jnp.asarray(steps))
    free = np.mean(np.asarray(support.excess(edge, jnp.asarray(steps))) == 0.0)
    np.testing.assert_allclose(free, support.LOGGED, atol=0.01)
    # One unit is a typical value of the first number, and twenty standard deviations of the second.
    usual, strange, stranger = np.asarray(support.excess(edge, jnp.array([[1.0, 0, 0], [0, 1.0, 0], [0, 2.0, 0]])))
    assert usual == 0.0
    assert 1.0 < strange < stranger


def test_gradient_agrees_with_differences() -> None:
    with jax.enable_x64(True):
        steps = logged().astype(np.float64)
        edge = support.edge(of(steps), jnp.asarray(steps))
        # ReLU has kinks: a step far outside, and not at one of them.
        check_grads(lambda x: support.excess(edge, x), (jnp.array([0.4, 1.1, -0.3]),), order=1, modes="rev", rtol=1e-4)
