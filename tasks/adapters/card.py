"""The dataset card: what a dataset holds, how it was made, and what cannot be learned from it; JSON and Markdown.

Two passes over the dataset's blocks, in constant memory. It lies in the folder `cards` beside that of the manifests.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from configs.errors import BadInput, Refused
from neorl_core.types import PlantSpec
from tasks.adapters.canonical import canonical_json, digest_json, read_json, write_atomic, write_json
from tasks.adapters.card_page import card_markdown
from tasks.adapters.dataset import Dataset

Floats = npt.NDArray[np.float64]

SCHEMA = 1
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
FOLLOWS = 0.999
"""Share of an action's variance that the observation explains, from which on no other action was tried."""
NARROW = 0.1
"""Share of a signal's bins below which it is said to be hardly covered."""
BLOCK = 65536


class _Totals(NamedTuple):
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


def build_card(dataset: Dataset, spec: PlantSpec) -> dict[str, Any]:
    """Look at a dataset.

    Args:
        dataset: opened.
        spec: of its plant.

    Returns:
        The card as JSON: dataset, plant, rows, source, signals, actions, coverage, limits, gaps, episodes, behaviour,
        cannot_learn.
    """
    totals = _first_pass(dataset, spec)
    lengths = np.diff(dataset.episodes)
    names = _names(spec)
    low, high = _ranges(spec, totals)
    histogram, cells, looked = _second_pass(dataset, low, high)
    mean = totals.origin + totals.plain / totals.rows
    spread = np.sqrt(np.maximum(np.diag(_covariance(totals)), 0.0))
    # A row's value came from single precision: what it cannot tell apart is no deviation.
    spread[spread < 1e-6 * (1 + np.abs(mean))] = 0.0
    fit = _behaviour(totals, spec, spread)
    size = spec.observation.size
    signals = {
        name: {
            "unit": unit,
            "least": float(totals.least[i]),
            "mean": float(mean[i]),
            "greatest": float(totals.greatest[i]),
            "deviation": float(spread[i]),
            "change": float(totals.moved[i]),
            "covered": float((histogram[i] > 0).mean()),
        }
        for i, (name, unit) in enumerate(zip(names, (*spec.observation.units, *spec.action.units), strict=True))
    }
    actions = {
        name: {
            "deviation_share": float(spread[size + i] / max(high[size + i] - low[size + i], 1e-300)),
            "entropy_bits": _entropy(histogram[size + i]),
            "most_bits": math.log2(BINS),
            "explained": fit[name],
        }
        for i, name in enumerate(spec.action.names)
    }
    limits = {
        limit.name: {
            "unit": limit.unit,
            "low": _plain(limit.low),
            "high": _plain(limit.high),
            "violated_rows": int(totals.violated[i]),
            "violated_share": float(totals.violated[i] / totals.rows),
            "worst_excess": float(totals.worst[i]),
        }
        for i, limit in enumerate(spec.constraints)
        if i < len(totals.violated)
    }
    card: dict[str, Any] = {
        "schema": SCHEMA,
        "dataset": dataset.digest,
        "plant": spec.name,
        "rows": totals.rows,
        "source": [_source(entry) for entry in dataset.manifest["provenance"]],
        "signals": signals,
        "actions": actions,
        "coverage": {
            "rows_looked_at": looked,
            "bins": CELL_BINS,
            "cells": cells,
            "rows_per_cell": looked / max(cells, 1),
            "mean_covered": float(np.mean([signal["covered"] for signal in signals.values()])),
        },
        "limits": limits,
        "gaps": {
            "known": "timestamps" in dataset.keys,
            "count": len(totals.gaps),
            "longest_s": float(totals.gaps.max(initial=0.0)),
            "total_s": float(totals.gaps.sum()),
        },
        "episodes": {
            "count": len(lengths),
            "shortest": int(lengths.min()),
            "median": float(np.median(lengths)),
            "longest": int(lengths.max()),
            "terminated": totals.terminated,
            "return_least": float(totals.returns.min()),
            "return_mean": float(totals.returns.mean()),
            "return_greatest": float(totals.returns.max()),
        },
        "behaviour": {"fit": "ridge regression of each action on the observation", "r_squared": fit},
    }
    card["cannot_learn"] = _cannot_learn(card, spec, totals)
    return card


