"""CartPole: physics compared with Gymnasium, and discrete learners trained from a Minari dataset."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.cartpole import __main__ as cartpole
from benchmarks.cartpole.plant import HORIZON, PLANT, State, step

ROOT = Path(__file__).parents[3]


def test_every_step_equals_gymnasium() -> None:
    theirs = gymnasium.make("CartPole-v1").unwrapped
    rng = np.random.default_rng(0)
    ours = jax.jit(lambda state, action: step(jax.random.key(0), state, action, PLANT.params))
    ended = 0
    for _ in range(20):
        observation, _ = theirs.reset(seed=int(rng.integers(1_000)))
        with jax.enable_x64(True):
            state = State(jnp.asarray(theirs.state, jnp.float64), jnp.zeros((), jnp.int32))  # type: ignore[attr-defined]
            for _ in range(60):
                push = int(rng.integers(2))
                observation, reward, terminated, _, _ = theirs.step(push)
                state, now = ours(state, jnp.asarray([float(push)], jnp.float64))
                np.testing.assert_allclose(state.motion, theirs.state, atol=1e-12)  # type: ignore[attr-defined]
                np.testing.assert_allclose(now.observation, observation, atol=1e-6)
                assert (float(now.reward), bool(now.terminated)) == (reward, terminated)
                ended += terminated
                if terminated:
                    break
    assert ended > 10
    limit = gymnasium.spec("CartPole-v1").max_episode_steps
    assert limit == HORIZON


@pytest.mark.slow
def test_regulator_balances_and_random_pushes_do_not() -> None:
    found = cartpole.played(30)
    returns = np.asarray(found.ret).reshape(-1, len(cartpole.RANDOM)).mean(axis=0)
    assert returns[0] > 400
    assert returns[2] < 200


@pytest.mark.slow
def test_discrete_learners_balance_the_pole(tmp_path: Path) -> None:
    data = cartpole.write_minari(tmp_path / "datasets", cartpole.played())
    for algorithm in ("discrete_cql", "discrete_iql"):
        for policy in cartpole.train(data, algorithm, 2, 6_000, tmp_path / algorithm):
            assert cartpole.returns(policy, 50).mean() > cartpole.SOLVED, algorithm


@pytest.mark.slow
def test_train_command_checks_the_kind_of_action(tmp_path: Path) -> None:
    data = cartpole.write_minari(tmp_path / "datasets", cartpole.played(6))
    environment = os.environ | {"NEORL_HOME": str(tmp_path / "home"), "PYTHONPATH": str(ROOT)}

    def train(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "flows", "train", str(data), "--updates", "20", *words]
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)

    done = train("--set", "hidden=[8]")
    assert done.returncode == 0, done.stderr
    assert "discrete_cql: " in done.stdout
    refused = train("--algorithm", "td3_bc")
    assert refused.returncode == 2
    assert "cannot learn the discrete actions of cartpole_mixed_v0: choose one of discrete_bc" in refused.stderr
    assert not list(tmp_path.glob("*-td3_bc"))
