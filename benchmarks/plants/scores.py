"""What a plant's controllers come to: idle, its own as found and as tuned, and the best known, by rollouts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from benchmarks.tuning import report
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
"""Controllers, from the bottom of the scale to its top."""


def scores(names: list[str]) -> dict[str, Any]:
    """Mean returns of each plant's controllers: idle, its own as found and as tuned, and the best known."""
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
    """What a plant's scale is made of, from idling to the best known controller."""
    found = plant.fallback_params if plant.found_params is None else plant.found_params
    known: dict[str, tuple[Controller, Params]] = {
        "idle": (idle(plant), ()),
        "as_found": (plant.fallback, found),
        "tuned": (plant.fallback, plant.fallback_params),
    }
    if plant.reference is not None:
        known["best_known"] = (plant.reference, plant.reference_params)
    return known


def lines_of(kept: Mapping[str, Any]) -> list[str]:
    """The scores as a section of docs/studies/plants.md."""
    if not kept:
        return []
    lines = [
        "",
        "## Controllers",
        "",
        "Mean return with its 95 % interval, score (0 is a sensible idle, 100 the best known) and episodes in which a "
        "limit was crossed, over the default operating domain. The controller as found wrote the logs (`pid`); tuned, "
        "it is what the shield hands over to and what gates and tables compare with. The best known was found by a "
        "search or a planner, and is a bound on nothing.",
        "",
        "| plant | controller | return | score | beyond a limit | what it is |",
        "|---|---|---|---|---|---|",
    ]
    for name, rows in kept.items():
        for who in (each for each in WHO if each in rows):
            r = rows[who]
            value = f"{r['return']:.4g} ± {r['half_width']:.2g}"
            beyond = f"{r['violated']} of {r['episodes']}"
            what = report.ABOUT[name].get(who, "as tuned")
            lines.append(f"| {name} | {who.replace('_', ' ')} | {value} | {r['score']:.1f} | {beyond} | {what} |")
    return lines
