"""The cell `agents`: agents that see their own part of the feeder and exchange messages over links that may fail."""

from __future__ import annotations

import time
from functools import cache
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats

from benchmarks.graph_study import optimal_flow
from neorl_core.fit import fit
from neorl_core.networks import Policy
from neorl_core.plants.base import EpisodeResult, rollouts
from neorl_core.plants.linked import linked
from neorl_core.plants.power_grid import LINKS, PLANT
from neorl_core.safety.composite import bare_controller
from neorl_core.types import Plant, Transition

if TYPE_CHECKING:
    from benchmarks.graph_study.cell import Size

ROUNDS, WIDTH, RATE = 2, 32, 8e-3
KINDS = {"alike": None, "each its own": tuple(range(len(PLANT.agents))), "all the same": (0,) * len(PLANT.agents)}
"""Agents that share weights, by name: a number for each agent; agents with equal numbers share. None is the default."""
CENTRAL = "one dense policy that sees everything"
UPDATES = 5
"""Factor on the number of updates; agents need more than the other cells, because errors add up over a day."""
SHARES = (0.25, 0.5, 0.75)
USUAL, LOGS, TRIALS = 11, 12, 47
"""Seeds of the days for initial schedules, of the logs, and of the comparison."""


def conditions() -> dict[str, tuple[Any, float]]:
    """Return for each condition: the probability of each link to be down, and that of a new draw per step."""
    up = np.zeros(len(LINKS), np.float32)
    found: dict[str, tuple[Any, float]] = {"all up": (up, 1.0)}
    for k, link in enumerate(LINKS):
        found[f"{link[0]} to {link[1]} cut"] = (np.eye(len(LINKS), dtype=np.float32)[k], 1.0)
    for share in SHARES:
        found[f"{share:.0%} cut, others each step"] = (up + np.float32(share), 1.0)
        found[f"{share:.0%} cut, the same all day"] = (up + np.float32(share), 0.0)
    return found | {"all cut": (up + 1.0, 1.0)}


@cache
def talking(kinds: tuple[int, ...] | None = None) -> Plant:
    """Return the feeder with links between its agents."""
    return linked(PLANT, LINKS, kinds=kinds)


def interval(gains: np.ndarray) -> tuple[float, float]:
    """Return mean and half width of the 95 % interval of gains (S seeds, D days), with both as random effects.

    The half width is t √(s²_seeds / S + s²_days / D) with the variances s² of the means by seed and by day.
    """
    parts = [(gains.mean(1), gains.shape[0]), (gains.mean(0), gains.shape[1])]
    known = [(means.var(ddof=1) / count, count - 1) for means, count in parts if count > 1]
    half = stats.t.ppf(0.975, min(free for _, free in known)) * np.sqrt(sum(variance for variance, _ in known))
    return float(gains.mean()), float(half)


def judged(plant: Plant, policies: tuple[Policy, ...], own: np.ndarray, lost: Any, redraw: float) -> dict[str, Any]:
    """Return the gains of policies over `own`, the returns [$] of the tuned controller on the same days."""
    domain = plant.domain._replace(link_loss=jnp.asarray(lost), link_redraw=jnp.float32(redraw))
    found = [_played(plant, policy, domain, len(own)) for policy in policies]
    gains = np.stack([np.asarray(each.ret, np.float64) for each in found]) - own
    mean, half = interval(gains)
    return {
        "gain": mean,
        "half_width": half,
        "by_seed": gains.mean(1).tolist(),
        "worst_day": float(gains.min()),
        "days_below": float(np.mean(gains < 0)),
        "violations": int(sum(np.sum(each.violated) for each in found)),
        "least_margin": float(min(np.min(each.min_margins) for each in found)),
    }


def _played(plant: Plant, policy: Policy, domain: Any, days: int) -> EpisodeResult:
    keys = jax.random.split(jax.random.key(TRIALS), days)
    return rollouts(plant, _controller(plant), policy, keys, domain)


@cache
def _controller(plant: Plant) -> Any:
    return bare_controller(plant)


def _own(params: Any, days: int) -> np.ndarray:
    keys = jax.random.split(jax.random.key(TRIALS), days)
    own = rollouts(PLANT, PLANT.fallback, jax.tree.map(np.float32, params), keys, PLANT.domain)
    return np.asarray(own.ret, np.float64)


def cell_agents(size: Size) -> dict[str, Any]:
    """Train agents on days of the optimal flow; compare with the tuned controller and the optimal flow on new days."""
    steps = max(size.updates // 25, 1)
    first = optimal_flow.usual(PLANT, USUAL, 16 if size.days > 16 else 2, steps)
    began = time.process_time()
    data = optimal_flow.logs(PLANT, talking(), first, size.days // 3, LOGS, max(steps * 5 // 8, 1))
    seconds = {"logs": time.process_time() - began}
    tuned, found = (_own(params, size.trials) for params in (PLANT.fallback_params, PLANT.found_params))
    keys = jax.random.split(jax.random.key(TRIALS), size.trials)
    free = optimal_flow.free(size.trials)
    schedules = optimal_flow.solved(PLANT, keys, PLANT.domain, first, free, 2 * steps)
    rows = jax.jit(jax.vmap(lambda key, day: optimal_flow.played(PLANT, key, PLANT.domain, day)))(keys, schedules)
    best = np.asarray(rows.reward, np.float64).sum(1)
    learners: dict[str, Any] = {}
    for name, kinds in {**KINDS, CENTRAL: None}.items():
        plant, began = talking(kinds), time.process_time()
        policies = learned(data, plant, name, size)
        seconds[name] = (time.process_time() - began) / size.seeds
        links = {"all up": conditions()["all up"]} if name == CENTRAL else conditions()
        learners[name] = {label: judged(plant, policies, tuned, *how) for label, how in links.items()}
        print(name, learners[name]["all up"], flush=True)
    gain, half = interval((best - tuned)[None])
    return {
        "tuned": float(tuned.mean()),
        "found": float(found.mean()),
        "optimal": {"return": float(best.mean()), "gain": gain, "half_width": half},
        "least_margin": float(-np.max(np.asarray(rows.cost))),
        "score_range": PLANT.spec.score_range,
        "learners": learners,
        "seconds": seconds,
        "rows": len(data.reward),
        "days": size.days // 3,
        "trials": size.trials,
        "seeds": size.seeds,
        "updates": UPDATES * size.updates,
    }


def learned(data: Transition, plant: Plant, name: str, size: Size) -> tuple[Policy, ...]:
    """Return one policy per seed."""
    body = {"hidden": [64, 64]} if name == CENTRAL else {"graph": ROUNDS, "hidden": [WIDTH]}
    updates = UPDATES * size.updates
    recipe = {"schedule": "cosine", "steps": updates}
    overrides = body | {"actor_lr": RATE, "actor_recipe": recipe}
    seeds, batch = range(size.seeds), 4 * size.batch
    fitted = fit(data, plant.spec, "bc", updates=updates, seeds=seeds, overrides=overrides, batch_size=batch)
    return fitted.policies
