"""Gossip: weights worked by hand, contraction by the second eigenvalue, and the mean that mixing keeps."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from neorl_core.federated.federate import fresh_sites
from neorl_core.federated.gossip import contraction, make_gossip, metropolis_weights, mix
from neorl_core.federated.methods import FEDAVG, SCAFFOLD
from neorl_core.federated.rounds import Rule
from tests.neorl_core.federated.toys import QUADRATIC, SPEC, QuadraticConfig, fresh, quadratic_rows


def ring(sites: int) -> jax.Array:
    i = np.arange(sites)
    apart = abs(i[:, None] - i[None, :])
    return jnp.asarray((apart == 1) | (apart == sites - 1))


def test_metropolis_weights_of_a_path_by_hand() -> None:
    path = jnp.asarray([[0, 1, 0], [1, 0, 1], [0, 1, 0]], bool)
    weights = metropolis_weights(path)
    np.testing.assert_allclose(weights, np.array([[2, 1, 0], [1, 1, 1], [0, 1, 2]]) / 3, atol=1e-7)
    assert contraction(weights) == pytest.approx(2 / 3, abs=1e-6)
    alone = metropolis_weights(path.at[0].set(False).at[:, 0].set(False))
    np.testing.assert_allclose(alone[0], [1, 0, 0])


@pytest.mark.parametrize("sites", [5, 8])
def test_differences_shrink_by_the_second_eigenvalue(sites: int) -> None:
    """A ring's eigenvalues are known: (1 + 2 cos(2 pi k / S)) / 3."""
    weights = metropolis_weights(ring(sites))
    law = (1 + 2 * np.cos(2 * np.pi / sites)) / 3
    assert contraction(weights) == pytest.approx(law, abs=1e-6)
    x = {"w": jax.random.normal(jax.random.key(0), (sites, 4))}
    mean, sizes = x["w"].mean(axis=0), []
    for _ in range(16):
        sizes.append(float(jnp.linalg.norm(x["w"] - mean)))
        x = mix(x, weights)
        np.testing.assert_allclose(x["w"].mean(axis=0), mean, atol=1e-6)
    assert (sizes[15] / sizes[10]) ** (1 / 5) == pytest.approx(law, rel=0.01)


def test_gossip_learns_more_than_single_sites() -> None:
    a, b = np.ones((6, 2)), np.arange(12.0).reshape(6, 2)
    rule = Rule(QUADRATIC, updates=1, batch_size=2)
    sites = fresh_sites(fresh(QUADRATIC.init(jax.random.key(0), SPEC, QuadraticConfig(lr=0.01))), FEDAVG, 6)
    full, lossy = ring(6), ring(6).at[0, 1].set(False).at[1, 0].set(False)
    graphs = jnp.stack([metropolis_weights(full), metropolis_weights(lossy)] * 300)
    sites, metrics = make_gossip(rule)(sites, quadratic_rows(a, b), graphs)
    np.testing.assert_allclose(sites.train.learner.weight, np.tile(b.mean(axis=0), (6, 1)), atol=0.3)
    assert metrics["loss"].shape == (600, 6)


def test_gossip_rejects_control_variates() -> None:
    with pytest.raises(ValueError, match=r"gossip has no server .* got method scaffold"):
        make_gossip(Rule(QUADRATIC, SCAFFOLD))
