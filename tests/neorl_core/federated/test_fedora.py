"""FEDORA: worth, optimism, influence and weights by hand."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from neorl_core.algorithms import ALGORITHMS, double_dqn
from neorl_core.federated.fedora import fedora, optimistic, value, worth
from neorl_core.federated.methods import Ended, Offer, unchanged_rows
from neorl_core.federated.rounds import fresh_site
from neorl_core.networks import mlp_apply
from neorl_core.training.parameters import parameters_of
from neorl_core.training.population import phase
from neorl_core.types import Transition
from tests.neorl_core.federated.toys import DISCRETE, SPEC, fresh


def constant(x: dict, to: float) -> dict:
    """A network with the same output everywhere."""
    last = max(x)
    return jax.tree.map(jnp.zeros_like, x) | {
        last: {"kernel": jnp.zeros_like(x[last]["kernel"]), "bias": jnp.full_like(x[last]["bias"], to)}
    }


def rows(n: int = 4) -> Transition:
    x = jax.random.normal(jax.random.key(0), (1, n, 3))
    ended = jnp.asarray([[0.0] * (n - 1) + [1.0]])
    return Transition(x, jnp.zeros((1, n, 1)), jnp.ones((1, n)), jnp.zeros((1, n)), x + 1, ended)


def test_optimism_uses_the_larger_critic() -> None:
    """Own targets are 2 and 5 (minimum 2), the federated critics 3 and 4: the bonus is 0.9 (3 - 2)."""
    algorithm = ALGORITHMS["td3_bc"]
    own = algorithm.init(jax.random.key(0), SPEC, algorithm.Config(hidden=(4,), discount=0.9))
    critics = own.critics
    own = own._replace(critics_target=(constant(critics[0], 2.0), constant(critics[1], 5.0)))
    sent = own._replace(critics=(constant(critics[0], 3.0), constant(critics[1], 4.0)))
    found = optimistic(algorithm, own, sent, rows())
    np.testing.assert_allclose(found.reward, [[1.9, 1.9, 1.9, 1.0]], atol=1e-6)
    below = sent._replace(critics=(constant(critics[0], -3.0), constant(critics[1], 4.0)))
    np.testing.assert_allclose(optimistic(algorithm, own, below, rows()).reward, jnp.ones((1, 4)))


def test_the_worth_of_a_discrete_policy_is_the_critics_value_of_its_choice() -> None:
    state = double_dqn.init(jax.random.key(0), DISCRETE, double_dqn.Config(hidden=(4,)))
    x = rows().observation[0]
    expected = jnp.max(mlp_apply(state.critic, x), axis=-1)
    np.testing.assert_allclose(value(ALGORITHMS["double_dqn"], state, x), expected, atol=1e-6)


def test_clones_and_warm_up_have_no_worth() -> None:
    clone, modelled = ALGORITHMS["bc"], ALGORITHMS["mopo"]
    state = clone.init(jax.random.key(0), SPEC, clone.Config(hidden=(4,)))
    assert worth(clone, state, rows()) is None
    batches = rows()
    assert optimistic(clone, state, state, batches) is batches
    state = modelled.init(jax.random.key(0), SPEC, modelled.Config(hidden=(4,), model_hidden=(4,)))
    assert worth(modelled, state, rows()) is not None
    assert worth(phase(modelled, True), state, rows()) is None


@pytest.mark.parametrize("federated", [1.0, 3.0])
def test_weight_and_influence_after_a_round(
    federated: float,
) -> None:
    algorithm = ALGORITHMS["td3_bc"]
    state = algorithm.init(jax.random.key(0), SPEC, algorithm.Config(hidden=(4,)))
    own = state._replace(critics=tuple(constant(critic, 2.0) for critic in state.critics))
    sent = state._replace(critics=tuple(constant(critic, federated) for critic in state.critics))
    method = fedora(temperature=0.5, decay=0.9)
    site = fresh_site(fresh(own), method)
    sample: Transition = jax.tree.map(lambda x: x[0], rows())
    ended = Ended(algorithm, sent, site, Offer(parameters_of(sent), {}), {}, 1, sample, jnp.int32(8))
    kept, control, log_weight = method.close(ended)
    assert log_weight == pytest.approx(np.log(8) + 0.5 * 2.0, abs=1e-6)
    assert kept.influence == pytest.approx(0.9 if federated >= 2.0 else 1.0)
    assert control == {}


def test_influence_and_pull_by_hand() -> None:
    method = fedora(pull=0.1)
    site = fresh_site(fresh(ALGORITHMS["bc"].init(jax.random.key(0), SPEC, ALGORITHMS["bc"].Config())), method)
    site, offer = site._replace(influence=jnp.asarray(0.5)), Offer({"w": jnp.asarray(1.0)}, {})
    found = method.step(
        {"w": jnp.asarray(2.0)}, {"w": jnp.asarray(4.0)}, offer, site._replace(influence=jnp.asarray(0.5))
    )
    assert found["w"] == pytest.approx(2.0 + 0.5 * 2.0 - 0.1 * 1.0)
    assert method.rows is not unchanged_rows
