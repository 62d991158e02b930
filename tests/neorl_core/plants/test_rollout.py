"""Rollouts against a plant with known violation probability, and the contract of rollouts."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from neorl_core.plants import PLANTS
from neorl_core.plants.base import EpisodeResult, rollout, rollouts, summarise, two_sided_margin
from neorl_core.safety.bounds import clopper_pearson_lower, clopper_pearson_upper
from neorl_core.types import Constraint, Controller, Plant, PlantSpec, Space, Timestep


class Walk(NamedTuple):
    bound: float | jax.Array = 0.8
    sd: float | jax.Array = 0.1
    ends: float | jax.Array = 0.0
    """1 when a violation terminates."""


def walk_reset(key: jax.Array, params: Walk) -> tuple[Any, jax.Array]:
    return (jnp.zeros(1), jnp.asarray(0)), jnp.zeros(1)


def walk_step(key: jax.Array, state: Any, action: jax.Array, params: Walk) -> tuple[Any, Timestep]:
    x, t = state
    x = 0.9 * x + params.sd * jax.random.normal(key, (1,)) + action
    margins = params.bound - jnp.abs(x)
    ended = (margins[0] < 0) & (params.ends > 0)
    return (x, t + 1), Timestep(x, jnp.asarray(1.0), margins, ended, t + 1 >= 200)


WALK = Plant(
    spec=PlantSpec(
        name="walk",
        observation=Space(("x",), ("m",), (-5.0,), (5.0,)),
        action=Space(("push",), ("m",), (-1.0,), (1.0,)),
        constraints=(Constraint("x", "m", -0.8, 0.8),),
        dt=1.0,
        time_unit="s",
        horizon=200,
        score_range=(0.0, 1.0),
    ),
    params=Walk(),
    domain=Walk(),
    sample_params=lambda key, domain: domain,
    reset=walk_reset,
    step=walk_step,
    predict=lambda observation, action, params: (observation, params.bound - jnp.abs(observation)),
    applied=jnp.zeros_like,
    fallback=Controller(lambda p, o: (), lambda p, s, o, a: (s, jnp.zeros(1))),
    fallback_params=(),
)
REST = WALK.fallback


def limited(bound: float) -> Plant:
    """Return the walk with other limits; its margins follow `Walk.bound`."""
    return WALK._replace(spec=WALK.spec._replace(constraints=(Constraint("x", "m", -bound, bound),)))


@pytest.mark.slow
@pytest.mark.parametrize(("bound", "probability"), [(0.8, 0.04726868), (0.9, 0.00967962), (1.0, 0.00159505606)])
@pytest.mark.parametrize("ends", [0.0, 1.0])
def test_violations_occur_with_known_probability(bound: float, probability: float, ends: float) -> None:
    # Truth 1.7, by quadrature. Two-sided 99.9 % intervals; the seed is fixed.
    keys = jax.random.split(jax.random.key(5), 10_000)
    result = rollouts(limited(bound), REST, (), keys, Walk(bound=bound, ends=ends))
    count = int(result.violated.sum())
    assert clopper_pearson_lower(count, 10_000, 5e-4) < probability < clopper_pearson_upper(count, 10_000, 5e-4)
    np.testing.assert_array_equal(result.violated, result.min_margins[:, 0] < 0)
    assert (result.length[~result.violated] == 200).all()
    assert (result.length[result.violated].min() < 200) == bool(ends)
    np.testing.assert_array_equal(result.ret, result.length)


def test_second_batch_needs_no_compilation() -> None:
    rollouts.clear_cache()
    for seed in range(3):
        keys = jax.random.split(jax.random.key(seed), 8)
        rollouts(WALK, REST, (), keys, WALK.domain._replace(bound=0.8 + 0.1 * seed))
    assert rollouts._cache_size() == 1


def test_episode_does_not_depend_on_batch() -> None:
    keys = jax.random.split(jax.random.key(1), 12)
    whole = rollouts(WALK, REST, (), keys, WALK.domain)
    parts = [rollouts(WALK, REST, (), k, WALK.domain) for k in (keys[:6], keys[6:])]
    joined = jax.tree.map(lambda *x: jnp.concatenate(x), *parts)
    for a, b in zip(jax.tree.leaves(whole), jax.tree.leaves(joined), strict=True):
        np.testing.assert_array_equal(a, b)
    assert len(set(whole.min_margins[:, 0].tolist())) == 12


@pytest.mark.slow
def test_trace_agrees_with_statistics() -> None:
    keys = jax.random.split(jax.random.key(2), 3)
    result = rollouts(WALK, REST, (), keys, Walk(bound=0.3, ends=1.0), trace=True)
    trace = result.trajectory
    assert trace is not None
    assert trace.observations.shape == (3, 200, 1)
    for i in range(3):
        n = int(result.length[i])
        assert n < 200
        assert trace.alive[i].tolist() == [True] * n + [False] * (200 - n)
        np.testing.assert_array_equal(trace.observations[i, 1:n], trace.next_observations[i, : n - 1])
        assert float(trace.margins[i, :n].min()) == float(result.min_margins[i, 0])
        # Frozen: no reward after the end, and the controller observes the final state.
        assert not trace.rewards[i, n:].any()
        assert (trace.observations[i, n:] == trace.next_observations[i, n - 1]).all()


FAILING = Controller(
    lambda p, o: (jnp.asarray(0), o[-2:-1]),
    lambda p, state, o, a: ((state[0] + 1, a), jnp.where(state[0] == p[1], p[0], a)),
)
"""Repeats the applied action, except in one step; params are that step and the action in it."""


@pytest.mark.parametrize("bad", [jnp.nan, jnp.inf])
def test_nan_is_a_violation(bad: float) -> None:
    keys = jax.random.split(jax.random.key(0), 6)
    calm = Walk(sd=0.01)
    assert not rollouts(WALK, FAILING, (bad, 500), keys, calm).violated.any()
    # The actuator clips an infinite command to the range: a move of 1 m is beyond 0.8 m.
    assert rollouts(WALK, FAILING, (bad, 3), keys, calm).violated.all()


def test_controller_nan_in_last_step_is_a_violation() -> None:
    reactor = PLANTS["chemical_reactor"]
    keys = jax.random.split(jax.random.key(0), 6)
    assert rollouts(reactor, FAILING, (jnp.nan, 59), keys, reactor.domain).violated.all()


VIOLATED = jax.jit(lambda trajectory: summarise(trajectory, WALK).violated)
ONE = jax.jit(lambda key, controller, params: rollout(WALK, controller, (), key, params), static_argnums=1)


@pytest.mark.parametrize("field", ["observations", "next_observations", "actions", "margins", "rewards"])
def test_nan_in_any_live_field_is_a_violation(field: str) -> None:
    run = ONE(jax.random.key(0), REST, Walk(sd=0.01))
    assert not VIOLATED(run)
    array = getattr(run, field)
    assert VIOLATED(run._replace(**{field: array.at[7].set(jnp.nan)}))


def test_an_observation_beyond_the_claimed_limit_is_a_violation() -> None:
    """Truth: margins of a bound of 5.8 m hide that a walk leaves ±0.8 m as often as the honest margins show."""
    keys = jax.random.split(jax.random.key(5), 500)
    honest = rollouts(WALK, REST, (), keys, Walk(sd=0.2))
    hidden = rollouts(WALK, REST, (), keys, Walk(sd=0.2, bound=5.8))
    assert 0.2 < honest.violated.mean() < 1.0
    np.testing.assert_array_equal(hidden.violated, honest.violated)
    unmeasured = WALK._replace(spec=WALK.spec._replace(constraints=(Constraint("y", "m", -0.8, 0.8),)))
    assert not rollouts(unmeasured, REST, (), keys, Walk(sd=0.2, bound=5.8)).violated.any()


@pytest.mark.parametrize("how", ["terminated", "truncated"])
def test_an_early_end_is_a_violation(how: str) -> None:
    def step(key: jax.Array, state: Any, action: jax.Array, params: Walk) -> tuple[Any, Timestep]:
        following, found = walk_step(key, state, action, params)
        return following, found._replace(**{how: found.truncated | (following[1] > 150 + 100 * (params.sd > 0.02))})

    keys = jax.random.split(jax.random.key(5), 40)
    early = WALK._replace(step=step)
    for sd, wrong in ((0.01, True), (0.03, False)):
        result = rollouts(early, REST, (), keys, Walk(sd=sd))
        assert (result.min_margins > 0).all()
        assert (result.violated == wrong).all()


def test_margins_by_hand() -> None:
    found = two_sided_margin(jnp.array([0.0, 2.5, 3.0, -1.5, jnp.nan]), -1.0, 3.0)
    np.testing.assert_allclose(found, [1.0, 0.5, 0.0, -0.5, jnp.nan])


def test_zero_margin_is_no_violation() -> None:
    run = ONE(jax.random.key(0), REST, Walk(sd=0.01))
    assert not VIOLATED(run._replace(margins=run.margins.at[7].set(0.0)))
    assert VIOLATED(run._replace(margins=run.margins.at[7].set(-1e-30)))


class Handing(NamedTuple):
    step: jax.Array
    handed_over: jax.Array


def test_handovers_are_counted_once() -> None:
    def act(p: Any, state: Handing, o: jax.Array, a: jax.Array) -> tuple[Handing, jax.Array]:
        return Handing(state.step + 1, (state.step // 50) % 2 == 1), jnp.zeros(1)

    shielded = Controller(lambda p, o: Handing(jnp.asarray(0), jnp.asarray(False)), act)
    keys = jax.random.split(jax.random.key(0), 6)
    result: EpisodeResult = rollouts(WALK, shielded, (), keys, Walk(sd=0.01), trace=True)
    assert result.handovers.tolist() == [2] * 6
    assert result.trajectory is not None
    assert result.trajectory.handed_over.sum(1).tolist() == [100] * 6
    assert rollouts(WALK, REST, (), keys, WALK.domain).handovers.tolist() == [0] * 6


def test_controller_receives_applied_action() -> None:
    # The controller asks for one more than applied, and the actuator ends at 1.
    counting = Controller(lambda p, o: (), lambda p, s, o, a: (s, a + 0.4))
    run = ONE(jax.random.key(0), counting, Walk(sd=0.0))
    np.testing.assert_allclose(run.actions[:4, 0], [0.4, 0.8, 1.0, 1.0], rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "least"), [("chemical_reactor", 0.9), ("double_mass", 0.2)])
def test_a_random_policy_violates(name: str, least: float) -> None:
    # Truth 1.1: on the certified task a random unshielded policy violates more often than p0 = 1e-3.
    plant = PLANTS[name]
    low, high = jnp.asarray(plant.spec.action.low), jnp.asarray(plant.spec.action.high)

    actions = jax.random.uniform(jax.random.key(1), (2000, low.size), minval=low, maxval=high)
    # The first measurement of each episode selects a different place in the sequence.
    random = Controller(
        lambda p, o: jnp.int32(1e6 * jnp.abs(o[1])) % 1800, lambda p, t, o, a: (t + 1, jnp.asarray(p)[t])
    )
    keys = jax.random.split(jax.random.key(0), 300)
    result = rollouts(plant, random, actions, keys, plant.domain)
    assert result.violated.mean() > least
