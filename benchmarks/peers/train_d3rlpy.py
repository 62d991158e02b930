"""Train with d3rlpy for benchmarks/speed.py and benchmarks/score.py, with a Python that has d3rlpy.

    PYTHON benchmarks/peers/train_d3rlpy.py TRANSITIONS.npz WIDTH BATCH

For each line `algorithm steps` on standard input the script trains, and answers with the seconds and the seconds spent
on sampling. A step samples a batch and updates, like d3rlpy's training loop without logger and progress bar.

    PYTHON benchmarks/peers/train_d3rlpy.py DMSD.npz --train ALGORITHM

Trains one algorithm with d3rlpy's defaults on a NeoRL-2 archive. For a line `train seconds` the script trains on and
answers `{"steps": STEPS SO FAR}`. For a line `act [[...], ...]` it answers the policy's actions at these observations.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import d3rlpy
import numpy as np
from d3rlpy.models.encoders import VectorEncoderFactory

EPISODE = 1000


def algorithms(width: int, batch: int) -> dict[str, Any]:
    """Return d3rlpy's algorithms with its default settings and the given network size and batch size."""
    encoder = VectorEncoderFactory([width, width])
    shared = {"batch_size": batch, "actor_encoder_factory": encoder, "critic_encoder_factory": encoder}
    return {
        "td3_bc": d3rlpy.algos.TD3PlusBCConfig(**shared).create(),
        "iql": d3rlpy.algos.IQLConfig(**shared, value_encoder_factory=encoder).create(),
        "cql": d3rlpy.algos.CQLConfig(**shared, n_action_samples=10).create(),
    }


DEFAULTS = {"td3_bc": d3rlpy.algos.TD3PlusBCConfig, "iql": d3rlpy.algos.IQLConfig, "cql": d3rlpy.algos.CQLConfig}


def train(path: str, name: str) -> None:
    """Train with d3rlpy's defaults, and answer the lines on standard input."""
    data = np.load(path, allow_pickle=False)
    done, truncated = (np.asarray(data[key], np.float32).ravel() for key in ("done", "truncated"))
    timeouts = np.maximum(truncated * (1 - done), np.arange(1, len(done) + 1) == len(done)).astype(np.float32)
    answers, sys.stdout = sys.stdout, sys.stderr
    dataset = d3rlpy.dataset.MDPDataset(
        observations=data["obs"],
        actions=data["action"],
        rewards=data["reward"].ravel(),
        terminals=done,
        timeouts=timeouts,
        action_space=d3rlpy.ActionSpace.CONTINUOUS,
    )
    d3rlpy.seed(0)
    algorithm = DEFAULTS[name]().create()
    algorithm.build_with_dataset(dataset)
    steps = 0
    print("ready", file=answers, flush=True)
    for line in sys.stdin:
        order, argument = line.split(maxsplit=1)
        if order == "train":
            until = time.perf_counter() + float(argument)
            while time.perf_counter() < until:
                algorithm.update(dataset.sample_transition_batch(algorithm.batch_size))
                steps += 1
            print(json.dumps({"steps": steps}), file=answers, flush=True)
        else:
            observation = np.asarray(json.loads(argument), np.float32)
            print(json.dumps(algorithm.predict(observation).tolist()), file=answers, flush=True)


def main() -> None:
    if sys.argv[2] == "--train":
        train(sys.argv[1], sys.argv[3])
        return
    path, width, batch = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    data = np.load(path)
    rows = len(data["rewards"])
    timeouts = (np.arange(1, rows + 1) % EPISODE == 0).astype(np.float32)
    timeouts[-1] = 1.0
    answers, sys.stdout = sys.stdout, sys.stderr  # d3rlpy logs to standard output
    dataset = d3rlpy.dataset.MDPDataset(
        observations=data["observations"],
        actions=data["actions"],
        rewards=data["rewards"],
        terminals=np.zeros(rows, np.float32),
        timeouts=timeouts,
        action_space=d3rlpy.ActionSpace.CONTINUOUS,
    )
    found = algorithms(width, batch)
    for algorithm in found.values():
        algorithm.create_impl(data["observations"].shape[1:], data["actions"].shape[1])
    print("ready", file=answers, flush=True)
    for line in sys.stdin:
        name, steps = line.split()
        sampling, started = 0.0, time.perf_counter()
        for _ in range(int(steps)):
            before = time.perf_counter()
            transitions = dataset.sample_transition_batch(batch)
            sampling += time.perf_counter() - before
            found[name].update(transitions)
        print(time.perf_counter() - started, sampling, file=answers, flush=True)


if __name__ == "__main__":
    main()
