"""Analytic policy gradient: against finite differences, the optimal linear controller, and by hand."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend import core

from neorl_core.control.offset import Offset, shift_offset, with_offset
from neorl_core.online.analytic_gradient import LEARNER, Config, State, bounded_mean, init, loss
from neorl_core.online.learner import Setting, composite_of, observe, without_rows
from neorl_core.plants import PLANTS
from neorl_core.plants.base import rollout, rollouts
from neorl_core.safety.composite import composite_controller, unshielded_controller
from neorl_core.safety.shield import default_shield
from neorl_core.training.loop import RunState, schedule, train
from neorl_core.training.optimisers import Recipe
from neorl_core.training.population import Member, configure, init_population, warm_up_updates
from neorl_core.types import Constraint, Controller, Plant, PlantSpec, SetPoints, Space, Timestep

SMOOTH = ("hvac_control", "steel_annealing", "chemical_reactor", "double_mass", "water_treatment")
"""Plants without jumps. The power grid rounds switch positions, so finite differences jump there."""
DECAY, INPUT, WEIGHT, HORIZON = 0.95, 0.4, 0.1, 60
"""x' = DECAY x + INPUT u + noise; reward −(x² + WEIGHT u²)."""


def _step(key: Any, state: Any, action: Any, params: Any) -> tuple[Any, Timestep]:
    x, t = state
    following = DECAY * x + INPUT * action + 0.05 * jax.random.normal(key, (1,))
    reward = -(jnp.sum(x**2) + WEIGHT * jnp.sum(action**2))
    margins = 50.0 - jnp.abs(following)
    return (following, t + 1), Timestep(following, reward, margins, jnp.asarray(False), t + 1 >= HORIZON)


IDLE = Controller(lambda p, o: (), lambda p, s, o, a: (s, -0.5 * o))
LINEAR = Plant(
    spec=PlantSpec(
        name="linear",
        observation=Space(("x",), ("1",), (-50.0,), (50.0,)),
        action=Space(("u",), ("1",), (-4.0,), (4.0,)),
        constraints=(Constraint("x", "1", -50.0, 50.0),),
        dt=1.0,
        time_unit="s",
        horizon=HORIZON,
        score_range=(-100.0, 0.0),
    ),
    params=(),
    domain=(),
    sample_params=lambda key, domain: (),
    reset=lambda key, params: (
        (start := jax.random.uniform(key, (1,), minval=-2.0, maxval=2.0), jnp.asarray(0)),
        start,
    ),
    step=_step,
    predict=lambda o, a, p: (DECAY * o + INPUT * a, 50.0 - jnp.abs(o)),
    applied=jnp.zeros_like,
    fallback=IDLE,
    fallback_params=(),
)


def _move_to_set_point(key: Any, state: Any, action: Any, params: Any) -> tuple[Any, Timestep]:
    x, best, t = state
    following = x + action[0]
    observation = jnp.stack([following, jnp.asarray(1.0), best])
    margins = (50.0 - jnp.abs(following))[None]
    now = Timestep(observation, -((following - best) ** 2), margins, jnp.asarray(False), t + 1 >= 10)
    return (following, best, t + 1), now


def _start_anywhere(key: Any, params: Any) -> tuple[Any, Any]:
    x, best = jax.random.uniform(key, (2,), minval=0.5, maxval=1.9)
    return (x, best, jnp.asarray(0)), jnp.stack([x, jnp.asarray(1.0), best])


