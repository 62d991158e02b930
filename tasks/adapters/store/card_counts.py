"""What is counted of a dataset for its card: moments, ranges, violations and visited cells, in two passes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from neorl_core.types import PlantSpec
from tasks.adapters.store.reader import StoredDataset

Floats = npt.NDArray[np.float64]

BINS = 20
"""Of a signal's range, by which its coverage and an action's entropy are taken."""
CELL_BINS = 5
"""Of every signal's range, whose product is the grid of cells in which states and actions together are counted."""
CELL_BITS = 2**22
"""Bits by which visited cells are counted (linear counting: Whang et al. 1990, ACM TODS 15(2)); 1 % up to millions."""
LOOKED_AT = 2_000_000
"""Rows, evenly spaced, from which coverage and entropy are taken."""
RIDGE = 1e-6
"""Of the behaviour fit, relative to a standardised observation's variance."""
BLOCK = 8192


class Totals(NamedTuple):
    """What the first pass finds; F = O + A signals."""

    rows: int
    origin: Floats
    plain: Floats
    """Sum of deviations from the first row (F,)."""
    product: Floats
    """Sum of their products (F, F)."""
    least: Floats
    greatest: Floats
    moved: Floats
    """Mean absolute change of each signal from row to row within episodes (F,)."""
    violated: npt.NDArray[np.int64]
    """Rows (K,)."""
    worst: Floats
    """Greatest excess (K,)."""
    gaps: Floats
    """s between the end of an episode and the begin of the next, of those that time tells (n,)."""
    returns: Floats
    """(E,)"""
    terminated: int
    reward: tuple[float, float]


