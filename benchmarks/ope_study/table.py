"""Statistics of cells and plants, and the files that keep the cells."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from benchmarks.pages import ROOT, STUDIES
from neorl_core.ope.metrics import rank_correlation

RESULTS = ROOT / "benchmarks" / "results" / "ope"
PAGE = STUDIES / "ope.md"
DEVELOPMENT = ("chemical_reactor", "hvac_control", "water_treatment")
OTHERS = ("double_mass", "supply_chain", "industrial_benchmark", "steel_annealing", "robot_assembly", "power_grid")
BEHAVIOURS = ("medium", "pid", "mixed")
Floats = npt.NDArray[Any]
FRESH_SEED = 1300
"""First seed of the plants that were not used for development. Smaller seeds were used to develop the estimator."""
NOTE = (
    "On robot_assembly some intervals miss the true value, because no log contains an episode in which the peg exceeds "
    "the force limit at the face of the block."
)
"""Remark of the page about the kept cells."""


class Supported(NamedTuple):
    """Arrays over the supported policies of a cell: interval covers the true value, lower bound above it, width."""

    covered: Floats
    above: Floats
    width: Floats
    """Width of the interval / range of the true values."""


def supported(result: Mapping[str, Any]) -> Supported:
    """Compare the interval of each supported policy with the true value.

    An interval that misses a true value by at most two standard errors of the rollouts still covers it.
    """
    known = [row for row in result["policies"] if row["supported"]]
    columns = ("lower", "upper", "truth", "truth_error")
    lower, upper, true, error = (np.array([row[key] for row in known], np.float64) for key in columns)
    above = lower > true + 2 * error
    return Supported(~above & (true <= upper + 2 * error), above, (upper - lower) / spread(result["policies"]))


def spread(rows: Sequence[Mapping[str, Any]]) -> float:
    """Return the range of the true values."""
    return float(np.ptp([row["truth"] for row in rows]))


def summary(result: Mapping[str, Any]) -> dict[str, float]:
    """Return the statistics of a cell by name: number of policies, shares, and statistics of the supported policies."""
    every = result["policies"]
    known = [row for row in every if row["supported"]]
    found = {"policies": len(every), "supported": len(known) / len(every), "clone": float(every[0]["supported"])}
    if not known:
        return found
    each = supported(result)
    found |= {"coverage": float(each.covered.mean()), "above": float(each.above.mean())}
    found["width"] = float(np.median(each.width))
    if spread(known) > 0:
        found["own width"] = found["width"] * spread(every) / spread(known)
    return found | ordering([row["value"] for row in known], known, every)


def ordering(
    value: Sequence[float], known: Sequence[Mapping[str, Any]], every: Sequence[Mapping[str, Any]]
) -> dict[str, float]:
    """Return the rank correlation of estimates and true values, and the regret of the policy with the highest estimate.

    Args:
        value: estimates of `known`.
        known: policies with an estimate.
        every: all policies. Regret is the best true value minus that of the chosen policy, / range of true values.
    """
    true, best = np.array([row["truth"] for row in known]), max(row["truth"] for row in every)
    found = {"regret": float(best - true[int(np.argmax(value))]) / spread(every)}
    if len(known) > 2:
        found["rank"] = float(rank_correlation(jnp.asarray(value), jnp.asarray(true)))
    return found


def by_plant(results: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Return the statistics of each plant over its finished cells."""
    found: dict[str, dict[str, float]] = {}
    for plant in DEVELOPMENT + OTHERS:
        cells = [result for result in results if result["plant"] == plant]
        if not cells:
            continue
        each = [supported(result) for result in cells]
        covered, above, width = (np.concatenate(part) for part in zip(*each, strict=True))
        found[plant] = {
            "cells": len(cells),
            "supported": len(covered) / sum(len(result["policies"]) for result in cells),
            "clone": float(all(result["policies"][0]["supported"] for result in cells)),
            "coverage": float(covered.mean()) if len(covered) else np.nan,
            "above": float(above.sum()),
            "estimates": len(covered),
            "width": float(np.median(width)) if len(width) else np.nan,
        }
    return found


def path_of(plant: str, behaviour: str) -> Path:
    """Return the file of a cell."""
    return RESULTS / f"{plant}-{behaviour}.json"


def known_plant(name: str) -> str:
    """Return the name of a plant of the study.

    Raises:
        ArgumentTypeError: if the plant is unknown.
    """
    known = (*DEVELOPMENT, *OTHERS)
    if name not in known:
        raise argparse.ArgumentTypeError(f"unknown plant '{name}': choose one of {', '.join(known)}.")
    return name


def missing(plants: Sequence[str], behaviours: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield the cells without a result, one behaviour after the other."""
    for behaviour in behaviours:
        for plant in plants:
            if not path_of(plant, behaviour).exists():
                yield plant, behaviour


def seed_of(plant: str, behaviour: str) -> int:
    """Return the seed of a cell: 0 for the plants used for development, a fresh one for the others."""
    if plant in DEVELOPMENT:
        return 0
    place = len(BEHAVIOURS) * OTHERS.index(plant) + BEHAVIOURS.index(behaviour)
    return FRESH_SEED + place
