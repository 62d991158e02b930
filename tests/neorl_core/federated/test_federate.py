"""Federated training: every algorithm and method, hostile sites, privacy and fine-tuning."""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from neorl_core.algorithms import ALGORITHMS, NAMES
from neorl_core.federated.aggregate import Aggregate, krum, median, trimmed_mean, weighted_mean
from neorl_core.federated.federate import (
    Federated,
    federate,
    federated_scaling,
    fine_tune,
    fresh_sites,
    key_of_rounds,
    stacked_rows,
)
from neorl_core.federated.fedora import fedora
from neorl_core.federated.methods import FEDAVG, SCAFFOLD, fedprox
from neorl_core.federated.privacy import Privacy
from neorl_core.federated.rounds import Rule, fresh_server, make_rounds
from neorl_core.networks import policy_act
from neorl_core.training.population import configure, init_population, member, members
from neorl_core.training.preparation import moments, prepare
from neorl_core.types import Transition
from tests.neorl_core.federated.toys import DISCRETE, SPEC, linear_sites, together

METHODS = (FEDAVG, fedprox(0.01), SCAFFOLD, fedora())
SMALL = {"hidden": (8,)}


def cloning_error(policy: Any, sites: list[Transition]) -> float:
    every = together(sites)
    return float(np.mean((np.asarray(policy_act(policy, jnp.asarray(every.observation))) - every.action) ** 2))


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_every_algorithm_with_every_method(name: str) -> None:
    """The most demanding method is run, the others are traced."""
    algorithm = ALGORITHMS[name]
    spec = DISCRETE if algorithm.discrete else SPEC
    sites = linear_sites(3, 40, discrete=algorithm.discrete)
    small: dict[str, Any] = SMALL | ({"model_hidden": (8,), "horizon": 3} if algorithm.warm_up else {})
    found = federate(sites, spec, name, fedora(), rounds=5, updates=4, batch_size=16, overrides=small)
    for curve in found.curves.values():
        assert curve.shape == (5, 3)
        assert np.isfinite(curve).all()
    action = policy_act(found.policy, jnp.asarray(sites[0].observation))
    assert action.shape == sites[0].action.shape
    assert np.isfinite(action).all()
    assert all(np.isfinite(x).all() for x in found.server.parameters.values())

    train = member(init_population(algorithm, spec, found.config, members([0], {})), 0)
    rows = stacked_rows(found.scaling, sites)
    for method in METHODS:
        given = fresh_server(train.learner, method), fresh_sites(train, method, 3), rows, jax.random.key(0)
        server, kept, _ = jax.eval_shape(make_rounds(Rule(algorithm, method, updates=4), 2, 3), *given)
        assert jax.tree.structure((server, kept)) == jax.tree.structure(given[:2])
        assert [x.shape for x in jax.tree.leaves(kept)] == [x.shape for x in jax.tree.leaves(given[1])]


def test_federated_normaliser_equals_pooled_rows() -> None:
    sites = linear_sites(4, 30)
    pooled = prepare(together(sites), SPEC)[0]
    for ours, theirs in zip(
        jax.tree.leaves(federated_scaling(sites, SPEC).normaliser), jax.tree.leaves(pooled), strict=True
    ):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)


def test_padding_is_never_sampled() -> None:
    """Padding is set to infinity; the curves stay finite."""
    algorithm, sites = ALGORITHMS["bc"], linear_sites(2, 20)
    rows = stacked_rows(federated_scaling(sites, SPEC), sites)
    assert rows.number.tolist() == [20, 27]
    assert rows.transitions.reward.shape == (2, 27)
    spoilt = rows._replace(transitions=jax.tree.map(lambda x: x.at[0, 20:].set(jnp.inf), rows.transitions))
    train = member(init_population(algorithm, SPEC, configure(algorithm, SMALL), members([0], {})), 0)
    run = make_rounds(Rule(algorithm, updates=30, batch_size=32), 1, 2)
    every = fresh_sites(train, FEDAVG, 2)
    metrics = run(fresh_server(train.learner, FEDAVG), every, spoilt, jax.random.key(0))[2]
    assert np.isfinite(metrics["actor_loss"]).all()
    with pytest.raises(ValueError, match="every site needs transitions"):
        stacked_rows(federated_scaling(sites, SPEC), [])


