"""Keys and dtypes of the arrays that the store keeps for each row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Rows = dict[str, npt.NDArray[Any]]
"""Arrays by key; the first axis is rows."""

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
"""Keys per row in canonical order; `timestamps` (ns since 1970, UTC) are optional."""

BLOCK_ROWS = 65536
"""Rows that a reader yields at once."""
NO_SUCCESSOR = "no next observation"
"""Reason for leaving out an episode's last row: the episode or file was cut, so that the next state is unknown."""
CHOICE = np.dtype("<i4")
"""Type of a discrete action, the number of a choice, in place of the type in `ROW_KEYS`."""
MOST_CHOICES = 1_000
"""Most choices of a discrete action: larger integers are probably a continuous action read from a converter."""

ALWAYS = ("observations", "actions", "rewards", "next_observations", "terminals", "timeouts")
"""Keys that every dataset has; costs need a source or plant limits."""


def joined(parts: Sequence[Rows]) -> Rows:
    """Concatenate consecutive rows that have the keys of the first."""
    return {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}


def stored_dtype(key: str, dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the type in which a key's values are stored: integer actions stay integers."""
    return CHOICE if key == "actions" and dtype.kind in "iu" else ROW_KEYS[key]
