"""Observation histories agree in logs, running controllers, environments and learned models."""

from __future__ import annotations

from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from neorl_core.history import (
    episode_starts,
    longest_lag,
    parse_history,
    stack_first,
    stack_next,
    stacked_normaliser,
    stacked_size,
    stacked_spec,
    stacked_transitions,
)
from neorl_core.networks import Normaliser, Policy, actor_init, normalise
from neorl_core.plants import PLANTS
from neorl_core.safety.composite import Composite, composite_controller, make_composite, unshielded_controller
from neorl_core.training.optimisers import Recipe
from neorl_core.training.preparation import prepare
from neorl_core.types import History, Plant, Transition
from neorl_core.world_model import dynamics
from neorl_core.world_model.rollouts import branched_rollouts, expected_rollouts
from neorl_core.wrappers.gymnasium import PlantEnv
from neorl_core.wrappers.vector import PlantVectorEnv

PLANT = PLANTS["industrial_benchmark"]
COUNTS = {"velocity": 3, "consumption": 7, "gain_move": 2}
STEPS = 12


def rows_of(observation: Any, action: Any, last: Any) -> Transition:
    """Rows of one episode; `last` is the observation after the last row."""
    after = np.concatenate([np.asarray(observation)[1:], np.asarray(last)[None]])
    nothing = np.zeros(len(observation), np.float32)
    return Transition(
        np.asarray(observation, np.float32), np.asarray(action, np.float32), nothing, nothing, after, nothing
    )


def test_three_steps_by_hand() -> None:
    """Two signals and an action; two earlier values of the second signal and one of the action."""
    logged = rows_of([[1, 10], [2, 20], [3, 30]], [[0.1], [0.2], [0.3]], np.float32([4, 40]))
    found = stacked_transitions(History((0, 2), (1,)), logged, np.array([0]), np.float32([[0.9]]))
    expected = np.float32([[1, 10, 10, 10, 0.9], [2, 20, 10, 10, 0.1], [3, 30, 20, 10, 0.2], [4, 40, 30, 20, 0.3]])
    np.testing.assert_array_equal(found.observation, expected[:3])
    np.testing.assert_array_equal(found.next_observation, expected[1:])
    assert found.action is logged.action


def test_history_restarts_with_each_episode() -> None:
    one, other = (rows_of([[k], [k + 1]], [[-k], [-k - 1]], np.float32([k + 2])) for k in (1, 5))
    logged: Transition = jax.tree.map(lambda *x: np.concatenate(x), one, other)
    assert episode_starts(logged).tolist() == [0, 2]
    found = stacked_transitions(History((1,), (2,)), logged, np.array([0, 2]), np.float32([[7], [8]]))
    expected = [[1, 1, 7, 7], [2, 1, -1, 7], [5, 5, 8, 8], [6, 5, -5, 8]]
    np.testing.assert_array_equal(found.observation, np.float32(expected))
    np.testing.assert_array_equal(found.next_observation[[1, 3]], np.float32([[3, 2, -2, -1], [7, 6, -6, -5]]))


def test_stacked_spec_has_names_and_bounds() -> None:
    history = parse_history({"fatigue": 2, "shift_move": 1}, PLANT.spec)
    assert history == History((0, 0, 0, 0, 2, 0), (0, 0, 1))
    assert (stacked_size(history), longest_lag(history)) == (9, 2)
    seen = stacked_spec(PLANT.spec, history)
    assert seen.observation.names[6:] == ("fatigue_lag_1", "fatigue_lag_2", "shift_move_lag_1")
    assert seen.observation.high[6:] == (300.0, 300.0, 1.0)
    assert parse_history({}, PLANT.spec) is None
    assert stacked_spec(PLANT.spec, None) is PLANT.spec


@pytest.mark.parametrize(
    ("counts", "sentence"),
    [
        ({"velocty": 2}, "got 'velocty': did you mean 'velocity'?"),
        ({"velocity": 0}, "history of 'velocity' must be 1 to 999 steps (episodes have 1000), got 0"),
        ({"velocity": 1000}, "got 1000: correct the number"),
        ({"velocity": 2.5}, "got 2.5: correct the number"),
        ({"velocity": 600, "gain": 600}, "must have at most 1,024 numbers, got 1,206"),
    ],
)
def test_invalid_histories_are_rejected(counts: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match="histor") as error:
        parse_history(counts, PLANT.spec)
    assert sentence in str(error.value)


