"""Count limit violations of the tuned controller when a constant without a source is a fifth lower or higher."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray

from benchmarks.pages import table
from benchmarks.plants.constants import OURS, sources
from benchmarks.plants.kept import own
from neorl_core.plants import NAMES, PLANTS
from neorl_core.plants.base import EpisodeResult, rollout, summarise
from neorl_core.types import Constraint, Params, Plant

EPISODES = 256
PART = 0.2
"""Relative change of a constant. The end of a range moves by this share of the range."""
SIDES = {"down": "lower", "up": "higher"}


@partial(jax.jit, static_argnames="plant")
def moved(plant: Plant, domain: Params, factors: dict[str, Array], params: Params, keys: Array) -> EpisodeResult:
    """Play episodes of the tuned controller on plants with drawn constants, some of them multiplied by factors."""

    def episode(key: PRNGKeyArray) -> EpisodeResult:
        key_constants, key_run = jax.random.split(key)
        drawn = plant.sample_params(key_constants, domain)
        drawn = drawn._replace(**{name: getattr(drawn, name) * factor for name, factor in factors.items()})
        return summarise(rollout(plant, plant.fallback, params, key_run, drawn), plant)

    return jax.vmap(episode)(keys)


def measure(name: str) -> dict[str, Any]:
    """Change each constant without an outside source by a fifth; return violated episodes and least margins."""
    plant = PLANTS[name]
    keys = jax.random.split(jax.random.key(3), EPISODES)
    ours = [each for each, source in sources(name).items() if source.startswith(OURS)]
    spread = [each for each in ours if each in plant.domain._fields]
    fixed = [each for each in ours if each in plant.params._fields and each not in spread]
    domain = jax.tree.map(lambda x: jnp.asarray(x, float), plant.domain)
    still = dict.fromkeys(fixed, jnp.ones(()))

    def play(domain: Params, factors: dict[str, Array]) -> dict[str, Any]:
        result = jax.device_get(moved(plant, domain, factors, plant.fallback_params, keys))
        return {"violated": int(np.sum(result.violated)), "least": np.min(result.min_margins, axis=0).tolist()}

    rows: dict[str, Any] = {}
    for each in fixed:
        value = getattr(plant.params, each)
        if np.ndim(value) or float(value) != 0.0:
            rows[each] = {
                side: play(domain, still | {each: jnp.asarray(1.0 + sign * PART)})
                for side, sign in (("down", -1), ("up", 1))
            }
    for each in spread:
        by = PART * _width(plant.domain, each)
        if by:
            rows[each] = {
                side: play(domain._replace(**{each: getattr(domain, each) + sign * by}), still)
                for side, sign in (("down", -1), ("up", 1))
            }
    left = [each for each in ours if each not in rows]
    return {"episodes": EPISODES, "base": play(domain, still), "rows": rows, "left": left}


def _width(domain: Params, name: str) -> float:
    """Return the quantity of which a fifth is added: the constant, or the width of its range."""
    stem, _, end = name.rpartition("_")
    if end in ("low", "high"):
        return float(getattr(domain, f"{stem}_high") - getattr(domain, f"{stem}_low"))
    return abs(float(getattr(domain, name)))


def row(name: str, found: Mapping[str, Any]) -> tuple[str, ...]:
    """Return a plant's row of the table: violations with nominal constants, the worst change, and its effect."""
    limits, base = PLANTS[name].spec.constraints, found["base"]
    changes = [
        (change["violated"], -min(_shares(change, base)), each, SIDES[side], change)
        for each, sides in found["rows"].items()
        for side, change in sides.items()
    ]
    cells = (name, f"{base['violated']} of {found['episodes']}")
    if not changes:
        return (*cells, "–", "–", "–")
    violated, _, each, side, change = max(changes, key=lambda one: one[:2])
    nearest = int(np.argmin(_shares(change, base)))
    return (*cells, f"{each} {side}", str(violated), _margin(change["least"][nearest], limits[nearest]))


def _shares(change: Mapping[str, Any], base: Mapping[str, Any]) -> list[float]:
    """Return the least margins divided by those with nominal constants."""
    return [x / b if b > 0 else x for x, b in zip(change["least"], base["least"], strict=True)]


def _margin(least: float, limit: Constraint) -> str:
    return f"{least:.3g} {limit.unit} ({limit.name})".replace(" 1 (", " (")


def section() -> str:
    """Return the sensitivity of all plants as a table."""
    head = ("plant", "violated", "worst change", "then violated", "then least margin")
    return table(head, [row(name, own(name)["sensitivity"]) for name in NAMES if "sensitivity" in own(name)])
