"""Tasks that end by an observed clock, against a plan worked by hand."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from neorl_core.fit import fit
from neorl_core.networks import policy_act
from neorl_core.plants import PLANTS
from neorl_core.training.preparation import prepare
from neorl_core.types import Clock, History, PlantSpec, Space, Transition

STEPS, EPISODES = 5, 800
SPEC = PlantSpec(
    name="savings",
    observation=Space(("period", "saved"), ("1", "1"), (0.0, 0.0), (STEPS, 1.0)),
    action=Space(("save",), ("1",), (0.0,), (1.0,)),
    constraints=(),
    dt=1.0,
    time_unit="period",
    horizon=STEPS,
    score_range=(0.0, 100.0),
    clock=Clock("period", float(STEPS)),
)


def logged() -> Transition:
    """Saving costs its amount and pays twice in the next period, if there is one; logged savings are random."""
    save = np.random.default_rng(0).uniform(size=(EPISODES, STEPS)).astype(np.float32)
    before = np.concatenate([np.zeros_like(save[:, :1]), save[:, :-1]], axis=1)
    period = np.broadcast_to(np.arange(STEPS, dtype=np.float32), save.shape)
    observed, following = (np.stack(pair, -1).reshape(-1, 2) for pair in ((period, before), (period + 1, save)))
    nothing = np.zeros(save.size, np.float32)
    return Transition(observed, save.reshape(-1, 1), (2 * before - save).ravel(), nothing, following, nothing)


def test_last_clock_step_terminates() -> None:
    log = logged()
    _, prepared = prepare(log, SPEC)
    expected = np.tile(np.arange(STEPS) == STEPS - 1, EPISODES)
    np.testing.assert_array_equal(prepared.terminated, expected)
    # A terminated episode has value 0, so rewards must not be centred.
    np.testing.assert_allclose(prepared.reward, log.reward / log.reward.std(), rtol=1e-5)
    # The result does not depend on the order of rows, so blocks and sites agree.
    order = np.random.default_rng(1).permutation(len(expected))
    _, shuffled = prepare(jax.tree.map(lambda x: x[order], log), SPEC)
    np.testing.assert_array_equal(shuffled.terminated, expected[order])
    # The clock is read from the current observation, not from the history.
    stacked = SPEC._replace(
        observation=Space(("period", "saved", "saved_1"), ("1",) * 3, (0.0,) * 3, (STEPS, 1.0, 1.0)),
        history=History((0, 1), (0,)),
    )
    wide = log._replace(
        observation=np.column_stack([log.observation, log.observation[:, 1]]),
        next_observation=np.column_stack([log.next_observation, log.observation[:, 1]]),
    )
    np.testing.assert_array_equal(prepare(wide, stacked)[1].terminated, expected)
    # Without a clock, a time limit does not terminate.
    assert not np.asarray(prepare(log, SPEC._replace(clock=None))[1].terminated).any()


@pytest.mark.parametrize(
    ("algorithm", "updates", "overrides"),
    [
        ("iql", 1500, {"actor_lr": 1e-3, "critic_lr": 1e-3, "beta": 10.0, "expectile": 0.9}),
        ("td3_bc", 1500, {"actor_lr": 1e-3, "critic_lr": 1e-3, "alpha": 10.0}),
        pytest.param("bptt", 500, {}, marks=pytest.mark.slow),
    ],
)
def test_policy_saves_nothing_beyond_the_end(algorithm: str, updates: int, overrides: dict[str, float]) -> None:
    log = logged()
    ends = jnp.stack([jnp.arange(STEPS, dtype=jnp.float32), jnp.full((STEPS,), 0.5)], axis=1)
    saved = {}
    for spec in (SPEC, SPEC._replace(clock=None)):
        learned = fit(log, spec, algorithm, updates=updates, overrides=overrides, seeds=[0])
        saved[spec.clock is None] = np.asarray(policy_act(learned.policies[0], ends))[:, 0]
    # By hand: a unit saved pays 1 net in every period but the last, where it is lost. A learned model is unsure about
    # the last but one.
    assert saved[False][:-2].min() > 0.6, saved
    assert saved[False][-1] < 0.4, saved
    assert saved[True][-1] > saved[False][-1] + 0.2, saved


@pytest.mark.parametrize("name", [name for name, plant in PLANTS.items() if plant.spec.clock is not None])
def test_clock_ends_with_the_last_step(name: str) -> None:
    plant = PLANTS[name]
    assert plant.spec.clock is not None
    column = plant.spec.observation.names.index(plant.spec.clock.name)
    params = plant.sample_params(jax.random.key(0), plant.domain)
    state, _ = plant.reset(jax.random.key(1), params)
    idle = jnp.asarray(plant.spec.action.low)

    def step(state: object, key: jax.Array) -> tuple[object, jax.Array]:
        following, seen = plant.step(key, state, idle, params)
        return following, seen.observation[column]

    read = np.asarray(jax.lax.scan(step, state, jax.random.split(jax.random.key(2), plant.spec.horizon))[1])
    assert read[-1] == plant.spec.clock.end
    assert np.abs(read[:-1] - plant.spec.clock.end).min() > 0.01