@cache
def clones(aggregate: Aggregate) -> Federated:
    return federate(
        linear_sites(12, 60),
        SPEC,
        "bc",
        rounds=60,
        updates=5,
        batch_size=32,
        aggregate=aggregate,
        overrides={"hidden": (16,)},
    )


@cache
def attacked(aggregate: Aggregate) -> Aggregate:
    """Two of twelve sites send minus ten times their change."""

    def aggregated(stacked: Any, weights: jax.Array) -> Any:
        return aggregate(jax.tree.map(lambda x: x.at[jnp.array([3, 8])].multiply(-10.0), stacked), weights)

    return aggregated


@pytest.mark.slow
def test_robust_aggregates_withstand_two_hostile_sites() -> None:
    sites = linear_sites(12, 60)
    spread = float(np.var(together(sites).action))
    clean = 1 - cloning_error(clones(weighted_mean).policy, sites) / spread
    assert clean > 0.9
    for aggregate in (median, trimmed_mean(0.2), krum(2, 6)):
        robust = 1 - cloning_error(clones(attacked(aggregate)).policy, sites) / spread
        assert robust > 0.95 * clean
    assert 1 - cloning_error(clones(attacked(weighted_mean)).policy, sites) / spread < 0.5 * clean


def test_secure_sums_equal_plain_sums_nearly() -> None:
    sites = linear_sites(3, 40)
    plain, secure = (
        federate(sites, SPEC, "bc", rounds=4, updates=5, batch_size=16, overrides=SMALL, secure=bound)
        for bound in (None, 1.0)
    )
    for part, value in plain.server.parameters.items():
        np.testing.assert_allclose(secure.server.parameters[part], value, atol=1e-6)


def test_private_sites_learn_unless_noise_is_too_large() -> None:
    sites = linear_sites(12, 60)
    with pytest.raises(ValueError, match="times the clip norm"):
        federate(sites, SPEC, "bc", privacy=Privacy(1.0, 5.0), overrides={"hidden": (64, 64)})
    with pytest.raises(ValueError, match=r"site-level privacy .* needs the weighted mean"):
        federate(sites, SPEC, "bc", privacy=Privacy(1.0, 0.1), aggregate=median, overrides=SMALL)
    found = federate(
        sites, SPEC, "bc", rounds=60, updates=5, batch_size=32, privacy=Privacy(0.5, 0.1), overrides={"hidden": (16,)}
    )
    assert cloning_error(found.policy, sites) < 0.2 * float(np.var(together(sites).action))


def test_new_site_is_fine_tuned() -> None:
    """A new site with another operator: its own policy fits better than the shared one."""
    shared = clones(weighted_mean)
    (new,) = linear_sites(1, 60, seed=9)
    new = new._replace(action=np.clip(new.action + 0.5 * new.observation[:, :1], -2, 2))
    before = cloning_error(shared.policy, [new])
    (tuned,) = fine_tune(shared, [new], 300, batch_size=32)
    assert cloning_error(tuned, [new]) < 0.5 * before
    assert moments(new).rows == 60


