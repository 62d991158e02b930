"""Summary tables of a dataset: one row per episode and one record per signal, in one pass and little memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from neorl_core.types import PlantSpec, Space
from tasks.adapters.store.reader import StoredDataset
from tasks.adapters.store.row_checks import find_failures

Floats = npt.NDArray[np.float64]

SAMPLE = 50_000
"""Rows, evenly spaced, from which quantiles are taken."""
AT_BOUND = 1e-3
"""Share of an action's range within which it counts as at its bound."""
BINS = 10


class Summary(NamedTuple):
    """What validation judges instead of the rows."""

    episodes: dict[str, npt.NDArray[Any]]
    """Columns (E,) by name."""
    signals: dict[str, dict[str, float]]
    """Per 'observation x' and 'action y': mean, deviation, least, greatest, low and high (5 % and 95 % quantiles),
    covered (share of its bounds between those two), change (mean absolute step), distinct (values in the sample),
    and for actions at_bounds (share of rows)."""
    faults: Counter[str]
    """Rows that are not as a dataset's rows must be, by reason."""
    rows: int
    sample: dict[str, Floats]
    """Evenly spaced values by signal."""


def signal_names(spec: PlantSpec) -> list[str]:
    """'observation x', ..., 'action y', ...: an observation and an action may have one name."""
    return [f"observation {n}" for n in spec.observation.names] + [f"action {n}" for n in spec.action.names]


def signal_bounds(spec: PlantSpec) -> tuple[Floats, Floats]:
    """Lower and upper bounds (F,) in the order of `signal_names`."""
    both: tuple[Space, Space] = (spec.observation, spec.action)
    return np.concatenate([s.low for s in both]), np.concatenate([s.high for s in both])


def summarise(
    dataset: StoredDataset,
    spec: PlantSpec,
    progress: Callable[[int, int, str], None] | None = None,
    block_rows: int = 65536,
) -> Summary:
    """Read a dataset once, block by block.

    Args:
        dataset: rows in order.
        spec: names and bounds.
        progress: told of rows.
        block_rows: rows in memory at a time; the result does not depend on it.
    """
    bounds, total = dataset.episodes, dataset.rows
    episodes, names = len(bounds) - 1, signal_names(spec)
    low, high = signal_bounds(spec)
    margin = AT_BOUND * (high - low)
    plain, square, moved = (np.zeros((episodes, len(names))) for _ in range(3))
    least, greatest = np.full((episodes, len(names)), np.inf), np.full((episodes, len(names)), -np.inf)
    outer, gained, cost = np.zeros((episodes, len(names))), np.zeros(episodes), np.zeros(episodes)
    faults: Counter[str] = Counter()
    sample, stride = [], max(total // SAMPLE, 1)
    origin: Floats | None = None
    before: Floats | None = None
    first = 0
    for block in dataset.blocks(rows=block_rows):
        faults.update(str(reason) for reason in find_failures(block, spec) if reason)
        x = np.concatenate([block["observations"], block["actions"]], axis=1).astype(np.float64)
        index = np.arange(first, first + len(x))
        episode = np.searchsorted(bounds, index, side="right") - 1
        ends = block["terminals"] | block["timeouts"]
        if wrong := int((ends != (index + 1 == bounds[episode + 1])).sum()):
            faults["episodes do not end where terminals and timeouts say"] += wrong
        if both := int((block["terminals"] & block["timeouts"]).sum()):
            faults["a row is both terminal and timeout"] += both
        # Deviations are taken around the first row, lest squares of large values drown them.
        origin = x[0] if origin is None else origin
        step = np.abs(np.diff(x, axis=0, prepend=x[:1] if before is None else before[None]))
        step[index == bounds[episode]] = 0.0
        cut = np.flatnonzero(np.diff(episode, prepend=-1))
        which = episode[cut]
        plain[which] += np.add.reduceat(x - origin, cut)
        square[which] += np.add.reduceat((x - origin) ** 2, cut)
        moved[which] += np.add.reduceat(step, cut)
        outer[which] += np.add.reduceat(((x <= low + margin) | (x >= high - margin)).astype(float), cut)
        least[which] = np.minimum(least[which], np.minimum.reduceat(x, cut))
        greatest[which] = np.maximum(greatest[which], np.maximum.reduceat(x, cut))
        gained[which] += np.add.reduceat(block["rewards"].astype(np.float64), cut)
        cost[which] += np.add.reduceat(block["costs"].astype(np.float64), cut)
        sample.append(x[index % stride == 0])
        before, first = x[-1], first + len(x)
        if progress:
            progress(first, total, "rows")
    origin = np.zeros(len(names)) if origin is None else origin
    length = np.diff(bounds)
    per = length[:, None]
    mean = plain / per
    deviation = np.sqrt(np.maximum(square / per - mean**2, 0.0))
    table: dict[str, npt.NDArray[Any]] = {
        "episode": np.arange(episodes),
        "length": length,
        "return": gained,
        "rows violating a limit": cost,
    }
    columns = {"mean": origin + mean, "deviation": deviation, "min": least, "max": greatest}
    table |= {f"{name} {what}": values[:, i] for i, name in enumerate(names) for what, values in columns.items()}
    drawn = np.concatenate(sample) if sample else np.zeros((0, len(names)))
    centre = plain.sum(axis=0) / total
    spread = np.sqrt(np.maximum(square.sum(axis=0) / total - centre**2, 0.0))
    signals = {}
    for i, name in enumerate(names):
        q05, q95 = np.quantile(drawn[:, i], [0.05, 0.95])
        span = high[i] - low[i]
        signals[name] = {
            "mean": origin[i] + centre[i],
            "deviation": spread[i],
            "least": least[:, i].min(),
            "greatest": greatest[:, i].max(),
            "low": q05,
            "high": q95,
            "covered": (q95 - q05) / span if np.isfinite(span) else np.nan,
            "change": moved[:, i].sum() / max(total - episodes, 1),
            "distinct": float(len(np.unique(drawn[:, i]))),
        }
        if name.startswith("action "):
            signals[name]["at_bounds"] = outer[:, i].sum() / total
            table[f"{name} at bounds"] = outer[:, i] / length
            table[f"{name} change"] = moved[:, i] / np.maximum(length - 1, 1)
    plain_signals = {name: {key: float(value) for key, value in record.items()} for name, record in signals.items()}
    return Summary(table, plain_signals, faults, total, {name: drawn[:, i] for i, name in enumerate(names)})


def mean_shift(new: Summary, old: Summary, name: str) -> float:
    """How far a signal's mean moved, in deviations of the older data."""
    a, b = new.signals[name], old.signals[name]
    gap = abs(a["mean"] - b["mean"])
    return float(gap / b["deviation"]) if b["deviation"] > 0 else float(gap > 0) * 1e9


def stability_index(new: Floats, old: Floats) -> float:
    """Population stability index over the older data's deciles: `sum (p - q) ln(p / q)`.

    Empty bins count as half a value. By the usual rule of credit scoring below .1 is stable and above .25 is drift
    (Siddiqi 2006, Credit Risk Scorecards).

    Args:
        new: (n,) values.
        old: (m,) values.
    """
    edges = np.unique(np.quantile(old, np.linspace(0, 1, BINS + 1)[1:-1]))
    p, q = (np.bincount(np.searchsorted(edges, x, side="right"), minlength=len(edges) + 1) for x in (new, old))
    p, q = np.maximum(p, 0.5) / len(new), np.maximum(q, 0.5) / len(old)
    return float(np.sum((p - q) * np.log(p / q)))
