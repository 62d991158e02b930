"""Names and types of the arrays that a dataset has for its rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Rows = dict[str, npt.NDArray[Any]]
"""For each key an array with one entry per row."""

ROW_KEYS: dict[str, np.dtype[Any]] = {
    "observations": np.dtype("<f4"),
    "actions": np.dtype("<f4"),
    "rewards": np.dtype("<f4"),
    "next_observations": np.dtype("<f4"),
    "costs": np.dtype("<f4"),
    "terminals": np.dtype("?"),
    "timeouts": np.dtype("?"),
    "constraint_costs": np.dtype("<f4"),
    "timestamps": np.dtype("<i8"),
}
"""Arrays of a dataset and their types, in the order of hashing; timestamps are in ns since 1970, UTC."""

BLOCK_ROWS = 65536
NO_SUCCESSOR = "no next observation"
"""Reason to reject an episode's last row: the episode or file was cut, so the next observation is unknown."""
CHOICE = np.dtype("<i4")
"""Type of a discrete action instead of the type in `ROW_KEYS`; each value is the number of a choice."""
MOST_CHOICES = 1_000
"""Largest number of choices of a discrete action; larger integers are probably raw values of a continuous action."""

ALWAYS = ("observations", "actions", "rewards", "next_observations", "terminals", "timeouts")
"""Keys that every dataset has. Costs exist only if the source has costs or the plant has limits."""


def joined(parts: Sequence[Rows]) -> Rows:
    return {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}


def stored_dtype(key: str, dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the type in which the values of a key are stored; actions that are integers stay integers."""
    return CHOICE if key == "actions" and dtype.kind in "iu" else ROW_KEYS[key]
