"""Rounds: one local step equals the pooled step, one site equals ordinary training, and inconsistent rules."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from neorl_core.algorithms import ALGORITHMS
from neorl_core.federated.aggregate import median
from neorl_core.federated.federate import federated_scaling, stacked_rows
from neorl_core.federated.methods import FEDAVG, Reply, Rows
from neorl_core.federated.privacy import Privacy
from neorl_core.federated.rounds import Rule, check, fresh_server, fresh_site, make_rounds, server_round, site_round
from neorl_core.training.optimisers import Recipe
from neorl_core.training.parameters import parameters_of
from neorl_core.training.population import Algorithm, configure, init_population, make_train_chunk, member, members
from neorl_core.training.preparation import prepare
from neorl_core.types import Transition
from tests.neorl_core.federated.toys import DISCRETE, SPEC, linear_sites, together

SGD = Recipe(method="sgd")
ONE_MEAN = ("bc", "iql", "discrete_bc", "discrete_iql", "discrete_cql", "double_dqn")
"""Algorithms with one step along a batch mean per update, so the mean of site steps equals the pooled step."""


def on_all(algorithm: Algorithm, rows: Transition) -> Algorithm:
    """The algorithm with every update on all of these rows."""
    every: Transition = jax.tree.map(lambda x: x[None], rows)
    return algorithm._replace(update=lambda state, batches, key: algorithm.update(state, every, key))


def own_halves(algorithm: Algorithm, rows: Rows) -> list[Any]:
    """Each site's half of a round, with one step on all of its rows."""
    found = []
    for i, number in enumerate(rows.number.tolist()):
        whole: Transition = jax.tree.map(lambda x, i=i, number=number: x[i, :number], rows.transitions)
        own: Rows = jax.tree.map(lambda x, i=i: x[i], rows)
        rule = Rule(on_all(algorithm, whole), updates=1, batch_size=4)
        found.append(jax.jit(lambda offer, site, rule=rule, own=own: site_round(rule, offer, site, own)[:2]))
    return found


def stacked(replies: Any) -> Reply:
    found: Reply = jax.tree.map(lambda *x: jnp.stack(x), *replies)
    return found


@pytest.mark.parametrize("name", [n if n == "bc" else pytest.param(n, marks=pytest.mark.slow) for n in ONE_MEAN])
def test_one_local_step_of_each_site_is_the_pooled_step(name: str) -> None:
    """Over five rounds, for sites of different size, in all weights, targets included."""
    algorithm = ALGORITHMS[name]
    spec = DISCRETE if algorithm.discrete else SPEC
    sites = linear_sites(2, 20, discrete=algorithm.discrete)
    recipes = {part: SGD for part in algorithm.Config._fields if part.endswith("_recipe")}
    config = configure(algorithm, {"hidden": (8, 8)} | recipes)
    train = member(init_population(algorithm, spec, config, members([0], {})), 0)
    how = federated_scaling(sites, spec)
    rows = stacked_rows(how, sites)
    server, kept = fresh_server(train.learner, FEDAVG), [fresh_site(train, FEDAVG)] * 2
    halves = own_halves(algorithm, rows)
    for _ in range(5):
        kept, replies = zip(*(half(server.offer, site) for half, site in zip(halves, kept, strict=True)), strict=True)
        server = server_round(Rule(algorithm), server, stacked(replies))

    pooled = jax.jit(on_all(algorithm, prepare(together(sites), spec)[1]).update)
    state = train.learner
    for _ in range(5):
        state, _ = pooled(state, jax.tree.map(lambda x: x[None], rows.transitions), jax.random.key(0))
    for part, value in parameters_of(state).items():
        np.testing.assert_allclose(server.parameters[part], value, atol=1e-6, err_msg=part)
        assert jnp.any(value != parameters_of(train.learner)[part]) or "target" in part


def test_server_adam_equals_pooled_adam() -> None:
    """Local gradient steps of length 1 are the gradients; Adam of their mean is Adam of pooled training."""
    algorithm = ALGORITHMS["bc"]
    sites = linear_sites(2, 20)
    rows = stacked_rows(federated_scaling(sites, SPEC), sites)
    local = configure(algorithm, {"hidden": (8,), "actor_lr": 1.0, "actor_recipe": SGD})
    train = member(init_population(algorithm, SPEC, local, members([0], {})), 0)
    server = fresh_server(train.learner, FEDAVG, Recipe())
    halves, update = own_halves(algorithm, rows), jax.jit(algorithm.update)
    every: Transition = jax.tree.map(lambda x: x[None], prepare(together(sites), SPEC)[1])
    config = configure(algorithm, {"hidden": (8,)})
    state = member(init_population(algorithm, SPEC, config, members([0], {})), 0).learner
    for _ in range(4):
        replies = [half(server.offer, fresh_site(train, FEDAVG))[1] for half in halves]
        server = server_round(Rule(algorithm, server_lr=1e-3), server, stacked(replies))
        state, _ = update(state, every, jax.random.key(0))
    for part, value in parameters_of(state).items():
        np.testing.assert_allclose(server.parameters[part], value, atol=1e-6, err_msg=part)


def test_a_federation_of_one_site_is_ordinary_training() -> None:
    algorithm = ALGORITHMS["td3_bc"]
    (site,) = linear_sites(1, 64)
    config = configure(algorithm, {"hidden": (8,)})
    population = init_population(algorithm, SPEC, config, members([3], {}))
    train = member(population, 0)
    server = fresh_server(train.learner, FEDAVG)
    alone = jax.tree.map(lambda x: jnp.asarray(x)[None], fresh_site(train, FEDAVG))
    rows = stacked_rows(federated_scaling([site], SPEC), [site])
    run = make_rounds(Rule(algorithm, updates=4, batch_size=16), 5, 1)
    server, kept, _ = run(server, alone, rows, jax.random.key(0))
    plain, _ = make_train_chunk(algorithm, 20, 2, 16)(population, prepare(site, SPEC)[1])
    assert kept.train.step == plain.step
    for part, value in parameters_of(plain.learner).items():
        np.testing.assert_allclose(server.parameters[part], value[0], atol=2e-5, err_msg=part)


def test_inconsistent_rules_are_rejected() -> None:
    algorithm = ALGORITHMS["td3_bc"]
    with pytest.raises(ValueError, match=r"secure aggregation .* needs the weighted mean"):
        check(Rule(algorithm, aggregate=median, secure=1.0))
    with pytest.raises(ValueError, match=r"site-level privacy .* needs the weighted mean"):
        check(Rule(algorithm, aggregate=median, privacy=Privacy(1.0, 1.0)))
    with pytest.raises(ValueError, match=r"updates per round must be a positive multiple of 2 \(td3_bc\)"):
        check(Rule(algorithm, updates=3))
    with pytest.raises(ValueError, match="participants 1 to 4, got 10 and 5"):
        make_rounds(Rule(algorithm), 10, 4, 5)
