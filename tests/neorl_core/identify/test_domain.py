"""Operating domains that draw from a posterior, and residuals on top of a simulator."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from neorl_core.identify import Unknown, drawing_plant, identified_plant, posterior_fields
from neorl_core.identify.unknowns import prior_of
from neorl_core.networks import Normaliser
from neorl_core.plants import PLANTS
from neorl_core.plants import chemical_reactor as reactor
from neorl_core.plants.base import rollouts
from neorl_core.training.optimisers import Recipe
from neorl_core.types import Transition
from neorl_core.world_model import dynamics
from neorl_core.world_model.residual import error_transitions, with_residual
from tests.neorl_core.identify.small_models import REACTOR, UNKNOWNS, posterior_of


def test_domain_draws_from_posterior_and_keeps_other_fields() -> None:
    covariance = np.array([[0.25, 0.1], [0.1, 0.09]])
    known = identified_plant(REACTOR, UNKNOWNS, posterior_of([1.0, -2.0], covariance.tolist()))
    assert known.domain._replace(noise_sd=0.2).noise_sd == 0.2
    assert known.params.reaction_rate == pytest.approx(7.2e10 * np.exp(np.sqrt(np.log1p(0.03**2))), rel=1e-5)
    assert known.domain.identified_cooling_rate == pytest.approx(5e4 / 23900 - 0.2, rel=1e-5)
    assert all(isinstance(x, float) for x in known.domain)
    drawn = jax.vmap(known.sample_params, (0, None))(jax.random.split(jax.random.key(0), 40_000), known.domain)
    x = np.stack(
        [
            np.log(np.asarray(drawn.reaction_rate) / 7.2e10) / np.sqrt(np.log1p(0.03**2)),
            (np.asarray(drawn.cooling_rate) - 5e4 / 23900) / 0.1,
        ]
    )
    np.testing.assert_allclose(x.mean(axis=1), [1.0, -2.0], atol=0.01)
    np.testing.assert_allclose(np.cov(x), covariance * 12 / 10, atol=0.01)
    np.testing.assert_allclose(drawn.feed_sd, 0.5)


def test_two_episodes_give_no_domain() -> None:
    found = posterior_of([0.0, 0.0], [[0.2, 0.0], [0.0, 0.2]])._replace(degrees=jnp.asarray([9.0, 2.0]))
    with pytest.raises(ValueError, match="cooling_rate needs at least four informative episodes, got 3: "):
        posterior_fields(UNKNOWNS, found)


def test_new_posterior_needs_no_compilation() -> None:
    one, other = (
        identified_plant(REACTOR, UNKNOWNS, posterior_of(mean, [[0.2, 0.0], [0.0, 0.2]]))
        for mean in ([0.0, 0.0], [1.0, 1.0])
    )
    assert type(one.domain) is type(other.domain)
    assert one.sample_params is other.sample_params
    keys = jax.random.split(jax.random.key(1), 3)
    before = rollouts._cache_size()
    returns = [rollouts(one, one.fallback, one.fallback_params, keys, plant.domain).ret for plant in (one, other)]
    assert rollouts._cache_size() == before + 1
    assert not np.array_equal(*returns)


def test_vector_entry_can_be_unknown() -> None:
    tanks = PLANTS["water_treatment"]
    unknowns = (Unknown("pump", 0.1, entry=1),)
    prior = prior_of(tanks.params, unknowns)
    found = posterior_of([0.0], [[0.04]], (UNKNOWNS[0],))._replace(prior=prior, estimate=jnp.array([3.2]))
    known = identified_plant(tanks, unknowns, found)
    assert known.params.pump == pytest.approx((3.33, 3.2))
    assert known.domain.identified_pump_of_2 == pytest.approx(3.2)
    drawn = jax.vmap(known.sample_params, (0, None))(jax.random.split(jax.random.key(2), 4000), known.domain)
    share = np.sqrt(np.log1p(0.01) * 0.04 * 1.2)
    assert np.log(np.asarray(drawn.pump)[:, 1] / 3.2).std() == pytest.approx(share, rel=0.05)


def test_plant_rebuilt_from_fields_draws_same_bits() -> None:
    posterior = posterior_of([1.0, -2.0], [[0.25, 0.1], [0.1, 0.09]])
    known, fields = identified_plant(REACTOR, UNKNOWNS, posterior), posterior_fields(UNKNOWNS, posterior)
    # A certificate has no priors, and the fields in another order.
    told = tuple(unknown._replace(spread=9.0) for unknown in UNKNOWNS)
    again = drawing_plant(REACTOR, told, dict(sorted(fields.items(), reverse=True)))
    assert again == known
    keys = jax.random.split(jax.random.key(7), 50)
    one, other = (jax.vmap(plant.sample_params, (0, None))(keys, plant.domain) for plant in (known, again))
    jax.tree.map(np.testing.assert_array_equal, one, other)
    with pytest.raises(ValueError, match="field 'identified_cooling_rate_2' must be in both"):
        drawing_plant(REACTOR, told, {name: x for name, x in fields.items() if name != "identified_cooling_rate_2"})


@pytest.mark.slow
def test_residual_learns_missing_physics() -> None:
    def physics(y: jax.Array, u: jax.Array, p: None) -> tuple[jax.Array, jax.Array]:
        return 0.9 * y + u, jnp.ones(1)

    y, u = jax.random.uniform(jax.random.key(3), (2, 3000, 1), minval=-1.0, maxval=1.0)
    # Friction quadratic in the speed, which the physics does not have.
    following = 0.9 * y + u - 0.3 * y * jnp.abs(y)
    nothing = jnp.zeros(3000)
    rows = Transition(y, u, nothing, nothing, following, nothing)
    one = jnp.ones(1)
    normaliser = Normaliser(0 * one, 0.6 * one, 0 * one, one)
    data = error_transitions(physics, None, normaliser, jax.tree.map(lambda x: x[:2000], rows))
    model = dynamics.init(jax.random.key(4), 1, 1, (16,), 2, Recipe())
    model, _ = dynamics.train(model, jax.random.key(5), data, jnp.asarray(0), 1500)
    corrected = with_residual(physics, model.members, normaliser)

    def error(predict: object) -> float:
        expected, _ = jax.vmap(predict, (0, 0, None))(y[2000:], u[2000:], None)  # type: ignore[call-overload]
        return float(jnp.sqrt(jnp.mean((expected - following[2000:]) ** 2)))

    assert error(corrected) < 0.15 * error(physics)
    assert corrected(y[0], u[0], None)[1].tolist() == [1.0]
    # A correct simulator is not changed: an untrained ensemble has no error to learn from.
    exact = error_transitions(physics, None, normaliser, rows._replace(next_observation=0.9 * y + u))
    np.testing.assert_allclose(exact.next_observation, exact.observation, atol=1e-6)


def test_identified_reactor_keeps_nominal_task() -> None:
    known = identified_plant(REACTOR, UNKNOWNS, posterior_of([0.0, 0.0], [[0.01, 0.0], [0.0, 0.01]]))
    assert known.params._replace(reaction_rate=0, cooling_rate=0) == reactor.NOMINAL._replace(
        reaction_rate=0, cooling_rate=0
    )
    assert known.spec is REACTOR.spec
