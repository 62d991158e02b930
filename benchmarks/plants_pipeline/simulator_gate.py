"""Count how often the simulator gate refuses logs of true plants and of plants with a wrong constant.

    python -m benchmarks.plants_pipeline.simulator_gate                    # every plant
    python -m benchmarks.plants_pipeline.simulator_gate water_treatment    # one plant; kept results of the others stay

Controllers make logs on plants that are drawn from the operating domain, unchanged or with one constant 5 % too high or
too low. The gate checks these logs as in a retraining. Results are kept in benchmarks/results/simulator-gate.json;
`python -m benchmarks.plants_pipeline --page` writes them into docs/studies/pipeline.md.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import pages
from neorl_core.control.behaviour import Behaviour, BehaviourParams, blended
from neorl_core.plants import NAMES, PLANTS
from neorl_core.plants.base import Trajectory, rollout
from neorl_core.plants.replay import LoggedEpisodes
from neorl_core.types import Controller, Params, Plant
from tasks.data.synthetic.behaviours import policy_of
from tasks.simulate import LONGEST_EPISODE, SIMULATED_ROWS, prediction_errors
from tasks.versions.verdicts import domain_explains

RESULTS = Path(__file__).parents[1] / "results" / "simulator-gate.json"
BEHAVIOURS = ("pid", "mixed")
WRONG = (1.05, 0.95)
CONSTANTS: Mapping[str, tuple[str, ...]] = {
    "chemical_reactor": ("reaction_rate", "cooling_rate", "heat_of_reaction", "flow_rate"),
    "double_mass": ("mass", "stiffness", "damping", "force"),
    "hvac_control": ("air_to_mass", "air_capacity"),
    "industrial_benchmark": (),
    "power_grid": ("source_voltage", "impedance_scale"),
    "pumping_station": ("design_flow", "area", "lift"),
    "robot_assembly": ("mass", "stiffness", "damping"),
    "steel_annealing": ("emissivity", "efficiency", "zone_capacity", "heat_capacity"),
    "supply_chain": ("mean_demand",),
    "water_treatment": ("pump", "valve", "area", "outlet"),
}
"""Constants of each plant that are changed by 5 %; industrial_benchmark has no such constants."""


@partial(jax.jit, static_argnames=("plant", "base"))
def played(
    plant: Plant, base: Controller, base_params: Params, behaviour: Behaviour, keys: jax.Array, factors: Params
) -> Trajectory:
    """Play episodes on plants of the domain with some constants multiplied by factors."""
    controller = blended(base, plant)

    def episode(key: jax.Array, own: Behaviour) -> Trajectory:
        key_constants, key_run, key_act = jax.random.split(key, 3)
        drawn = plant.sample_params(key_constants, plant.domain)
        wrong = {name: jnp.asarray(getattr(drawn, name)) * factor for name, factor in factors.items()}
        return rollout(plant, controller, BehaviourParams(base_params, own, key_act), key_run, drawn._replace(**wrong))

    return jax.vmap(episode)(keys, behaviour)


def study(name: str, seeds: int) -> dict[str, Any]:
    """Count the refused logs of true and of wrong plants, by logged controller and constant."""
    plant, right = PLANTS[name], dict.fromkeys(CONSTANTS[name], 1.0)
    longest = min(plant.spec.horizon, LONGEST_EPISODE)
    episodes = max(SIMULATED_ROWS // longest, 1)
    found: dict[str, Any] = {}
    for behaviour in BEHAVIOURS:
        policy = policy_of(plant, behaviour)
        parts = np.array([[float(x) for x in part] for part in policy.parts.values()], np.float32)
        each = Behaviour(*(jnp.asarray(column[np.arange(episodes) % len(parts)]) for column in parts.T))

        def refused(factors: Mapping[str, float], seed: int, policy: Any = policy, each: Behaviour = each) -> bool:
            keys = jax.random.split(jax.random.key(10_000 + seed), episodes)
            scale = {constant: jnp.float32(factor) for constant, factor in factors.items()}
            log = jax.device_get(played(plant, policy.base, policy.base_params, each, keys, scale))
            rows = (log.observations, log.actions, log.next_observations, log.alive)
            logs = LoggedEpisodes(*(jnp.asarray(np.asarray(x)[:, :longest]) for x in rows))
            return not domain_explains(prediction_errors(plant, logs, plant.domain, seed))

        wrong = {
            f"{constant} x {factor:g}": sum(refused({**right, constant: factor}, seed) for seed in range(seeds))
            for constant in CONSTANTS[name]
            for factor in WRONG
        }
        found[behaviour] = {"seeds": seeds, "true": sum(refused(right, seed) for seed in range(seeds)), "wrong": wrong}
        print(name, behaviour, json.dumps(found[behaviour]), flush=True)
    return found


def table(kept: Mapping[str, Any]) -> str:
    """Return one row for each plant and logged controller."""
    rows = []
    for plant in NAMES:
        for behaviour, row in kept.get(plant, {}).items():
            wrong = sum(row["wrong"].values())
            cases = len(row["wrong"]) * row["seeds"]
            missed = [name for name, count in row["wrong"].items() if count < row["seeds"]]
            constants = ", ".join(dict.fromkeys(name.split(" x ")[0] for name in row["wrong"]))
            cells = (constants or "–", f"{wrong} of {cases}", ", ".join(missed) or "none")
            rows.append((plant, behaviour, f"{row['true']} of {row['seeds']}", *cells))
    head = ("plant", "logs", "true plants refused", "constants", "wrong plants refused", "not always refused")
    return pages.table(head, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plants", nargs="*", help="default: all plants")
    parser.add_argument("--seeds", type=int, default=4)
    options = parser.parse_args()
    kept: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for name in options.plants or NAMES:
        kept[name] = study(name, options.seeds)
        RESULTS.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n")
    print(table(kept))


if __name__ == "__main__":
    main()
