"""Measure the integration error of each plant: compare with steps an eighth as long and the same actions."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any, NamedTuple

import jax
import numpy as np

from benchmarks.pages import table
from benchmarks.plants.kept import own
from neorl_core.plants import NAMES, PLANTS
from neorl_core.plants.base import rollout
from neorl_core.types import Controller


class Integrated(NamedTuple):
    """The function that integrates a plant over one control step."""

    module: str
    """Module in `neorl_core.plants`."""
    call: str
    argument: str = "substeps"


INTEGRATED = {
    "chemical_reactor": Integrated("chemical_reactor", "integrate"),
    "hvac_control": Integrated("hvac_control.plant", "integrate"),
    "power_grid": Integrated("power_grid.plant", "solve", "iterations"),
    "pumping_station": Integrated("pumping_station", "integrate"),
    "robot_assembly": Integrated("robot_assembly.plant", "advance"),
    "steel_annealing": Integrated("steel_annealing.plant", "advance"),
    "water_treatment": Integrated("water_treatment", "integrate"),
}
"""Plants that integrate equations. The other plants are discrete-time by definition and have no such error."""
EPISODES = 4
FINEST = 8
"""Factor on the number of substeps for the reference solution."""
FACTORS = (1, 2)
REPEATED = Controller(lambda params, observation: 0, lambda params, at, observation, applied: (at + 1, params[at]))
"""Controller that plays a sequence of actions."""


def measure(name: str) -> dict[str, Any] | None:
    """Return the largest errors of margins and scores, by factor on the number of substeps; None for discrete time."""
    if name not in INTEGRATED:
        return None
    plant = PLANTS[name]
    with jax.enable_x64(True):
        keys = jax.random.split(jax.random.key(1), EPISODES)
        constants = [plant.sample_params(key, plant.domain) for key in keys]
        fallback = jax.jit(lambda key, drawn: rollout(plant, plant.fallback, plant.fallback_params, key, drawn))
        actions = [fallback(key, drawn).actions for key, drawn in zip(keys, constants, strict=True)]
        found = {}
        for factor in (*FACTORS, FINEST):
            with finer(INTEGRATED[name], factor):
                again = jax.jit(lambda key, drawn, actions: rollout(plant, REPEATED, actions, key, drawn))
                runs = [jax.device_get(again(*each)) for each in zip(keys, constants, actions, strict=True)]
            found[factor] = np.stack([x.margins for x in runs]), np.stack([np.sum(x.rewards) for x in runs])
    low, high = plant.spec.score_range
    margins, returns = found[FINEST]
    rows = {
        str(factor): {
            "margins": np.abs(found[factor][0] - margins).max(axis=(0, 1)).tolist(),
            "points": float(np.abs(found[factor][1] - returns).max() * 100 / (high - low)),
        }
        for factor in FACTORS
    }
    return {"what": INTEGRATED[name].argument, "finest": FINEST, "rows": rows}


@contextmanager
def finer(place: Integrated, factor: int) -> Iterator[None]:
    """Multiply the plant's number of substeps within the block."""
    module = import_module(f"neorl_core.plants.{place.module}")
    original: Callable[..., Any] = getattr(module, place.call)
    signature = inspect.signature(original)

    def more(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        bound.arguments[place.argument] *= factor
        return original(*bound.args, **bound.kwargs)

    setattr(module, place.call, more)
    try:
        yield
    finally:
        setattr(module, place.call, original)


def section() -> str:
    """Return the integration errors of all plants as a table."""
    rows = []
    for name in NAMES:
        if found := own(name).get("steps"):
            limits, errors = PLANTS[name].spec.constraints, found["rows"]["1"]
            worst = max(range(len(limits)), key=lambda k: errors["margins"][k] / abs(limits[k].high))
            margins = f"{errors['margins'][worst]:.2g} {limits[worst].unit} ({limits[worst].name})"
            rows.append((name, margins, f"{errors['points']:.2g}"))
    return table(("plant", "largest error of a margin", "largest error of a score"), rows)
