"""Policies of agents: dependence on links, order of agents, and separate execution."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from neorl_core.fit import FitResult, fit
from neorl_core.graph.agent_layout import agents_layout, alike
from neorl_core.graph.communication import AgentNetwork, agents_init
from neorl_core.graph.layout import Layout, check_layout
from neorl_core.graph.single_agent import act, extract_member
from neorl_core.networks import (
    Normaliser,
    Policy,
    actor_apply,
    actor_init,
    critics_init,
    make_body,
    policy_act,
    value_init,
)
from neorl_core.plants.linked import linked
from neorl_core.plants.power_grid import LINKS, PLANT
from neorl_core.types import AgentView, Constraint, PlantSpec, Space, Transition

# Five agents in a row, each with its own signal and all with a clock.
NAMES = tuple("abcde")
VIEWS = tuple(AgentView(name, (0, 1 + i), (i,)) for i, name in enumerate(NAMES))
CHAIN = tuple(pairwise(NAMES))
UP = (6, 7, 8, 9)


def _spec(kinds: tuple[int, ...] | None = None) -> PlantSpec:
    def space(names: Sequence[str]) -> Space:
        return Space(tuple(names), ("1",) * len(names), (-1.0,) * len(names), (1.0,) * len(names))

    plain = PlantSpec(
        "row",
        space(["hour", *(f"x_{name}" for name in NAMES), *(f"link_{i}" for i in range(4))]),
        space([f"u_{name}" for name in NAMES]),
        (Constraint("x_a", "1", -1.0, 1.0),),
        1.0,
        "s",
        10,
        (0.0, 1.0),
    )
    return plain._replace(layout=agents_layout(plain, VIEWS, CHAIN, UP, kinds))


def actor_of(spec: PlantSpec, rounds: int, width: int = 8) -> Any:
    sizes = spec.observation.size, spec.action.size
    return actor_init(jax.random.key(3), *sizes, (width,), make_body(spec, (width,), graph=rounds))


def reach(params: Any, spec: PlantSpec, up: Sequence[float]) -> np.ndarray[Any, Any]:
    """(A, O) whether an action depends on an observation component, at any of some observations."""
    seen = np.random.default_rng(5).normal(size=(40, spec.observation.size)).astype(np.float32)
    seen[:, list(UP)] = up
    slopes = jax.vmap(jax.jacobian(lambda x: actor_apply(params, x)))(jnp.asarray(seen))
    return np.asarray(jnp.any(slopes != 0, axis=0))


def test_without_links_agents_use_only_their_observation() -> None:
    spec = _spec()
    depends = reach(actor_of(spec, 3), spec, (0, 0, 0, 0))
    np.testing.assert_array_equal(depends[:, 1:6], np.eye(5, dtype=bool))
    assert depends[:, 0].all()


@pytest.mark.parametrize("rounds", [1, 2, 3])
def test_actions_depend_on_agents_within_the_rounds(rounds: int) -> None:
    spec = _spec()
    params = actor_of(spec, rounds)
    for up in ((1, 1, 1, 1), (1, 0, 1, 1), (0, 1, 1, 0)):
        adjacent = np.eye(5, dtype=int)
        for i, there in enumerate(up):
            adjacent[i, i + 1] = adjacent[i + 1, i] = there
        hops = np.linalg.matrix_power(adjacent, rounds) > 0
        np.testing.assert_array_equal(reach(params, spec, up)[:, 1:6], hops)


def test_only_agents_of_a_kind_share_weights() -> None:
    layout = _spec().layout
    assert layout is not None
    assert alike(_spec(), VIEWS) == layout.kinds == (0,) * 5
    for kinds, count in (((0,) * 5, 1), (tuple(range(5)), 5), ((0, 1, 1, 1, 0), 2)):
        spec = _spec(kinds)
        assert actor_of(spec, 2)["graph"]["agents"]["acts_1"]["kernel"].shape == (count, 8, 1)
        # Without messages, changed weights affect only agents of their kind.
        params = actor_of(spec, 2)
        x = jnp.asarray(np.random.default_rng(1).normal(size=10), jnp.float32).at[jnp.asarray(UP)].set(0.0)
        moved = jax.tree.map(lambda w: w.at[0].add(0.5), params["graph"]["agents"])
        other = actor_apply({"graph": params["graph"] | {"agents": moved}}, x)
        np.testing.assert_array_equal(np.asarray(other != actor_apply(params, x)), np.asarray(kinds) == 0)


def test_policy_is_equivariant_to_agent_order() -> None:
    spec, order = _spec(), (3, 0, 4, 2, 1)
    params, layout = actor_of(spec, 2), spec.layout
    assert layout is not None
    new = [order.index(i) for i in range(5)]

    def moved(rows: Any) -> Any:
        return tuple(tuple(row[i] for i in order) for row in rows)

    other = layout._replace(
        edges=tuple((new[b], new[a]) for a, b in layout.edges[::-1]),
        node_observation=moved(layout.node_observation),
        node_action=moved(layout.node_action),
        node_constants=moved(layout.node_constants),
        present=layout.present[::-1],
    )
    x = np.random.default_rng(2).normal(size=(20, 10)).astype(np.float32)
    x[:, list(UP)] = np.random.default_rng(3).integers(0, 2, (20, 4))
    again = actor_apply({"graph": params["graph"] | {"layout": other}}, jnp.asarray(x))
    np.testing.assert_allclose(again, actor_apply(params, jnp.asarray(x)), atol=1e-6)
    # Agents differ only by their observations and constants.
    assert layout.node_constants == tuple(tuple(row) for row in np.eye(5).tolist())
    same = layout._replace(node_constants=((1.0,) * 5,) * 5)
    alone = actor_apply({"graph": params["graph"] | {"layout": same}}, jnp.zeros(10).at[1:6].set(0.3))
    np.testing.assert_allclose(alone, np.full(5, alone[0]), atol=1e-6)


def test_two_agents_by_hand() -> None:
    """One round, width 1, all weights 1 and biases 0; agent a observes 2, agent b observes 3."""
    layout = Layout(2, ((0, 1),), ((0, 1),), node_action=((0, 1),), flags=(2,), present=(2,), kinds=(0, 0))
    weights = jax.tree.map(jnp.ones_like, agents_init(jax.random.key(0), AgentNetwork(layout, 1, 1)))
    weights = {name: layer | {"bias": jnp.zeros_like(layer["bias"])} for name, layer in weights.items()}
    policy = {"graph": {"layout": layout, "agents": weights}}
    # Each receives the other's observation: h = 2 + (2 + 3) and 3 + (3 + 2); without the link, 2 + 2 and 3 + 3.
    for up, expected in ((1.0, (7.0, 8.0)), (0.0, (4.0, 6.0))):
        np.testing.assert_allclose(actor_apply(policy, jnp.asarray([2.0, 3.0, up])), np.tanh(expected), rtol=1e-6)


def _rows(count: int) -> Transition:
    rng = np.random.default_rng(0)
    seen = rng.uniform(-1, 1, (count + 1, 10)).astype(np.float32)
    seen[:, 6:] = rng.integers(0, 2, (count + 1, 4))
    # Each agent should output its left neighbour's observation while linked.
    action = np.concatenate([seen[:-1, 1:2], seen[:-1, 1:5] * seen[:-1, 6:]], 1).astype(np.float32)
    zero = np.zeros(count, np.float32)
    return Transition(seen[:-1], action, action.sum(1), zero, seen[1:], zero)


def _learned(algorithm: str, updates: int) -> FitResult:
    own: dict[str, Any] = {"graph": 1, "hidden": [32], "actor_lr": 5e-3}
    return fit(_rows(2_000), _spec(), algorithm, updates=updates, overrides=own, batch_size=64, chunk=updates)


def test_agents_learn_to_communicate() -> None:
    data, policy = _rows(2_000), _learned("bc", 1_500).policies[0]
    error = np.mean((np.asarray(policy_act(policy, jnp.asarray(data.observation))) - data.action) ** 2)
    assert error < 0.1 * np.mean(data.action**2)


@pytest.mark.parametrize("algorithm", ["td3_bc", "iql"])
def test_learners_of_agents_have_central_critics(algorithm: str) -> None:
    policy = _learned(algorithm, 10).policies[0]
    assert set(policy.params["graph"]) == {"layout", "agents"}
    body = make_body(_spec(), (8,), graph=2)
    for network in (
        *critics_init(jax.random.key(0), 10, 5, (8,), 2, body=body),
        value_init(jax.random.key(0), 10, (8,), body),
    ):
        assert set(network) == {"Dense_0", "Dense_1"}


GRID = linked(PLANT, LINKS, loss=0.4, redraw=1.0)


@pytest.fixture(scope="module")
def grid_policy() -> Policy:
    rng, sizes = np.random.default_rng(7), (GRID.spec.observation.size, GRID.spec.action.size)
    numbers = [jnp.asarray(rng.uniform(0.5, 2.0, sizes[i // 2]), jnp.float32) for i in range(4)]
    scale = Normaliser(*numbers)
    return Policy(
        actor_of(GRID.spec, 3), scale._replace(mean=scale.mean.at[21:].set(0.0), scale=scale.scale.at[21:].set(1.0))
    )


def test_separate_agents_equal_the_joint_policy(grid_policy: Policy) -> None:
    """With PettingZoo views: each agent has its own observation and messages over links that are up."""
    from neorl_core.wrappers.pettingzoo import ParallelPlantEnv

    env = ParallelPlantEnv(GRID, physical=True)
    members = {name: extract_member(grid_policy, GRID.agents, name) for name in env.possible_agents}
    seen, _ = env.reset(seed=5)
    silent, links = 0, len(LINKS)
    for _ in range(6):
        whole = env.state()
        up = whole[-links:]
        silent += int(links - up.sum())
        received: dict[str, list[list[jax.Array]]] = {name: [] for name in members}
        for _ in range(3):
            says = {name: act(members[name], seen[name], received[name])[1] for name in members}
            for name in members:
                others = [
                    b if a == name else a for (a, b), there in zip(LINKS, up, strict=True) if there and name in (a, b)
                ]
                received[name].append([told for other in others if (told := says[other]) is not None])
        done = {name: act(members[name], seen[name], received[name]) for name in members}
        assert all(says is None for _, says in done.values())
        joint = np.zeros(GRID.spec.action.size, np.float32)
        for view in GRID.agents:
            joint[list(view.action)] = done[view.name][0]
        np.testing.assert_allclose(joint, policy_act(grid_policy, jnp.asarray(whole)), atol=1e-6)
        # Before the first message an agent acts as without links.
        cut = policy_act(grid_policy, jnp.asarray(whole).at[-links:].set(0.0))
        early, _ = act(members["solar_18"], seen["solar_18"])
        np.testing.assert_allclose(early, cut[np.asarray(GRID.agents[0].action)], atol=1e-6)
        seen, *_ = env.step({name: np.asarray(action) for name, (action, _) in done.items()})
    assert silent > 0


def test_member_has_only_weights_of_its_kind(grid_policy: Policy) -> None:
    member = extract_member(grid_policy, GRID.agents, "dispatcher")
    every = sum(x.size for x in jax.tree.leaves(grid_policy.params))
    assert sum(x.size for x in jax.tree.leaves(member.policy.params)) == every // 3
    assert member.policy.normaliser.mean.shape == (len(GRID.agents[-1].observation),)
    with pytest.raises(ValueError, match=r"the agent must be one of solar_18, .*, got 'mayor'"):
        extract_member(grid_policy, GRID.agents, "mayor")
    with pytest.raises(ValueError, match="dispatcher needs a policy of agents, got weights"):
        extract_member(Policy({"Dense_0": {}}, grid_policy.normaliser), GRID.agents, "dispatcher")


def test_invalid_layouts_are_rejected() -> None:
    layout = _spec().layout
    assert layout is not None
    assert check_layout(layout, 10, 5) == layout
    for wrong, message in (
        (layout._replace(kinds=(0, 0, 2, 0, 0)), "kinds of 5 agents must be numbers from 0 without a gap, got"),
        (layout._replace(kinds=(0,)), "kinds of 5 agents must be"),
        (layout._replace(context=(0,)), r"all components at nodes, got context \(0,\)"),
    ):
        with pytest.raises(ValueError, match=message):
            check_layout(wrong, 10, 5)
    with pytest.raises(ValueError, match="links must join the agents a, b, c, d, e, got 'f'"):
        agents_layout(_spec(), VIEWS, (("a", "f"),))