DEADBEAT = Controller(lambda p, o: (), lambda p, s, o, a: (s, (o[1] - o[0])[None]))
"""Moves x to the set point in one step."""
SHIFTED = Plant(
    spec=LINEAR.spec._replace(
        name="shifted",
        observation=Space(("x", "set_point", "best"), ("1",) * 3, (-50.0,) * 3, (50.0,) * 3),
        horizon=10,
        score_range=(-10.0, 0.0),
    ),
    params=(),
    domain=(),
    sample_params=lambda key, domain: (),
    reset=_start_anywhere,
    step=_move_to_set_point,
    predict=lambda o, a, p: (o.at[0].add(a[0]), (50.0 - jnp.abs(o[0] + a[0]))[None]),
    applied=lambda o: jnp.zeros_like(o[:1]),
    fallback=with_offset(DEADBEAT, (1,)),
    fallback_params=Offset((), (0.0,)),
    set_points=SetPoints(("x",), ("1",), (0.8,), shift_offset),
)
"""x' = x + u; reward −(x' − best)². The set point is 1, so the best shift is best − 1, or 0.8 if less."""


def riccati_gain() -> float:
    """Return the optimal gain of the infinite horizon, by iteration of the scalar Riccati equation."""
    p = 1.0
    for _ in range(500):
        gain = INPUT * p * DECAY / (WEIGHT + INPUT**2 * p)
        p = 1.0 + DECAY**2 * p - DECAY * INPUT * p * gain
    return gain


def setting(plant: Plant, **changes: Any) -> tuple[Setting, State]:
    config = Config()._replace(**changes)
    found = Setting(plant, default_shield(plant.spec), observe(plant, jax.random.key(9)), config)
    return found, init(jax.random.key(0), found)


def trained(found: Setting, updates: int, seeds: int = 1, **how: Any) -> RunState:
    """Train members with the seeds from 0."""
    learner = LEARNER.bind(found)
    fresh = init_population(learner, found.plant.spec, found.config, [Member(i, i, {}) for i in range(seeds)])
    plan = schedule(updates, 2, 1, found.config.warm_up_updates)
    return train(learner, fresh, without_rows(found.plant.spec), plan, 1, **how)


@pytest.mark.slow
def test_the_learned_policy_is_the_optimal_linear_controller() -> None:
    recipe = Recipe(clip=1.0, schedule="cosine", steps=400)
    found, _ = setting(LINEAR, episodes=32, warm_up_updates=398, recipe=recipe)
    actor = jax.tree.map(lambda x: x[0], trained(found, 400).population.learner.actor)
    keys = jax.random.split(jax.random.key(5), 256)
    learned = rollouts(LINEAR, unshielded_controller(LINEAR), composite_of(actor, found), keys, ()).ret
    gain = riccati_gain()
    best = Controller(lambda p, o: (), lambda p, s, o, a: (s, -gain * o))
    optimal, start = (rollouts(LINEAR, c, (), keys, ()).ret for c in (best, IDLE))
    assert float(jnp.mean(learned - start)) > 0
    assert float(jnp.mean(optimal - learned)) < 0.02 * float(jnp.mean(-optimal))


@pytest.mark.parametrize("protected", [False, True])
def test_the_learned_shift_is_the_best_one(protected: bool) -> None:
    recipe = Recipe(clip=1.0, schedule="cosine", steps=200)
    found, _ = setting(SHIFTED, episodes=32, warm_up_updates=100, recipe=recipe, actor_lr=1e-2)
    actor = jax.tree.map(lambda x: x[0], trained(found, 200).population.learner.actor)
    composite = composite_of(actor, found)
    assert composite.correction is None
    assert composite.shift is not None
    np.testing.assert_allclose(composite.shift, [0.8], rtol=1e-6)
    controller = composite_controller(SHIFTED) if protected else unshielded_controller(SHIFTED)
    seen = rollouts(SHIFTED, controller, composite, jax.random.split(jax.random.key(5), 64), (), trace=True).trajectory
    assert seen is not None
    best = np.asarray(seen.observations)[:, :1, 2]
    reached = np.asarray(seen.next_observations)[..., 0]
    np.testing.assert_allclose(reached, np.broadcast_to(1.0 + np.minimum(best - 1.0, 0.8), reached.shape), atol=0.1)
    assert np.mean(np.abs(reached - np.minimum(best, 1.8))) < 0.03


