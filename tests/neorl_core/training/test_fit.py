"""`fit` equals the training loop, resumes exactly, and rejects invalid input."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from neorl_core.algorithms import ALGORITHMS, BC
from neorl_core.fit import fit
from neorl_core.networks import actor_apply, policy_act
from neorl_core.training.loop import RunState, schedule
from neorl_core.training.population import (
    Algorithm,
    hyperparameters,
    init_population,
    make_train_chunk,
    members,
    policies,
)
from neorl_core.training.preparation import prepare
from neorl_core.types import PlantSpec, Space, Transition
from tasks.models.bundles.checkpoints import Checkpoints
from tasks.training.checkpointing import Checkpointing

SPEC = PlantSpec(
    name="toy",
    observation=Space(("x", "y"), ("", ""), (-9.0, -9.0), (9.0, 9.0)),
    action=Space(("u",), ("",), (-2.0,), (6.0,)),
    constraints=(),
    dt=1.0,
    time_unit="step",
    horizon=10,
    score_range=(0.0, 100.0),
)
SMALL = {"hidden": [8]}


def logged(rows: int = 200) -> Transition:
    """Logs of a linear law, which cloning must find."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows, 2)).astype(np.float32)
    u = (2 + x @ np.float32([1.0, -0.5]))[:, None]
    return Transition(x, u, -np.sum(x**2, axis=1), np.zeros(rows, np.float32), 0.9 * x, np.zeros(rows, np.float32))


class Growth(NamedTuple):
    size: jax.Array
    hyper: dict[str, jax.Array]


class GrowthConfig(NamedTuple):
    rate: float = 1.0
    width: int = 2


def grow(state: Growth, batches: Transition, key: jax.Array) -> tuple[Growth, dict[str, jax.Array]]:
    """An algorithm of one number that grows by its rate, chance and the batch."""
    chance = 1e-3 * (jax.random.uniform(key) + jnp.mean(batches.reward))
    size = state.size * state.hyper["rate"] + chance
    return Growth(size, state.hyper), {"size": size}


def constant_actor(state: Growth) -> dict[str, Any]:
    return {"Dense_0": {"kernel": jnp.zeros((2, 1)), "bias": jnp.broadcast_to(state.size, (1,))}}


GROWTH = Algorithm(
    name="growth",
    Config=GrowthConfig,
    batches_per_update=2,
    init=lambda key, spec, config: Growth(jnp.ones(()), hyperparameters(config)),
    update=grow,
    act=lambda state, x: actor_apply(constant_actor(state), x),
    actor=constant_actor,
)


def bits(tree: Any) -> list[bytes]:
    return [np.asarray(x).tobytes() for x in jax.tree.leaves(tree)]


def test_fit_equals_the_training_loop() -> None:
    found = fit(logged(), SPEC, GROWTH, updates=40, seeds=[0, 7], overrides={"width": 3}, batch_size=16, chunk=10)
    normaliser, data = prepare(logged(), SPEC)
    population = init_population(GROWTH, SPEC, GrowthConfig(width=3), members([0, 7], {}))
    population, metrics = make_train_chunk(GROWTH, 40, 2, 16)(population, data)
    assert found.config == GrowthConfig(1.0, 3)
    assert bits(found.policies) == bits(tuple(policies(GROWTH, population, normaliser)))
    assert found.curves.keys() == metrics.keys()
    np.testing.assert_array_equal(found.curves["size"], metrics["size"])
    assert found.curves["size"].shape == (2, 20)
    assert found.steps.tolist() == list(range(2, 42, 2))
    assert found.sound.all()
    assert [member.seed for member in found.members] == [0, 7]


@pytest.mark.slow
def test_cloning_finds_a_linear_law_in_physical_units() -> None:
    log = logged(1000)
    found = fit(log, SPEC, BC, updates=2000, overrides={"hidden": [32], "actor_lr": 3e-3}, batch_size=64)
    x = log.observation[np.abs(log.observation).max(axis=1) < 1.5]
    np.testing.assert_allclose(policy_act(found.policies[0], x)[:, 0], 2 + x @ np.float32([1.0, -0.5]), atol=0.15)
    assert str(found).startswith("bc: 2,000 updates, 1 member(s)\n  seed 0: actor_loss ")


