"""`make cartpole`: train the learners for discrete actions on CartPole from a Minari dataset.

    python -m benchmarks.cartpole                       # every discrete learner, five seeds each
    python -m benchmarks.cartpole --seeds 2 --updates 4000 --algorithms discrete_cql
    python -m benchmarks.cartpole --page                # docs/studies/cartpole.md from the kept results

Minari writes episodes of a linear-quadratic regulator with 10 %, 40 % or 70 % random pushes. `neorl train` learns from
this dataset. Every policy then plays 200 new episodes of CartPole-v1.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gymnasium
import jax
import numpy as np
import numpy.typing as npt

from benchmarks import pages
from benchmarks.cartpole import online
from benchmarks.cartpole.plant import PLANT
from benchmarks.pages import ROOT, STUDIES, listed, wrap
from neorl_core.algorithms import DISCRETE
from neorl_core.control.behaviour import Behaviour, play
from neorl_core.networks import Policy
from neorl_core.plants.base import EpisodeResult, rollouts
from neorl_core.safety.composite import bare_controller
from tasks.files.canonical import read_json, write_json
from tasks.models.bundles.policy_file import load_policy

RESULTS = ROOT / "benchmarks" / "results" / "cartpole.json"
PAGE = STUDIES / "cartpole.md"
NAME = "cartpole/mixed-v0"
RANDOM = (0.1, 0.4, 0.7)
"""Shares of random pushes."""
EPISODES, SCORED = 90, 200
SOLVED = 475.0
"""Least mean return that counts as solved."""


def played(episodes: int = EPISODES, seed: int = 0) -> EpisodeResult:
    """Play episodes of the regulator with random pushes."""
    shares = np.resize(np.asarray(RANDOM, np.float32), episodes)
    nothing = np.zeros(episodes, np.float32)
    keys = jax.random.split(jax.random.key(seed), episodes)
    found: EpisodeResult = jax.device_get(
        play(PLANT, PLANT.fallback, PLANT.fallback_params, Behaviour(shares, nothing, nothing), keys, trace=True)  # type: ignore[arg-type]
    )
    return found


def write_minari(folder: Path, result: EpisodeResult) -> Path:
    """Write the episodes with Minari.

    Args:
        folder: folder of Minari's datasets.
        result: episodes with trajectories.
    """
    os.environ["MINARI_DATASETS_PATH"] = str(folder)
    import minari
    from minari.data_collector.episode_buffer import EpisodeBuffer

    steps = result.trajectory
    assert steps is not None
    buffers = []
    for i, length in enumerate(np.asarray(result.length)):
        ends = np.zeros(length, bool)
        ends[-1] = bool(np.asarray(steps.terminated)[i, length - 1])
        cut = np.zeros(length, bool)
        cut[-1] = not ends[-1]
        seen = np.asarray(steps.observations)[i, :length]
        buffers.append(
            EpisodeBuffer(
                id=i,
                observations=[*seen, np.asarray(steps.next_observations)[i, length - 1]],
                actions=list(np.asarray(steps.actions)[i, :length, 0].astype(np.int64)),
                rewards=list(np.asarray(steps.rewards)[i, :length].astype(float)),
                terminations=list(ends),
                truncations=list(cut),
            )
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Minari warns of a missing author and code link
        minari.create_dataset_from_buffers(
            NAME,
            buffers,
            data_format="hdf5",
            action_space=gymnasium.spaces.Discrete(2),
            observation_space=gymnasium.spaces.Box(-np.inf, np.inf, (4,), np.float32),
        )
    return folder / NAME


def train(data: Path, algorithm: str, seeds: int, updates: int, out: Path) -> list[Policy]:
    """Train policies with `neorl train`, one per seed, and return them."""
    command = [sys.executable, "-m", "flows", "train", str(data), "--algorithm", algorithm, "--json"]
    command += ["--seeds", str(seeds), "--updates", str(updates), "--out", str(out)]
    home = {"NEORL_HOME": str(out.parent / "home"), "PYTHONPATH": str(ROOT)}
    subprocess.run(command, check=True, env=os.environ | home, stdout=subprocess.DEVNULL)
    files = ["policy.npz"] if seeds == 1 else [f"policy-{seed}.npz" for seed in range(seeds)]
    return [load_policy(out / name).policy for name in files]


def returns(policy: Policy, episodes: int = SCORED, seed: int = 1) -> npt.NDArray[np.float64]:
    """Return the returns (episodes,) of a policy in new episodes."""
    keys = jax.random.split(jax.random.key(seed), episodes)
    return np.asarray(rollouts(PLANT, bare_controller(PLANT), policy, keys, PLANT.domain).ret, np.float64)


def page(found: Mapping[str, Any], simulated: Mapping[str, Any]) -> str:
    """Return docs/studies/cartpole.md.

    Args:
        simulated: results of `benchmarks.cartpole.online`.
    """
    rows = [(name, ", ".join(f"{x:.1f}" for x in each), f"{min(each):.1f}") for name, each in found["returns"].items()]
    solved = [name for name, each in found["returns"].items() if min(each) >= SOLVED]
    return pages.study(
        "Discrete learners on CartPole",
        "Do the learners for discrete actions solve CartPole-v1 from a Minari dataset?",
        f"These learners solve it with every seed: {listed(solved)}. The other learners fail with at least one seed.",
        "`make cartpole`.",
        wrap(
            f"Minari writes a dataset of {found['episodes']} episodes ({found['rows']:,} steps). A linear-quadratic "
            "regulator controls the cart, but some pushes are random: 10 % in a third of the episodes, 40 % in "
            "another third, 70 % in the rest. "
            f"`neorl train FOLDER --algorithm NAME` makes {found['updates']:,} gradient steps per seed. Each policy "
            f"then plays {found['scored']} new episodes in a JAX version of Gymnasium's simulator. The return is the "
            f"number of steps before the pole falls, at most {PLANT.spec.horizon}. A mean of {SOLVED:g} counts as "
            f"solved; the mean of the logs is {found['logged']:.0f}."
        ),
        pages.table(("learner", "mean return of each seed", "lowest mean return"), rows),
        wrap(
            "Proximal policy optimisation (PPO) learns in the simulator instead of from logs. After "
            f"{simulated['steps']:,} steps, the mean returns of its seeds in {simulated['scored']} new episodes are "
            f"{', '.join(f'{each:.1f}' for each in simulated['ppo'])}."
        ),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--algorithms", nargs="*", default=list(DISCRETE), choices=DISCRETE)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--updates", type=int, default=20_000)
    parser.add_argument("--page", action="store_true", help="only write the page")
    options = parser.parse_args()
    if options.page:
        PAGE.write_text(page(read_json(RESULTS), read_json(online.RESULTS)))
        return
    result = played()
    found: dict[str, Any] = {
        "episodes": len(result.ret),
        "rows": int(np.sum(result.length)),
        "logged": float(np.mean(result.ret)),
        "updates": options.updates,
        "scored": SCORED,
        "returns": {},
    }
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        data = write_minari(folder / "datasets", result)
        for name in options.algorithms:
            policies = train(data, name, options.seeds, options.updates, folder / name)
            found["returns"][name] = [float(returns(policy).mean()) for policy in policies]
            print(name, json.dumps(found["returns"][name]), flush=True)
    if set(options.algorithms) == set(DISCRETE):
        write_json(RESULTS, found)
        PAGE.write_text(page(found, read_json(online.RESULTS)))


if __name__ == "__main__":
    main()
