"""Score the controllers of each plant by rollouts: idle, as found, tuned and best known."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from benchmarks.pages import table
from configs.plant_scores import PATH as SCORES
from neorl_core.control.behaviour import idle
from neorl_core.plants import PLANTS
from neorl_core.plants.base import rollouts
from neorl_core.safety.bounds import mean_interval
from neorl_core.types import Controller, Params, Plant
from tasks.data.synthetic.behaviours import EXPENSIVE
from tasks.simulate import score

EPISODES = 1_000
PLANNED_EPISODES = 100
WHO = ("idle", "as_found", "tuned", "best_known")
"""Names of the controllers, in ascending order of expected score."""


def scores(names: list[str]) -> dict[str, Any]:
    """Return the mean return, score and violations of each plant's controllers."""
    kept: dict[str, Any] = json.loads(SCORES.read_text()) if SCORES.exists() else {}
    for name in names:
        plant = PLANTS[name]
        kept[name] = {}
        for who, (controller, params) in controllers(plant).items():
            planned = who == "best_known" and name in EXPENSIVE
            keys = jax.random.split(jax.random.key(0), PLANNED_EPISODES if planned else EPISODES)
            found = rollouts(plant, controller, params, keys, plant.domain)
            interval = mean_interval(np.asarray(found.ret, np.float64))
            kept[name][who] = {
                "return": float(interval.value),
                "half_width": float(interval.upper - interval.value),
                "score": score(plant.spec, float(interval.value)),
                "violated": int(np.sum(found.violated)),
                "episodes": len(keys),
            }
        print(name, json.dumps(kept[name]), flush=True)
    return {name: kept[name] for name in PLANTS if name in kept}


def controllers(plant: Plant) -> dict[str, tuple[Controller, Params]]:
    """Return the controllers of a plant by name, each with its parameters."""
    found = plant.fallback_params if plant.found_params is None else plant.found_params
    known: dict[str, tuple[Controller, Params]] = {
        "idle": (idle(plant), ()),
        "as_found": (plant.fallback, found),
        "tuned": (plant.fallback, plant.fallback_params),
    }
    if plant.reference is not None:
        known["best_known"] = (plant.reference, plant.reference_params)
    return known


def section(kept: Mapping[str, Any]) -> str:
    """Return scores and violations as a table with one row per plant."""
    rows = []
    for name, measured in kept.items():
        cells = [f"{measured[who]['score']:.1f}" if who in measured else "–" for who in WHO]
        violated = ", ".join(f"{measured[who]['violated']}" for who in WHO if who in measured)
        tuned = measured["tuned"]
        rows.append((name, *cells, f"{tuned['return']:.4g} ± {tuned['half_width']:.2g}", violated))
    return table(("plant", *(who.replace("_", " ") for who in WHO), "return of tuned", "violated episodes"), rows)