def test_reported_states_can_be_resumed() -> None:
    told: list[tuple[int, int]] = []
    states: list[RunState] = []

    def report(state: RunState, updates: int) -> None:
        told.append((state.done, updates))
        states.append(state)

    settings: dict[str, Any] = {"algorithm": GROWTH, "updates": 60, "batch_size": 16, "chunk": 20}
    whole = fit(logged(), SPEC, report=report, **settings)
    assert told == [(0, 60), (20, 60), (40, 60), (60, 60)]
    for state in states:
        # As loaded from a file.
        kept = jax.tree.map(np.asarray, state)
        resumed = fit(logged(), SPEC, resume=lambda fresh, kept=kept: kept, **settings)
        assert bits(resumed.policies) == bits(whole.policies)
        assert bits(resumed.curves) == bits(whole.curves)
    with pytest.raises(ValueError, match="20 saved updates are no multiple of chunk 30"):
        fit(logged(), SPEC, resume=lambda _: states[1], **{**settings, "chunk": 30})


def test_robust_clone_acts_as_one_controller() -> None:
    rng = np.random.default_rng(0)
    law = np.float32([-1.0, 5.0, 5.5])  # constant actions of three controllers
    log = logged(300)._replace(action=rng.permutation(np.repeat(law, 100))[:, None])

    def action(huber: float) -> float:
        overrides = {**SMALL, "huber": huber, "actor_recipe": {"schedule": "cosine", "steps": 1_500}}
        found = fit(log, SPEC, "bc", updates=1_500, batch_size=64, overrides=overrides).policies[0]
        return float(np.median(np.asarray(policy_act(found, jnp.asarray(log.observation)))))

    # The actions' half range is 4: a twentieth of it is 0.2.
    assert action(2.0) == pytest.approx(law.mean(), abs=0.4)
    assert action(0.05) == pytest.approx(5.0, abs=0.3)


# One, two and four batches per update; test_population.py trains every algorithm.
@pytest.mark.slow
@pytest.mark.parametrize("name", ["bc", "td3_bc", "mopo"])
def test_algorithms_are_trained_by_one_call(name: str) -> None:
    wanted = {**SMALL, "model_hidden": [4], "warm_up_updates": 2, "horizon": 2}
    small = {key: value for key, value in wanted.items() if key in ALGORITHMS[name].Config()._fields}
    found = fit(logged(), SPEC, name, updates=8, overrides=small, batch_size=8)
    action = np.asarray(policy_act(found.policies[0], logged().observation))
    assert found.sound.all()
    assert np.all((action >= -2) & (action <= 6))
    assert found.steps[-1] >= 8
    assert set(found.curves)


def test_grid_members_are_distinct() -> None:
    found = fit(logged(), SPEC, GROWTH, updates=20, seeds=[3], grid={"rate": [1.0, 10.0]}, batch_size=16)
    assert [member.hyperparameters for member in found.members] == [{"rate": 1.0}, {"rate": 10.0}]
    # Ten updates on two batches each: 1e10 exceeds the limit of metrics.
    assert found.sound.tolist() == [True, False]
    first, second = str(found).splitlines()[1:]
    assert first.startswith("  seed 3, rate 1: size ")
    assert second.startswith("  seed 3, rate 10: size 1")
    assert second.endswith("(diverged)")


@pytest.mark.parametrize(
    ("updates", "chunk", "batches", "warm_up", "expected"),
    [
        # 200 rows of 500; chunks of two rows.
        (100_000, 1_000, 2, 0, (500, 1_000, 100_000, 0)),
        # No row is longer than 500.
        (1_000_000, 200, 1, 0, (500, 500, 1_000_000, 0)),
        # 5001 // 200 // 2 is 12 pairs a row, 209 rows of 24; 209 = 11 x 19.
        (5_001, 500, 2, 0, (24, 456, 5_016, 0)),
        (1, 1_000, 2, 0, (2, 2, 2, 0)),
        # A warm-up of 5.2 rows takes six; chunks divide 6 and 200.
        (100_000, 5_000, 1, 2_600, (500, 1_000, 100_000, 3_000)),
    ],
)
def test_the_schedule_worked_by_hand(
    updates: int, chunk: int, batches: int, warm_up: int, expected: tuple[int, int, int, int]
) -> None:
    assert schedule(updates, chunk, batches, warm_up) == expected


