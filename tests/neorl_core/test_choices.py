"""A plant with discrete actions in Gymnasium, agents, bundles and policy files."""

from __future__ import annotations

from pathlib import Path

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from configs.errors import BadInput, Refused
from configs.run import Shield
from neorl_core.fit import fit
from neorl_core.history import parse_history
from neorl_core.networks import Policy, mlp_init, policy_act
from neorl_core.plants import PLANTS
from neorl_core.safety.composite import composite_controller, make_composite
from neorl_core.safety.shield import default_shield
from neorl_core.types import Transition
from neorl_core.wrappers.gymnasium import PlantEnv
from neorl_core.wrappers.vector import PlantVectorEnv
from tasks.files.arrays import npz_bytes, read_npz
from tasks.models.bundles.agents import Agent
from tasks.models.bundles.bundle import composite_digest, load_bundle, save_bundle
from tasks.models.bundles.policy_file import MadeBy, load_policy, save_policy
from tasks.models.bundles.structure import Arrays, build_composite, flatten
from tasks.training.shielding import shield_of

NAME = "pumping_station"
STATION = PLANTS[NAME]


@pytest.fixture(scope="module")
def log() -> Transition:
    """400 steps under random choices."""
    env = PlantEnv(NAME)
    rng, rows = np.random.default_rng(0), []
    observation, _ = env.reset(seed=0)
    for t in range(400):
        choice = int(rng.integers(4))
        after, reward, _, truncated, _ = env.step(choice)
        rows.append((observation, [choice], reward, 0.0, after, 0.0))
        observation = env.reset()[0] if truncated else after
        assert truncated == (t % 96 == 95)
    return Transition(*(np.asarray(column, np.float32) for column in zip(*rows, strict=True)))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def policy(log: Transition) -> Policy:
    return fit(log, STATION.spec, "discrete_cql", updates=60, overrides={"hidden": [8]}, batch_size=32).policies[0]


def test_environment_takes_choice_numbers() -> None:
    env = PlantEnv(NAME)
    assert env.action_space == gymnasium.spaces.Discrete(4)
    check_env(env, skip_render_check=True)
    first, _ = env.reset(seed=3)
    seen, *_ = env.step(np.int64(2))
    assert seen[1] == 2.0
    # The environment agrees with the plant's own prediction.
    predicted = STATION.predict(jnp.asarray(first), jnp.asarray([2.0]), STATION.params)[0]
    assert seen[0] == pytest.approx(float(predicted[0]), abs=0.2)
    for wrong in (4, -1, 1.5, [2]):
        with pytest.raises(ValueError, match=r"must (have|be)"):
            env.step(wrong)


def test_vector_environment_takes_choice_numbers() -> None:
    envs = PlantVectorEnv(NAME, num_envs=3)
    assert envs.action_space == gymnasium.spaces.MultiDiscrete([4, 4, 4])
    envs.reset(seed=7)
    seen, rewards, *_ = envs.step(np.asarray([0, 3, 1]))
    np.testing.assert_array_equal(seen[:, 1], [0.0, 3.0, 1.0])
    alone = PlantEnv(NAME)
    alone.reset(seed=8)
    one, reward, *_ = alone.step(3)
    np.testing.assert_allclose(seen[1], one, rtol=1e-5, atol=1e-5)
    assert rewards[1] == pytest.approx(reward, rel=1e-5)


def test_discrete_policy_file_round_trip(tmp_path: Path, policy: Policy, log: Transition) -> None:
    digest = save_policy(tmp_path / "policy.npz", policy, STATION.spec, MadeBy("discrete_cql", {"hidden": [8]}))
    found = load_policy(tmp_path / "policy.npz")
    np.testing.assert_array_equal(policy_act(found.policy, log.observation), policy_act(policy, log.observation))
    assert set(np.unique(policy_act(policy, log.observation))) <= {0.0, 1.0, 2.0, 3.0}
    agent = Agent.load(tmp_path / "policy.npz")
    assert agent(log.observation[3]) == policy_act(policy, log.observation[3])
    # Training continues from the policy's weights, in the network and in the target that follows it.
    agent.train(log, updates=20, batch_size=16)
    assert agent.save(tmp_path / "later.npz") != digest
    with pytest.raises(ValueError, match="cannot learn the discrete actions of pumping_station"):
        Agent(policy, STATION.spec, algorithm="td3_bc").train(log, updates=4)
    arrays = read_npz(tmp_path / "policy.npz")
    (tmp_path / "policy.npz").write_bytes(npz_bytes({k: v for k, v in arrays.items() if k != "normaliser/choices"}))
    with pytest.raises((BadInput, Refused)):
        load_policy(tmp_path / "policy.npz")


@pytest.mark.slow
def test_bundle_keeps_dwell_time(tmp_path: Path, policy: Policy) -> None:
    shield = default_shield(STATION.spec, dwell=2)
    composite = make_composite(STATION, policy, shield)
    digest = save_bundle(tmp_path / "bundle", composite, NAME)
    plant, found = load_bundle(tmp_path / "bundle", digest)
    assert plant is STATION
    assert int(found.shield.dwell) == 2
    assert composite_digest(make_composite(STATION, policy, default_shield(STATION.spec)), NAME) != digest
    controller = composite_controller(STATION)
    observation = STATION.reset(jax.random.key(0), STATION.params)[1]
    one, other = (
        controller.act(each, controller.init(each, observation), observation, STATION.applied(observation))[1]
        for each in (composite, found)
    )
    np.testing.assert_array_equal(one, other)
    # A network with another number of outputs does not fit the plant, nor does a normaliser without choices.
    narrow = policy._replace(params=mlp_init(jax.random.key(0), 6, (8, 1)))
    scales = policy._replace(normaliser=policy.normaliser._replace(choices=None))
    for wrong, said in ((narrow, "another network"), (scales, "another policy")):
        arrays: Arrays = {}
        structure = flatten(make_composite(STATION, wrong, shield), arrays)
        with pytest.raises(Refused, match=said):
            build_composite(structure, arrays, STATION)


def test_meaningless_settings_are_rejected() -> None:
    assert int(shield_of(STATION.spec, Shield(dwell=4)).dwell) == 4  # type: ignore[arg-type]
    with pytest.raises(BadInput, match=r"shield\.dwell is 4, but double_mass has continuous actions"):
        shield_of(PLANTS["double_mass"].spec, Shield(dwell=4))
    # A rate limit would give fractions of choices, which the plant's own controller could not apply either.
    with pytest.raises(BadInput, match=r"but pumping_station has a discrete action: use shield\.dwell"):
        shield_of(STATION.spec, Shield(rate_limits={"pumps": 0.5}))
    with pytest.raises(ValueError, match="history cannot include 'pumps', because its choices"):
        parse_history({"pumps": 2}, STATION.spec)
    assert parse_history({"level": 2}, STATION.spec) is not None
