"""A plant under its controllers, for people to look at."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np

from neorl_core.plants import PLANTS
from neorl_core.plants.base import EpisodeResult, rollouts
from neorl_core.types import Controller, Params, Plant
from tasks.adapters.reporting.plots import plot_trajectories

OWN, ORACLE = "plant controller", "oracle"


def controllers_of(plant: Plant) -> dict[str, tuple[Controller, Params]]:
    """The plant's own controller, and its oracle where there is one."""
    found = {OWN: (plant.fallback, plant.fallback_params)}
    if plant.oracle is not None:
        found[ORACLE] = (plant.oracle, plant.oracle_params)
    return found


def draw_plant(name: str, path: Path, seed: int, episodes: int) -> dict[str, dict[str, Any]]:
    """Roll out every controller of a plant on the same episodes and draw the first of them.

    Args:
        name: the plant.
        path: PNG or SVG to write.
        seed: of the episodes.
        episodes: how many are counted.

    Returns:
        controller -> {return (mean), score, violated (episodes)}.
    """
    plant = PLANTS[name]
    keys = jax.random.split(jax.random.key(seed), episodes)
    low, high = plant.spec.score_range
    drawn: dict[str, dict[str, np.ndarray]] = {}
    found: dict[str, dict[str, Any]] = {}
    for who, (controller, params) in controllers_of(plant).items():
        result: EpisodeResult = jax.device_get(rollouts(plant, controller, params, keys, plant.domain, trace=True))
        assert result.trajectory is not None
        length = int(result.length[0])
        drawn[who] = {
            "observations": np.asarray(result.trajectory.observations[0][:length]),
            "actions": np.asarray(result.trajectory.actions[0][:length]),
        }
        mean = float(np.mean(result.ret))
        score = 100.0 * (mean - low) / (high - low)
        found[who] = {"return": mean, "score": score, "violated": int(np.sum(result.violated))}
    plot_trajectories(path, plant.spec, drawn)
    return found
