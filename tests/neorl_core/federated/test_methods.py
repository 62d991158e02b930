"""Methods follow the papers' algorithms on quadratics with a known optimum."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from neorl_core.federated.federate import fresh_sites
from neorl_core.federated.methods import FEDAVG, SCAFFOLD, Method, fedprox
from neorl_core.federated.privacy import Privacy
from neorl_core.federated.rounds import Rule, Server, fresh_server, make_rounds
from neorl_core.training.parameters import Parameters
from tests.neorl_core.federated.toys import QUADRATIC, SPEC, Quadratic, QuadraticConfig, fresh, quadratic_rows

A = np.array([[1.0, 4.0], [3.0, 0.5], [0.2, 2.0]])
B = np.array([[0.0, 1.0], [2.0, -3.0], [-5.0, 4.0]])
OPTIMUM = (A * B).sum(axis=0) / A.sum(axis=0)
LR, STEPS = 0.1, 10


def run(
    method: Method, rounds: int, participants: int | None = None, seed: int = 0, privacy: Privacy | None = None
) -> Server:
    train = fresh(QUADRATIC.init(jax.random.key(0), SPEC, QuadraticConfig(lr=LR)))
    rule = Rule(QUADRATIC, method, updates=STEPS, batch_size=2, privacy=privacy)
    rounds_of = make_rounds(rule, rounds, 3, participants)
    sites = fresh_sites(train, method, 3)
    server, _, metrics = rounds_of(
        fresh_server(train.learner, method), sites, quadratic_rows(A, B), jax.random.key(seed)
    )
    assert metrics["loss"].shape == (rounds, participants or 3)
    return server


def weight(parameters: Parameters) -> jax.Array:
    return parameters["weight"]


def test_scaffold_reaches_the_optimum_and_fedavg_does_not() -> None:
    np.testing.assert_allclose(weight(run(SCAFFOLD, 600).parameters), OPTIMUM, atol=1e-4)
    stuck = np.abs(np.asarray(weight(run(FEDAVG, 600).parameters)) - OPTIMUM)
    assert stuck.max() > 0.3


def test_scaffold_converges_with_partial_participation() -> None:
    np.testing.assert_allclose(weight(run(SCAFFOLD, 3000, participants=2).parameters), OPTIMUM, atol=5e-3)


def test_fedavg_reaches_its_theoretical_fixed_point() -> None:
    """K steps of site i contract by r_i = (1 - eta a_i)^K; the fixed point is their mean weighted by 1 - r_i."""
    part = 1 - (1 - LR * A) ** STEPS
    fixed = (part * B).sum(axis=0) / part.sum(axis=0)
    np.testing.assert_allclose(weight(run(FEDAVG, 600).parameters), fixed, atol=1e-4)


def test_fedprox_steps_equal_the_paper() -> None:
    """Five rounds against `y <- y - eta (a (y - b) + mu (y - x))` in NumPy."""
    mu, x = 0.7, np.zeros(2)
    for _ in range(5):
        y = np.tile(x, (3, 1))
        for _ in range(STEPS):
            y = y - LR * (A * (y - B) + mu * (y - x))
        x = y.mean(axis=0)
    np.testing.assert_allclose(weight(run(fedprox(LR * mu), 5).parameters), x, atol=1e-6)
    with pytest.raises(ValueError, match=r"pull must be in \[0, 1\)"):
        fedprox(1.0)


def test_scaffold_steps_equal_the_paper() -> None:
    """Five rounds against algorithm 1 of Karimireddy et al., option II, in NumPy, with gradients as variates."""
    x, c, own = np.zeros(2), np.zeros(2), np.zeros((3, 2))
    for _ in range(5):
        y = np.tile(x, (3, 1))
        for _ in range(STEPS):
            y = y - LR * (A * (y - B) - own + c)
        renewed = own - c + (x - y) / (STEPS * LR)
        x, c, own = y.mean(axis=0), c + (renewed - own).mean(axis=0), renewed
    server = run(SCAFFOLD, 5)
    np.testing.assert_allclose(weight(server.parameters), x, atol=1e-5)
    np.testing.assert_allclose(weight(server.control), -LR * c, atol=1e-5)


def test_private_scaffold_with_one_site_by_hand() -> None:
    """With `y <- y - 1` twenty times a round, the changes of weight and control variate are -20 and -1.

    Clipped to 1 they are -20 / |(20, 1)| and -1 / |(20, 1)|; with equal variates at server and site no step is
    corrected.
    """
    algorithm = QUADRATIC._replace(update=lambda y, batches, key: (Quadratic(y.weight - 1.0, y.hyper), {}))
    train = fresh(Quadratic(jnp.zeros(1), {}))
    server, site = fresh_server(train.learner, SCAFFOLD), fresh_sites(train, SCAFFOLD, 1)
    one_round = make_rounds(Rule(algorithm, SCAFFOLD, updates=20, batch_size=2, privacy=Privacy(1.0, 0.0)), 1, 1)
    for number in range(4):
        began = weight(server.parameters)
        server, site, _ = one_round(server, site, quadratic_rows(A[:1], B[:1]), jax.random.key(0))
        np.testing.assert_allclose(site.train.learner.weight[0], began - 20.0, atol=1e-4)
        np.testing.assert_allclose(weight(server.control), weight(site.control)[0], atol=1e-6)
        if number == 0:
            np.testing.assert_allclose(weight(server.parameters), -20.0 / np.hypot(20.0, 1.0), atol=1e-6)
            np.testing.assert_allclose(weight(server.control), -1.0 / np.hypot(20.0, 1.0), atol=1e-6)


def test_private_scaffold_recovers_from_clipping() -> None:
    found = weight(run(SCAFFOLD, 600, privacy=Privacy(0.1, 0.0)).parameters)
    np.testing.assert_allclose(found, OPTIMUM, atol=1e-3)


def test_sites_are_weighted_by_rows() -> None:
    rows = quadratic_rows(np.ones((2, 2)), [[0.0, 0.0], [1.0, 1.0]])._replace(number=jnp.asarray([1, 3]))
    train = fresh(QUADRATIC.init(jax.random.key(0), SPEC, QuadraticConfig(lr=1.0)))
    one_round = make_rounds(Rule(QUADRATIC, updates=1, batch_size=2), 1, 2)
    server = one_round(fresh_server(train.learner, FEDAVG), fresh_sites(train, FEDAVG, 2), rows, jax.random.key(0))[0]
    np.testing.assert_allclose(weight(server.parameters), [0.75, 0.75], atol=1e-6)
