"""Discrete learners against NumPy, d3rlpy, and a small decision process solved by value iteration."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import log_softmax, logsumexp, softmax

from neorl_core.algorithms import (
    ALGORITHMS,
    check_actions,
    default_algorithm,
    discrete_bc,
    discrete_cql,
    double_dqn,
    losses,
)
from neorl_core.algorithms.discrete_bc import DISCRETE_BC
from neorl_core.algorithms.discrete_cql import DISCRETE_CQL
from neorl_core.algorithms.discrete_iql import DISCRETE_IQL
from neorl_core.fit import fit
from neorl_core.networks import Normaliser, Params, Policy, mlp_apply, policy_act, preferences, to_physical, to_unit
from neorl_core.training.optimisers import Recipe
from neorl_core.training.population import configure, init_population, make_train_chunk, member, members
from neorl_core.training.preparation import prepare
from neorl_core.types import PlantSpec, Space, Transition
from tests.by_hand import spec

GOLDEN = np.load(Path(__file__).parents[2] / "golden" / "d3rlpy_discrete.npz", allow_pickle=False)
CONFIG = json.loads(str(GOLDEN["config"]))
DESCENT = Recipe(method="sgd")


def gears(observations: int, choices: int) -> PlantSpec:
    """A plant with these numbers of signals and choices."""
    action = Space(("gear",), ("1",), (0.0,), (choices - 1.0,))
    return spec(observations, 1)._replace(action=action, choices=tuple(map(str, range(choices))))


@pytest.mark.parametrize("terminated", [0.0, 1.0])
def test_losses_equal_numpy(terminated: float) -> None:
    rng = np.random.default_rng(1)
    online, target = rng.normal(size=(2, 4))
    chosen = np.eye(4)[2]
    with jax.enable_x64(True):
        assert losses.cross_entropy_loss(jnp.asarray(online), jnp.asarray(chosen)) == pytest.approx(
            -log_softmax(online)[2], rel=1e-12
        )
        assert losses.discrete_conservative_loss(jnp.asarray(online), jnp.asarray(chosen)) == pytest.approx(
            logsumexp(online) - online[2], rel=1e-12
        )
        one, discount, ends = (jnp.asarray(x) for x in (0.5, 0.9, terminated))
        found = losses.double_q_target(one, discount, ends, jnp.asarray(online), jnp.asarray(target))
    assert found == pytest.approx(0.5 + 0.9 * (1 - terminated) * target[np.argmax(online)], rel=1e-12)
    assert np.argmax(online) != np.argmax(target), "or the two networks could be confused"


def linear_step(name: str, state: Any, b: dict[str, np.ndarray], rate: float, alpha: float) -> dict[str, Any]:
    """One step of plain descent of linear networks, by hand: `dL/dW = x^T dL/dz`."""

    def moved(params: Params, slope: np.ndarray) -> dict[str, np.ndarray]:
        layer = params["Dense_0"]
        return {"kernel": layer["kernel"] - rate * b["x"].T @ slope, "bias": layer["bias"] - rate * slope.sum(axis=0)}

    def at(params: Params, x: np.ndarray) -> np.ndarray:
        return x @ np.asarray(params["Dense_0"]["kernel"]) + np.asarray(params["Dense_0"]["bias"])

    rows = len(b["r"])
    if name == "discrete_bc":
        return {"actor": moved(state.actor, (softmax(at(state.actor, b["x"]), axis=1) - b["a"]) / rows)}
    if name == "discrete_iql":
        h = {key: float(value) for key, value in state.hyper.items()}
        q = np.min([(at(c, b["x"]) * b["a"]).sum(axis=1) for c in state.critics_target], axis=0)
        advantage = q - at(state.value, b["x"])[:, 0]
        weight = np.where(advantage < 0, 1 - h["expectile"], h["expectile"])
        y = b["r"] + h["discount"] * (1 - b["d"]) * at(state.value, b["n"])[:, 0]
        greed = np.minimum(np.exp(h["beta"] * advantage), 100.0)
        found = {"value": moved(state.value, (-2 * weight * advantage / rows)[:, None])}
        for i, critic in enumerate(state.critics):
            error = (at(critic, b["x"]) * b["a"]).sum(axis=1) - y
            found[f"critics{i}"] = moved(critic, 2 * (error / rows)[:, None] * b["a"])
        slope = greed[:, None] * (softmax(at(state.actor, b["x"]), axis=1) - b["a"]) / rows
        return found | {"actor": moved(state.actor, slope)}
    after = at(state.critic_target, b["n"])[np.arange(rows), at(state.critic, b["n"]).argmax(axis=1)]
    y = b["r"] + float(state.hyper["discount"]) * (1 - b["d"]) * after
    values = at(state.critic, b["x"])
    slope = 2 * ((values * b["a"]).sum(axis=1) - y)[:, None] * b["a"] + alpha * (softmax(values, axis=1) - b["a"])
    return {"critic": moved(state.critic, slope / rows)}


@pytest.mark.parametrize(
    ("name", "alpha"), [("discrete_bc", 0.0), ("discrete_iql", 0.0), ("double_dqn", 0.0), ("discrete_cql", 1.5)]
)
def test_update_of_linear_networks_equals_numpy(name: str, alpha: float) -> None:
    rng, rows, rate = np.random.default_rng(1), 16, 0.1
    b = {"x": rng.normal(size=(rows, 3)), "n": rng.normal(size=(rows, 3)), "r": rng.normal(size=rows)}
    b |= {"d": (rng.random(rows) < 0.3).astype(float), "a": np.eye(4)[rng.integers(0, 4, rows)]}
    algorithm = ALGORITHMS[name]
    fields = algorithm.Config()._asdict()
    given = {key: DESCENT if key.endswith("recipe") else rate for key in fields if key.endswith(("_lr", "recipe"))}
    given |= {"alpha": alpha} if "alpha" in fields else {}
    with jax.enable_x64(True):
        config = algorithm.Config(**{**fields, **given, "hidden": ()})
        state = algorithm.init(jax.random.key(3), gears(3, 4), config)
        # A target that lags behind, and non-zero biases.
        key = iter(jax.random.split(jax.random.key(4), 50))
        state = jax.tree.map(lambda x: x + 0.3 * jax.random.normal(next(key), x.shape) if x.ndim else x, state)
        columns = (jnp.asarray(b[name])[None] for name in ("x", "a", "r", "r", "n", "d"))
        after, _ = jax.jit(algorithm.update)(state, Transition(*columns), jax.random.key(0))
        for part, wanted in linear_step(name, state, b, rate, alpha).items():
            ours = after.critics[int(part[-1])] if part.startswith("critics") else getattr(after, part)
            for leaf, value in wanted.items():
                np.testing.assert_allclose(ours["Dense_0"][leaf], value, atol=1e-12, err_msg=f"{part} {leaf}")
        for networks in [part for part in ("critic", "critics") if hasattr(state, part)]:
            moved = jax.tree.map(
                lambda t, o: t + 0.005 * (o - t), getattr(state, f"{networks}_target"), getattr(after, networks)
            )
            for one, other in zip(
                jax.tree.leaves(moved), jax.tree.leaves(getattr(after, f"{networks}_target")), strict=True
            ):
                np.testing.assert_allclose(one, other, atol=1e-12)


def network(key: str) -> Params:
    """Layers from a flat vector of the golden file."""
    vector, params, at, width = jnp.asarray(GOLDEN[key], jnp.float64), {}, 0, CONFIG["observations"]
    for i, out in enumerate((*CONFIG["hidden"], CONFIG["actions"])):
        kernel, bias = jnp.split(vector[at : at + (width + 1) * out], [width * out])
        params[f"Dense_{i}"] = {"kernel": kernel.reshape(width, out), "bias": bias}
        at, width = at + (width + 1) * out, out
    return params


@pytest.mark.parametrize("name", ["discrete_bc", "double_dqn", "discrete_cql"])
def test_gradient_equals_d3rlpy(name: str) -> None:
    """For small errors d3rlpy's Huber loss is half the square, so its gradient is half of ours at half the conservative
    weight."""
    with jax.enable_x64(True):
        rows = {key: jnp.asarray(GOLDEN[f"batch/{key}"], jnp.float64) for key in ("observation", "next_observation")}
        rows |= {key: jnp.asarray(GOLDEN[f"batch/{key}"], jnp.float64) for key in ("reward", "terminated")}
        chosen = jnp.eye(CONFIG["actions"])[GOLDEN["batch/action"][:, 0].astype(int)]
        batch = Transition(**rows, action=chosen, cost=jnp.zeros(len(chosen)))
        if name == "discrete_bc":
            found = jax.jit(jax.grad(discrete_bc.actor_loss))(network(f"{name}/before/actor"), batch)
            part, scale = "actor", 1.0
        else:
            config = ALGORITHMS[name].Config(discount=CONFIG["discount"])
            critic, target_network = (network(f"{name}/before/{part}") for part in ("critic_0", "critic_target_0"))
            state = ALGORITHMS[name].init(jax.random.key(0), gears(3, CONFIG["actions"]), config)
            state = state._replace(critic=critic, critic_target=target_network)
            target = double_dqn.targets(state, batch)
            bootstrapped = (target - batch.reward) / CONFIG["discount"]
            alive = np.asarray(batch.terminated) == 0
            np.testing.assert_allclose(bootstrapped[alive], GOLDEN[f"{name}/target"][alive], atol=1e-6)
            alpha = CONFIG["algorithms"][name].get("alpha", 0.0)
            h = {"alpha": jnp.asarray(2 * alpha)}
            loss = discrete_cql.critic_loss if alpha else double_dqn.critic_loss
            slope = jax.grad(lambda c: loss(mlp_apply(c, batch.observation), batch, target, h)[0])
            found = jax.jit(slope)(critic)
            part, scale = "critic_0", 0.5
        wanted = network(f"{name}/gradient/{part}")
        assert max(np.abs(x).max() for x in jax.tree.leaves(wanted)) > 1e-3
        for ours, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
            np.testing.assert_allclose(scale * ours, theirs, atol=2e-6)


STATES, CHOICES, DISCOUNT = 6, 3, 0.8


class Table:
    """A random deterministic decision process, logged once for every state and choice, and its exact solution."""

    def __init__(self) -> None:
        rng = np.random.default_rng(5)
        self.following = rng.integers(0, STATES, (STATES, CHOICES))
        self.reward = rng.normal(size=(STATES, CHOICES))
        self.ends = rng.random((STATES, CHOICES)) < 0.15
        self.q = np.zeros((STATES, CHOICES))
        for _ in range(500):
            # Value iteration (Puterman 1994, section 6.3).
            self.q = self.reward + DISCOUNT * ~self.ends * self.q.max(axis=1)[self.following]

    def logs(self, copies: np.ndarray) -> Transition:
        """One-hot rows, each pair as often as `copies` (S, C) says."""
        s, a = (np.repeat(x.ravel(), copies.ravel()) for x in np.indices((STATES, CHOICES)))
        eye = np.eye(STATES, dtype=np.float32)
        zero = np.zeros(len(s), np.float32)
        return Transition(
            *(jnp.asarray(x, jnp.float32) for x in (eye[s], np.eye(CHOICES)[a], self.reward[s, a], zero)),
            jnp.asarray(eye[self.following[s, a]]),
            jnp.asarray(self.ends[s, a], jnp.float32),
        )

    def values(self, name: str, logs: Transition, updates: int = 6_000, **floats: float) -> np.ndarray:
        """Return the output of a linear network per state and choice."""
        algorithm, plant = ALGORITHMS[name], gears(STATES, CHOICES)
        rate = {f: 0.02 for f in algorithm.Config._fields if f.endswith("_lr")}
        recipes = {
            f: Recipe(schedule="cosine", steps=updates) for f in algorithm.Config._fields if f.endswith("recipe")
        }
        shared = {"discount": DISCOUNT, "tau": 0.05} if "discount" in algorithm.Config._fields else {}
        config = algorithm.Config(hidden=(), **rate, **recipes, **shared, **floats)
        fresh = init_population(algorithm, plant, config, members([0], {}))
        end, _ = make_train_chunk(algorithm, updates, updates, 64)(fresh, logs)
        learner = member(end, 0).learner
        return np.asarray(algorithm.act(learner, jnp.eye(STATES)), np.float64)


@pytest.fixture(scope="module")
def table() -> Table:
    return Table()


EVERYTHING = np.ones((STATES, CHOICES), int)


def test_double_dqn_finds_value_iteration_values(table: Table) -> None:
    found = table.values("double_dqn", table.logs(EVERYTHING))
    np.testing.assert_allclose(found, table.q, atol=5e-3)


@pytest.mark.slow
def test_implicit_q_learning_finds_the_optimal_choices(table: Table) -> None:
    found = table.values("discrete_iql", table.logs(EVERYTHING), expectile=0.98, beta=10.0)
    np.testing.assert_array_equal(found.argmax(axis=1), table.q.argmax(axis=1))


def test_clone_reproduces_logged_choice_frequencies(table: Table) -> None:
    copies = np.random.default_rng(2).integers(1, 6, (STATES, CHOICES))
    found = softmax(table.values("discrete_bc", table.logs(copies)), axis=1)
    np.testing.assert_allclose(found, copies / copies.sum(axis=1, keepdims=True), atol=0.03)


def test_conservative_values_solve_their_equations(table: Table) -> None:
    copies = EVERYTHING.copy()
    # The best choice in one state was never logged, so its value is unknown.
    state = int(np.argmax(table.q.max(axis=1) - np.sort(table.q, axis=1)[:, -2]))
    copies[state, table.q[state].argmax()] = 0
    alpha = 0.5
    found = table.values("discrete_cql", table.logs(copies), alpha=alpha)
    y = table.reward + DISCOUNT * ~table.ends * found.max(axis=1)[table.following]
    share = copies / copies.sum(axis=1, keepdims=True)
    # Kumar et al. 2020: the derivative of equation 4 for each entry of a table, by hand.
    slope = 2 * share * (found - y) + alpha * (softmax(found, axis=1) - share)
    logged = np.broadcast_to((np.arange(STATES) != state)[:, None], slope.shape)
    np.testing.assert_allclose(slope[logged], 0.0, atol=2e-2)
    assert found[state].argmax() != table.q[state].argmax()
    assert softmax(found[state])[table.q[state].argmax()] < 0.05


def test_choices_one_hot_round_trip() -> None:
    plant = gears(1, 3)
    chosen = np.array([[0], [2], [1], [2]], np.float32)
    rows = Transition(np.arange(4, dtype=np.float32)[:, None], chosen, *np.zeros((2, 4), np.float32), *[None] * 2)  # type: ignore[arg-type]
    rows = rows._replace(next_observation=rows.observation + 1, terminated=np.zeros(4, np.float32))
    normaliser, data = prepare(rows, plant)
    np.testing.assert_array_equal(data.action, np.eye(3)[[0, 2, 1, 2]])
    np.testing.assert_array_equal(to_physical(normaliser, data.action), chosen)
    # A row without successor has no next action.
    assert data.next_action is not None
    np.testing.assert_array_equal(data.next_action, [*np.eye(3)[[2, 1, 2]], [np.inf] * 3])
    assert np.isnan(to_unit(normaliser, jnp.array([np.nan]))).all()
    np.testing.assert_array_equal(to_unit(normaliser, jnp.array([0.5])), 0.0)


def test_policy_takes_greatest_output_or_nan() -> None:
    params = {"Dense_0": {"kernel": jnp.array([[20.0, 30.0, -1.0]]), "bias": jnp.zeros(3)}}
    normaliser = Normaliser(*(jnp.array([x]) for x in (0.0, 1.0, 1.0, 1.0)), choices=jnp.arange(3.0))
    policy = Policy(params, normaliser)
    # The tanh of both is 1 in single precision.
    np.testing.assert_array_equal(preferences(policy, jnp.array([1.0])), [20.0, 30.0, -1.0])
    np.testing.assert_array_equal(policy_act(policy, jnp.array([[1.0], [-1.0]])), [[1.0], [2.0]])
    assert np.isnan(policy_act(policy, jnp.array([np.nan]))).all()


def test_algorithms_are_found_by_the_kind_of_actions() -> None:
    found = {"discrete_bc": DISCRETE_BC, "discrete_iql": DISCRETE_IQL, "discrete_cql": DISCRETE_CQL}
    assert {name for name, algorithm in ALGORITHMS.items() if algorithm.discrete} == {*found, "double_dqn"}
    assert all(ALGORITHMS[name] is algorithm for name, algorithm in found.items())
    assert [default_algorithm(plant) for plant in (spec(2, 1), gears(2, 2))] == ["td3_bc", "discrete_cql"]


def test_algorithms_for_other_actions_are_rejected() -> None:
    with pytest.raises(ValueError, match="td3_bc cannot learn the discrete actions of toy: choose one of discrete_bc"):
        check_actions(ALGORITHMS["td3_bc"], gears(2, 2))
    with pytest.raises(ValueError, match="double_dqn cannot learn the continuous actions of toy: choose one of bc"):
        check_actions(ALGORITHMS["double_dqn"], spec(2, 1))
    rows = Transition(np.zeros((4, 2)), np.full((4, 1), 2.0), *np.zeros((2, 4)), np.zeros((4, 2)), np.zeros(4))
    with pytest.raises(ValueError, match="actions of toy must be choice numbers from 0 to 1, got 2"):
        fit(rows, gears(2, 2), "discrete_bc")


@pytest.mark.parametrize("name", ["gru", "graph", "huber"])
def test_discrete_clone_rejects_unused_hyperparameters(name: str) -> None:
    with pytest.raises(ValueError, match=f"unknown hyper-parameter '{name}' of discrete_bc: use hidden, "):
        configure(DISCRETE_BC, {name: 1})