def test_run_of_only_warm_up_is_rejected() -> None:
    with pytest.raises(ValueError, match="updates is 3,000, but the warm-up alone needs 3,000 updates"):
        schedule(3_000, 500, 1, 3_000)


def test_divergence_keeps_the_last_good_state(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"updates": 40, "overrides": {"rate": 8.0}, "chunk": 2, "batch_size": 16}
    with Checkpoints(tmp_path, '{"run": 1}') as checkpoints:
        saved = Checkpointing(checkpoints, seconds=1e9)
        with pytest.raises(FloatingPointError, match="every member diverged by update 14: lower the learning"):
            fit(logged(), SPEC, GROWTH, report=saved.report, **settings)
        assert checkpoints.latest() is None
        assert saved.leave() == f"kept at update 12 in {tmp_path}"
    with Checkpoints(tmp_path, '{"run": 1}') as checkpoints:
        states: list[RunState] = []
        with pytest.raises(FloatingPointError, match="by update 14"):
            fit(
                logged(),
                SPEC,
                GROWTH,
                resume=Checkpointing(checkpoints).resume,
                report=lambda s, _: states.append(s),
                **settings,
            )
    # 8^6 is the last power of 8 below the limit of 10^6, and chance adds less than a hundredth.
    assert [state.done for state in states] == [12]
    assert 8**6 < float(states[0].population.learner.size[0]) < 1.01 * 8**6


def test_large_rewards_are_not_divergence() -> None:
    """With terminations the mean of the rewards stays, and fresh critics err by its square: here a million."""
    log = logged()
    reward = 1.001 + 1e-3 * (log.reward - log.reward.mean()) / log.reward.std()
    ended = np.arange(200) == 199
    log = log._replace(reward=reward.astype(np.float32), terminated=ended.astype(np.float32))
    found = fit(log, SPEC, "td3_bc", updates=4, overrides=SMALL, batch_size=16)
    assert found.curves["critic_loss"].max() > 1e6
    assert found.sound.all()
    with pytest.raises(FloatingPointError, match="every member diverged"):
        fit(log, SPEC, "td3_bc", updates=4, overrides=SMALL | {"critic_lr": 1e9}, batch_size=16)


def test_invalid_arguments_are_rejected() -> None:
    log = logged()
    nan = log.reward.copy()
    nan[3] = np.nan
    for wrong, says in [
        (log._replace(action=log.action[:, 0]), r"action must have shape \(200, 1\), got \(200,\)"),
        (log._replace(next_observation=log.next_observation[:-1]), r"next_observation .* got \(199, 2\)"),
        (log._replace(reward=nan), "reward must be finite, got nan in row 3"),
        (log._replace(next_action=np.full_like(log.action, np.nan)), "next_action must be finite, got nan in row 0"),
        (jax.tree.map(lambda x: x[:0], log), "training needs at least one transition, got 0"),
    ]:
        with pytest.raises(ValueError, match=says):
            fit(wrong, SPEC, "bc", updates=2)
    with pytest.raises(ValueError, match="unknown algorithm 'cqll': choose one of bc, "):
        fit(log, SPEC, "cqll", updates=2)
    with pytest.raises(ValueError, match="unknown hyper-parameter 'alpha' of bc"):
        fit(log, SPEC, "bc", updates=2, overrides={"alpha": 1})
    for name, overrides, says in (
        ("bc", {"huber": 0.0}, "huber of bc must be above 0, got 0"),
        ("iql", {"discount": 1.5}, "discount of iql must be from 0 to 1, got 1.5"),
        ("td3_bc", {"alpha": -1}, "alpha of td3_bc must be at least 0, got -1"),
    ):
        with pytest.raises(ValueError, match=says):
            fit(log, SPEC, name, updates=2, overrides=overrides)
        with pytest.raises(ValueError, match=says):
            fit(log, SPEC, name, updates=2, grid={key: [0.5, value] for key, value in overrides.items()})
