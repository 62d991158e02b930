"""The qualities of made data, as the field names them, for any plant; each is a controller and what is made of it.

| name   | policy                                                                                                     |
|--------|------------------------------------------------------------------------------------------------------------|
| random | uniform over the actions' box, new at every step                                                           |
| pid    | the plant's own controller as it was found, with normal noise of a tenth of half the range                 |
| medium | the plant's own controller badly tuned, a third to half of the way up the scale, with that noise           |
| expert | the best known controller where it is cheap, else the plant's own as it is tuned, without noise            |
| mixed  | whole episodes in turn of early (worse tuned, a tenth to a quarter of the way), medium and expert          |

A score is 100 (return − worst) / (best − worst) with the plant's `score_range`. A badly tuned controller has its gains
and its range shrunk towards the plant's idle action, which scores 0: by how much is found by bisection on the mean
score of the same episodes, whatever the seed, so that one plant has one medium policy.
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
"""Between a tenth and a quarter, and between a third and half, of the scale from 0 to 100."""
CALIBRATION = 128
"""Episodes of each mean by which a policy of a score is found."""
BISECTIONS = 12
CALIBRATION_SEED = 20_261_121
EXPENSIVE = frozenset({"chemical_reactor", "hvac_control", "water_treatment"})
"""Plants whose reference solves a programme at every step: their experts are their own controllers."""


class Policy(NamedTuple):
    """A controller and what is made of it in each of a cycle of episodes."""

    base: Controller
    base_params: Params
    expert: str
    """What the expert is, in words."""
    parts: dict[str, Behaviour]
    """Parts of the mixture by name; episode i is of part i modulo their number."""
    noise: float | None = None
    """Standard deviation of the noise, as a share of half the actions' range."""
    detuned: float | None = None
    """Share of the idle action in the medium policy's, as calibration found it."""
    medium_score: float | None = None
    """Mean score of the medium policy."""

    def calibration(self) -> dict[str, float]:
        """Noise, share and medium score by name, where they apply."""
        values = {"noise": self.noise, "detuned": self.detuned, "medium_score": self.medium_score}
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
    """The share of the idle action that puts a controller between two scores, and its mean score.

    Where no share does, the one that comes nearest.

    Args:
        plant: gives the scale and the idle action.
        base: the controller.
        params: its parameters.
        wanted: the two scores.
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
