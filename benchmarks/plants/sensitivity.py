"""What '0 of 1,000 beyond a limit' owes to constants without a source: each of them a fifth lower and higher."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray

from benchmarks.plants.constants import OURS, sources
from neorl_core.plants import PLANTS
from neorl_core.plants.base import EpisodeResult, rollout, summarise
from neorl_core.types import Params, Plant

EPISODES = 256
PART = 0.2
"""By which share of its value a constant is moved; the end of a range by that share of the range."""


@partial(jax.jit, static_argnames="plant")
def moved(plant: Plant, domain: Params, factors: dict[str, Array], params: Params, keys: Array) -> EpisodeResult:
    """Episodes of the plant's own controller, whose constants are drawn and then multiplied by factors."""

    def episode(key: PRNGKeyArray) -> EpisodeResult:
        key_constants, key_run = jax.random.split(key)
        own = plant.sample_params(key_constants, domain)
        own = own._replace(**{name: getattr(own, name) * factor for name, factor in factors.items()})
        return summarise(rollout(plant, plant.fallback, params, key_run, own))

    return jax.vmap(episode)(keys)


def measure(name: str) -> dict[str, Any]:
    """Violated episodes and least margins with each of a plant's own constants a fifth lower and higher.

    Args:
        name: the plant. Its controller is the tuned one, and stays as it is.
    """
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
    """What a share is taken of: a number itself, or the range whose end it is."""
    stem, _, end = name.rpartition("_")
    if end in ("low", "high"):
        return float(getattr(domain, f"{stem}_high") - getattr(domain, f"{stem}_low"))
    return abs(float(getattr(domain, name)))


def lines_of(name: str, found: dict[str, Any] | None) -> list[str]:
    """What `measure` found as a part of the plant's section."""
    if not found:
        return []
    limits = PLANTS[name].spec.constraints
    base = found["base"]
    least = ", ".join(
        f"{x:.3g} {c.unit} ({c.name})".replace(" 1 (", " (") for x, c in zip(base["least"], limits, strict=True)
    )
    lines = [
        "",
        f"Sensitivity: with the tuned controller {base['violated']} of {found['episodes']} episodes cross a limit, and "
        f"the least margins are {least}.",
    ]
    if found["rows"]:
        lines += [
            f"With each constant that is ours a fifth lower and higher (the end of a range by a fifth of it): episodes "
            f"of {found['episodes']} beyond a limit, and the margin that then is the smallest part of its above.",
            "",
            "| constant | lower | least margin | higher | least margin |",
            "|---|---|---|---|---|",
        ]
    for each, row in found["rows"].items():
        cells = []
        for side in ("down", "up"):
            share = [x / b if b > 0 else x for x, b in zip(row[side]["least"], base["least"], strict=True)]
            k = int(np.argmin(share))
            unit = "" if limits[k].unit == "1" else f" {limits[k].unit}"
            cells += [str(row[side]["violated"]), f"{row[side]['least'][k]:.3g}{unit}, {limits[k].name}"]
        lines.append(f"| {each} | {' | '.join(cells)} |")
    if found["left"]:
        lines += [
            "",
            f"Not varied, for they are zero, a limit, a price or part of the layout: {', '.join(found['left'])}.",
        ]
    return lines
