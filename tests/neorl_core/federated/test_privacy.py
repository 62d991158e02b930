"""Private changes: clipping, noise, rejected noise levels, and DP-SGD for single rows."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from neorl_core.algorithms import ALGORITHMS
from neorl_core.federated.methods import FEDAVG, Offer
from neorl_core.federated.privacy import Privacy, add_noise, check, clip_change, noise_ratio, norm, private_rows
from neorl_core.federated.rounds import Rule, fresh_server, fresh_site, server_round, site_round
from neorl_core.training.optimisers import Recipe
from neorl_core.training.parameters import difference, parameters_of, size
from neorl_core.training.population import configure
from neorl_core.training.preparation import prepare
from neorl_core.types import Transition
from tests.neorl_core.federated.toys import QUADRATIC, SPEC, QuadraticConfig, fresh, linear_sites, quadratic_rows


def test_clipping_keeps_direction_and_short_vectors() -> None:
    tree = {"a": jnp.asarray([3.0, 0.0]), "b": jnp.asarray([[4.0]])}
    assert norm(tree) == 5.0
    np.testing.assert_allclose(clip_change(tree, 1.0)["a"], [0.6, 0.0], atol=1e-7)
    assert clip_change(tree, 6.0)["b"] == 4.0
    assert clip_change(jax.tree.map(jnp.zeros_like, tree), 1.0)["a"].tolist() == [0.0, 0.0]
    # NaN and infinity would move a mean without bound.
    for odd in (jnp.nan, jnp.inf, -jnp.inf):
        assert clip_change(tree | {"b": jnp.asarray([[odd]])}, 1.0)["a"].tolist() == [0.0, 0.0]


def test_noise_has_the_accounted_deviation() -> None:
    """`z C / k`: 1.5 * 2 / 10, within five standard errors."""
    found = add_noise({"a": jnp.zeros(50_000)}, Privacy(2.0, 1.5), 10, jax.random.key(0))["a"]
    assert np.std(found) == pytest.approx(0.3, abs=5 * 0.3 / np.sqrt(2 * 50_000))


def test_one_site_moves_private_mean_by_at_most_the_clip() -> None:
    """For any reply: numbers are clipped at the site, and weights are ignored."""
    rule = Rule(QUADRATIC, updates=1, batch_size=3, privacy=Privacy(clip=1.0, noise=0.0))
    learner = QUADRATIC.init(jax.random.key(0), SPEC, QuadraticConfig(lr=1.0))
    server = fresh_server(learner, FEDAVG)
    # At a rate of 1 a step ends at the site's optimum; the last one is far away.
    rows = quadratic_rows(np.ones((3, 2)), [[0.1, 0.0], [0.0, 0.2], [1e6, 1e6]])
    half = partial(site_round, rule, Offer(server.parameters, {}), fresh_site(fresh(learner), FEDAVG))
    replies = jax.vmap(lambda own: half(own)[1])(rows)
    changes = jnp.asarray([[0.1, 0.0], [0.0, 0.2], [0.5**0.5, 0.5**0.5]])
    np.testing.assert_allclose(replies.change["weight"], changes, atol=1e-6)
    moved = server_round(rule, server, replies, key=jax.random.key(1)).parameters["weight"]
    np.testing.assert_allclose(moved, np.asarray(changes).mean(axis=0), atol=1e-7)
    with pytest.raises(ValueError, match="noise and masks need a PRNG key"):
        server_round(rule, server, replies)


def test_excessive_noise_is_rejected() -> None:
    """2 x 256 on the reactor's four observations and one action: about 66 clip norms at z = 5.1."""
    algorithm = ALGORITHMS["bc"]
    four = SPEC._replace(observation=SPEC.observation._replace(names=tuple("wxyz")))
    numbers = size(parameters_of(algorithm.init(jax.random.key(0), four, algorithm.Config(hidden=(256, 256)))))
    assert noise_ratio(Privacy(1.0, 5.1), numbers, 20) == pytest.approx(66, abs=0.5)
    with pytest.raises(ValueError, match=r"the noise is 66\.\d times the clip norm"):
        check(Privacy(1.0, 5.1), numbers, 20)
    check(Privacy(1.0, 5.1), numbers, 20, insist=True)
    check(Privacy(1.0, 1.0), 100, 20)
    with pytest.raises(ValueError, match="clip must be positive"):
        check(Privacy(0.0, 1.0), 10, 10)


def test_private_rows_equal_dp_sgd() -> None:
    algorithm = ALGORITHMS["bc"]
    config = configure(algorithm, {"hidden": (6,), "actor_recipe": Recipe(method="sgd"), "actor_lr": 0.1})
    state = algorithm.init(jax.random.key(0), SPEC, config)
    rows = prepare(linear_sites(1, 12)[0], SPEC)[1]
    batches: Transition = jax.tree.map(lambda x: x[None], rows)
    plain = parameters_of(algorithm.update(state, batches, jax.random.key(1))[0])
    exact = parameters_of(private_rows(algorithm, Privacy(1e6, 0.0)).update(state, batches, jax.random.key(1))[0])
    for part, value in plain.items():
        np.testing.assert_allclose(exact[part], value, atol=1e-6)

    tight = private_rows(algorithm, Privacy(1e-3, 0.0)).update(state, batches, jax.random.key(1))[0]
    assert 0 < norm(difference(parameters_of(tight), parameters_of(state))) <= 1e-3 * (1 + 1e-3)
    noisy = private_rows(algorithm, Privacy(1e-3, 2.0)).update(state, batches, jax.random.key(1))[0]
    apart = difference(parameters_of(noisy), parameters_of(tight))
    assert float(norm(apart)) == pytest.approx(2e-3 / 12 * np.sqrt(size(apart)), rel=0.5)


def test_learned_models_reject_private_rows() -> None:
    algorithm = ALGORITHMS["bptt"]
    state = algorithm.init(jax.random.key(0), SPEC, algorithm.Config(hidden=(4,), model_hidden=(4,)))
    rows: Transition = jax.tree.map(lambda x: x[None], prepare(linear_sites(1, 12)[0], SPEC)[1])
    with pytest.raises(ValueError, match="row-level privacy needs an algorithm without a learned model"):
        private_rows(algorithm, Privacy(1.0, 1.0)).update(state, rows, jax.random.key(0))
