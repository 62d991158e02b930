"""Make tests/golden/d3rlpy_discrete.npz: one update of d3rlpy's discrete algorithms from given parameters.

Development only, in the environment of `golden_d3rlpy.py`; the format is the same:

    PYTHON benchmarks/peers/golden_d3rlpy_discrete.py

d3rlpy has no discrete IQL. Rewards are so small that all errors are in the quadratic part of the Huber loss.
"""

from __future__ import annotations

import json
from typing import Any

import d3rlpy
import golden_d3rlpy as golden
import numpy as np
import torch

OUT = golden.OUT.with_name("d3rlpy_discrete.npz")
CHOICES = 4
PEERS = {
    "discrete_bc": (d3rlpy.algos.DiscreteBCConfig, {"beta": 0.0}),
    "double_dqn": (d3rlpy.algos.DoubleDQNConfig, {"n_critics": 1}),
    "discrete_cql": (d3rlpy.algos.DiscreteCQLConfig, {"n_critics": 1, "alpha": 0.7}),
}


def main() -> None:
    settings = {name: fixed for name, (_, fixed) in PEERS.items()}
    golden.PEERS = {name: peer for name, (peer, _) in PEERS.items()}
    golden.CONFIG |= {"actions": CHOICES, "algorithms": settings}
    random, rows = np.random.default_rng(golden.CONFIG["seed"]), golden.CONFIG["rows"]
    shape = (rows, golden.CONFIG["observations"])
    batch: dict[str, Any] = {
        "observation": random.standard_normal(shape, np.float32),
        "action": random.integers(0, CHOICES, (rows, 1)).astype(np.float32),
        "reward": 0.1 * random.standard_normal(rows, np.float32),
        "next_observation": random.standard_normal(shape, np.float32),
        "terminated": (np.arange(rows) % 4 == 0).astype(np.float32),
    }
    found: dict[str, Any] = {f"batch/{key}": x for key, x in batch.items()}
    for name in PEERS:
        torch.manual_seed(golden.CONFIG["seed"])
        found |= golden.one_update(name, batch)
    found["config"] = np.array(json.dumps(golden.CONFIG, indent=1))
    np.savez_compressed(OUT, **found)
    print(f"{OUT.name}: {len(found)} arrays, {OUT.stat().st_size} bytes")


if __name__ == "__main__":
    main()