def test_few_rows_give_few_independent_steps() -> None:
    """1,000 steps on twelve rows would be 2,667 passes; thirty passes are 11 steps."""
    shared = clones(weighted_mean)
    few, many = linear_sites(1, 12, seed=9)[0], linear_sites(1, 90, seed=8)[0]
    sites = [many, few, many, few]
    found = fine_tune(shared, sites, 1_000, batch_size=32)
    for steps, places in {84: (0, 2), 11: (1, 3)}.items():
        apart = fine_tune(shared, [many] * 4 if steps == 84 else [few] * 4, steps, batch_size=32)
        for i in places:
            for one, other in zip(jax.tree.leaves(found[i]), jax.tree.leaves(apart[i]), strict=True):
                np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_model_learner_stays_near_its_rows() -> None:
    """Rewards grow beyond the logged actions; only the row statistics of the model limit the policy."""
    sites = linear_sites(3, 200)
    small = {"hidden": (16,), "model_hidden": (16,), "horizon": 5, "warm_up_updates": 400}
    shared = federate(sites, SPEC, "bptt", rounds=50, updates=20, batch_size=64, overrides=small)
    for site, policy in zip(sites, fine_tune(shared, sites, 90, batch_size=64), strict=True):
        assert cloning_error(policy, [site]) < 3 * cloning_error(shared.policy, [site])


def test_sites_missed_in_warm_up_observe_rows_later() -> None:
    """At most two of six sites take part in the warm-up; row statistics of models are never sent."""
    small = SMALL | {"model_hidden": (8,), "horizon": 3, "warm_up_updates": 8}
    found = federate(linear_sites(6, 40), SPEC, "bptt", SCAFFOLD, rounds=4, updates=4, participants=1, overrides=small)
    learner, steps = found.sites.train.learner, np.asarray(found.sites.train.step)
    assert np.all(learner.model.low <= learner.model.high)
    assert np.all(learner.support.batches > 0)
    assert np.all(learner.model.error != 0)
    # Four rounds of one site each, and four observing steps at sites that the first two rounds missed.
    assert (steps > 0).all()
    assert steps.sum() in (16 + 4 * 4, 16 + 5 * 4)


def test_keys_of_rounds_and_sites_differ() -> None:
    """No site samples batches with a key that rounds use for participants, noise or masks."""
    algorithm, count = ALGORITHMS["bc"], 20
    train = member(init_population(algorithm, SPEC, configure(algorithm, SMALL), members([3], {})), 0)

    def split(keys: jax.Array) -> jax.Array:
        return jax.vmap(lambda key: jax.random.split(key, count))(keys).reshape(-1)

    def told(*keys: jax.Array) -> set[tuple[int, ...]]:
        return {tuple(x) for x in np.concatenate([jax.random.key_data(each) for each in keys]).tolist()}

    sites = jax.random.wrap_key_data(fresh_sites(train, FEDAVG, count).train.key, impl="threefry2x32")
    steps = jax.vmap(lambda key: jax.vmap(lambda step: jax.random.fold_in(key, step))(jnp.arange(count)))(sites)
    phases = jnp.stack([key_of_rounds(3, True), key_of_rounds(3, False)])
    rounds = split(phases)
    beginnings = jax.random.split(jax.random.key(3))
    ours = told(phases, rounds, split(rounds))
    assert len(ours) == 2 + 2 * count + 2 * count**2
    steps = steps.reshape(-1)
    assert ours.isdisjoint(told(beginnings, split(beginnings), sites, steps, split(steps)))


def test_invalid_rows_of_any_site_are_rejected() -> None:
    good, bad = linear_sites(2, 20)
    unknown = bad._replace(reward=np.full_like(bad.reward, np.nan))
    for sites, why in (
        ([good, unknown], "reward must be finite, got nan"),
        ([good, jax.tree.map(lambda x: x[:0], bad)], "at least one transition, got 0"),
        ([good, bad._replace(observation=bad.observation[:, :1])], "observation must have shape"),
        ([], "federate needs at least one site, got 0"),
    ):
        with pytest.raises(ValueError, match=why):
            federate(sites, SPEC, "bc", rounds=1, updates=1, overrides=SMALL)
    with pytest.raises(ValueError, match="reward must be finite, got nan"):
        fine_tune(clones(weighted_mean), [unknown], 10)


def test_rounds_must_exceed_the_warm_up() -> None:
    with pytest.raises(ValueError, match="rounds must exceed the 10 warm-up rounds of bptt, got 10"):
        federate(linear_sites(2, 20), SPEC, "bptt", rounds=10, updates=4, overrides={"warm_up_updates": 40})
