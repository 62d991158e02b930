"""Learn to balance the pole in the simulator of CartPole, with PPO.

python -m benchmarks.cartpole.online    # five seeds; writes the results
"""

from __future__ import annotations

import json

import jax
import numpy as np

from benchmarks.cartpole.plant import PLANT
from benchmarks.pages import ROOT
from neorl_core.online.learner import Setting, composite_of, observe, without_rows
from neorl_core.online.ppo import LEARNER, Config
from neorl_core.plants.base import rollouts
from neorl_core.safety.composite import Composite, unshielded_controller
from neorl_core.safety.shield import default_shield
from neorl_core.training.loop import schedule, train
from neorl_core.training.optimisers import Recipe
from neorl_core.training.population import Member, init_population, policies
from neorl_core.types import Controller
from tasks.files.canonical import write_json

RESULTS = ROOT / "benchmarks" / "results" / "cartpole_online.json"
SEEDS, SCORED, UPDATES = 5, 200, 195
CONFIG = Config(
    copies=8,
    steps=64,
    epochs=10,
    parts=4,
    recipe=Recipe(clip=0.5, schedule="linear", steps=UPDATES),
    clip=0.1,
    bonus=0,
    margin_weight=0.0,
)
"""The end of an episode is the only penalty."""
STEPS = UPDATES * CONFIG.copies * CONFIG.steps
IN_TURN = Controller(lambda params, observation: (), lambda params, state, observation, applied: (state, 1.0 - applied))
UNKNOWN = PLANT._replace(fallback=IN_TURN, fallback_params=())
"""The plant with a controller that pushes to both sides in turn, so that the learner finds out how to balance."""


def learned(seed: int) -> Composite:
    """Return a policy that was learned in `STEPS` steps, without a shield."""
    setting = Setting(UNKNOWN, default_shield(UNKNOWN.spec), observe(UNKNOWN, jax.random.key(seed)), CONFIG)
    learner = LEARNER.bind(setting)
    alone = learner._replace(update=learner.warm_up or learner.update, warm_up=None)
    fresh = init_population(alone, UNKNOWN.spec, CONFIG, [Member(0, seed, {})])
    end = train(alone, fresh, without_rows(UNKNOWN.spec), schedule(UPDATES, UPDATES, 1), 1)
    return composite_of(policies(alone, end.population, setting.normaliser)[0].params, setting)


def mean_return(composite: Composite) -> float:
    """Return the mean return of a policy in new episodes."""
    keys = jax.random.split(jax.random.key(1), SCORED)
    found = rollouts(UNKNOWN, unshielded_controller(UNKNOWN), composite, keys, UNKNOWN.domain)
    return float(np.mean(found.ret))


def main() -> None:
    found = {"steps": STEPS, "scored": SCORED, "ppo": [mean_return(learned(seed)) for seed in range(SEEDS)]}
    write_json(RESULTS, found)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