@pytest.mark.slow
@pytest.mark.parametrize("protected", [False, True])
@pytest.mark.parametrize("name", [*SMOOTH, "shifted"])
def test_gradients_equal_finite_differences(name: str, protected: bool) -> None:
    found, state = setting(SHIFTED if name == "shifted" else PLANTS[name])
    narrow = jax.tree.map(np.asarray, (state.actor, found.normaliser, found.shield))
    with jax.enable_x64(True):
        wide, normaliser, shield = jax.tree.map(
            lambda x: jnp.asarray(x, jnp.float64 if x.dtype == np.float32 else x.dtype), narrow
        )
        found = found._replace(normaliser=normaliser, shield=shield)
        leaves, tree = jax.tree.flatten(wide)
        keys = jax.random.split(jax.random.key(3), len(leaves))
        along = tree.unflatten([jax.random.normal(k, x.shape, x.dtype) for k, x in zip(keys, leaves, strict=True)])

        @jax.jit
        def at(shift: Any) -> Any:
            actor = jax.tree.map(lambda x, d: x + shift * d, wide, along)
            return loss(actor, found, jax.random.key(11), protected)[0]

        slope = float(jax.jit(jax.grad(at))(0.0))
        # A clipped action or a limit may have a kink within the longer steps.
        expected = [float(at(size) - at(-size)) / (2 * size) for size in (1e-6, 1e-7, 1e-8)]
    assert abs(slope) > 1e-3
    assert min(abs(slope - each) for each in expected) <= 1e-4 * abs(slope)


