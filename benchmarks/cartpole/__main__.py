"""What discrete learners come to on CartPole from a Minari file: `python -m benchmarks.cartpole`.

    python -m benchmarks.cartpole                       # every discrete learner, five seeds each
    python -m benchmarks.cartpole --seeds 2 --updates 4000 --algorithms discrete_cql

Episodes of the linear-quadratic regulator's pushes, a third each with 10 %, 40 % and 70 % of random ones, are written
by Minari itself; `neorl train` learns from that folder; every policy is scored on 200 fresh episodes of CartPole-v1's
physics. The results are kept as JSON, from which the table of docs/discrete.md is made.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import gymnasium
import jax
import numpy as np
import numpy.typing as npt

from benchmarks.cartpole.plant import PLANT
from neorl_core.algorithms import DISCRETE
from neorl_core.control.behaviour import Behaviour, play
from neorl_core.networks import Policy
from neorl_core.plants.base import EpisodeResult, rollouts
from neorl_core.safety.composite import bare_controller
from tasks.files.canonical import write_json
from tasks.models.bundles.policy_file import load_policy

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "cartpole.json"
PAGE = ROOT / "docs" / "discrete.md"
NAME = "cartpole/mixed-v0"
RANDOM = (0.1, 0.4, 0.7)
"""Shares of random pushes."""
EPISODES, SCORED = 90, 200
SOLVED = 475.0
"""Mean return of CartPole-v1 from which on it counts as solved."""
BEGIN, END = "<!-- cartpole: begin -->", "<!-- cartpole: end -->"


def played(episodes: int = EPISODES, seed: int = 0) -> EpisodeResult:
    """Episodes of the regulator with random pushes, traced."""
    shares = np.resize(np.asarray(RANDOM, np.float32), episodes)
    nothing = np.zeros(episodes, np.float32)
    keys = jax.random.split(jax.random.key(seed), episodes)
    found: EpisodeResult = jax.device_get(
        play(PLANT, PLANT.fallback, PLANT.fallback_params, Behaviour(shares, nothing, nothing), keys, trace=True)  # type: ignore[arg-type]
    )
    return found


def write_minari(folder: Path, result: EpisodeResult) -> Path:
    """The episodes as a dataset that Minari itself writes.

    Args:
        folder: of Minari's datasets.
        result: traced episodes.
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
        warnings.simplefilter("ignore")  # of authors and code, which belong to a dataset that is published
        minari.create_dataset_from_buffers(
            NAME,
            buffers,
            data_format="hdf5",
            action_space=gymnasium.spaces.Discrete(2),
            observation_space=gymnasium.spaces.Box(-np.inf, np.inf, (4,), np.float32),
        )
    return folder / NAME


def train(data: Path, algorithm: str, seeds: int, updates: int, out: Path) -> list[Policy]:
    """The policies of `neorl train`, one for each seed."""
    command = [sys.executable, "-m", "flows", "train", str(data), "--algorithm", algorithm, "--json"]
    command += ["--seeds", str(seeds), "--updates", str(updates), "--out", str(out)]
    home = {"NEORL_HOME": str(out.parent / "home"), "PYTHONPATH": str(ROOT)}
    subprocess.run(command, check=True, env=os.environ | home, stdout=subprocess.DEVNULL)
    files = ["policy.npz"] if seeds == 1 else [f"policy-{seed}.npz" for seed in range(seeds)]
    return [load_policy(out / name).policy for name in files]


def returns(policy: Policy, episodes: int = SCORED, seed: int = 1) -> npt.NDArray[np.float64]:
    """Returns of a policy on fresh episodes."""
    keys = jax.random.split(jax.random.key(seed), episodes)
    return np.asarray(rollouts(PLANT, bare_controller(PLANT), policy, keys, PLANT.domain).ret, np.float64)


def table(found: dict[str, Any]) -> list[str]:
    """The results as Markdown."""
    lines = [
        f"Data: {found['episodes']} episodes, {found['rows']:,} steps, mean return {found['logged']:.0f} of 500. "
        f"{found['updates']:,} updates; each policy's mean return over {found['scored']} fresh episodes; "
        f"{SOLVED:g} counts as solved.",
        "",
        "| learner | mean return of each seed | least |",
        "|---|---|---|",
    ]
    for name, each in found["returns"].items():
        lines.append(f"| {name} | {', '.join(f'{x:.1f}' for x in each)} | {min(each):.1f} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--algorithms", nargs="*", default=list(DISCRETE), choices=DISCRETE)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--updates", type=int, default=20_000)
    options = parser.parse_args()
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
    print("\n".join(table(found)))
    if set(options.algorithms) == set(DISCRETE) and PAGE.exists():
        write_json(RESULTS, found)
        before, rest = PAGE.read_text().split(BEGIN)
        after = rest.split(END)[1]
        PAGE.write_text("\n".join([f"{before}{BEGIN}", "", *table(found), "", f"{END}{after}"]))


if __name__ == "__main__":
    main()
