"""Learn to balance the pole in the simulator of CartPole, with PPO.

python -m benchmarks.cartpole.online    # five seeds; writes the results
"""

from __future__ import annotations

import json

import jax
import numpy as np

from benchmarks.cartpole.plant import PLANT
from benchmarks.pages import ROOT
from neorl_core.networks import Policy
from neorl_core.online.copies import scales
from neorl_core.online.ppo import Config, Setting, init, make_chunk, policy_of
from neorl_core.plants.base import rollouts
from neorl_core.safety.composite import bare_controller
from tasks.files.canonical import write_json

RESULTS = ROOT / "benchmarks" / "results" / "cartpole_online.json"
SEEDS, SCORED = 5, 200
CONFIG = Config(updates=195, copies=8, lr=1e-3, clip=0.1, margin_weight=0.0)
"""The end of an episode is the only penalty."""
STEPS = CONFIG.updates * CONFIG.copies * CONFIG.steps


def learned(seed: int) -> Policy:
    """Return a policy that was learned in `STEPS` steps."""
    scale_key, train_key = jax.random.split(jax.random.key(seed))
    setting = Setting(PLANT, scales(PLANT, scale_key, CONFIG.discount), CONFIG)
    state, _ = make_chunk(setting, CONFIG.updates)(init(train_key, setting))
    return policy_of(state.weights, setting)


def mean_return(policy: Policy) -> float:
    """Return the mean return of a policy in new episodes."""
    keys = jax.random.split(jax.random.key(1), SCORED)
    return float(np.mean(rollouts(PLANT, bare_controller(PLANT), policy, keys, PLANT.domain).ret))


def main() -> None:
    found = {"steps": STEPS, "scored": SCORED, "ppo": [mean_return(learned(seed)) for seed in range(SEEDS)]}
    write_json(RESULTS, found)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