def actor(history: History | None, plant: Plant = PLANT) -> Policy:
    """An untrained policy of stacked observations with large outputs."""
    spec = plant.spec
    low, high = (jnp.asarray(x, jnp.float32) for x in (spec.observation.low, spec.observation.high))
    half = (jnp.asarray(spec.action.high) - jnp.asarray(spec.action.low)) / 2
    middle = (jnp.asarray(spec.action.high) + jnp.asarray(spec.action.low)) / 2
    normaliser = stacked_normaliser(history, Normaliser((low + high) / 2, (high - low) / 4, middle, half))
    return Policy(actor_init(jax.random.key(3), len(normaliser.mean), spec.action.size, (16,)), normaliser)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["industrial_benchmark", "chemical_reactor"])
def test_logs_controller_and_environment_agree_bit_for_bit(name: str) -> None:
    """Environment, composite and stacked logs show the same history, with the policy or the fallback acting."""
    plant = PLANTS[name]
    spec = plant.spec
    counts = {spec.observation.names[1]: 3, spec.observation.names[-1]: 2, spec.action.names[-1]: 2}
    history = parse_history(counts, spec)
    assert history is not None
    composite = make_composite(plant, actor(history, plant), history=history)
    controller = composite_controller(plant)
    init, act = jax.jit(controller.init), jax.jit(controller.act)
    shown, plain = PlantEnv(plant, physical=True, history=counts), PlantEnv(plant, physical=True)
    assert shown.observation_space.shape == (stacked_size(history),)
    stacked, _ = shown.reset(seed=5)
    observation, _ = plain.reset(seed=5)
    memory = init(composite, observation)
    applied = np.asarray(plant.applied(jnp.asarray(observation)))
    rows, traced = [], list[int]()
    for _step in range(STEPS):
        assert shown.observation_space.contains(stacked)
        memory, action = act(composite, memory, observation, applied)
        traced.append(act._cache_size())
        np.testing.assert_array_equal(memory.seen, stacked)
        rows.append((observation, np.asarray(action), stacked))
        stacked, *_ = shown.step(action)
        observation, *_ = plain.step(action)
        applied = np.asarray(action)
    logged = rows_of(*(np.stack(column) for column in list(zip(*rows, strict=True))[:2]), observation)
    first = np.clip(plant.applied(jnp.asarray(rows[0][0])), spec.action.low, spec.action.high)
    offline = stacked_transitions(history, logged, np.array([0]), np.asarray(first, np.float32)[None])
    np.testing.assert_array_equal(offline.observation, np.stack([seen for *_, seen in rows]))
    np.testing.assert_array_equal(offline.next_observation[-1], stacked)
    # All steps use the program of the first step.
    assert traced[0] == traced[-1]


@pytest.mark.slow
def test_vector_environment_shows_the_same_history() -> None:
    one = PlantEnv(PLANT, history=COUNTS)
    many = PlantVectorEnv(PLANT, 3, history=COUNTS, autoreset_mode="SameStep", max_episode_steps=4)
    single, _ = one.reset(seed=8)
    batch, _ = many.reset(seed=7)
    action = np.float32([0.5, -1.0, 0.2])
    for _step in range(3):
        np.testing.assert_allclose(batch[1], single, rtol=1e-5)
        batch, *_ = many.step(np.tile(action, (3, 1)))
        single, *_ = one.step(action)
    # The fourth step ends the episodes, and the history restarts.
    batch, *_ = many.step(np.tile(action, (3, 1)))
    np.testing.assert_array_equal(batch[:, 6:9], np.tile(batch[:, 1:2], 3))
    np.testing.assert_array_equal(batch[:, 16:], 0.0)
    made: Any = gymnasium.make("neorl/IndustrialBenchmark-v0", history=COUNTS)
    assert made.observation_space.shape == (18,)


@pytest.mark.slow
def test_history_has_applied_actions_and_skips_unreadable_values() -> None:
    """An operator overrides the policy; a sensor fails at the first step and once more later."""
    history = parse_history({"velocity": 2, "velocity_move": 1}, PLANT.spec)
    composite = make_composite(PLANT, actor(history), history=history)
    controller = composite_controller(PLANT)
    lost = jnp.full(6, jnp.nan)
    seen = [jnp.float32([50, v, 50, 50, 30, 80]) for v in (50, 49, 48)]
    memory = controller.init(composite, lost)
    told = jnp.zeros(3)
    for observation, applied in ((lost, told), (seen[0], told), (seen[1], told + 0.25), (lost, told), (seen[2], told)):
        memory, action = controller.act(composite, memory, observation, applied)
        assert jnp.all(jnp.isfinite(action))
        if observation is seen[1]:
            np.testing.assert_array_equal(memory.seen[6:], [50, 50, 0.25])
    np.testing.assert_array_equal(memory.seen, np.append(seen[2], [49, 50, 0]))


