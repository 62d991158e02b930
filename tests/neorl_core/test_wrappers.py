"""The wrappers against Gymnasium's and PettingZoo's own checks, Gymnasium's SyncVectorEnv, and plain rollouts."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from pettingzoo.test import parallel_api_test, parallel_seed_test

from configs.errors import BadInput
from neorl_core.algorithms import ALGORITHMS
from neorl_core.fit import FitResult, fit
from neorl_core.networks import Normaliser, Policy, actor_init, policy_act
from neorl_core.plants import PLANTS
from neorl_core.plants.base import rollout
from neorl_core.safety.composite import composite_controller, make_composite
from neorl_core.training.population import configure, init_population, members
from neorl_core.types import AgentView, Controller, Transition
from neorl_core.wrappers.agent import Agent as CoreAgent
from neorl_core.wrappers.agent import _with_policy
from neorl_core.wrappers.episodes import draw_root, programs
from neorl_core.wrappers.gymnasium import PlantEnv, environment_id, register_plants
from neorl_core.wrappers.pettingzoo import ParallelPlantEnv
from neorl_core.wrappers.vector import PlantVectorEnv, step_program
from tasks.models.bundles.agents import Agent
from tasks.models.bundles.bundle import save_bundle
from tests.sampled import FEW_PLANTS, sampled

REACTOR, MASSES = PLANTS["chemical_reactor"], PLANTS["double_mass"]
SHARED_MASSES = MASSES._replace(
    agents=(AgentView("mass_1", (0, 1, 2, 4), (0,)), AgentView("mass_2", (0, 1, 3, 5), (1,)))
)
"""The double mass with one agent per mass."""
SMALL = {"hidden": (8,)}


@pytest.mark.parametrize("name", sampled(PLANTS, FEW_PLANTS))
def test_every_plant_passes_gymnasium_check(name: str) -> None:
    # The suite turns the checker's warnings into errors.
    env = gymnasium.make(environment_id(name))
    check_env(env.unwrapped)
    assert env.spec is not None
    assert env.spec.max_episode_steps == PLANTS[name].spec.horizon


def test_environment_ids_and_entry_point() -> None:
    assert [environment_id(name) for name in ("chemical_reactor", "hvac_control", "double_mass")] == [
        "neorl/ChemicalReactor-v0",
        "neorl/HVACControl-v0",
        "neorl/DoubleMass-v0",
    ]
    declared = Path(__file__).parents[2].joinpath("pyproject.toml").read_text(encoding="utf-8")
    assert 'neorl = "neorl_core.wrappers.gymnasium:register_plants"' in declared
    # With the module in the id, no import is needed.
    env = gymnasium.make("neorl_core.wrappers.gymnasium:neorl/DoubleMass-v0", domain={"mass_spread": 0.1})
    assert isinstance(env.unwrapped, PlantEnv)
    point = metadata.EntryPoint("neorl", "neorl_core.wrappers.gymnasium:register_plants", "gymnasium.envs")
    point.load()()
    register_plants()
    assert {environment_id(name) for name in PLANTS} <= set(gymnasium.registry)


def test_episode_equals_rollout_of_same_key() -> None:
    # The second implementation is plants.base.rollout, which evaluates policies.
    env = PlantEnv("chemical_reactor", physical=True)
    observation, _ = env.reset(seed=5)
    root = draw_root(gymnasium.utils.seeding.np_random(5)[0])
    constants, run = jax.random.split(jax.random.fold_in(jax.random.wrap_key_data(root, impl="threefry2x32"), 0))
    swing = Controller(lambda p, o: jnp.int32(0), lambda p, m, o, a: (m + 1, jnp.array([297.0]) + m % 5))
    params = jax.jit(REACTOR.sample_params)(constants, REACTOR.domain)
    expected = jax.jit(lambda key, params: rollout(REACTOR, swing, (), key, params))(run, params)
    for t in range(REACTOR.spec.horizon):
        np.testing.assert_allclose(observation, expected.observations[t], rtol=1e-6)
        observation, reward, terminated, truncated, info = env.step([297.0 + t % 5])
        assert reward == pytest.approx(float(expected.rewards[t]), abs=1e-6)
        assert info["margins"]["reactor temperature"] == pytest.approx(float(expected.margins[t, 0]), abs=1e-4)
        assert (terminated, truncated) == (False, t == REACTOR.spec.horizon - 1)


def test_unit_actions_span_actuator_ranges() -> None:
    unit, physical = PlantEnv("chemical_reactor"), PlantEnv("chemical_reactor", physical=True)
    for action, coolant in ((-1.0, 290.0), (0.0, 300.0), (1.0, 310.0), (7.0, 310.0)):
        seen = []
        for env, given in ((unit, action), (physical, coolant)):
            env.reset(seed=1)
            seen.append(env.step(np.array([given]))[0])
        np.testing.assert_array_equal(*seen)
        assert seen[0][2] == coolant


def test_costs_are_negative_margins() -> None:
    env = PlantEnv("chemical_reactor", physical=True)
    env.reset(seed=0)
    terminated = False
    while not terminated:
        _, _, terminated, _, info = env.step([310.0])
        margin = info["margins"]["reactor temperature"]
        assert info["costs"] == {"reactor temperature": max(0.0, -margin)}
        assert info["cost"] == float(terminated) == float(margin < 0)


def test_domain_changes_and_unknown_names() -> None:
    still = PlantEnv("double_mass", domain={"mass_spread": 0.5})
    still.reset(seed=0)
    assert float(still._running.params.mass) != 20.0
    with pytest.raises(ValueError, match=r"domain of double_mass has no parameters \['mas'\]"):
        PlantEnv("double_mass", domain={"mas": 0.5})
    with pytest.raises(ValueError, match="'boiler' is not a plant: use one of chemical_reactor"):
        PlantEnv("boiler")
    with pytest.raises(ValueError, match=r"action must have the shape \(2,\), got \(1,\)"):
        still.step([0.0])
    with pytest.raises(gymnasium.error.ResetNeeded):
        PlantEnv("double_mass").step([0.0, 0.0])


def same(ours: Any, theirs: Any) -> None:
    """Assert that nested infos, observations or flags agree in names, types and numbers."""
    if isinstance(theirs, dict):
        assert set(ours) == set(theirs)
        for name, value in theirs.items():
            same(ours[name], value)
    elif isinstance(theirs, np.ndarray) and theirs.dtype.kind == "O":
        for one, other in zip(ours, theirs, strict=True):
            assert (one is None) == (other is None)
            if other is not None:
                same(one, other)
    else:
        assert ours.dtype == theirs.dtype
        np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=2e-4)


@pytest.mark.slow
@pytest.mark.parametrize("mode", AutoresetMode)
def test_vector_environment_equals_gymnasium_sync_vector(mode: AutoresetMode) -> None:
    # Random actions end the reactor's episodes at different steps, by a trip or the limit of nine steps.
    ours = gymnasium.make_vec("neorl/ChemicalReactor-v0", num_envs=4, autoreset_mode=mode, max_episode_steps=9)
    theirs = SyncVectorEnv(
        [lambda: gymnasium.make("neorl/ChemicalReactor-v0", max_episode_steps=9)] * 4, autoreset_mode=mode
    )
    assert ours.metadata["autoreset_mode"] is mode
    assert (ours.observation_space, ours.action_space) == (theirs.observation_space, theirs.action_space)
    for one, other in zip(ours.reset(seed=3), theirs.reset(seed=3), strict=True):
        same(one, other)
    generator, ended = np.random.default_rng(0), np.zeros(4, np.bool_)
    endings = []
    for _ in range(40):
        if mode is AutoresetMode.DISABLED and ended.any():
            with pytest.raises(gymnasium.error.ResetNeeded, match="have ended: reset them"):
                ours.step(np.zeros((4, 1)))
            for one, other in zip(
                ours.reset(options={"reset_mask": ended}), theirs.reset(options={"reset_mask": ended}), strict=True
            ):
                same(one, other)
        actions = generator.uniform(-1, 1, (4, 1)).astype(np.float32) + 0.4
        one, other = ours.step(actions), theirs.step(np.clip(actions, -1, 1))
        for mine, gymnasiums in zip(one, other, strict=True):
            same(mine, gymnasiums)
        ended = one[2] | one[3]
        endings.append((one[2], one[3]))
    terminations, truncations = (np.array(x) for x in zip(*endings, strict=True))
    assert terminations.any()
    assert truncations.any()
    assert not ended.all()
    for one, other in zip(ours.reset(), theirs.reset(), strict=True):
        same(one, other)
    for one, other in zip(ours.reset(seed=[4, None, 9, 9]), theirs.reset(seed=[4, None, 9, 9]), strict=True):
        same(one, other)


def test_stepping_needs_no_retracing() -> None:
    env = PlantEnv("double_mass")
    env.reset(seed=0)
    vector = PlantVectorEnv("double_mass", num_envs=3, autoreset_mode="SameStep", max_episode_steps=2)
    vector.reset(seed=0)
    for _ in range(3):
        env.step(env.action_space.sample())
        env.reset(seed=2)
        vector.step(vector.action_space.sample())
        vector.reset(options={"reset_mask": np.array([True, False, True])})
    single = programs(MASSES, False, None)
    assert single.step._cache_size() == single.start._cache_size() == 1  # type: ignore[attr-defined]
    assert step_program(MASSES, False, AutoresetMode.SAME_STEP, None)._cache_size() == 1  # type: ignore[attr-defined]


@pytest.mark.parametrize("plant", [SHARED_MASSES, *(plant for plant in PLANTS.values() if plant.agents)])
def test_plants_with_agents_pass_pettingzoo_check(plant: Any) -> None:
    parallel_api_test(ParallelPlantEnv(plant), num_cycles=plant.spec.horizon + 1)
    parallel_seed_test(lambda: ParallelPlantEnv(plant), num_cycles=3)
    moved = sorted(i for view in plant.agents for i in view.action)
    assert moved == list(range(plant.spec.action.size))


def test_joint_actions_equal_the_plant() -> None:
    shared, whole = ParallelPlantEnv(SHARED_MASSES), PlantEnv(MASSES)
    seen, _ = shared.reset(seed=4)
    observation, _ = whole.reset(seed=4)
    for _ in range(3):
        np.testing.assert_array_equal(seen["mass_2"], observation[[0, 1, 3, 5]])
        seen, rewards, *_, infos = shared.step({"mass_1": np.array([0.5]), "mass_2": np.array([-0.25])})
        observation, reward, *_, info = whole.step([0.5, -0.25])
        assert rewards == {"mass_1": reward, "mass_2": reward}
        assert infos["mass_1"] == info
        np.testing.assert_array_equal(shared.state(), observation)
    with pytest.raises(ValueError, match=r"the agents are \['mass_1', 'mass_2'\], got actions for \['mass_1'\]"):
        shared.step({"mass_1": np.array([0.5])})
    with pytest.raises(ValueError, match="does not have several agents"):
        ParallelPlantEnv("double_mass")


@pytest.fixture(scope="module")
def log() -> Transition:
    """Rows of the double mass with a right answer that is linear in the observation."""
    rng = np.random.default_rng(0)
    x = rng.normal(0, 1, (512, 6)).astype(np.float32)
    u = np.clip(0.3 * x[:, 4:] - 0.2 * x[:, :2], -1, 1).astype(np.float32)
    zeros = np.zeros(512, np.float32)
    return Transition(x, u, rng.normal(0, 1, 512).astype(np.float32), zeros, x[::-1].copy(), zeros)


@pytest.fixture(scope="module")
def cloned(log: Transition) -> Policy:
    return fit(log, MASSES.spec, "bc", updates=20, overrides=SMALL, batch_size=64).policies[0]


@pytest.mark.slow
def test_agent_continues_from_its_policy(log: Transition, cloned: Policy) -> None:
    agent = CoreAgent(cloned, MASSES.spec, algorithm="bc", hyperparameters=SMALL)

    def error(policy: Policy) -> float:
        return float(jnp.mean((policy_act(policy, jnp.asarray(log.observation)) - log.action) ** 2))

    np.testing.assert_array_equal(agent(log.observation[0]), policy_act(cloned, jnp.asarray(log.observation[0])))
    first = agent.train(log, updates=100, batch_size=64)
    again = agent.train(log, updates=100, batch_size=64)
    # It starts no worse than before and improves twice; from fresh weights it would start at twice the loss.
    loss = first.curves["actor_loss"][0]
    fresh = fit(log, MASSES.spec, "bc", updates=1, overrides=SMALL, batch_size=64).curves["actor_loss"][0]
    assert loss[0] < 0.9 * fresh[0]
    assert error(cloned) > error(first.policies[0]) > error(again.policies[0]) == error(agent.policy)
    assert agent.policy.normaliser is cloned.normaliser


def test_later_training_runs_whole_schedule_without_cloning(log: Transition, cloned: Policy) -> None:
    small = {**SMALL, "model_hidden": (4,), "members": 1, "elites": 1, "horizon": 1, "starts": 4}
    agent = CoreAgent(cloned, MASSES.spec, algorithm="bptt", hyperparameters=small)
    first, second = (agent.train(log, updates=20, batch_size=16) for _ in range(2))
    moved = [np.abs(x - y).max() for x, y in zip(weights(first), weights(second), strict=True)]
    # A step of Adam is as long as the rate, and the whole schedule has ten steps.
    assert max(moved) > 5e-3
    assert np.all(second.curves["actor_loss"] != 0.0), "which is what cloning counts as"
    assert [(x.config.warm_up_updates, x.config.actor_recipe.steps) for x in (first, second)] == [(16, 4), (0, 20)]
    # The learned model is kept.
    np.testing.assert_array_equal(np.unique(second.curves["model_error"]), first.curves["model_error"][0, -1])


def weights(found: FitResult) -> list[Any]:
    return jax.tree.leaves(found.policies[0].params)


def test_later_training_keeps_reward_scale(log: Transition, cloned: Policy) -> None:
    """With rates and discount 0 nothing learns, and the mean target of a batch is the mean of the rewards."""
    still = {**SMALL, "discount": 0.0, "actor_lr": 0.0, "critic_lr": 0.0}

    def curves(logs: Sequence[Transition], seed: int = 0) -> list[Any]:
        agent = CoreAgent(cloned, MASSES.spec, algorithm="td3_bc", hyperparameters=still)
        return [agent.train(rows, updates=20, seed=seed, batch_size=64).curves["q"][0] for rows in logs]

    raised = log._replace(reward=log.reward + 5 * log.reward.std())
    one, two, three = curves([log, log, raised])
    for repeated, again in zip((one, two, three), curves([log, log, raised]), strict=True):
        np.testing.assert_array_equal(repeated, again)
    assert not np.any(np.isclose(one, two)), "a later call goes on with new draws"
    assert not np.any(np.isclose(two, curves([log, log], seed=1)[1])), "which are its seed's"
    assert float(np.mean(one)) == pytest.approx(0.0, abs=0.2)
    assert float(np.mean(three)) == pytest.approx(5.0, abs=0.2)


def test_training_keeps_shield_and_fallback(log: Transition, cloned: Policy) -> None:
    composite = make_composite(MASSES, cloned)
    agent = CoreAgent(composite, MASSES.spec, MASSES, algorithm="bc", hyperparameters=SMALL)
    learned = agent.train(log, updates=100, batch_size=64)
    assert agent.params.policy is agent.policy is learned.policies[0]
    assert (agent.params.shield, agent.params.fallback) == (composite.shield, composite.fallback)
    assert np.all(np.abs(agent(log.observation[0])) <= 1.0)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["td3_bc", "cql"])
def test_policy_weights_enter_the_actor(name: str, cloned: Policy) -> None:
    algorithm = ALGORITHMS[name]
    fresh = init_population(algorithm, MASSES.spec, configure(algorithm, SMALL), members([0], {}))
    learner = jax.tree.map(lambda x: x[0], _with_policy(algorithm, fresh, cloned))
    for found, given in zip(jax.tree.leaves(algorithm.actor(learner)), jax.tree.leaves(cloned.params), strict=True):
        np.testing.assert_array_equal(found, given)
    if name == "td3_bc":
        same(jax.tree.map(np.asarray, learner.actor_target), jax.tree.map(np.asarray, cloned.params))
    # Nothing else has changed.
    moved = jax.tree.map(lambda a, b: bool(jnp.any(a != b[0])), learner, fresh.learner)
    assert sum(jax.tree.leaves(moved)) <= (8 if name == "td3_bc" else 4)
    with pytest.raises(ValueError, match=f"the policy has weights of shapes .*, but {name} needs"):
        _with_policy(algorithm, fresh, Policy(actor_init(jax.random.key(0), 6, 2, (4,)), cloned.normaliser))


def test_agent_file_round_trip(tmp_path: Path, cloned: Policy, log: Transition) -> None:
    agent = Agent(cloned, MASSES.spec, algorithm="bc", hyperparameters=SMALL)
    digest = agent.save(tmp_path / "policy.npz")
    found = Agent.load(tmp_path / "policy.npz")
    assert (found.algorithm.name, found.config) == ("bc", agent.config)
    assert found.save(tmp_path / "again.npz") == digest
    np.testing.assert_array_equal(found(log.observation[3]), agent(log.observation[3]))
    with pytest.raises(BadInput, match="unknown algorithm 'sarsa'"):
        Agent.load(tmp_path / "policy.npz", algorithm="sarsa")
    with pytest.raises(BadInput, match="there is no policy file"):
        Agent.load(tmp_path / "nothing.npz")
    with pytest.raises(ValueError, match=r"observation must have the shape \(6,\), got \(2, 6\)"):
        found(log.observation[:2])
    # One actuator's readback does not stand for all actuators.
    size = found.spec.action.size
    with pytest.raises(ValueError, match=rf"applied must have the shape \({size},\), got \({size + 1},\)"):
        found(log.observation[0], np.zeros(size + 1))


def test_bundle_agent_is_shielded_controller(tmp_path: Path) -> None:
    composite = make_composite(REACTOR)
    digest = save_bundle(tmp_path / "bundle", composite, "chemical_reactor")
    agent = Agent.load(tmp_path / "bundle", expected_digest=digest)
    env = PlantEnv("chemical_reactor", physical=True)
    observation, _ = env.reset(seed=2)
    controller = composite_controller(REACTOR)
    act = jax.jit(controller.act)
    memory, applied = controller.init(composite, jnp.asarray(observation)), REACTOR.applied(jnp.asarray(observation))
    for _ in range(5):
        action = agent(observation)
        memory, applied = act(composite, memory, jnp.asarray(observation), applied)
        np.testing.assert_array_equal(action, applied)
        observation, *_ = env.step(action)
    with pytest.raises(ValueError, match="has no policy, only a fallback"):
        agent.train(None)  # type: ignore[arg-type]
    normaliser = Normaliser(jnp.zeros(8), jnp.ones(8), jnp.zeros(1), jnp.ones(1))
    policy = Policy(actor_init(jax.random.key(0), 8, 1, (4,)), normaliser)
    correcting = composite._replace(policy=policy, correction=jnp.ones(1))
    with pytest.raises(ValueError, match="has no action without it: use the composite"):
        CoreAgent(correcting, REACTOR.spec, REACTOR).train(None)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="is missing: pass the argument `plant`"):
        CoreAgent(composite, REACTOR.spec)
