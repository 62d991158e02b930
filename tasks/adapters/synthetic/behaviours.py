"""The qualities of made data, as the field names them, for any plant; each is a controller and how it is blended.

| name   | policy                                                                                                   |
|--------|----------------------------------------------------------------------------------------------------------|
| random | uniform over the actions' box, new at every step                                                         |
| pid    | the plant's own controller (`fallback`) with normal noise of a tenth of half the range                   |
| medium | the expert blended with random actions so that the mean score is between a third and half of the scale   |
| expert | the plant's oracle where it has a cheap one, else its own controller, without noise                      |
| mixed  | whole episodes of random, medium and expert in turn                                                      |

A score is 100 (return − worst) / (best − worst) with the plant's `score_range`. The blend of `medium` is found by
bisection on the mean score of the same episodes, whatever the seed, so that one plant has one medium policy.
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
MEDIUM = (100 / 3, 50.0)
"""Between a third and half of the scale from 0 to 100."""
CALIBRATION = 128
"""Episodes of each mean by which the blend is found."""
BISECTIONS = 12
CALIBRATION_SEED = 20_261_121
EXPENSIVE_ORACLES = frozenset({"chemical_reactor", "hvac_control", "power_grid", "water_treatment"})
"""Plants whose oracle solves a programme at every step: their experts are their own controllers."""


class Policy(NamedTuple):
    """A controller and how each of a cycle of episodes blends it."""

    base: Controller
    base_params: Params
    expert: str
    """"oracle" or "plant's own controller"."""
    parts: dict[str, Behaviour]
    """Parts of the mixture by name; episode i is of part i modulo their number."""
    noise: float | None = None
    """Standard deviation of the noise, as a share of half the actions' range."""
    blend: float | None = None
    """Share of random actions of the medium policy, as calibration found it."""
    medium_score: float | None = None
    """Mean score of the medium policy."""

    def calibration(self) -> dict[str, float]:
        """Noise, blend and medium score by name, where they apply."""
        values = {"noise": self.noise, "blend": self.blend, "medium_score": self.medium_score}
        return {name: value for name, value in values.items() if value is not None}


def score(plant: Plant, returns: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Returns on the plant's scale from 0 to 100."""
    worst, best = plant.spec.score_range
    return 100 * (returns - worst) / (best - worst)


def policy_of(plant: Plant, behaviour: str) -> Policy:
    """What acts in episodes of a quality.

    Raises:
        BadInput: for an unknown quality, or a plant whose actions are not bounded.
    """
    if behaviour not in BEHAVIOURS:
        raise BadInput(f"expected a behaviour among {', '.join(BEHAVIOURS)}, got '{behaviour}': choose one of those.")
    if not np.isfinite([plant.spec.action.low, plant.spec.action.high]).all():
        raise BadInput(f"expected bounded actions of {plant.spec.name}, got none: bound them in the plant's spec.")
    own = plant.fallback, plant.fallback_params, "plant's own controller"
    oracle = plant.oracle is not None and plant.spec.name not in EXPENSIVE_ORACLES
    if behaviour == "pid":
        return Policy(*own, {"pid": _blended(0.0, NOISE)}, noise=NOISE)
    best = (plant.oracle, plant.oracle_params, "oracle") if plant.oracle is not None and oracle else own
    parts = {"random": _blended(1.0), "expert": _blended(0.0)}
    if behaviour in parts:
        return Policy(*best, {behaviour: parts[behaviour]})
    blend, found = find_medium(plant, *best[:2])
    parts["medium"] = _blended(blend)
    names = ("random", "medium", "expert") if behaviour == "mixed" else ("medium",)
    return Policy(*best, {name: parts[name] for name in names}, blend=blend, medium_score=found)


def _blended(random: float, noise: float = 0.0) -> Behaviour:
    """A controller of whose actions a share is random, with normal noise."""
    return Behaviour(jnp.float32(random), jnp.float32(noise))


def find_medium(plant: Plant, base: Controller, params: Params) -> tuple[float, float]:
    """The share of random actions that puts a controller between a third and half of the scale, and its mean score.

    Where no share does, the one that comes nearest.
    """
    keys = jax.random.split(jax.random.key(CALIBRATION_SEED), CALIBRATION)

    def measure(blend: float) -> float:
        each = Behaviour(jnp.full(CALIBRATION, blend, jnp.float32), jnp.zeros(CALIBRATION, jnp.float32))
        return float(score(plant, np.asarray(play(plant, base, params, each, keys).ret, np.float64)).mean())

    wanted = sum(MEDIUM) / 2
    low, high = 0.0, 1.0
    tried = {blend: measure(blend) for blend in (low, high)}
    for _ in range(BISECTIONS):
        if any(abs(got - wanted) < (MEDIUM[1] - MEDIUM[0]) / 4 for got in tried.values()):
            break
        middle = (low + high) / 2
        tried[middle] = measure(middle)
        low, high = (middle, high) if tried[middle] > wanted else (low, middle)
    blend = min(tried, key=lambda x: abs(tried[x] - wanted) if np.isfinite(tried[x]) else np.inf)
    return blend, tried[blend]
