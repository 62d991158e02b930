"""How far a plant's own integration is from one with steps an eighth as long, under the same actions."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any, NamedTuple

import jax
import numpy as np

from neorl_core.plants import PLANTS
from neorl_core.plants.base import rollout
from neorl_core.types import Controller


class Integrated(NamedTuple):
    """What a plant calls to get through a step."""

    module: str
    """Within `neorl_core.plants`."""
    call: str
    argument: str = "substeps"


INTEGRATED = {
    "chemical_reactor": Integrated("chemical_reactor", "integrate"),
    "hvac_control": Integrated("hvac_control.plant", "integrate"),
    "power_grid": Integrated("power_grid.plant", "solve", "iterations"),
    "pumping_station": Integrated("pumping_station.hydraulics", "integrate"),
    "robot_assembly": Integrated("robot_assembly.plant", "advance"),
    "steel_annealing": Integrated("steel_annealing.plant", "advance"),
    "water_treatment": Integrated("water_treatment", "integrate"),
}
"""The others are sequences by their own definition, and exact."""
EPISODES = 4
FINEST = 8
"""How many times the plant's own number of substeps stands for the exact answer."""
FACTORS = (1, 2)
REPEATED = Controller(lambda params, observation: 0, lambda params, at, observation, applied: (at + 1, params[at]))
"""Plays a sequence of actions."""


def measure(name: str) -> dict[str, Any] | None:
    """Largest differences of margins and of an episode's score, by how many times the plant's own substeps.

    Args:
        name: the plant; None is found of one that has no steps of integration.
    """
    if name not in INTEGRATED:
        return None
    plant = PLANTS[name]
    with jax.enable_x64(True):
        keys = jax.random.split(jax.random.key(1), EPISODES)
        constants = [plant.sample_params(key, plant.domain) for key in keys]
        fallback = jax.jit(lambda key, own: rollout(plant, plant.fallback, plant.fallback_params, key, own))
        actions = [fallback(key, own).actions for key, own in zip(keys, constants, strict=True)]
        found = {}
        for factor in (*FACTORS, FINEST):
            with finer(INTEGRATED[name], factor):
                again = jax.jit(lambda key, own, actions: rollout(plant, REPEATED, actions, key, own))
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
    """The plant integrates with this many times its own number of substeps."""
    module = import_module(f"neorl_core.plants.{place.module}")
    own: Callable[..., Any] = getattr(module, place.call)
    signature = inspect.signature(own)

    def more(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        bound.arguments[place.argument] *= factor
        return own(*bound.args, **bound.kwargs)

    setattr(module, place.call, more)
    try:
        yield
    finally:
        setattr(module, place.call, own)


def lines_of(name: str, found: dict[str, Any] | None) -> list[str]:
    """What `measure` found as a part of the plant's section."""
    spec = PLANTS[name].spec
    if not found:
        return []
    names = [f"{limit.name} [{limit.unit}]".replace(" [1]", "") for limit in spec.constraints]
    lines = [
        "",
        f"Step size: {EPISODES} episodes under the same actions in double precision, against {found['finest']} times "
        f"the plant's own {found['what']}; largest differences of margins, and of an episode's score.",
        "",
        f"| {found['what']} | {' | '.join(names)} | points |",
        f"|---|{'---|' * len(names)}---|",
    ]
    for factor, row in found["rows"].items():
        cells = [f"{x:.2g}" for x in (*row["margins"], row["points"])]
        lines.append(f"| {'its own' if factor == '1' else f'{factor} times'} | {' | '.join(cells)} |")
    return lines
