"""Small NeoRL-2 archives of the double mass, and their datasets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from neorl_core.plants import PLANTS
from tasks.data.store.reader import StoredDataset
from tasks.references import Dataset

SPEC = PLANTS["double_mass"].spec
STEPS = 20


def archive(episodes: int = 10, seed: int = 0) -> dict[str, np.ndarray[Any, Any]]:
    """Return the arrays of a valid NeoRL-2 archive, in episodes of 20 steps."""
    rng = np.random.default_rng(seed)
    path = rng.uniform(-1, 1, (episodes, STEPS + 1, 6)).astype(np.float32)
    n = episodes * STEPS
    return {
        "obs": path[:, :-1].reshape(n, 6),
        "action": rng.uniform(-1, 1, (n, 2)).astype(np.float32),
        "next_obs": path[:, 1:].reshape(n, 6),
        "reward": rng.normal(size=n).astype(np.float32),
        "done": np.zeros(n, np.float32),
        "truncated": (np.arange(n) % STEPS == STEPS - 1).astype(np.float32),
    }


def save(path: Path, arrays: dict[str, np.ndarray[Any, Any]]) -> Path:
    np.savez(path, **arrays)
    return path


def opened(reference: Dataset) -> StoredDataset:
    return StoredDataset.open(reference.store, reference.digest)
