"""Compute rewards, costs and distances to limits for logged rows, with the plant's formulas."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from neorl_core.plants.base import LoggedSignals
from tasks.data.store.schema import BLOCK_ROWS, Rows

SMALLEST = 1024


def by_rows(function: Callable[..., jax.Array], *columns: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """Apply a JAX function to rows (n, ...), in blocks; blocks are padded to few sizes, so that JAX seldom compiles."""
    compiled = jax.jit(function)
    parts = []
    for start in range(0, len(columns[0]), BLOCK_ROWS):
        block = [column[start : start + BLOCK_ROWS].astype(np.float32) for column in columns]
        n = len(block[0])
        size = max(SMALLEST, 1 << (n - 1).bit_length())
        padded = [jnp.asarray(np.pad(x, [(0, size - n), *[(0, 0)] * (x.ndim - 1)], mode="edge")) for x in block]
        parts.append(np.asarray(compiled(*padded))[:n])
    return np.concatenate(parts)


def margins_of(logged: LoggedSignals, next_observations: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """Return the distance of each row to each of K limits (n, K), in the limit's unit; negative beyond the limit."""
    return by_rows(logged.margins, next_observations)


def with_rewards(rows: Rows, logged: LoggedSignals) -> Rows:
    """Add rewards (n,), computed with the plant's formula."""
    return rows | {
        "rewards": by_rows(logged.reward, *(rows[key] for key in ("observations", "actions", "next_observations")))
    }


def with_costs(rows: Rows, logged: LoggedSignals) -> Rows:
    """Add constraint_costs (n, K), the excess over each limit in its unit, and costs (n,), 1 if a limit is exceeded."""
    excess = np.maximum(-margins_of(logged, rows["next_observations"]), np.float32(0))
    violated: npt.NDArray[np.bool_] = np.asarray((excess > 0).any(axis=1))
    return rows | {"constraint_costs": excess, "costs": violated.astype(np.float32)}
