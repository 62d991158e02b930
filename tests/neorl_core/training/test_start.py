"""A training that begins with another one's weights: these and nothing else, for every algorithm."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from neorl_core.algorithms import ALGORITHMS, BC, TD3_BC
from neorl_core.plants import PLANTS
from neorl_core.training.population import init_population
from neorl_core.training.start import begun, weights

SPEC = PLANTS["double_mass"].spec
CONFIG = TD3_BC.Config(hidden=(4,), critics=2)


def test_the_weights_are_the_others_and_the_rest_is_its_own() -> None:
    other = init_population(TD3_BC, SPEC, CONFIG, [7], {})
    moved = jax.tree.map(lambda x: x + 1, other.learner.actor_optimiser)
    found = weights(jax.tree.map(lambda x: x[0], other.learner._replace(actor_optimiser=moved)))
    fresh = init_population(TD3_BC, SPEC, CONFIG, [0, 1], {})
    start = begun(fresh, found)
    for name in ("actor", "critics", "actor_target", "critics_target"):
        theirs, ours = jax.tree.leaves(getattr(other.learner, name)), jax.tree.leaves(getattr(start.learner, name))
        for one, two in zip(theirs, ours, strict=True):
            for member in np.asarray(two):
                np.testing.assert_array_equal(member, np.asarray(one)[0])
    for name in ("actor_optimiser", "critics_optimiser", "hyper"):
        same = jax.tree.map(
            lambda a, b: bool(jnp.all(a == b)), getattr(start.learner, name), getattr(fresh.learner, name)
        )
        assert all(jax.tree.leaves(same))
    assert jnp.all(start.key == fresh.key)


@pytest.mark.parametrize("name", ["bc", "iql", "td3_bc", "cql"])
def test_no_optimiser_is_a_weight(name: str) -> None:
    algorithm = ALGORITHMS[name]
    state = algorithm.init(jax.random.key(0), SPEC, algorithm.Config(hidden=(4,)))
    found = weights(state)
    assert any("actor/" in place for place in found)
    assert not [place for place in found if "optimiser" in place or "hyper" in place]


def test_other_layers_are_told() -> None:
    state = BC.init(jax.random.key(0), SPEC, BC.Config(hidden=(8,)))
    fresh = init_population(BC, SPEC, BC.Config(hidden=(4,)), [0], {})
    with pytest.raises(ValueError, match="got others at 'actor/Dense_0/bias'"):
        begun(fresh, weights(state))
