"""Train policies of very different quality and measure their true values; both are cached in the home."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from configs.home import Home
from configs.run import CLONE
from neorl_core.algorithms import ALGORITHMS
from neorl_core.fit import fit
from neorl_core.networks import Policy
from neorl_core.plants import PLANTS
from neorl_core.plants.base import rollouts
from neorl_core.safety.composite import bare_controller
from neorl_core.training.loop import RunState
from neorl_core.training.population import policies
from neorl_core.training.preparation import prepare
from tasks.data.store.episodes import Logs
from tasks.files.canonical import digest_json, read_json, write_json
from tasks.files.provenance import sources_digest
from tasks.models.bundles.policy_file import MadeBy, load_policy, save_policy

TRUTH_SEED = 20_261_122
LEARNERS: dict[str, tuple[dict[str, Any], dict[str, list[float]]]] = {
    "bc": (CLONE, {}),
    "td3_bc": ({"actor_lr": 1e-3, "critic_lr": 1e-3, "discount": 0.97}, {"alpha": [0.5, 2.5, 20.0]}),
    "iql": ({"actor_lr": 1e-3, "critic_lr": 1e-3, "discount": 0.97}, {}),
    "bptt": ({"discount": 0.97}, {"penalty": [0.1, 2.0]}),
}
"""Hyper-parameters and grid of each learner; `bc` has those of the default population."""
EARLY = {"bptt": 5 / 6}
"""Share of the updates after which an early policy is kept. `bptt` only imitates the logs in the first two thirds."""
NOISES = (0.03, 0.1, 0.2, 0.4)
"""Standard deviations of the noise on the clone's weights, relative to their root mean square."""


class Candidates(NamedTuple):
    """Policies and their names; the first policy is the clone of the logged controller."""

    names: list[str]
    policies: list[Policy]


def candidates(logs: Logs, plant: str, updates: int, cloned: int) -> Candidates:
    """Train policies of very different quality: final and early policies of each learner, and noisy clones.

    Args:
        logs: training episodes.
        plant: name of the plant.
        updates: gradient steps of each learner except the clone.
        cloned: gradient steps of the clone.
    """
    spec, found = PLANTS[plant].spec, Candidates([], [])
    normaliser = prepare(logs.transitions, spec)[0]
    for name, (overrides, grid) in LEARNERS.items():
        kept: dict[int, RunState] = {}
        own, steps = dict(overrides), cloned if name == "bc" else updates
        if name == "bptt":
            warm = updates * 2 // 3
            own |= {"warm_up_updates": warm, "model_recipe": {"schedule": "cosine", "steps": warm}}
            own |= {"actor_recipe": {"preset": "sac", "schedule": "cosine", "steps": updates - warm}}
        learned = fit(
            logs.transitions,
            spec,
            name,
            updates=steps,
            overrides=own,
            grid=grid,
            chunk=max(steps // 6, 1),
            report=partial(_keep, kept),
        )
        stage_at = EARLY.get(name, 1 / 2) * steps
        early_state = kept[min(kept, key=lambda done: abs(done - stage_at))]
        early = policies(ALGORITHMS[name], early_state.population, normaliser)
        for stage, of_stage in (("", learned.policies), (", early", early)):
            for member, policy in zip(learned.members, of_stage, strict=True):
                varied = "".join(f" {key}={value:g}" for key, value in member.hyperparameters.items())
                found.names.append(f"{name}{varied}{stage}")
                found.policies.append(policy)
    clone = found.policies[0]
    for i, noise in enumerate(NOISES * 2):
        found.names.append(f"bc, weights moved by {noise:g} ({i // len(NOISES) + 1})")
        found.policies.append(clone._replace(params=shaken(clone.params, jax.random.key(i), noise)))
    return found


def _keep(kept: dict[int, RunState], state: RunState, _: int) -> None:
    kept[state.done] = state


def shaken(params: dict[str, Any], key: jax.Array, noise: float) -> dict[str, Any]:
    """Return weights plus normal noise; `noise` is its standard deviation / root mean square of each array."""
    leaves, structure = jax.tree.flatten(params)
    keys = jax.random.split(key, len(leaves))
    moved = [
        x + noise * jnp.sqrt(jnp.mean(x**2)) * jax.random.normal(k, x.shape) for x, k in zip(leaves, keys, strict=True)
    ]
    result: dict[str, Any] = jax.tree.unflatten(structure, moved)
    return result


def true_values(plant: str, found: Sequence[Policy], discount: float, episodes: int) -> list[list[float]]:
    """Return for each policy [mean discounted return in rollouts, standard error]."""
    simulator = PLANTS[plant]
    keys = jax.random.split(jax.random.key(TRUTH_SEED), episodes)
    weight = discount ** np.arange(simulator.spec.horizon)
    controller, values = bare_controller(simulator), []
    for policy in found:
        played = rollouts(simulator, controller, policy, keys, simulator.domain, trace=True).trajectory
        assert played is not None
        returns = np.asarray(played.rewards, np.float64) @ weight
        values.append([float(returns.mean()), float(returns.std(ddof=1) / np.sqrt(episodes))])
    return values


def evaluated(
    logs: Logs, dataset: str, plant: str, updates: int, cloned: int, discount: float, episodes: int, home: Home
) -> tuple[Candidates, list[list[float]]]:
    """Return the results of `candidates` and `true_values`, from the cache in the home if it has them.

    Args:
        logs: training episodes.
        dataset: digest of the dataset that contains them.
        plant: name of the plant.
        updates: gradient steps of each learner except the clone.
        cloned: gradient steps of the clone.
        discount: discount per step.
        episodes: simulated episodes for each true value.
        home: home with the cache.
    """
    made_of = {
        "dataset": dataset,
        "updates": [updates, cloned],
        "learners": {name: list(learner) for name, learner in LEARNERS.items()},
        "noises": list(NOISES),
        "truth": [TRUTH_SEED, episodes, discount],
        "code": sources_digest("neorl_core.fit", "neorl_core.plants"),
        "early": EARLY,
    }
    folder = home.folder("studies", "ope", digest_json(made_of)[:32])
    index = folder / "policies.json"
    if index.exists():
        known = read_json(index)
        files = [folder / f"{i}.npz" for i in range(len(known["names"]))]
        return Candidates(known["names"], [load_policy(path).policy for path in files]), known["truth"]
    found = candidates(logs, plant, updates, cloned)
    truth = true_values(plant, found.policies, discount, episodes)
    for i, policy in enumerate(found.policies):
        save_policy(folder / f"{i}.npz", policy, PLANTS[plant].spec, MadeBy())
    # Write the index last, because a folder without an index counts as incomplete.
    write_json(index, {"names": found.names, "truth": truth})
    return found, truth
