"""The arrays that the store keeps for each row and each episode: names, types and order."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Rows = dict[str, npt.NDArray[Any]]
"""Arrays by key with a common first axis, the rows."""

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
"""Keys per row in their canonical order; `timestamps` (ns since 1970, UTC) only where they are known."""

NO_SUCCESSOR = "no next observation"
"""Why the last row of an episode is left out: a time limit cut it, or the file ends, and nothing tells what came."""
CHOICE = np.dtype("<i4")
"""A discrete action, which is the number of its choice, in place of `ROW_KEYS`' type."""
MOST_CHOICES = 1_000
"""Choices of a discrete action at most: integers beyond are rather a continuous action, read off a converter."""

ALWAYS = ("observations", "actions", "rewards", "next_observations", "terminals", "timeouts")
"""The keys that every dataset has; costs are only there where a source or the plant's limits tell them."""


def kept_as(key: str, found: np.dtype[Any]) -> np.dtype[Any]:
    """The type in which a key's values are kept: actions that are integers stay integers."""
    return CHOICE if key == "actions" and found.kind in "iu" else ROW_KEYS[key]
