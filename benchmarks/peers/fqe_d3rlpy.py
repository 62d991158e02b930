"""Evaluate policies of `make ope-study` with d3rlpy's fitted Q evaluation (FQE), in a Python that has d3rlpy.

    PYTHON benchmarks/peers/fqe_d3rlpy.py LOGS/PLANT-BEHAVIOUR.npz ...

For development only; requires d3rlpy 2.8.1 and a CPU build of torch. `python -m benchmarks.ope_study --peers LOGS`
writes the archives, which represent a policy by its actions on the held-out steps. FQE uses d3rlpy's defaults (two
layers of 256 units, learning rate 1e-4, batches of 100, a target copied every 100 steps) and the cell's discount. The
script adds the next observations of truncated steps, which d3rlpy's dataset drops, and scales rewards to a standard
deviation of 1. It writes benchmarks/results/ope/peers/PLANT-BEHAVIOUR.json with the mean Q value at the first
observations, in the unit of the plant's reward.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import d3rlpy
import numpy as np
import torch
from d3rlpy.ope import FQE, FQEConfig
from d3rlpy.torch_utility import TorchMiniBatch

OUT = Path(__file__).resolve().parents[1] / "results" / "ope" / "peers"
STEPS = 10_000
"""Gradient steps for each policy: a hundred copies of the target, which is the horizon of a discount of 0.99."""
SEED = 0


class Logged:
    """A d3rlpy algorithm whose actions on the steps of a batch are given."""

    def __init__(self) -> None:
        self.actions = torch.zeros(0)

    def predict_best_action(self, observations: torch.Tensor) -> torch.Tensor:
        return self.actions


def value(
    data: dict[str, torch.Tensor], next_action: torch.Tensor, initial_action: torch.Tensor, discount: float
) -> float:
    """Return the mean Q value at the first observation of each episode and the policy's action there."""
    d3rlpy.seed(SEED)
    policy = Logged()
    found: Any = FQE(SimpleNamespace(impl=policy), FQEConfig(gamma=discount))
    found.create_impl((data["observation"].shape[1],), data["action"].shape[1])
    chosen = torch.Generator().manual_seed(SEED)
    rows, batch = len(data["reward"]), found.config.batch_size
    for step in range(1, STEPS + 1):
        at = torch.randint(rows, (batch,), generator=chosen)
        policy.actions = next_action[at]
        found.impl.inner_update(
            TorchMiniBatch(
                observations=data["observation"][at],
                actions=data["action"][at],
                rewards=data["reward"][at, None],
                next_observations=data["next_observation"][at],
                next_actions=next_action[at],
                returns_to_go=torch.zeros(batch, 1),
                terminals=data["terminated"][at, None],
                intervals=torch.ones(batch, 1),
                device="cpu",
            ),
            step,
        )
    first = data["starts"].long()
    with torch.no_grad():
        q = found.impl.inner_predict_value(data["observation"][first], initial_action)
    return float(q.mean())


def main() -> None:
    torch.set_num_threads(1)
    for path in map(Path, sys.argv[1:]):
        began = time.perf_counter()
        logs = np.load(path, allow_pickle=False)
        scale = float(logs["reward"].std())
        data = {name: torch.as_tensor(np.asarray(logs[name], np.float32)) for name in logs.files if logs[name].ndim}
        data["reward"] /= scale
        values = [
            scale * value(data, following, first, float(logs["discount"]))
            for following, first in zip(data["next_action"], data["initial_action"], strict=True)
        ]
        OUT.mkdir(parents=True, exist_ok=True)
        found = {"d3rlpy": d3rlpy.__version__, "torch": torch.__version__, "steps": STEPS, "seed": SEED}
        found |= {"values": values, "seconds": time.perf_counter() - began}
        (OUT / f"{path.stem}.json").write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