def require_violations(card: Mapping[str, Any], limits: Sequence[str] | None = None) -> None:
    """What training of a safety critic calls before it begins: a limit that was never violated cannot teach one.

    Args:
        card: of the dataset.
        limits: names; all of the plant's when not given.

    Raises:
        Refused: naming the limits that the dataset cannot supervise.
    """
    known = card["limits"]
    for name in limits or ():
        if name not in known:
            raise BadInput(f"expected a limit among {', '.join(known) or 'none'}, got '{name}': correct its name.")
    wanted = list(known) if limits is None else list(limits)
    if not wanted:
        raise Refused("expected limits to learn a safety critic of, got a plant without: train without one.")
    if never := [name for name in wanted if known[name]["violated_rows"] == 0]:
        raise Refused(
            f"expected every limit to be violated somewhere in dataset {card['dataset'][:12]}, got "
            f"{', '.join(never)} never violated: such data cannot supervise a safety critic, so add data that "
            "violate it (a simulator's will do), or rely on a shield that needs none."
        )


def write_card(dataset: Dataset, spec: PlantSpec) -> Path:
    """Make the card, unless it is there and whole; returns the path of its Markdown."""
    folder = dataset.root / "cards"
    path = folder / f"{dataset.digest}.json"
    held = _recall(path)
    if held is None:
        # Through its canonical form, so that a card just made and one read again are the same to the last byte.
        card = json.loads(canonical_json(build_card(dataset, spec)))
        write_json(path, {"card": card, "digest": digest_json(card)})
        held = card
    markdown = folder / f"{dataset.digest}.md"
    text = card_markdown(held).encode()
    if not markdown.exists() or markdown.read_bytes() != text:
        write_atomic(markdown, text)
    return markdown


def read_card(root: Path, digest: str) -> dict[str, Any]:
    """The card of a dataset.

    Raises:
        BadInput: when there is none, or it was altered.
    """
    card = _recall(root / "cards" / f"{digest}.json")
    if card is None:
        raise BadInput(f"expected the card of dataset {digest[:12]} in {root / 'cards'}, got none: ingest it again.")
    return card


def _recall(path: Path) -> dict[str, Any] | None:
    if not path.exists():
        return None
    try:
        held = read_json(path)
    except BadInput:
        return None
    card = held.get("card") if isinstance(held, dict) else None
    whole = isinstance(card, dict) and card.get("schema") == SCHEMA and held.get("digest") == digest_json(card)
    return card if whole else None


def _names(spec: PlantSpec) -> list[str]:
    return [f"observation {n}" for n in spec.observation.names] + [f"action {n}" for n in spec.action.names]


def _blocks(dataset: Dataset) -> Iterator[tuple[dict[str, npt.NDArray[Any]], Floats]]:
    for block in dataset.blocks(rows=BLOCK):
        yield block, np.concatenate([block["observations"], block["actions"]], axis=1).astype(np.float64)


