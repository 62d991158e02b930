"""Back-propagation through a plant: against differences, and against the Riccati equation of a linear plant."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from neorl_core.algorithms import BC, BPTT, COMBO, MOPO, bptt, losses
from neorl_core.control.lqr import riccati_gain
from neorl_core.fit import fit
from neorl_core.training import optimisers
from neorl_core.training.loop import schedule
from neorl_core.training.optimisers import Recipe
from neorl_core.training.population import configure, phase, warm_up_updates
from neorl_core.types import Transition
from neorl_core.world_model import dynamics, support
from tests.by_hand import batch_of, spec, start

A = np.array([[1.0, 0.2], [0.0, 1.0]])
B = np.array([[0.0], [0.2]])
Q, R = np.diag([1.0, 0.1]), np.array([[0.1]])
FAR = dynamics.Reach(jnp.float32(-100.0), jnp.float32(100.0))
EVERYWHERE = support.Edge(jnp.zeros((3, 1)), jnp.zeros(1), jnp.eye(5), jnp.float32(jnp.inf))
"""A support without an edge, of steps of two numbers and an action."""
SMALL = {"hidden": [8], "model_hidden": [8], "members": 2, "elites": 2, "horizon": 3, "starts": 8}


def test_the_loss_of_a_rollout_by_hand() -> None:
    reward, alive, apart = jnp.array([1.0, 2.0]), jnp.array([1.0, 0.5]), jnp.array([0.1, 0.4])
    # -(1 (1 - 2 * .1) + .9 * .5 (2 - 2 * .4)) / 2
    found = losses.rollout_loss(reward, alive, apart, jnp.float32(0.9), jnp.float32(2.0))
    assert float(found) == pytest.approx(-(0.8 + 0.54) / 2, rel=1e-6)
    without = losses.rollout_loss(reward, alive, apart, jnp.float32(0.9), jnp.float32(0.0))
    assert float(without) == pytest.approx(-(1.0 + 0.9) / 2, rel=1e-6), "a weight of zero: the return alone"


@pytest.mark.slow
def test_gradients_through_the_rollouts_agree_with_differences() -> None:
    with jax.enable_x64(True):
        state = start(BPTT, bptt.Config(hidden=(4,), model_hidden=(4,), members=2, penalty=0.5))
        # ReLU has kinks: a few states far from them.
        starts = batch_of(np.random.default_rng(3), 2, 2).observation
        hyper = {"discount": jnp.asarray(0.9), "penalty": jnp.asarray(0.5), "support": jnp.asarray(2.0)}
        inputs = state.support.directions.shape[0]
        seen = support.accumulate(state.support, jnp.asarray(np.random.default_rng(4).normal(size=(64, inputs))))
        # With a tenth of the radius all steps lie outside.
        near = support.edge(seen, jnp.zeros((1, inputs)))
        edge = near._replace(radius=0.1 * near.radius)
        loss = jax.jit(lambda actor: bptt.actor_loss(actor, state.model.members, FAR, edge, starts, 4, hyper)[0])
        check_grads(loss, (state.actor,), order=1, modes="rev", rtol=1e-4)


def linear_plant(monkeypatch: pytest.MonkeyPatch) -> None:
    """The true model and reward of a linear-quadratic problem instead of learned ones."""

    def transition(member: Any, s: jax.Array, a: jax.Array) -> tuple[jax.Array, jax.Array]:
        return jnp.asarray(A, s.dtype) @ s + jnp.asarray(B, s.dtype) @ a, jnp.zeros_like(s)

    def reward_and_termination(
        member: Any, s: jax.Array, a: jax.Array, after: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        cost = s @ jnp.asarray(Q, s.dtype) @ s + a @ jnp.asarray(R, s.dtype) @ a
        return -cost, jnp.full((), -50.0, s.dtype)

    monkeypatch.setattr(dynamics, "transition", transition)
    monkeypatch.setattr(dynamics, "reward_and_termination", reward_and_termination)


def test_policy_is_riccati_gain_with_true_linear_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """A linear actor with small actions, where tanh is the identity to 0.1 %."""
    linear_plant(monkeypatch)
    steps = 3000
    recipe = Recipe(schedule="cosine", steps=steps)
    actor = {"Dense_0": {"kernel": -jnp.ones((2, 1)), "bias": jnp.zeros(1)}}
    starts = 0.02 * jax.random.normal(jax.random.key(0), (1, 32, 2))
    hyper = {"discount": jnp.float32(1.0), "penalty": jnp.float32(1.0), "support": jnp.float32(1.0)}

    def one(carry: Any, _: None) -> tuple[Any, None]:
        actor, optimiser = carry
        # Scale up: costs of small states would be small relative to Adam's epsilon.
        gradient = jax.grad(lambda a: 1e4 * bptt.actor_loss(a, ({},), FAR, EVERYWHERE, starts, 40, hyper)[0])(actor)
        return optimisers.step(actor, gradient, optimiser, jnp.float32(0.05)), None

    learn = jax.jit(lambda carry: jax.lax.scan(one, carry, length=steps)[0])
    found, _ = learn((actor, optimisers.init(recipe, actor)))
    gain, _ = riccati_gain(A, B, Q, R)
    np.testing.assert_allclose(found["Dense_0"]["kernel"].T, -gain, rtol=0.01)
    np.testing.assert_allclose(found["Dense_0"]["bias"], 0.0, atol=1e-3)


def test_over_a_horizon_of_one_the_policy_is_greedy(monkeypatch: pytest.MonkeyPatch) -> None:
    """a = -(R + B'QB)^-1 B'QA s, with the cost of the state after the step; one member has no disagreement."""
    linear_plant(monkeypatch)

    def reward_and_termination(
        member: Any, s: jax.Array, a: jax.Array, after: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        cost = after @ jnp.asarray(Q, s.dtype) @ after + a @ jnp.asarray(R, s.dtype) @ a
        return -cost, jnp.full((), -50.0, s.dtype)

    monkeypatch.setattr(dynamics, "reward_and_termination", reward_and_termination)
    kernel = -np.linalg.solve(R + B.T @ Q @ B, B.T @ Q @ A).T
    actor = {"Dense_0": {"kernel": jnp.float32(kernel), "bias": jnp.zeros(1)}}
    starts = 0.02 * jax.random.normal(jax.random.key(0), (1, 32, 2))
    hyper = {"discount": jnp.float32(0.9), "penalty": jnp.float32(7.0), "support": jnp.float32(1.0)}
    loss = jax.jit(jax.grad(lambda a: 1e4 * bptt.actor_loss(a, ({},), FAR, EVERYWHERE, starts, 1, hyper)[0]))
    at_truth, beside = (loss(jax.tree.map(lambda x, d=d: x + d, actor)) for d in (0.0, 0.1))
    size = [float(np.abs(g["Dense_0"]["kernel"]).max()) for g in (at_truth, beside)]
    assert size[0] < 1e-3 * size[1]


def test_loss_increases_by_distance_outside_support(monkeypatch: pytest.MonkeyPatch) -> None:
    """The increase is `support` times the mean discounted excess; the linear plant never terminates."""
    linear_plant(monkeypatch)
    actor = {"Dense_0": {"kernel": -jnp.ones((2, 1)), "bias": jnp.zeros(1)}}
    starts = jax.random.normal(jax.random.key(0), (1, 8, 2))
    inside = 0.1 * jax.random.normal(jax.random.key(2), (64, 3))
    edge = jax.jit(lambda x: support.edge(support.accumulate(support.init(jax.random.key(1), 3), x), x))(inside)

    @jax.jit
    def loss(weight: jax.Array) -> tuple[Any, Any]:
        hyper = {"discount": jnp.float32(0.9), "penalty": jnp.float32(1.0), "support": weight}
        return bptt.actor_loss(actor, ({},), FAR, edge, starts, 5, hyper)

    (nothing, steps), (double, _) = loss(jnp.float32(0.0)), loss(jnp.float32(2.0))
    outside = support.excess(edge, jnp.concatenate([steps.observation, steps.action], axis=-1))
    way = float(jnp.mean(outside * 0.9 ** jnp.arange(5.0)))
    assert way > 0.1
    assert float(double - nothing) == pytest.approx(2.0 * way, rel=1e-4)


def test_a_chunk_ends_with_the_warm_up() -> None:
    for updates, chunk, batches, warm_up in ((1000, 300, 1, 700), (999, 50, 4, 123), (77, 500, 2, 50)):
        log_every, cut, whole, first = schedule(updates, chunk, batches, warm_up)
        plain = schedule(updates, chunk, batches)
        assert (log_every, whole) == (plain.log_every, plain.updates), "a warm-up changes neither"
        assert whole % cut == first % cut == cut % log_every == 0
        assert warm_up <= first < warm_up + log_every


def test_the_warm_up_is_the_update_of_its_phase() -> None:
    assert warm_up_updates(BPTT, bptt.Config(warm_up_updates=20)) == 20
    assert phase(BPTT, True).update is bptt.warm_up
    assert phase(BPTT, False) is BPTT
    assert warm_up_updates(BC, BC.Config()) == 0
    assert phase(BC, True) is BC


def test_the_defaults_fit_a_run_of_any_length() -> None:
    def lengths(updates: int, **given: object) -> tuple[int, int, int]:
        config = configure(BPTT, given, updates)
        return config.warm_up_updates, config.model_recipe.steps, config.actor_recipe.steps

    assert configure(BPTT, {}, 4_000) == configure(BPTT, {}) == bptt.Config()
    assert lengths(100_000) == (80_000, 80_000, 20_000)
    assert lengths(1_000) == (800, 800, 200)
    assert lengths(2) == (1, 1, 1)
    # Overrides stay, and the other values scale with them.
    assert lengths(100, warm_up_updates=30) == (30, 30, 70)
    assert lengths(100, actor_recipe={"schedule": "cosine", "steps": 7}) == (80, 80, 7)
    assert configure(MOPO, {}, 900).warm_up_updates == configure(MOPO, {}, 900).model_recipe.steps == 300
    assert configure(COMBO, {}, 900).warm_up_updates == 450
    assert configure(BC, {}, 7) == BC.Config()
    onward = configure(BPTT, {"warm_up_updates": 30}, 100, warmed=True)
    assert (onward.warm_up_updates, onward.actor_recipe.steps) == (0, 100), "what goes on warms up no more"


@pytest.mark.slow
def test_warm_up_and_results_do_not_depend_on_chunks() -> None:
    """Ten steps of the model, then six of the actor."""
    rng = np.random.default_rng(0)
    x, u = rng.normal(size=(200, 2)).astype(np.float32), rng.uniform(-1, 1, size=(200, 1)).astype(np.float32)
    zeros = np.zeros(200, np.float32)
    log = Transition(x, u, -np.sum(x**2, axis=1), zeros, (x @ A.T + u @ B.T).astype(np.float32), zeros)
    runs = [[], []]
    for chunk, states in zip((1, 100), runs, strict=True):
        found = fit(
            log,
            spec(2, 1),
            "bptt",
            updates=16,
            overrides={**SMALL, "warm_up_updates": 10},
            batch_size=16,
            chunk=chunk,
            report=lambda progress, _, states=states: states.append(progress),
        )
        assert found.sound.all()
        (border,) = (state.population.learner for state in states if state.done == 10)
        assert set(counts(border.actor_optimiser)) == {0}
        last = states[-1].population.learner
        assert (set(counts(last.model.optimiser)), set(counts(last.actor_optimiser))) == ({10}, {6})
        assert np.all(found.curves["actor_loss"][0, :10] == 0.0)
        assert np.all(found.curves["actor_loss"][0, 10:] != 0.0)
    assert [len(states) for states in runs] == [17, 9]
    one, other = ([np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(states[-1])] for states in runs)
    assert one == other


def counts(optimiser: Any) -> list[int]:
    return [int(leaf[0]) for leaf in jax.tree.leaves(optimiser) if leaf.dtype == jnp.int32]
