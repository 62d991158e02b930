"""Measure the worth of the levers of the feeder's tuned controller: batteries, reactive power, switching.

    python -m benchmarks.tuning.levers

Every subset of the levers plays the same episodes, with the other levers at rest. The result is each lever's Shapley
value: the mean over all orders of the gain when the lever is added (Shapley, A value for n-person games, 1953).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping

import jax
import numpy as np

from neorl_core.plants import PLANTS
from neorl_core.plants.base import rollouts
from neorl_core.plants.power_grid.plant import VoltVarParams

SEED = 2_027
EPISODES = 1_000
LEVERS = ("batteries", "reactive power", "switching")


def resting(params: VoltVarParams, levers: frozenset[str]) -> VoltVarParams:
    """Return the parameters of a controller that uses only these levers; the others stay at rest."""
    if "batteries" not in levers:
        params = params._replace(charge_power=0.0, discharge_power=0.0)
    if "reactive power" not in levers:
        params = params._replace(response=0.0)
    return params if "switching" in levers else params._replace(topology=-1.0)


def played(episodes: int) -> dict[frozenset[str], tuple[float, int]]:
    """Return the mean return [$] of each subset of the levers, and the number of episodes with a violation."""
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
    """Return each lever's Shapley value. The values sum to the gain of all levers together.

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
        print(f"{', '.join(sorted(levers)) or 'none'}: {value:.1f} $ a day, {violated} of {EPISODES} violate a limit")
    worth = worths({levers: value for levers, (value, _) in found.items()})
    for lever, value in worth.items():
        print(f"{lever}: {value:.1f} $ a day, {100 * value / sum(worth.values()):.0f} %")


if __name__ == "__main__":
    main()
