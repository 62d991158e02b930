"""Policies that generate datasets, from random to expert, for any plant.

| name   | policy                                                                                                     |
|--------|------------------------------------------------------------------------------------------------------------|
| random | uniformly random actions within the bounds, drawn at every step                                            |
| pid    | the plant's own controller with the parameters of its logs; normal noise, deviation 10 % of half the range |
| medium | the expert, worsened to a score of 33 to 50, with the noise of pid                                         |
| expert | the best known controller if it is fast, otherwise the tuned controller; without noise                     |
| mixed  | episodes in turn: early (like medium, with a score of 10 to 25), medium, expert                            |

The score is 100 (return − worst) / (best − worst); worst and best are the plant's `score_range`. The medium and early
policies mix the expert's action with the plant's idle action. Bisection on the mean score of fixed episodes finds the
share of the idle action, so the share does not depend on the seed of a dataset.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from configs.errors import BadInput
from neorl_core.control.behaviour import Behaviour, play
from neorl_core.types import Controller, Params, Plant

BEHAVIOURS = ("random", "pid", "medium", "expert", "mixed")
NOISE = 0.1
EARLY, MEDIUM = (10.0, 25.0), (100 / 3, 50.0)
CALIBRATION = 128
BISECTIONS = 12
CALIBRATION_SEED = 20_261_121
EXPENSIVE = frozenset({"chemical_reactor", "hvac_control", "water_treatment"})
"""Plants with a slow reference controller, which optimises at every step; their expert is the tuned controller."""


class Policy(NamedTuple):
    """A controller, and modifications of its actions, which the episodes use in turn."""

    base: Controller
    base_params: Params
    expert: str
    parts: dict[str, Behaviour]
    noise: float | None = None
    """Standard deviation of the noise, as a share of half the actions' range."""
    detuned: float | None = None
    """Share of the idle action in the medium policy."""
    medium_score: float | None = None

    def calibration(self) -> dict[str, float]:
        """Return `noise`, `detuned` and `medium_score` by name, without values of None."""
        values = {"noise": self.noise, "detuned": self.detuned, "medium_score": self.medium_score}
        return {name: value for name, value in values.items() if value is not None}


def score(plant: Plant, returns: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    worst, best = plant.spec.score_range
    return 100 * (returns - worst) / (best - worst)


def policy_of(plant: Plant, behaviour: str) -> Policy:
    """Return the policy named in `BEHAVIOURS`; raise BadInput if the name is unknown or an action has no bounds."""
    if behaviour not in BEHAVIOURS:
        raise BadInput(f"'{behaviour}' is not a behaviour: choose from {', '.join(BEHAVIOURS)}.")
    if not np.isfinite([plant.spec.action.low, plant.spec.action.high]).all():
        raise BadInput(f"the actions of {plant.spec.name} have no finite bounds: set bounds in the plant's spec.")
    own = plant.fallback, plant.fallback_params, "plant's own controller"
    if behaviour == "pid":
        found = plant.fallback_params if plant.found_params is None else plant.found_params
        return Policy(plant.fallback, found, own[2], {"pid": _made(noise=NOISE)}, noise=NOISE)
    cheap = plant.reference is not None and plant.spec.name not in EXPENSIVE
    best = (plant.reference, plant.reference_params, "best known controller") if plant.reference and cheap else own
    parts = {"random": _made(random=1.0), "expert": _made()}
    if behaviour in parts:
        return Policy(*best, {behaviour: parts[behaviour]})
    medium, found = find_detuned(plant, *best[:2], MEDIUM)
    parts["medium"] = _made(detuned=medium, noise=NOISE)
    if behaviour == "mixed":
        parts["early"] = _made(detuned=find_detuned(plant, *best[:2], EARLY)[0], noise=NOISE)
    names = ("early", "medium", "expert") if behaviour == "mixed" else ("medium",)
    return Policy(*best, {name: parts[name] for name in names}, NOISE, medium, found)


def _made(random: float = 0.0, detuned: float = 0.0, noise: float = 0.0) -> Behaviour:
    return Behaviour(jnp.float32(random), jnp.float32(detuned), jnp.float32(noise))


def find_detuned(plant: Plant, base: Controller, params: Params, wanted: tuple[float, float]) -> tuple[float, float]:
    """Find the share of the idle action at which a controller's mean score is in the interval `wanted`.

    Return the share and the mean score. If no share reaches the interval, return the share with the nearest score.
    """
    keys = jax.random.split(jax.random.key(CALIBRATION_SEED), CALIBRATION)

    def measure(share: float) -> float:
        each = jax.tree.map(lambda x: jnp.full(CALIBRATION, x), _made(detuned=share, noise=NOISE))
        return float(score(plant, np.asarray(play(plant, base, params, each, keys).ret, np.float64)).mean())

    middle = sum(wanted) / 2
    low, high = 0.0, 1.0
    tried = {share: measure(share) for share in (low, high)}
    for _ in range(BISECTIONS):
        if any(abs(got - middle) < (wanted[1] - wanted[0]) / 4 for got in tried.values()):
            break
        half = (low + high) / 2
        tried[half] = measure(half)
        low, high = (half, high) if tried[half] > middle else (low, half)
    share = min(tried, key=lambda x: abs(tried[x] - middle) if np.isfinite(tried[x]) else np.inf)
    return share, tried[share]
