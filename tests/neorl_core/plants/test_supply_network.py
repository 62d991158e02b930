"""The supply chain with failing links: or-gym's chain without outages, conservation of goods with outages."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from neorl_core.control.behaviour import Behaviour, play
from neorl_core.fit import fit
from neorl_core.graph.layout import build_graph, check_layout
from neorl_core.networks import policy_act
from neorl_core.plants import PLANTS
from neorl_core.plants import supply_network as network
from neorl_core.plants.base import rollouts
from neorl_core.types import Transition

CHAIN, PLANT = PLANTS["supply_chain"], network.PLANT
OFTEN = network.Domain(outage=0.3, repair=0.4)
KEYS = jax.random.split(jax.random.key(4), 64)


def _noisy(domain: Any, noise: float = 0.3) -> Any:
    plant = PLANT._replace(domain=domain)
    each = Behaviour(*(jnp.full(len(KEYS), x, jnp.float32) for x in (0.0, 0.0, noise)))
    found = play(plant, plant.fallback, jax.tree.map(jnp.float32, plant.fallback_params), each, KEYS, trace=True)
    return found.trajectory


def test_without_outages_equals_supply_chain() -> None:
    calm = network.Domain(outage=0.0)
    params = jax.tree.map(jnp.float32, PLANT.fallback_params)
    ours = rollouts(PLANT, PLANT.fallback, params, KEYS, calm, trace=True)
    theirs = rollouts(CHAIN, CHAIN.fallback, params, KEYS, CHAIN.domain, trace=True)
    assert ours.trajectory is not None
    assert theirs.trajectory is not None
    np.testing.assert_array_equal(ours.ret, theirs.ret)
    np.testing.assert_array_equal(ours.trajectory.observations[..., :26], theirs.trajectory.observations)
    np.testing.assert_array_equal(ours.min_margins, theirs.min_margins)


def test_goods_are_conserved_under_outages() -> None:
    day = _noisy(OFTEN)
    seen, after, up = day.observations, day.next_observations, np.asarray(day.observations[..., 26:])
    sent = np.stack([np.asarray(after[..., first]) for first in network.chain.FIRST], -1)
    assert not sent[up == 0].any()
    assert sent[up == 1].any()
    # Goods in the chain: shipments of the maker enter, sales leave, and sales equal paid units.
    goods = [np.asarray(x[..., :3].sum(-1) + x[..., 8:26].sum(-1)) for x in (seen, after)]
    sold = np.asarray(seen[..., 0] + seen[..., network.chain.LAST[0]] - after[..., 0])
    np.testing.assert_allclose(goods[1] - goods[0], sent[..., 2] - sold, atol=1e-3)
    np.testing.assert_allclose(network.logged_reward(seen, day.actions, after), day.rewards, atol=1e-3)
    # Orders that were not shipped wait, and none is lost.
    waiting = np.asarray(seen[..., 4:7]) + np.floor(np.asarray(day.actions)) - sent
    np.testing.assert_allclose(after[..., 4:7], waiting, atol=1e-3)


def test_links_fail_as_two_state_chain() -> None:
    def step(state: Any, key: jax.Array) -> Any:
        return PLANT.step(key, state, jnp.zeros(3), params)[0], state.up

    params = network.Params(outage=0.1, repair=0.4)
    start, _ = PLANT.reset(jax.random.key(0), params)
    up = np.asarray(
        jax.jit(lambda keys: jax.lax.scan(step, start, keys)[1])(jax.random.split(jax.random.key(1), 9_000))
    )
    assert up[0].tolist() == [1, 1, 1]
    assert (1 - up).mean(0) == pytest.approx(0.1 / 0.5, abs=0.03)
    ends = np.diff(up, axis=0)
    assert (ends < 0).sum() / (up[:-1] == 1).sum() == pytest.approx(0.1, abs=0.01)
    assert (ends > 0).sum() / (up[:-1] == 0).sum() == pytest.approx(0.4, abs=0.02)


def test_prediction_keeps_link_state() -> None:
    day = _noisy(OFTEN, 0.0)
    x, action = day.observations[0, 12].at[26:].set(jnp.asarray([0.0, 1.0, 0.0])), jnp.asarray([7.0, 8.0, 9.0])
    following, _ = PLANT.predict(x, action, network.NOMINAL)
    assert following[jnp.asarray(network.chain.FIRST)].tolist()[::2] == [0.0, 0.0]
    np.testing.assert_array_equal(following[26:], [0, 1, 0])


def test_stages_and_links_by_hand() -> None:
    layout = network.SPEC.layout
    assert layout is not None
    assert check_layout(layout, 29, 3) == layout
    names = network.SPEC.observation.names
    graph = build_graph(layout, jnp.arange(29.0))
    assert [network.SPEC.action.names[k] for k in layout.node_action[0][:3]] == [
        f"{names[k].removesuffix('_stock')}_order" for k in layout.node_observation[0][:3]
    ]
    assert layout.edges == ((1, 0), (2, 1), (3, 2))
    assert [names[int(k)] for k in graph.nodes[1, 2:]] == ["distributor_stock", "retailer_unmet_order"]
    # The next arrival at the distributor was shipped four periods before; this link has no tenth period.
    assert names[int(graph.edges[1, 2])] == "distributor_shipped_4"
    assert names[int(graph.edges[2, 2])] == "producer_shipped_9"
    np.testing.assert_array_equal(graph.edges[1, 7:], np.zeros(5))
    np.testing.assert_allclose(graph.edges[:, :2], [[0.3, 1.0], [0.5, 0.9], [1.0, 0.8]], rtol=1e-6)
    np.testing.assert_array_equal(graph.edge_mask, [26, 27, 28])


def test_graph_policy_clones_orders() -> None:
    day = _noisy(OFTEN, 0.05)
    rows = Transition(
        *(np.asarray(x).reshape(-1, *x.shape[2:]) for x in (day.observations, day.actions, day.rewards)),
        np.zeros(day.rewards.size, np.float32),
        np.asarray(day.next_observations).reshape(-1, 29),
        np.zeros(day.rewards.size, np.float32),
    )
    ours, others = (jax.tree.map(lambda x, part=part: x[part], rows) for part in (slice(1_500), slice(1_500, None)))
    own = {"graph": 2, "hidden": [16], "actor_lr": 1e-3}
    policy = fit(ours, PLANT.spec, "bc", updates=1_000, overrides=own, batch_size=64).policies[0]
    error = np.asarray(policy_act(policy, jnp.asarray(others.observation))) - others.action
    assert np.mean(error**2) < 0.4 * others.action.var(0).mean()
