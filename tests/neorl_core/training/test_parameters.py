"""Named weights of every algorithm's state, and training that starts from other weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from neorl_core.algorithms import ALGORITHMS, BC, NAMES, TD3_BC
from neorl_core.plants import PLANTS
from neorl_core.training.parameters import difference, parameters_of, size, start_from, with_parameters
from neorl_core.training.population import Algorithm, init_population, members
from tests.neorl_core.federated.toys import DISCRETE, SPEC

OF_PLANT = PLANTS["double_mass"].spec
CONFIG = TD3_BC.Config(hidden=(4,), critics=2)
FEW = ("td3_bc", "cql", "mopo", "discrete_iql")


@pytest.mark.parametrize(
    "name", [name if name in FEW else pytest.param(name, marks=pytest.mark.slow) for name in NAMES]
)
def test_only_weights_are_shared(name: str) -> None:
    algorithm = ALGORITHMS[name]
    spec = DISCRETE if algorithm.discrete else SPEC
    small = {"hidden": (4,)} | ({"model_hidden": (4,)} if algorithm.warm_up else {})
    state = algorithm.init(jax.random.key(0), spec, algorithm.Config(**small))
    found = parameters_of(state)
    assert not [part for part in found if any(own in part for own in ("optimiser", "hyper", "support"))]
    assert bool([part for part in found if part.startswith("model/members")]) == (algorithm.warm_up is not None)

    moved = with_parameters(state, jax.tree.map(lambda x: x + 1, found))
    assert jax.tree.structure(moved) == jax.tree.structure(state)
    assert all((abs(x - 1) < 1e-6).all() for x in difference(parameters_of(moved), found).values())
    changed = sum(bool(jnp.any(x != y)) for x, y in zip(jax.tree.leaves(moved), jax.tree.leaves(state), strict=True))
    assert changed == len(found)
    assert size(found) == sum(x.size for x in jax.tree.leaves(found))
    # The shipped policy uses shared weights only.
    assert all(jnp.any(x != y) for x, y in zip(*map(actor_of(algorithm), (moved, state)), strict=True))


def actor_of(algorithm: Algorithm) -> Callable[[Any], list[jax.Array]]:
    return lambda state: jax.tree.leaves(algorithm.actor(state))


def test_a_state_with_site_axes_has_the_same_names() -> None:
    algorithm = ALGORITHMS["bc"]
    state = algorithm.init(jax.random.key(0), SPEC, algorithm.Config(hidden=(4,)))
    stacked = jax.tree.map(lambda x: jnp.stack([x, x]), state)
    assert {name: x.shape[1:] for name, x in parameters_of(stacked).items()} == {
        k: x.shape for k, x in parameters_of(state).items()
    }
    assert "actor/Dense_0/kernel" in parameters_of(state)


class Bare(NamedTuple):
    hyper: dict[str, jax.Array]


def test_state_without_weights_is_rejected() -> None:
    with pytest.raises(ValueError, match="the state Bare has no weights: put them"):
        parameters_of(Bare({"lr": jnp.ones(())}))


def test_start_from_replaces_only_weights() -> None:
    other = init_population(TD3_BC, OF_PLANT, CONFIG, members([7], {}))
    moved = jax.tree.map(lambda x: x + 1, other.learner.actor_optimiser)
    found = parameters_of(jax.tree.map(lambda x: x[0], other.learner._replace(actor_optimiser=moved)))
    fresh = init_population(TD3_BC, OF_PLANT, CONFIG, members([0, 1], {}))
    start = start_from(fresh, found)
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


def test_other_layers_are_rejected() -> None:
    state = BC.init(jax.random.key(0), OF_PLANT, BC.Config(hidden=(8,)))
    fresh = init_population(BC, OF_PLANT, BC.Config(hidden=(4,)), members([0], {}))
    with pytest.raises(ValueError, match=r"'actor/Dense_0/bias' have shape \(8,\), but the algorithm needs \(4,\)"):
        start_from(fresh, parameters_of(state))
