"""What each of the feeder's levers is worth: batteries, reactive power, switching.

    python -m benchmarks.tuning.levers

The tuned controller with every subset of its levers, the others at rest, on the same episodes; a lever's worth is its
Shapley value, the mean over all orders of what it adds when it comes in (Shapley, A value for n-person games, 1953).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping

import jax
import numpy as np

from neorl_core.plants import PLANTS
from neorl_core.plants.base import rollouts
from neorl_core.plants.power_grid.control import VoltVarParams

SEED = 2_027
EPISODES = 1_000
LEVERS = ("batteries", "reactive power", "switching")


def resting(params: VoltVarParams, levers: frozenset[str]) -> VoltVarParams:
    """The controller with the levers that are not named at rest, as far as what was in force lets them be."""
    if "batteries" not in levers:
        params = params._replace(charge_power=0.0, discharge_power=0.0)
    if "reactive power" not in levers:
        params = params._replace(response=0.0)
    return params if "switching" in levers else params._replace(topology=-1.0)


def played(episodes: int) -> dict[frozenset[str], tuple[float, int]]:
    """Mean return [$] of each subset of the levers, and the episodes in which it crossed a limit."""
    plant = PLANTS["power_grid"]
    keys = jax.random.split(jax.random.key(SEED), episodes)
    found = {}
    for count in range(len(LEVERS) + 1):
        for levers in map(frozenset, itertools.combinations(LEVERS, count)):
            params = jax.tree.map(np.float32, resting(plant.fallback_params, levers))
            result = rollouts(plant, plant.fallback, params, keys, plant.domain)
            found[levers] = float(np.asarray(result.ret, np.float64).mean()), int(np.sum(result.violated))
    return found


def worths(returns: Mapping[frozenset[str], float]) -> dict[str, float]:
    """Each lever's Shapley value, which sum up to what all are worth together.

    Args:
        returns: mean return by subset of the levers.
    """
    orders = list(itertools.permutations(LEVERS))
    worth = dict.fromkeys(LEVERS, 0.0)
    for order in orders:
        for place, lever in enumerate(order):
            worth[lever] += returns[frozenset(order[: place + 1])] - returns[frozenset(order[:place])]
    return {lever: whole / math.factorial(len(LEVERS)) for lever, whole in worth.items()}


def main() -> None:
    found = played(EPISODES)
    for levers, (value, violated) in found.items():
        print(f"{', '.join(sorted(levers)) or 'none'}: {value:.1f} $ a day, {violated} of {EPISODES} beyond a limit")
    worth = worths({levers: value for levers, (value, _) in found.items()})
    for lever, value in worth.items():
        print(f"{lever}: {value:.1f} $ a day, {100 * value / sum(worth.values()):.0f} %")


if __name__ == "__main__":
    main()