def _first_pass(dataset: Dataset, spec: PlantSpec) -> _Totals:
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
    for block, x in _blocks(dataset):
        count = len(x)
        if not rows:
            origin = x[0].copy()
            width = block["constraint_costs"].shape[1]
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
        violated += (block["constraint_costs"] > 0).sum(axis=0)
        worst = np.maximum(worst, block["constraint_costs"].max(axis=0, initial=0.0))
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
    usual = _period(dataset)
    apart = apart[apart > 1.5 * usual] - usual if usual else apart[:0]
    return _Totals(
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


def _period(dataset: Dataset) -> float:
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


def _ranges(spec: PlantSpec, totals: _Totals) -> tuple[Floats, Floats]:
    """The range of every signal: its bounds, or what was seen where there are none."""
    low = np.array([*spec.observation.low, *spec.action.low], float)
    high = np.array([*spec.observation.high, *spec.action.high], float)
    low, high = np.where(np.isfinite(low), low, totals.least), np.where(np.isfinite(high), high, totals.greatest)
    return low, np.where(high > low, high, low + 1.0)


def _second_pass(dataset: Dataset, low: Floats, high: Floats) -> tuple[npt.NDArray[np.int64], int, int]:
    stride = max(-(-dataset.rows // LOOKED_AT), 1)
    histogram = np.zeros((len(low), BINS), np.int64)
    weights = np.random.default_rng(0).integers(1, 2**63, len(low), dtype=np.uint64) | np.uint64(1)
    seen = np.zeros(CELL_BITS, bool)
    first = looked = 0
    for _, x in _blocks(dataset):
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


def _covariance(totals: _Totals) -> Floats:
    centre = totals.plain / totals.rows
    return np.asarray(totals.product / totals.rows - np.outer(centre, centre))


def _behaviour(totals: _Totals, spec: PlantSpec, spread: Floats) -> dict[str, float | None]:
    """R^2 of each action's linear fit on the observation, from the moments alone; None of a constant action.

    R^2 = 1 - (c - 2 b^T s + b^T S b) / c with b = (S + lambda I)^-1 s, S the correlation of the observation, s its
    correlation with the action and c = 1.
    """
    size = spec.observation.size
    scale = np.where(spread > 0, spread, np.inf)
    correlation = _covariance(totals) / np.outer(scale, scale)
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


def _entropy(counts: npt.NDArray[np.int64]) -> float:
    share = counts[counts > 0] / max(counts.sum(), 1)
    return float(max(-(share * np.log2(share)).sum(), 0.0))


def _plain(bound: float) -> float | None:
    return float(bound) if math.isfinite(bound) else None


def _source(entry: Mapping[str, Any]) -> dict[str, Any]:
    """What a provenance entry says of where rows came from."""
    mapping = entry.get("mapping")
    told = None
    if isinstance(mapping, dict):
        told = {
            "sha256": digest_json(mapping),
            "tags": len(mapping.get("tags", {})),
            "period_s": mapping.get("period_seconds"),
            "causal": mapping.get("causal"),
            "lags": mapping.get("lags"),
            "reward": (mapping.get("reward") or {}).get("expression"),
        }
    files = []
    for source in entry.get("sources", ()):
        account = source.get("account") or {}
        files.append(
            {
                "sha256": source.get("sha256"),
                "rows_seen": source.get("seen"),
                "rows_quarantined": source.get("quarantined"),
                "reasons": source.get("reasons", {}),
                "steps": {key: n for key, n in account.items() if isinstance(n, int)},
                "raw": account.get("raw"),
            }
        )
    return {"format": entry.get("format"), "mapping": told, "code": entry.get("code"), "files": files}


def _cannot_learn(card: Mapping[str, Any], spec: PlantSpec, totals: _Totals) -> list[str]:
    said = []
    for name, limit in card["limits"].items():
        if limit["violated_rows"] == 0:
            said.append(
                f"Limit '{name}' is never violated: what a violation is like, and so a safety critic of it, cannot be "
                "learned from these data, and such training is refused."
            )
    for name, action in card["actions"].items():
        if action["explained"] is None:
            said.append(f"Action '{name}' is constant: its effect cannot be learned.")
        elif action["explained"] >= FOLLOWS:
            said.append(
                f"Action '{name}' follows from the observation (R^2 {action['explained']:.4f}): what any other action "
                "would have done cannot be learned."
            )
    for name, signal in card["signals"].items():
        if signal["covered"] < NARROW and signal["deviation"] > 0:
            said.append(f"{name} covers {signal['covered']:.0%} of its range: nothing is known of the rest.")
        elif signal["deviation"] == 0 and name.startswith("observation"):
            said.append(f"{name} never moves: what depends on it cannot be learned.")
    if totals.reward[0] == totals.reward[1]:
        said.append("The reward is constant: nothing tells a better action from a worse one.")
    if card["episodes"]["longest"] < spec.horizon:
        said.append(
            f"The longest episode has {card['episodes']['longest']} steps of {spec.horizon}: returns over a whole "
            "episode are extrapolated."
        )
    if card["episodes"]["terminated"] == 0:
        said.append("No episode terminates: what a trip costs cannot be learned.")
    if not card["gaps"]["known"]:
        said.append("There are no timestamps: gaps in the record cannot be told.")
    return said
