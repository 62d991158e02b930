"""Train whole populations on episodes of one controller, and score every member in the simulator."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from benchmarks.accelerator.learners import BATCH, LEARNERS, UPDATES, at_precision
from neorl_core.algorithms import ALGORITHMS
from neorl_core.control.behaviour import play
from neorl_core.networks import Normaliser, Policy
from neorl_core.plants import PLANTS
from neorl_core.plants.base import rollouts
from neorl_core.safety.composite import bare_controller
from neorl_core.training.loop import RunState, resident, schedule, train
from neorl_core.training.population import configure, diverged, init_population, members, warm_up_updates
from neorl_core.training.preparation import prepare
from neorl_core.types import Params, Transition
from tasks.data.synthetic.behaviours import policy_of, score

PLANT, BEHAVIOUR = "double_mass", "medium"
LOGGED, PLAYED = 400, 256
"""Number of training episodes, and of episodes for each score. A run of `make study` trains on as many episodes."""
LOG_SEED, PLAY_SEED = 0, 20_261_126
CHUNK = 500
"""Gradient steps of one compiled call, as in `fit`."""
NOT_FINITE = -1_000.0
"""Score of an episode with a non-finite return."""


class Logs(NamedTuple):
    """Training data and reference scores."""

    transitions: Transition
    behaviour: float
    """Mean score of the training episodes."""
    controller: float
    """Mean score of the tuned controller in the episodes that score the members."""


def logs(logged: int = LOGGED, played: int = PLAYED) -> Logs:
    """Return training data and reference scores; both are computed on the CPU, so that all devices get the same."""
    plant = PLANTS[PLANT]
    with jax.default_device(jax.devices("cpu")[0]):
        made = policy_of(plant, BEHAVIOUR)
        each = jax.tree.map(lambda x: jnp.full(logged, x), made.parts[BEHAVIOUR])
        keys = jax.random.split(jax.random.key(LOG_SEED), logged)
        found = play(plant, made.base, made.base_params, each, keys, trace=True)
        own = plant.fallback, plant.fallback_params
        controller = rollouts(plant, *own, _play_keys(played), plant.domain).ret
        steps = found.trajectory
    assert steps is not None
    # Episodes of this plant end only by their time limit, so all have the same length.
    flat = {name: np.asarray(x).reshape(-1, *x.shape[2:]) for name, x in steps._asdict().items()}
    rows = Transition(
        observation=flat["observations"],
        action=flat["actions"],
        reward=flat["rewards"],
        cost=np.zeros_like(flat["rewards"]),
        next_observation=flat["next_observations"],
        terminated=flat["terminated"].astype(np.float32),
    )
    return Logs(rows, *(float(score(plant, np.asarray(x, np.float64)).mean()) for x in (found.ret, controller)))


def _play_keys(episodes: int) -> jax.Array:
    return jax.random.split(jax.random.key(PLAY_SEED), episodes)


@lru_cache(maxsize=4)
def _played(episodes: int) -> Callable[[Params, Normaliser], jax.Array]:
    """Return a program that plays P policies in the same E episodes and returns their returns (P, E)."""
    plant = PLANTS[PLANT]
    bare = bare_controller(plant)

    def one(weights: Params, normaliser: Normaliser) -> jax.Array:
        found: jax.Array = rollouts(plant, bare, Policy(weights, normaliser), _play_keys(episodes), plant.domain).ret
        return found

    return jax.jit(jax.vmap(one, in_axes=(0, None)))


def scored(weights: Params, normaliser: Normaliser, episodes: int) -> npt.NDArray[np.float64]:
    """Return the mean scores (P,) of P policies, whose weights are stacked, played in float32."""
    with jax.default_matmul_precision("highest"):
        returns = np.asarray(_played(episodes)(weights, normaliser), np.float64)
    found = score(PLANTS[PLANT], returns)
    means: npt.NDArray[np.float64] = np.where(np.isfinite(found), found, NOT_FINITE).mean(axis=1)
    return means


def trained(
    name: str,
    precision: str,
    seeds: Sequence[int],
    rows: Transition,
    played: int = PLAYED,
    updates: int | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Train one population and score its members.

    Args:
        name: algorithm.
        precision: precision of matrix products, one of `PRECISIONS`.
        seeds: one member for each.
        rows: training transitions in physical units.
        played: simulated episodes for each score.
        updates: gradient steps; default: `UPDATES`.
        overrides: hyper-parameters that replace the learner's.

    Raises:
        FloatingPointError: if every member diverged.
    """
    plant, learner, updates = PLANTS[PLANT], at_precision(ALGORITHMS[name], precision), updates or UPDATES[name]
    config = configure(learner, {**LEARNERS[name], **(overrides or {})}, updates)
    plan = schedule(updates, CHUNK, learner.batches_per_update, warm_up_updates(learner, config))
    normaliser, data = prepare(rows, plant.spec)
    marks: list[tuple[int, float]] = []

    def report(state: RunState, _: int) -> None:
        marks.append((state.done, time.perf_counter()))

    started = time.perf_counter()
    fresh = init_population(learner, plant.spec, config, members(seeds, {}))
    end = train(learner, fresh, resident(data), plan, BATCH, report=report)
    seconds = time.perf_counter() - started
    scores = scored(jax.vmap(learner.actor)(end.population.learner), normaliser, played)
    return {
        "algorithm": name,
        "precision": precision,
        "updates": plan.updates,
        "rows": len(rows.reward),
        "episodes": played,
        "seconds": seconds,
        "compile_seconds": marks[0][1] - started + beyond_the_others(marks, plan.warm_up),
        "diverged": int(np.asarray(diverged(end.curves)).sum()),
        "scores": [round(float(x), 3) for x in scores],
    }


def beyond_the_others(marks: Sequence[tuple[int, float]], warm_up: int) -> float:
    """Estimate the seconds of compilation: how much longer each program's first chunk takes than the median chunk."""
    chunks = [(done < warm_up, after - before) for (done, before), (_, after) in pairwise(marks)]
    parts = [[seconds for of_warm_up, seconds in chunks if of_warm_up is which] for which in (True, False)]
    return sum(max(part[0] - statistics.median(part[1:]), 0.0) for part in parts if len(part) > 1)
