"""Small files of D4RL, DSRL and d3rlpy, in the form that these projects write.

Sources: D4RL's scripts/generation/mujoco/collect_data.py and generate_ant_maze_datasets.py (keys, types, gzip, infos,
metadata); DSRL's scripts/process_dataset.py (seven keys, squeezed arrays: one action becomes (N,)); d3rlpy 2.8.1's
dataset/io.py, compared with a file of MDPDataset, and dataset.pyx of version 1.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np

Arrays = dict[str, np.ndarray[Any, Any]]


def walk(n: int, seed: int = 0, observations: int = 3, actions: int = 1) -> Arrays:
    """Return rows of a random linear plant in random episodes: some terminate, some are truncated, the last is open."""
    rng = np.random.default_rng(seed)
    ends = np.sort(rng.choice(n - 1, max(n // 20, 2), replace=False))
    terminals, timeouts = np.zeros(n, bool), np.zeros(n, bool)
    terminals[ends[::2]] = timeouts[ends[1::2]] = True
    action = rng.uniform(-1, 1, (n, actions)).astype(np.float32)
    now, after = (np.empty((n, observations), np.float32) for _ in range(2))
    x = rng.normal(size=observations)
    for i in range(n):
        now[i] = x
        x = 0.9 * x + 0.3 * action[i, 0] + 0.05 * rng.normal(size=observations)
        after[i] = x
        if terminals[i] or timeouts[i]:
            x = rng.normal(size=observations)
    reward = -np.sum(now**2, axis=1) - 0.1 * np.sum(action**2, axis=1)
    return {
        "observations": now,
        "actions": action,
        "rewards": reward.astype(np.float32),
        "next_observations": after,
        "terminals": terminals,
        "timeouts": timeouts,
    }


def write_d4rl(path: Path, arrays: Arrays, **changed: Any) -> Path:
    """Write a D4RL file with infos and metadata; a change to None removes a key."""
    held = {key: value for key, value in (arrays | changed).items() if value is not None}
    with h5py.File(path, "w") as file:
        for key, values in held.items():
            file.create_dataset(key, data=values, compression="gzip" if np.ndim(values) else None)
        file["infos/qpos"] = np.zeros((len(arrays["rewards"]), 2), np.float32)
        file["infos/action_log_probs"] = np.zeros(len(arrays["rewards"]), np.float32)
        file["metadata/algorithm"] = np.bytes_("SAC")
        file["metadata/iteration"] = np.int32(3)
        file["metadata/policy/fc0/weight"] = np.zeros((4, 3), np.float32)
    return path


def write_dsrl(path: Path, arrays: Arrays, **changed: Any) -> Path:
    """Write a DSRL file with seven squeezed keys; costs are 1 where the first observation exceeds 1."""
    held: Arrays = {**arrays, "costs": (arrays["observations"][:, 0] > 1).astype(np.float32), **changed}
    with h5py.File(path, "w") as file:
        for key, values in held.items():
            file.create_dataset(key, data=np.squeeze(values), compression="gzip")
    return path


def write_d3rlpy(path: Path, arrays: Arrays, **changed: Any) -> Path:
    """Write a file of ReplayBuffer.dump, version 2.1; a change to None removes a key, others are added."""
    ends = np.flatnonzero(arrays["terminals"] | arrays["timeouts"]) + 1
    cuts = [(int(a), int(b)) for a, b in zip([0, *ends], [*ends, len(arrays["rewards"])], strict=True) if a < b]
    held: dict[str, Any] = {"columns": ["observations", "actions", "rewards", "terminated"], "num_episodes": len(cuts)}
    for i, (start, stop) in enumerate(cuts):
        held |= {f"{key}_{i}": arrays[key][start:stop] for key in ("observations", "actions")}
        held |= {f"rewards_{i}": arrays["rewards"][start:stop, None], f"terminated_{i}": arrays["terminals"][stop - 1]}
    held |= {"version": "2.1", **changed}
    with h5py.File(path, "w") as file:
        for key, values in held.items():
            if values is not None:
                file.create_dataset(key, data=values)
    return path


def write_d3rlpy_1(path: Path, arrays: Arrays, **changed: Any) -> Path:
    """Write a file of MDPDataset.dump of d3rlpy 1: single precision, except a discrete action (N,) of integers."""
    discrete = arrays["actions"].dtype.kind == "i"
    held: dict[str, Any] = {
        "observations": arrays["observations"],
        "actions": arrays["actions"].reshape(-1).astype(np.int32) if discrete else arrays["actions"],
        "rewards": arrays["rewards"],
        "terminals": arrays["terminals"].astype(np.float32),
        "episode_terminals": (arrays["terminals"] | arrays["timeouts"]).astype(np.float32),
        "discrete_action": discrete,
        "version": "1.0",
        **changed,
    }
    with h5py.File(path, "w") as file:
        for key, values in held.items():
            file.create_dataset(key, data=values)
    return path


def with_choices(arrays: Arrays, choices: int = 3, seed: int = 0) -> Arrays:
    """Return the rows with a discrete action (N, 1) in which every choice occurs."""
    chosen = np.random.default_rng(seed).integers(0, choices, (len(arrays["rewards"]), 1))
    chosen[:choices, 0] = np.arange(choices)
    return {**arrays, "actions": chosen}
