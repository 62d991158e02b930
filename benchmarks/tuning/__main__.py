"""`make tune`: search for better parameters of each plant's tuned controller.

    python -m benchmarks.tuning                   # all plants; the table goes into docs/studies/plants.md
    python -m benchmarks.tuning water_treatment   # one plant
    python -m benchmarks.tuning --idle            # the best constant actions, which score 0

The search (`neorl_core.control.search`) draws 1,000 parameter sets, drops the worst by successive halving on paired
episodes, and improves the rest by the cross-entropy method. New episodes compare the result with the tuned controller
and the controller as found. A controller counts as tuned if the search gains at most two points.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

import jax
import numpy as np

from benchmarks.plants.kept import PAGE
from benchmarks.plants.page import page
from benchmarks.tuning import report
from benchmarks.tuning.spaces import SPACES, constant, constant_of
from neorl_core.control.search import VIOLATION_COST, Effort, search
from neorl_core.plants import NAMES, PLANTS
from neorl_core.plants.base import rollouts
from neorl_core.safety.bounds import paired_difference_interval
from neorl_core.types import Plant
from tasks.files.canonical import write_json
from tasks.simulate import score

SEED = 2_026
USUAL = Effort(episodes=16, draw_episodes=64, fresh=2_048)
EFFORTS = {
    "industrial_benchmark": Effort(episodes=4, rounds=40, draw_episodes=32),
    "power_grid": Effort(episodes=4, rounds=16, draws=48, draw_episodes=16),
    "robot_assembly": Effort(episodes=1, rounds=10, draws=32, draw_episodes=16),
    "steel_annealing": Effort(episodes=2, draws=48, draw_episodes=16),
    # Violations are so rare that fewer episodes would not show any.
    "supply_chain": Effort(episodes=32, draw_episodes=512, fresh=16_384),
}
"""Size of the search for plants with slow episodes or many parameters."""


def fresh_keys(effort: Effort) -> jax.Array:
    """Return the keys of the episodes that `search` uses for the final comparison with seed `SEED`."""
    return jax.random.split(jax.random.split(jax.random.key(SEED), 4)[3], effort.fresh)


def measure(plant: Plant, effort: Effort) -> dict[str, Any]:
    """Search; compare the result with the tuned and the as-found parameters in the same new episodes."""
    # CPU time, because the machine may be shared.
    space, started = SPACES[plant.spec.name], time.process_time()
    best = search(plant, plant.fallback, space, jax.random.key(SEED), effort)
    seconds = time.process_time() - started
    found = plant.fallback_params if plant.found_params is None else plant.found_params
    keys = fresh_keys(effort)
    tuned, before = (
        jax.device_get(rollouts(plant, plant.fallback, params, keys, plant.domain))
        for params in (plant.fallback_params, found)
    )
    low, high = plant.spec.score_range
    # Violations cost points, so that a controller does not gain by violating limits.
    ours, theirs = (
        100.0 * np.asarray(returns, np.float64) / (high - low) - VIOLATION_COST * np.asarray(violated)
        for returns, violated in ((best.returns, best.violated), (tuned.ret, tuned.violated))
    )
    gain = paired_difference_interval(ours, theirs)
    return {
        "starts": effort.starts,
        "episodes": effort.fresh,
        "seconds": seconds,
        "found": score(plant.spec, float(np.mean(before.ret))),
        "tuned": score(plant.spec, float(np.mean(tuned.ret))),
        "searched": score(plant.spec, float(best.returns.mean())),
        "gain": [float(x) for x in (gain.value, gain.lower, gain.upper)],
        "violated": [int(np.sum(x)) for x in (before.violated, tuned.violated, best.violated)],
        "numbers": {name: float(f"{x:.6g}") for name, x in zip(space.names, best.numbers, strict=True)},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plants", nargs="*", default=[], help="default: all plants")
    parser.add_argument("--idle", action="store_true", help="only print the best constant action")
    given = parser.parse_args()
    if given.idle:
        for name in given.plants or NAMES:
            effort = Effort(starts=256, rounds=16)
            best = search(PLANTS[name], constant, constant_of(PLANTS[name]), jax.random.key(SEED), effort)
            print(name, best.numbers.round(3).tolist(), f"return {best.returns.mean():.5g}", flush=True)
        return
    kept = report.kept()
    for name in given.plants or NAMES:
        kept[name] = measure(PLANTS[name], EFFORTS.get(name, USUAL))
        kept = {each: kept[each] for each in NAMES if each in kept}
        write_json(report.RESULTS, kept)
        print(name, json.dumps(kept[name]), flush=True)
    print(report.table(kept))
    PAGE.write_text(page())


if __name__ == "__main__":
    main()
