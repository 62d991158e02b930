"""Measure how far a policy leaves the logs in its rollouts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from neorl_core.plants.base import Trajectory
from neorl_core.safety.support import conformal_quantile, distance
from neorl_core.types import PlantSpec
from tasks.data.store.episodes import Logs
from tasks.evaluation.support import LoggedSupport, logged_support, steps_of, thinned
from tasks.files.arrays import npz_bytes
from tasks.files.canonical import write_atomic
from tasks.references import Departure

QUANTILE = 0.99
"""Share of held-out steps that count as like the training episodes."""
STEPS = 8_192
"""Largest number of evenly spaced steps of a controller, and of the held-out episodes, that are compared."""
BINS = 60


def departure(
    spec: PlantSpec, training: Logs, held_out: Logs, steps: Mapping[str, Trajectory], seed: int, folder: Path
) -> Departure:
    """Compare the steps of controllers with logged steps.

    A step is unlike the logs if its distance to the training steps is larger than that of 99 % of held-out steps. The
    distance is that to the nearest of some training steps that cover the others.

    Args:
        steps: trajectories by controller, (N, T, ...).
        folder: folder for the histograms of the report's picture.
    """
    support = logged_support(spec, training, seed)
    near = conformal_quantile(distances(support, thinned(steps_of(held_out), STEPS)), QUANTILE)
    taken = {name: thinned(_alive(found), STEPS) for name, found in steps.items()}
    # A signal and an action may have the same name.
    names = (*spec.observation.names, *(f"action {name}" for name in spec.action.names))
    beyond = {}
    for name, rows in taken.items():
        # NaN is beyond every range.
        outside = ~((rows >= support.low) & (rows <= support.high))
        beyond[name] = dict(zip(names, map(float, outside.mean(axis=0)), strict=True))
    shown = {"logs": thinned(steps_of(training)), **taken}
    every = np.concatenate(list(shown.values()))
    every = np.where(np.isfinite(every), every, np.nan)
    low, high = np.nanmin(every, axis=0), np.nanmax(every, axis=0)
    edges = np.linspace(low, np.where(high > low, high, low + 1.0), BINS + 1, axis=1)
    arrays = {"edges": edges}
    for name, rows in shown.items():
        finite = [rows[np.isfinite(rows[:, i]), i] for i in range(len(names))]
        counts = [np.histogram(column, edge)[0] for column, edge in zip(finite, edges, strict=True)]
        arrays[name] = np.stack(counts) / len(rows)
    return Departure(
        unlike={
            name: float(np.mean(~(distances(support, rows) <= near))) if np.isfinite(near) else np.nan
            for name, rows in taken.items()
        },
        beyond=beyond,
        steps=len(taken["candidate"]),
        histograms=write_atomic(folder / "departure.npz", npz_bytes(arrays)),
    )


def distances(support: LoggedSupport, steps: npt.NDArray[np.floating]) -> npt.NDArray[np.float32]:
    """Return the distance of each step (N, D) to the nearest reference."""
    scaled = jnp.asarray((steps - support.centre) / support.scale, dtype=float)
    return np.asarray(jax.jit(jax.vmap(distance, (None, 0)))(support.references, scaled))


def _alive(found: Trajectory) -> npt.NDArray[np.float64]:
    """Return observations and actions of the steps before the end of each episode, (M, O + A)."""
    alive = np.asarray(found.alive)
    parts = (np.asarray(found.observations)[alive], np.asarray(found.actions)[alive])
    return np.concatenate(parts, axis=1).astype(np.float64)