def test_no_history_carries_nothing() -> None:
    composite = make_composite(PLANT, actor(None))
    assert composite_controller(PLANT).init(composite, jnp.zeros(6)).seen == ()
    assert unshielded_controller(PLANT).init(composite, jnp.zeros(6)) == ((), ())
    x = jnp.arange(6.0)
    assert stack_next(None, x, x, x) is x
    assert stack_first(None, x, x) is x
    assert Composite(None, composite.shield, (), ()).history is None


def test_history_is_constant_without_a_policy() -> None:
    history = parse_history(COUNTS, PLANT.spec)
    alone = make_composite(PLANT, None, history=history)
    controller = composite_controller(PLANT)
    observation = jnp.float32([50, 50, 50, 50, 30, 80])
    memory, action = controller.act(alone, controller.init(alone, observation), observation, jnp.zeros(3))
    plain = make_composite(PLANT)
    expected = controller.act(plain, controller.init(plain, observation), observation, jnp.zeros(3))[1]
    np.testing.assert_array_equal(action, expected)
    assert memory.seen.shape == (18,)


def test_bare_and_shielded_policy_see_the_same() -> None:
    history = parse_history(COUNTS, PLANT.spec)
    composite = make_composite(PLANT, actor(history), history=history)
    shielded, bare = composite_controller(PLANT), unshielded_controller(PLANT)
    observation, applied = jnp.float32([50, 50, 50, 50, 30, 80]), jnp.zeros(3)
    with_shield, alone = shielded.init(composite, observation), bare.init(composite, observation)
    for k in range(4):
        with_shield, _ = shielded.act(composite, with_shield, observation + k, applied)
        alone, _ = bare.act(composite, alone, observation + k, applied)
        np.testing.assert_array_equal(with_shield.seen, alone[1])
        applied = applied + 0.1


def test_earlier_and_current_values_share_a_scale() -> None:
    """A step of normalised numbers is the same move of places as a step of physical numbers."""
    history = parse_history(COUNTS, PLANT.spec)
    assert history is not None
    draw = np.random.default_rng(0)
    logged = rows_of(draw.normal(50, 9, (40, 6)), draw.uniform(-0.5, 0.5, (40, 3)), np.float32(draw.normal(50, 9, 6)))
    rows = stacked_transitions(history, logged, np.array([0]), np.zeros((1, 3), np.float32))
    normaliser, prepared = prepare(rows, stacked_spec(PLANT.spec, history))
    plain, _ = prepare(logged, PLANT.spec)
    np.testing.assert_array_equal(normaliser.mean[:6], plain.mean)
    np.testing.assert_array_equal(normaliser.scale[6:9], np.repeat(plain.scale[1], 3))
    np.testing.assert_array_equal(normaliser.mean[16:], np.repeat(plain.action_centre[1], 2))
    moved = stack_next(history, prepared.observation, prepared.action, normalise(plain, logged.next_observation))
    np.testing.assert_allclose(moved, prepared.next_observation, atol=1e-6)


@pytest.mark.slow
def test_learned_model_predicts_only_the_plain_part() -> None:
    """Check the size of a model of stacked observations, and the history in its rollouts."""
    history = History((2, 0), (1,))
    observed, size = 2, stacked_size(history)
    model = dynamics.init(jax.random.key(0), size, 1, (8,), 2, Recipe(), history)
    assert model.low.shape == (observed,)
    mean, deviation = dynamics.transition(model.members[0], jnp.zeros(size), jnp.zeros(1))
    assert mean.shape == deviation.shape == (observed,)
    starts = jax.random.normal(jax.random.key(1), (2, 3, size))
    reach = dynamics.reach(model)
    steps = expected_rollouts(model.members, reach, lambda x: jnp.tanh(x[:1] + x[2:3]), starts, 5)
    noisy, _ = branched_rollouts(
        model.members, jnp.arange(2), reach, lambda x, u: jnp.tanh(x[:1] + u), 1, starts[0], jax.random.key(2), 5
    )
    for made in (steps, noisy):
        x, a, after = (np.asarray(v) for v in (made.observation, made.action, made.next_observation))
        np.testing.assert_array_equal(after[..., 2], x[..., 0])
        np.testing.assert_array_equal(after[..., 3], x[..., 2])
        np.testing.assert_array_equal(after[..., 4], a[..., 0])
    np.testing.assert_array_equal(steps.observation[:, :, 1:], steps.next_observation[:, :, :-1])
