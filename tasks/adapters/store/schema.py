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

ALWAYS = ("observations", "actions", "rewards", "next_observations", "terminals", "timeouts")
"""The keys that every dataset has; costs are only there where a source or the plant's limits tell them."""
