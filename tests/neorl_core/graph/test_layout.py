"""Layouts, and graph policies behind the interface of the algorithms."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from neorl_core.fit import FitResult, fit
from neorl_core.graph.layout import Layout, build_graph, check_layout, flat_action, pool_moments
from neorl_core.graph.policy import make_graph_network, with_layout
from neorl_core.networks import actor_apply, critics_apply, make_body, mlp_apply, policy_act, value_init
from neorl_core.plants import PLANTS
from neorl_core.training.preparation import prepare
from neorl_core.types import Constraint, PlantSpec, Space, Transition

LAYOUT = Layout(
    nodes=4,
    edges=((0, 1), (1, 2), (3, 2)),
    node_observation=((-1, 0, 1, 2),),
    edge_observation=((3, 4, 5),),
    context=(6,),
    node_action=((-1, 0, -1, 1),),
    edge_action=((2, 3, 4),),
    node_constants=((1.0, 0.0, 0.0, 0.0),),
    flags=(3, 4, 5),
    present=(3, 4, 5),
)


def _space(count: int, name: str) -> Space:
    return Space(tuple(f"{name}_{i}" for i in range(count)), ("1",) * count, (-1.0,) * count, (1.0,) * count)


SPEC = PlantSpec(
    "chain",
    _space(7, "x"),
    _space(5, "u"),
    (Constraint("x_0", "1", -1.0, 1.0),),
    1.0,
    "s",
    10,
    (0.0, 1.0),
    layout=LAYOUT,
)


def rows(count: int) -> Transition:
    rng = np.random.default_rng(0)
    seen = rng.uniform(-1, 1, (count + 1, 7)).astype(np.float32)
    seen[:, 3:6] = rng.integers(0, 2, (count + 1, 3))
    action = rng.uniform(-1, 1, (count, 5)).astype(np.float32)
    zero = np.zeros(count, np.float32)
    return Transition(seen[:-1], action, seen[:-1, 0] * action[:, 0], zero, seen[1:], zero)


def test_vector_to_graph_by_hand() -> None:
    observation, action = jnp.asarray([1.0, 2.0, 3.0, 1.0, 0.0, 1.0, 9.0]), jnp.asarray([10.0, 20.0, 30.0, 40.0, 50.0])
    graph = build_graph(LAYOUT, observation, action)
    np.testing.assert_array_equal(graph.nodes, [[1, 0, 0], [0, 1, 10], [0, 2, 0], [0, 3, 20]])
    np.testing.assert_array_equal(graph.edges, [[1, 30], [0, 40], [1, 50]])
    np.testing.assert_array_equal(graph.context, [1, 9])
    np.testing.assert_array_equal(graph.edge_mask, [1, 0, 1])
    np.testing.assert_array_equal(flat_action(LAYOUT, graph.nodes[:, 2:], graph.edges[:, 1:]), action)


def test_nodes_share_a_scale_and_flags_have_none() -> None:
    data = rows(200)
    normaliser, prepared = prepare(data, SPEC)
    values = data.observation[:, :3]
    np.testing.assert_allclose(normaliser.mean[:3], values.mean(), rtol=1e-4)
    np.testing.assert_allclose(normaliser.scale[:3], values.std(), rtol=1e-4)
    np.testing.assert_array_equal(prepared.observation[:, 3:6], data.observation[:, 3:6])
    mean, deviation = pool_moments(LAYOUT, np.arange(7.0), np.ones(7))
    np.testing.assert_allclose(mean, [1, 1, 1, 0, 0, 0, 6])
    np.testing.assert_allclose(deviation, [*[np.sqrt(1 + 2 / 3)] * 3, 1, 1, 1, 1])


def learned(algorithm: str, updates: int = 12, chunk: int = 12) -> FitResult:
    own: dict[str, Any] = {"graph": 2, "hidden": [8], "actor_lr": 3e-3}
    return fit(rows(64), SPEC, algorithm, updates=updates, overrides=own, batch_size=16, chunk=chunk)


@pytest.mark.parametrize("algorithm", ["bc", *(pytest.param(x, marks=pytest.mark.slow) for x in ("td3_bc", "iql"))])
def test_learners_train_every_weight_and_resume_exactly(algorithm: str) -> None:
    once, cut = (learned(algorithm, chunk=chunk).policies[0] for chunk in (12, 4))
    assert set(once.params) == {"graph"}
    for ours, theirs in zip(jax.tree.leaves(once.params), jax.tree.leaves(cut.params), strict=True):
        np.testing.assert_array_equal(ours, theirs)
        assert np.any(ours)
    actions = policy_act(once, jnp.asarray(rows(64).observation))
    assert actions.shape == (64, 5)
    one = policy_act(once, jnp.asarray(rows(64).observation[7]))
    np.testing.assert_allclose(one, actions[7], atol=1e-6)


def test_policy_is_equivariant_to_bus_order() -> None:
    """The layout of the same chain with other numbers and the same weights."""
    params = learned("bc").policies[0].params
    x = jnp.asarray(rows(5).observation)
    other = LAYOUT._replace(
        edges=((0, 1), (3, 2), (2, 1)),
        node_observation=((2, 1, 0, -1),),
        edge_observation=((5, 3, 4),),
        node_action=((1, -1, 0, -1),),
        edge_action=((4, 2, 3),),
        node_constants=((0.0, 0.0, 0.0, 1.0),),
        present=(5, 3, 4),
    )
    # There, nodes 0, 1, 2, 3 are 3, 2, 1, 0, and edges (0, 1), (1, 2), (3, 2) are second, third and first.
    np.testing.assert_allclose(actor_apply(params, x), actor_apply(with_layout(params, other), x), atol=1e-6)


def test_critics_are_invariant_and_see_the_action() -> None:
    from neorl_core.networks import critics_init

    body = make_body(SPEC, (8,), graph=2)
    critics = critics_init(jax.random.key(0), 7, 5, (8,), 2, body=body)
    data = rows(6)
    q = critics_apply(critics, jnp.asarray(data.observation), jnp.asarray(data.action))
    assert q.shape == (2, 6)
    moved = critics_apply(critics, jnp.asarray(data.observation), jnp.asarray(data.action).at[:, 0].add(0.5))
    assert np.all(np.abs(np.asarray(moved - q)).max(0) > 0)
    value = value_init(jax.random.key(0), 7, (8,), body)
    assert mlp_apply(value, jnp.asarray(data.observation)).shape == (6, 1)


def test_invalid_layouts_are_rejected() -> None:
    with pytest.raises(ValueError, match="graph: 3 needs a plant with a layout, got double_mass without one"):
        make_graph_network(PLANTS["double_mass"].spec, 3, (8,))
    assert make_graph_network(SPEC, 0, (8,)) is None
    with pytest.raises(ValueError, match="gru and graph exclude each other, got gru 4 and graph 2"):
        make_body(SPEC, (8,), gru=4, graph=2)
    assert check_layout(LAYOUT, 7, 5) == LAYOUT
    for wrong, message in (
        (LAYOUT._replace(edges=((0, 1), (1, 2), (3, 4))), r"each row of edges needs 2 indices .* got \(3, 4\)"),
        (LAYOUT._replace(node_observation=((0, 1, 2),)), "each row of node_observation needs"),
        (LAYOUT._replace(edge_action=((2, 3, 3),)), "each of the 5 actions must be at exactly one node or edge"),
        (LAYOUT._replace(present=(3, 4, 6)), "every component in present must be in flags"),
        (
            LAYOUT._replace(node_constants=((float("nan"), 0.0, 0.0, 0.0),)),
            "node_constants needs 4 finite numbers",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            check_layout(wrong, 7, 5)