@pytest.mark.parametrize("protected", [False, True])
def test_recomputed_steps_give_the_gradient_of_stored_steps(protected: bool) -> None:
    found, state = setting(LINEAR)
    controller = composite_controller(LINEAR) if protected else unshielded_controller(LINEAR)

    @partial(jax.jit, static_argnums=0)
    def slope(recompute: bool) -> Any:
        def cost(actor: Any) -> Any:
            composite = composite_of(actor, found)
            return jnp.sum(rollout(LINEAR, controller, composite, jax.random.key(3), (), recompute).rewards)

        return jax.value_and_grad(cost)(state.actor)

    stored, recomputed = slope(False), slope(True)
    assert float(jnp.abs(stored[1]["Dense_2"]["bias"][0])) > 1e-3
    for one, other in zip(jax.tree.leaves(stored), jax.tree.leaves(recomputed), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


def _scans(jaxpr: Any, length: int) -> list[Any]:
    """Return the scans of a program that have `length` steps, also inside other operations."""
    found = [each for each in jaxpr.eqns if each.params.get("length") == length]
    return found + [each for inner in core.subjaxprs(jaxpr) for each in _scans(inner, length)]


def test_a_gradient_predicts_for_the_shield_once_a_step_and_stores_only_its_choice() -> None:
    found, state = setting(LINEAR)
    found = found._replace(shield=default_shield(LINEAR.spec, look_ahead=7))
    program = jax.make_jaxpr(jax.grad(lambda actor: loss(actor, found, jax.random.key(3), True)[0]))(state.actor)
    (prediction,) = _scans(program.jaxpr, 7)
    # Observation and action are carried, the state of the controller is empty, and the result is the margin.
    assert [x.aval.shape for x in prediction.outvars] == [(1,), (1,), (7, 1)]
    forward = _scans(program.jaxpr, HORIZON)[0]
    carried = forward.params["num_carry"]
    wide = [x.aval for x in forward.outvars[carried:] if x.aval.size > 2 * HORIZON]
    assert not wide


def test_large_and_infinite_gradients_are_bounded_by_the_median() -> None:
    gradients = {"a": jnp.array([[3.0, 0.0], [0.0, 4.0], [300.0, 400.0], [jnp.nan, 1.0], [jnp.inf, 0.0]])}
    # Norms 3, 4, 500; the median is 4, so the third becomes (2.4, 3.2).
    mean, finite = bounded_mean(gradients)
    np.testing.assert_allclose(mean["a"], [(3.0 + 2.4) / 5, (4.0 + 3.2) / 5], rtol=1e-6)
    assert float(finite) == pytest.approx(0.6)
    # Most episodes may have no gradient, as in a dead band.
    mean, _ = bounded_mean({"a": jnp.array([[0.0], [0.0], [0.0], [1.0], [9.0]])})
    np.testing.assert_allclose(mean["a"], [(1.0 + 5.0) / 5], rtol=1e-6)
    mean, finite = bounded_mean({"a": jnp.zeros((3, 1))})
    np.testing.assert_array_equal(mean["a"], [0.0])
    assert float(finite) == 1.0


def test_only_the_updates_after_the_warm_up_run_behind_the_shield() -> None:
    found, _ = setting(LINEAR, episodes=4, warm_up_updates=2)
    nowhere = jnp.asarray([1e6])
    state = trained(found._replace(shield=default_shield(LINEAR.spec, envelope=(nowhere, nowhere + 1))), 6)
    # The policy is trusted nowhere, so the controller decides every step behind the shield.
    np.testing.assert_allclose(state.curves["taken_over"][0], [0.0, 0.0, 1.0, 1.0, 1.0, 1.0])


def test_episodes_that_are_not_finite_count_in_their_share_only() -> None:
    def step(key: Any, state: Any, action: Any, params: Any) -> tuple[Any, Timestep]:
        state, now = _step(key, state, action, params)
        return state, now._replace(reward=now.reward * jnp.where(state[0][0] > 1.2, jnp.nan, 1.0))

    found, _ = setting(LINEAR._replace(step=step), episodes=64, warm_up_updates=1)
    curves = trained(found, 2).curves
    assert np.isfinite(curves["score"]).all()
    assert 0.6 < curves["finite"].min() < 1


def test_schedule_and_warm_up_fit_the_length_of_a_run() -> None:
    learner = LEARNER.bind(setting(LINEAR)[0])
    usual, short = (configure(learner, {}, updates) for updates in (600, 100))
    assert (warm_up_updates(learner, usual), usual.recipe.steps) == (300, 600)
    assert (warm_up_updates(learner, short), short.recipe.steps) == (50, 100)


def test_the_first_actor_hardly_moves_the_controller() -> None:
    found, state = setting(LINEAR)
    keys = jax.random.split(jax.random.key(5), 8)
    first = rollouts(LINEAR, unshielded_controller(LINEAR), composite_of(state.actor, found), keys, (), trace=True)
    assert first.trajectory is not None
    tuned = -0.5 * first.trajectory.observations
    # Four percent of half of the range, which is 4.
    assert 0 < float(jnp.max(jnp.abs(first.trajectory.actions - tuned))) < 0.16


def test_the_normaliser_covers_observation_state_and_action_of_the_controller() -> None:
    # The controller sums observations and applied actions: its state is the sum, its action the sum times −0.1.
    def act(params: Any, total: Any, observation: Any, applied: Any) -> Any:
        total = total + observation[0] + applied[0]
        return total, jnp.asarray([-0.1 * total])

    plant = LINEAR._replace(fallback=Controller(lambda p, o: jnp.zeros(()), act))
    normaliser = observe(plant, jax.random.key(9))
    keys = jax.random.split(jax.random.key(9), 64)
    seen = rollouts(plant, plant.fallback, (), keys, (), trace=True).trajectory
    assert seen is not None
    x, actions = (np.asarray(part, np.float64)[..., 0] for part in (seen.observations, seen.actions))
    total = np.cumsum(x + np.concatenate([np.zeros((64, 1)), actions[:, :-1]], 1), 1)
    rows = np.stack([x, total, -0.1 * total], -1).reshape(-1, 3)
    np.testing.assert_allclose(normaliser.mean, rows.mean(0), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(normaliser.scale, rows.std(0), rtol=1e-4)
    np.testing.assert_array_equal(normaliser.action_half_range, [4.0])
