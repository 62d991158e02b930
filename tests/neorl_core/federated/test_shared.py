"""What sites share of every algorithm's state, and what stays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import pytest

from neorl_core.algorithms import ALGORITHMS, NAMES
from neorl_core.federated.shared import difference, shared, size, with_shared
from neorl_core.training.population import Algorithm
from tests.neorl_core.federated.toys import DISCRETE, SPEC

FEW = ("td3_bc", "cql", "mopo", "discrete_iql")


@pytest.mark.parametrize(
    "name", [name if name in FEW else pytest.param(name, marks=pytest.mark.slow) for name in NAMES]
)
def test_all_weights_are_shared_and_nothing_else(name: str) -> None:
    algorithm = ALGORITHMS[name]
    spec = DISCRETE if algorithm.discrete else SPEC
    small = {"hidden": (4,)} | ({"model_hidden": (4,)} if algorithm.warm_up else {})
    state = algorithm.init(jax.random.key(0), spec, algorithm.Config(**small))
    found = shared(state)
    assert not [part for part in found if any(own in part for own in ("optimiser", "hyper", "support"))]
    assert bool([part for part in found if part.startswith("model/members")]) == (algorithm.warm_up is not None)

    moved = with_shared(state, jax.tree.map(lambda x: x + 1, found))
    assert jax.tree.structure(moved) == jax.tree.structure(state)
    assert all((abs(x - 1) < 1e-6).all() for x in difference(shared(moved), found).values())
    changed = sum(bool(jnp.any(x != y)) for x, y in zip(jax.tree.leaves(moved), jax.tree.leaves(state), strict=True))
    assert changed == len(found)
    assert size(found) == sum(x.size for x in jax.tree.leaves(found))
    # What ships is made of what is shared.
    assert all(jnp.any(x != y) for x, y in zip(*map(actor_of(algorithm), (moved, state)), strict=True))


def actor_of(algorithm: Algorithm) -> Callable[[Any], list[jax.Array]]:
    return lambda state: jax.tree.leaves(algorithm.actor(state))


def test_a_state_with_site_axes_has_the_same_names() -> None:
    algorithm = ALGORITHMS["bc"]
    state = algorithm.init(jax.random.key(0), SPEC, algorithm.Config(hidden=(4,)))
    stacked = jax.tree.map(lambda x: jnp.stack([x, x]), state)
    assert {name: x.shape[1:] for name, x in shared(stacked).items()} == {k: x.shape for k, x in shared(state).items()}
    assert "actor/Dense_0/kernel" in shared(state)


class Bare(NamedTuple):
    hyper: dict[str, jax.Array]


def test_a_state_without_weights_is_refused() -> None:
    with pytest.raises(ValueError, match=r"expected a state with weights .* got Bare"):
        shared(Bare({"lr": jnp.ones(())}))
