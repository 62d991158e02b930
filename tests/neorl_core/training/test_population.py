"""The training loop: sampling of rows, interruptions, and populations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from neorl_core.algorithms import ALGORITHMS, BC, TD3_BC
from neorl_core.networks import policy_act
from neorl_core.training.loop import Plan, RunState, TrainingRows, resident, train
from neorl_core.training.population import (
    Algorithm,
    Member,
    TrainState,
    configure,
    diverged,
    init_population,
    make_train_chunk,
    member,
    members,
    policies,
)
from neorl_core.training.preparation import prepare
from neorl_core.types import PlantSpec, Space, Transition
from tasks.models.bundles.checkpoints import Checkpoints
from tasks.training.checkpointing import Checkpointing

SPEC = PlantSpec(
    name="toy",
    observation=Space(("x", "y", "z"), ("m", "m", "m"), (-9.0,) * 3, (9.0,) * 3),
    action=Space(("u",), ("N",), (-2.0,), (6.0,)),
    constraints=(),
    dt=1.0,
    time_unit="s",
    horizon=10,
    score_range=(0.0, 1.0),
)
ROWS = 128


def logged(terminated: bool = False) -> Transition:
    rng = np.random.default_rng(0)
    observation = (rng.normal(size=(ROWS, 3)) * [1.0, 5.0, 0.0] + [0.0, 300.0, 7.0]).astype(np.float32)
    done = np.zeros(ROWS, np.float32)
    done[5] = terminated
    return Transition(
        observation=observation,
        action=rng.uniform(-2, 6, size=(ROWS, 1)).astype(np.float32),
        reward=(3.0 + 2.0 * rng.normal(size=ROWS)).astype(np.float32),
        cost=np.zeros(ROWS, np.float32),
        next_observation=observation + 0.5,
        terminated=done,
    )


def bits(tree: Any) -> list[bytes]:
    return [np.asarray(x).tobytes() for x in jax.tree.leaves(tree)]


class Census(NamedTuple):
    actor: jax.Array
    drawn: jax.Array
    keys: jax.Array


class CensusConfig(NamedTuple):
    weight: float = 1.0


def census_update(state: Census, batches: Transition, key: jax.Array) -> tuple[Census, dict[str, jax.Array]]:
    """An algorithm that only counts the rows it gets; rewards number the rows."""
    rows = batches.reward.astype(jnp.int32)
    shared = jnp.isin(rows[0], rows[1]).mean()
    drawn = state.drawn.at[rows].add(1)
    metrics = {"drawn": drawn.sum().astype(jnp.float32), "shared": shared, "key": jax.random.uniform(key)}
    return Census(state.actor, drawn, state.keys + 1), metrics


CENSUS = Algorithm(
    name="census",
    Config=CensusConfig,
    batches_per_update=2,
    init=lambda key, spec, config: Census(jnp.zeros(1), jnp.zeros(ROWS, jnp.int32), jnp.int32(0)),
    update=census_update,
    act=lambda state, observation: observation[..., :1],
    actor=lambda state: {},
)


def numbered() -> Transition:
    return jax.tree.map(jnp.asarray, logged()._replace(reward=np.arange(ROWS, dtype=np.float32)))


def test_rows_are_sampled_uniformly_at_every_step() -> None:
    population = init_population(CENSUS, SPEC, CensusConfig(), members([0, 1], {}))
    population, metrics = make_train_chunk(CENSUS, 400, 2, 16)(population, numbered())
    drawn = np.asarray(population.learner.drawn)
    assert drawn.sum(axis=1).tolist() == [6400, 6400]
    assert np.asarray(population.step).tolist() == [400, 400]
    # Uniform samples pass a chi-square test; the seed is fixed.
    assert stats.chisquare(drawn[0]).pvalue > 0.01
    assert not np.array_equal(drawn[0], drawn[1])
    # Two batches of 16 out of 128 share 1 - (1 - 1/128)^16 = 11.8 % of their rows when drawn apart, all when not.
    assert abs(float(np.mean(metrics["shared"])) - 0.118) < 0.02
    assert len(np.unique(metrics["key"])) == 400, "every update of every member has a key of its own"


def test_metrics_are_means_over_their_window() -> None:
    population = init_population(CENSUS, SPEC, CensusConfig(), members([0], {}))
    _, metrics = make_train_chunk(CENSUS, 24, 8, 4)(population, numbered())
    # Rows drawn after the i-th pair: 8 i; the windows hold pairs 1-4, 5-8, 9-12.
    np.testing.assert_allclose(metrics["drawn"], [[20.0, 52.0, 84.0]])


class Killed(Exception):
    """Stands for SIGKILL: no code of ours catches it."""


def killed_at_random(
    algorithm: Algorithm, fresh: TrainState, data: TrainingRows, plan: Plan, folder: Path, seed: int
) -> RunState:
    """A run with checkpoints that is killed at three random chunks, before or after saving."""
    rng = np.random.default_rng(seed)
    for kill in (True, True, True, False):
        with Checkpoints(folder, json.dumps({"algorithm": algorithm.name})) as checkpoints:
            saved = Checkpointing(checkpoints)
            left, saves = rng.integers(1, 4) if kill else 99, rng.integers(2)

            def report(state: RunState, updates: int, saved: Any = saved, saves: Any = saves) -> None:
                nonlocal left
                left -= 1
                if saves or left:
                    saved.report(state, updates)
                if not left:
                    raise Killed

            try:
                return train(algorithm, fresh, data, plan, 16, resume=saved.resume, report=report)
            except Killed:
                continue
    raise AssertionError("the last run is not killed")


# The default algorithm and that of the demonstrations run in the short suite; the others take minutes.
@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param(x, marks=[] if x == "td3_bc" else pytest.mark.slow) for x in sorted(ALGORITHMS)]
)
def test_interruptions_change_nothing_and_retrace_nothing(name: str, tmp_path: Path) -> None:
    algorithm = ALGORITHMS[name]
    _, data = prepare(logged(), SPEC)
    few = {"critics": 2, "members": 2, "model_hidden": (8,), "starts": 8}
    few = {name: value for name, value in few.items() if name in algorithm.Config._fields}
    fresh = init_population(algorithm, SPEC, algorithm.Config(hidden=(8,), **few), members([0, 7], {}))
    short = make_train_chunk(algorithm, 4, 4, 16)
    whole, parts = fresh, []
    for _ in range(6):
        whole, metrics = short(whole, data)
        parts.append(metrics)
    whole_metrics = jax.tree.map(lambda *x: jnp.concatenate(x, axis=1), *parts)
    short(whole, jax.tree.map(lambda x: x + 0, data))
    assert short._cache_size() == 1  # type: ignore[attr-defined]
    assert make_train_chunk(algorithm, 4, 4, 16) is short
    resumed = killed_at_random(
        algorithm, fresh, resident(data), Plan(4, 4, 24), tmp_path, sorted(ALGORITHMS).index(name)
    )
    assert bits(resumed.population) == bits(whole)
    assert bits(resumed.curves) == bits(whole_metrics)
    # Another seed gives other bits.
    one, other = (algorithm.actor(member(whole, i).learner) for i in range(2))
    assert bits(one) != bits(other)


@pytest.mark.parametrize("name", ["td3_bc", pytest.param("sac_n", marks=pytest.mark.slow)])
def test_chunks_do_not_change_a_bit(name: str) -> None:
    """One algorithm with a delayed actor and one with noise represent all others."""
    algorithm = ALGORITHMS[name]
    _, data = prepare(logged(), SPEC)
    fresh = init_population(algorithm, SPEC, algorithm.Config(hidden=(8,), critics=2), members([0, 7], {}))
    whole, whole_metrics = make_train_chunk(algorithm, 24, 4, 16)(fresh, data)
    short, state, parts = make_train_chunk(algorithm, 4, 4, 16), fresh, []
    for _ in range(6):
        state, metrics = short(state, data)
        parts.append(metrics)
    assert bits(state) == bits(whole)
    assert bits(jax.tree.map(lambda *x: jnp.concatenate(x, axis=1), *parts)) == bits(whole_metrics)


@pytest.mark.slow
def test_member_alone_equals_member_among_several() -> None:
    """To 1e-5 after 40 steps: XLA sums batched products in another order, and Adam amplifies the last bits."""
    _, data = prepare(logged(), SPEC)
    config = TD3_BC.Config(hidden=(8,), critics=3)
    grid = {"alpha": [0.5, 4.0], "actor_lr": [1e-3, 1e-2]}
    chunk = make_train_chunk(TD3_BC, 40, 20, 16)
    several, _ = chunk(init_population(TD3_BC, SPEC, config, members([3, 5], grid)), data)
    meant = members([3, 5], grid)[5]
    assert meant == Member(index=5, seed=5, hyperparameters={"alpha": 4.0, "actor_lr": 1e-3})
    alone, _ = chunk(init_population(TD3_BC, SPEC, config._replace(**meant.hyperparameters), members([5], {})), data)
    for one, other in zip(jax.tree.leaves(member(several, 5)), jax.tree.leaves(member(alone, 0)), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
    weights = [np.asarray(member(several, i).learner.actor["Dense_0"]["kernel"]) for i in range(8)]
    gaps = [np.abs(a - b).max() for i, a in enumerate(weights) for b in weights[:i]]
    assert min(gaps) > 1e-4, "members with different hyper-parameters must differ by more than the tolerance"


def test_prepare_and_policy_share_the_normaliser() -> None:
    raw = logged()
    normaliser, data = prepare(raw, SPEC)
    np.testing.assert_allclose(np.mean(data.observation, axis=0), 0.0, atol=1e-4)
    np.testing.assert_allclose(np.std(data.observation, axis=0), [1.0, 1.0, 0.0], atol=1e-4)
    # Columns keep their scale in the next observation: 0.5 over deviations of 1, 5 and (constant column) 1.
    shift = np.asarray(data.next_observation - data.observation).mean(axis=0)
    np.testing.assert_allclose(shift, 0.5 / np.asarray(normaliser.scale), rtol=1e-3)
    assert float(normaliser.scale[2]) == 1.0
    np.testing.assert_allclose(data.action, (raw.action - 2.0) / 4.0, atol=1e-6)
    population = init_population(BC, SPEC, BC.Config(hidden=(8,)), members([0, 1], {}))
    second = policies(BC, population, normaliser)[1]
    unit = BC.act(member(population, 1).learner, data.observation)
    np.testing.assert_allclose(policy_act(second, raw.observation), 2.0 + 4.0 * unit, rtol=1e-5, atol=1e-5)


def test_rewards_are_centred_only_where_no_episode_ends_early() -> None:
    raw = logged()
    _, endless = prepare(raw, SPEC)
    np.testing.assert_allclose([np.mean(endless.reward), np.std(endless.reward)], [0.0, 1.0], atol=1e-5)
    _, ending = prepare(logged(terminated=True), SPEC)
    np.testing.assert_allclose(ending.reward, raw.reward / raw.reward.std(), rtol=1e-5)
    assert np.asarray(ending.terminated).sum() == 1.0
    _, constant = prepare(raw._replace(reward=np.full(ROWS, 2.0, np.float32)), SPEC)
    np.testing.assert_array_equal(constant.reward, 0.0)


def test_divergence_is_detected_per_member() -> None:
    good = np.ones((4, 3), np.float32)
    bad = good.copy()
    bad[1, 0], bad[2, 1], bad[3, 2] = np.nan, -np.inf, 2e6
    assert np.asarray(diverged({"q": jnp.asarray(good), "loss": jnp.asarray(bad)})).tolist() == [
        False,
        True,
        True,
        True,
    ]
    assert np.asarray(diverged({"loss": jnp.asarray(bad)}, limit=1e7)).tolist() == [False, True, True, False]


def test_exploding_rate_is_reported() -> None:
    _, data = prepare(logged(), SPEC)
    population = init_population(
        TD3_BC, SPEC, TD3_BC.Config(hidden=(8,), tau=0.5), members([0], {"critic_lr": [1e-3, 1e4]})
    )
    _, metrics = make_train_chunk(TD3_BC, 24, 4, 16)(population, data)
    assert np.asarray(diverged(metrics)).tolist() == [False, True]


def test_configure_accepts_yaml_and_names_errors() -> None:
    config = configure(TD3_BC, {"hidden": [32, 32], "alpha": 1, "critics": 4})
    assert config == TD3_BC.Config(hidden=(32, 32), alpha=1.0, critics=4)
    assert isinstance(config.alpha, float)
    assert configure(TD3_BC, {"alpha": np.linspace(1, 2, 3)[1], "critics": np.int64(4)}) == TD3_BC.Config(
        alpha=1.5, critics=4
    )
    with pytest.raises(ValueError, match="'alfa'"):
        configure(TD3_BC, {"alfa": 1.0})
    for wrong in (
        {"critics": 2.5},
        {"alpha": "2.5"},
        {"hidden": [0]},
        {"tau": float("nan")},
        {"critics": True},
        {"critics": np.True_},
    ):
        with pytest.raises(ValueError, match="must be a value such as"):
            configure(TD3_BC, wrong)


def test_invalid_counts_and_grids_are_rejected() -> None:
    with pytest.raises(ValueError, match="multiple"):
        make_train_chunk(TD3_BC, 10, 5, 16)
    with pytest.raises(ValueError, match="multiple"):
        make_train_chunk(BC, 10, 4, 16)
    with pytest.raises(ValueError, match="got updates 10, log_every 5 and batch_size 0"):
        make_train_chunk(BC, 10, 5, 0)
    for none in (members([], {}), members([0], {"alpha": []})):
        with pytest.raises(ValueError, match="a population needs at least one member, got 0"):
            init_population(TD3_BC, SPEC, TD3_BC.Config(), none)
    with pytest.raises(ValueError, match="'critics'"):
        init_population(TD3_BC, SPEC, TD3_BC.Config(), members([0], {"critics": [2, 4]}))


def test_state_arrays_are_plain() -> None:
    population: TrainState = init_population(TD3_BC, SPEC, TD3_BC.Config(hidden=(8,)), members([0, 1, 2], {}))
    for leaf in jax.tree.leaves(population):
        assert leaf.shape[0] == 3
        assert leaf.dtype in (jnp.float32, jnp.int32, jnp.uint32)
