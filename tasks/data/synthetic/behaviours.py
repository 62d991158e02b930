"""Policies for generated datasets, in the usual qualities, for any plant.

| name   | policy                                                                                                     |
|--------|------------------------------------------------------------------------------------------------------------|
| random | uniform over the actions' box, drawn at every step                                                         |
| pid    | the plant's own controller as found, with normal noise of 10 % of half the range                           |
| medium | a badly tuned controller with a score of a third to a half, with that noise                                |
| expert | the best known controller if it is cheap, else the plant's own as tuned, without noise                     |
| mixed  | episodes alternate between early (a score of 10 % to 25 %), medium and expert                              |

The score is 100 (return − worst) / (best − worst) with the plant's `score_range`. Badly tuned controllers are blends of
the expert with the plant's idle action, which scores 0. The share of the idle action is found by bisection on the mean
score of fixed episodes, so that each plant has a single medium policy for all seeds.
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
"""Intervals on the scale from 0 to 100."""
CALIBRATION = 128
BISECTIONS = 12
CALIBRATION_SEED = 20_261_121
EXPENSIVE = frozenset({"chemical_reactor", "hvac_control", "water_treatment"})
"""Plants whose reference controller optimises at every step; their expert is the plant's own controller."""


class Policy(NamedTuple):
    """A controller, with its modifications in a cycle of episodes."""

    base: Controller
    base_params: Params
    expert: str
    parts: dict[str, Behaviour]
    """Parts of the mixture by name; episode i is of part i modulo the number of parts."""
    noise: float | None = None
    """Standard deviation of the noise, as a share of half the actions' range."""
    detuned: float | None = None
    """Share of the idle action in the medium policy."""
    medium_score: float | None = None

    def calibration(self) -> dict[str, float]:
        """Return noise, share and medium score by name, if they apply."""
        values = {"noise": self.noise, "detuned": self.detuned, "medium_score": self.medium_score}
        return {name: value for name, value in values.items() if value is not None}


def score(plant: Plant, returns: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Convert returns to the plant's scale from 0 to 100."""
    worst, best = plant.spec.score_range
    return 100 * (returns - worst) / (best - worst)


def policy_of(plant: Plant, behaviour: str) -> Policy:
    """Return the policy of a quality; raise BadInput if it is unknown, or the plant's actions are unbounded."""
    if behaviour not in BEHAVIOURS:
        raise BadInput(f"'{behaviour}' is not a behaviour: choose from {', '.join(BEHAVIOURS)}.")
    if not np.isfinite([plant.spec.action.low, plant.spec.action.high]).all():
        raise BadInput(f"the actions of {plant.spec.name} are unbounded: bound them in the plant's spec.")
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
    """Find the share of the idle action that gives a controller a score in an interval, or nearest to it.

    The plant gives the scale and the idle action. Returned are the share and the mean score.
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
