"""Environments that are pickled, forked, rendered, and given invalid input."""

from __future__ import annotations

import pickle
import subprocess
import sys
import warnings
from pathlib import Path

import gymnasium
import jax
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from neorl_core.plants import PLANTS
from neorl_core.wrappers.gymnasium import PlantEnv, environment_id
from neorl_core.wrappers.pettingzoo import ParallelPlantEnv
from neorl_core.wrappers.picture import HEIGHT, RED, SHADE, WIDTH
from neorl_core.wrappers.vector import PlantVectorEnv

PROJECT = Path(__file__).parents[2]
ASYNC = """
import gymnasium, numpy
import neorl_core.wrappers.gymnasium

def played(**options):
    envs = gymnasium.make_vec("neorl/DoubleMass-v0", num_envs=2, **options)
    seen, _ = envs.reset(seed=3)
    after, *_ = envs.step(numpy.full((2, 2), 0.5, numpy.float32))
    envs.close()
    return seen, after

if __name__ == "__main__":
    plain = played(vectorization_mode="async")
    spawned = played(vectorization_mode="async", vector_kwargs={"context": "spawn"})
    together = played()
    numpy.testing.assert_array_equal(plain, spawned)
    numpy.testing.assert_allclose(plain, together, rtol=1e-5, atol=1e-5)
    print("the same three times")
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["chemical_reactor", "power_grid"])
def test_environment_pickles_within_an_episode(name: str) -> None:
    # Controllers of both plants are closures or lambdas, which do not pickle.
    env = gymnasium.make(environment_id(name), render_mode="rgb_array", history={PLANTS[name].spec.action.names[0]: 1})
    env.reset(seed=5)
    env.step(env.action_space.sample())
    other = pickle.loads(pickle.dumps(env))  # noqa: S301  (its own bytes)
    for _ in range(2):
        action = env.action_space.sample()
        ours, theirs = env.step(action), other.step(action)
        np.testing.assert_array_equal(ours[0], theirs[0])
        assert ours[1:] == theirs[1:]
    np.testing.assert_array_equal(env.render(), other.render())
    np.testing.assert_array_equal(env.reset()[0], other.reset()[0])


def test_vector_environment_pickles_within_episodes() -> None:
    envs = PlantVectorEnv("double_mass", num_envs=3, max_episode_steps=2)
    envs.reset(seed=1)
    actions = np.full((3, 2), 0.25, np.float32)
    envs.step(actions)
    other = pickle.loads(pickle.dumps(envs))  # noqa: S301  (its own bytes)
    for _ in range(3):
        for ours, theirs in zip(envs.step(actions)[:4], other.step(actions)[:4], strict=True):
            np.testing.assert_array_equal(ours, theirs)


def test_forked_environment_reports_why_it_would_hang() -> None:
    PlantEnv("double_mass").reset(seed=0)
    envs = gymnasium.make_vec("neorl/DoubleMass-v0", num_envs=2, vectorization_mode="sync")
    envs.reset(seed=0)
    with warnings.catch_warnings():
        # JAX is running and warns about forks, and Gymnasium about errors of its workers.
        warnings.simplefilter("ignore")
        forked = gymnasium.make_vec("neorl/DoubleMass-v0", num_envs=2, vectorization_mode="async")
        try:
            with pytest.raises(RuntimeError, match=r"so JAX would hang: start processes by 'spawn'"):
                forked.reset(seed=0)
        finally:
            forked.close(terminate=True)


@pytest.mark.slow
def test_asynchronous_environments_equal_vector_environment(tmp_path: Path) -> None:
    script = tmp_path / "play.py"
    script.write_text(ASYNC)
    done = subprocess.run(
        [sys.executable, script],
        cwd=PROJECT,
        env={"PYTHONPATH": str(PROJECT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "the same three times\n"


def test_frame_draws_limits_in_place() -> None:
    env = PlantEnv("chemical_reactor", render_mode="rgb_array")
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.render()
    env.reset(seed=0)
    env.step([0.0])
    frame = env.render()
    assert frame is not None
    # Temperature with its limits, concentration with its set point, and the coolant with its range.
    assert frame.shape == (3 * HEIGHT, WIDTH, 3)
    assert frame.dtype == np.uint8
    # By hand: the axis reaches 8 % beyond 316 and 332 K, over 68 pixels from 88 up.
    least, most = 316 - 0.08 * 16, 332 + 0.08 * 16
    for limit, beyond in ((316.0, 3), (332.0, -3)):
        y = round(88 - 68 * (limit - least) / (most - least))
        assert any((frame[row, 400] == RED).all() for row in (y - 1, y, y + 1))
        assert (frame[y + beyond, 400] == SHADE).all()
    assert not (frame[HEIGHT : 2 * HEIGHT, 400] == SHADE).all(axis=-1).any()
    assert PlantEnv("chemical_reactor").render() is None


@pytest.mark.parametrize("name", ["robot_assembly", "power_grid"])
def test_plants_drawn_by_margins_pass_gymnasium_check(name: str) -> None:
    # The suite turns the checker's warnings into errors.
    check_env(gymnasium.make(environment_id(name), render_mode="rgb_array").unwrapped)


def test_invalid_environment_arguments_are_rejected() -> None:
    env, envs = PlantEnv("double_mass"), PlantVectorEnv("double_mass", num_envs=2)
    env.reset(seed=0, options={})
    envs.reset(seed=0)
    with pytest.raises(ValueError, match="action must not contain NaN, got"):
        env.step([np.nan, 0.0])
    with pytest.raises(ValueError, match="action must not contain NaN, got"):
        envs.step([[0.0, 0.0], [0.0, np.nan]])
    with pytest.raises(ValueError, match=r"takes no options, got \['start'\]"):
        env.reset(options={"start": 1})
    with pytest.raises(ValueError, match=r"takes only the option reset_mask, got \['mask'\]"):
        envs.reset(options={"mask": np.ones(2, bool)})
    with pytest.raises(ValueError, match="render_mode must be 'rgb_array' or None, got 'human'"):
        PlantEnv("double_mass", render_mode="human")
    with pytest.raises(ValueError, match="render_mode must be 'rgb_array' or None, got 'human'"):
        ParallelPlantEnv("supply_chain", render_mode="human")
    with pytest.raises(ValueError, match="draws no pictures, got render_mode"):
        PlantVectorEnv("double_mass", render_mode="rgb_array")
    with pytest.raises(ValueError, match="max_episode_steps must be at least 1, got 0"):
        PlantVectorEnv("double_mass", max_episode_steps=0)


def test_step_limit_minus_one_keeps_horizon() -> None:
    envs = gymnasium.make_vec("neorl/DoubleMass-v0", num_envs=2, max_episode_steps=-1)
    envs.reset(seed=0)
    truncated = [envs.step(np.zeros((2, 2), np.float32))[3] for _ in range(PLANTS["double_mass"].spec.horizon)]
    np.testing.assert_array_equal(np.flatnonzero(np.any(truncated, axis=1)), len(truncated) - 1)


@pytest.mark.parametrize("name", ["double_mass", "pumping_station"])
def test_observations_stay_float32_in_double_precision(name: str) -> None:
    history = {PLANTS[name].spec.observation.names[0]: 2}
    with jax.enable_x64(True):
        env, envs = PlantEnv(name, history=history), PlantVectorEnv(name, 2, history=history, max_episode_steps=1)
        first, together = env.reset(seed=0)[0], envs.reset(seed=0)[0]
        after, later = env.step(env.action_space.sample())[0], envs.step(envs.action_space.sample())[0]
        renewed = envs.step(envs.action_space.sample())[0]
    assert all(seen in env.observation_space for seen in (first, after))
    assert all(seen in envs.observation_space for seen in (together, later, renewed))


def test_parallel_environment_renders_the_plant() -> None:
    shared = ParallelPlantEnv("supply_chain", render_mode="rgb_array")
    whole = PlantEnv("supply_chain", render_mode="rgb_array")
    shared.reset(seed=3)
    whole.reset(seed=3)
    np.testing.assert_array_equal(shared.render(), whole.render())
    assert ParallelPlantEnv("supply_chain").render() is None


@pytest.mark.parametrize("name", ["chemical_reactor", "supply_chain"])
def test_stable_baselines_check_passes(name: str) -> None:
    checker = pytest.importorskip(
        "stable_baselines3.common.env_checker", reason="stable-baselines3 is not installed: its own check is not run"
    )
    make_vec_env = pytest.importorskip("stable_baselines3.common.env_util").make_vec_env
    checker.check_env(PlantEnv(name))
    envs = make_vec_env(environment_id(name), n_envs=2, seed=0)
    assert envs.reset().shape == (2, PLANTS[name].spec.observation.size)