def excess_of(block: dict[str, npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """(n, K) by how much each limit is exceeded; of a foreign log, whether any is, or nothing at all."""
    if "constraint_costs" in block:
        return block["constraint_costs"]
    return block["costs"][:, None] if "costs" in block else np.zeros((len(block["rewards"]), 0))


def blocks_of(dataset: StoredDataset) -> Iterator[tuple[dict[str, npt.NDArray[Any]], Floats]]:
    for block in dataset.blocks(rows=BLOCK):
        yield block, np.concatenate([block["observations"], block["actions"]], axis=1).astype(np.float64)


def first_pass(dataset: StoredDataset, spec: PlantSpec) -> Totals:
    bounds = dataset.episodes
    size = spec.observation.size + spec.action.size
    rows, terminated = 0, 0
    origin = np.zeros(size)
    plain, moved = np.zeros(size), np.zeros(size)
    product = np.zeros((size, size))
    least, greatest = np.full(size, np.inf), np.full(size, -np.inf)
    returns = np.zeros(len(bounds) - 1)
    violated, worst, gaps = np.zeros(0, np.int64), np.zeros(0), [np.zeros(0)]
    before: tuple[Floats, bool, int | None] | None = None
    reward = (np.inf, -np.inf)
    for block, x in blocks_of(dataset):
        count = len(x)
        if not rows:
            origin = x[0].copy()
            width = excess_of(block).shape[1]
            violated, worst = np.zeros(width, np.int64), np.zeros(width)
        d = x - origin
        plain += d.sum(axis=0)
        product += d.T @ d
        least, greatest = np.minimum(least, x.min(axis=0)), np.maximum(greatest, x.max(axis=0))
        ends = block["terminals"] | block["timeouts"]
        steps = np.abs(np.diff(x, axis=0))
        moved += steps[~ends[:-1]].sum(axis=0)
        stamps = block.get("timestamps")
        if before is not None and not before[1]:
            moved += np.abs(x[0] - before[0])
        if stamps is not None:
            cut = np.flatnonzero(ends[:-1])
            gaps.append((stamps[cut + 1] - stamps[cut]) / 1e9)
            if before is not None and before[1] and before[2] is not None:
                gaps.append(np.array([(int(stamps[0]) - before[2]) / 1e9]))
        excess = excess_of(block)
        violated += (excess > 0).sum(axis=0)
        worst = np.maximum(worst, excess.max(axis=0, initial=0.0))
        terminated += int(block["terminals"].sum())
        reward = (min(reward[0], float(block["rewards"].min())), max(reward[1], float(block["rewards"].max())))
        episode = np.searchsorted(bounds, np.arange(rows, rows + count), side="right") - 1
        begins = np.flatnonzero(np.diff(episode, prepend=-1))
        returns[episode[begins]] += np.add.reduceat(block["rewards"].astype(np.float64), begins)
        before = (x[-1], bool(ends[-1]), None if stamps is None else int(stamps[-1]))
        rows += count
    inside = max(rows - len(returns), 1)
    # Rows of two episodes that follow each other at the usual distance have no gap between them.
    apart = np.concatenate(gaps)
    usual = period_of(dataset)
    apart = apart[apart > 1.5 * usual] - usual if usual else apart[:0]
    return Totals(
        rows,
        origin,
        plain,
        product,
        least,
        greatest,
        moved / inside,
        violated,
        worst,
        apart,
        returns,
        terminated,
        reward,
    )


def period_of(dataset: StoredDataset) -> float:
    """s between the first rows of an episode; 0 where time is unknown or no episode has two rows."""
    if "timestamps" not in dataset.keys:
        return 0.0
    bounds = dataset.episodes
    long = np.flatnonzero(np.diff(bounds) > 1)
    if not len(long):
        return 0.0
    first = int(bounds[long[0]])
    stamps = dataset.read(first, first + 2, ["timestamps"])["timestamps"]
    return float(stamps[1] - stamps[0]) / 1e9


def ranges_of(spec: PlantSpec, totals: Totals) -> tuple[Floats, Floats]:
    """The range of every signal: its bounds, or what was seen where there are none."""
    low = np.array([*spec.observation.low, *spec.action.low], float)
    high = np.array([*spec.observation.high, *spec.action.high], float)
    low, high = np.where(np.isfinite(low), low, totals.least), np.where(np.isfinite(high), high, totals.greatest)
    return low, np.where(high > low, high, low + 1.0)


def second_pass(dataset: StoredDataset, low: Floats, high: Floats) -> tuple[npt.NDArray[np.int64], int, int]:
    stride = max(-(-dataset.rows // LOOKED_AT), 1)
    histogram = np.zeros((len(low), BINS), np.int64)
    weights = np.random.default_rng(0).integers(1, 2**63, len(low), dtype=np.uint64) | np.uint64(1)
    seen = np.zeros(CELL_BITS, bool)
    first = looked = 0
    for _, x in blocks_of(dataset):
        chosen = x[(-first) % stride :: stride]
        first, looked = first + len(x), looked + len(chosen)
        share = np.clip((chosen - low) / (high - low), 0.0, 1.0)
        for i in range(len(low)):
            histogram[i] += np.bincount(np.minimum((share[:, i] * BINS).astype(int), BINS - 1), minlength=BINS)
        cell = np.minimum((share * CELL_BINS).astype(np.uint64), CELL_BINS - 1)
        mixed = (cell * weights).sum(axis=1, dtype=np.uint64)
        mixed = (mixed ^ (mixed >> np.uint64(31))) * np.uint64(0x9E3779B97F4A7C15)
        seen[(mixed >> np.uint64(42)).astype(np.int64)] = True
    empty = CELL_BITS - int(seen.sum())
    return histogram, round(-CELL_BITS * math.log(max(empty, 1) / CELL_BITS)), looked


def covariance(totals: Totals) -> Floats:
    centre = totals.plain / totals.rows
    return np.asarray(totals.product / totals.rows - np.outer(centre, centre))


def behaviour_fit(totals: Totals, spec: PlantSpec, spread: Floats) -> dict[str, float | None]:
    """R^2 of each action's linear fit on the observation, from the moments alone; None of a constant action.

    R^2 = 1 - (c - 2 b^T s + b^T S b) / c with b = (S + lambda I)^-1 s, S the correlation of the observation, s its
    correlation with the action and c = 1.
    """
    size = spec.observation.size
    scale = np.where(spread > 0, spread, np.inf)
    correlation = covariance(totals) / np.outer(scale, scale)
    within = correlation[:size, :size]
    found: dict[str, float | None] = {}
    for i, name in enumerate(spec.action.names):
        if spread[size + i] == 0:
            found[name] = None
            continue
        across = correlation[:size, size + i]
        b = np.linalg.solve(within + RIDGE * np.eye(size), across)
        left = 1 - 2 * b @ across + b @ within @ b
        found[name] = float(np.clip(1 - left, 0.0, 1.0))
    return found
