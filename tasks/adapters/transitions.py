"""From a historian's tags to transitions: resample, pair, and cut at gaps, trips and mode changes.

A row is (observation at t, action in force over [t, t + dt), observation at t + dt), t on the grid of control steps.
Every cut is a timeout; only a trip, a hard limit crossed at t + dt, is a termination.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from configs.errors import BadInput
from configs.mapping import HistorianMapping
from neorl_core.plants.base import LoggedSignals
from neorl_core.types import PlantSpec
from tasks.adapters.historian import Export
from tasks.adapters.resample import Resampled, Samples, Times, interpolative, severity
from tasks.adapters.scoring import BLOCK_ROWS, margins_of, with_costs, with_rewards
from tasks.adapters.shards import Rows

SECOND = 10**9


class Fate(IntEnum):
    """What becomes of a control step."""

    ROW = 0
    REJECTED = 1
    """Its values were archived, but as Bad for longer than a gap may be: it goes to the quarantine."""
    GAP = 2
    """A signal was not archived."""
    NOT_RUNNING = 3
    """The plant was in another mode, at its start or at its end."""
    OUTSIDE_LIMITS = 4
    """It began outside the hard limits, after a trip."""


class HistorianLog(NamedTuple):
    """A log as transitions."""

    rows: Rows
    """Unscored rows in order of time; `rejected` names why a row must go to the quarantine, or ''."""
    account: dict[str, Any]
    """Where every control step and every sample went."""


class _Signals(NamedTuple):
    values: npt.NDArray[np.float64]
    """(G, n)"""
    gap: npt.NDArray[np.bool_]
    """(G,)"""
    fault: npt.NDArray[Any]
    """Why a value is unusable, or '' (G,)."""


def read_historian(path: Path, mapping: HistorianMapping, spec: PlantSpec, logged: LoggedSignals) -> HistorianLog:
    """Read a historian export as transitions.

    Args:
        path: Parquet, or CSV where the name ends in .csv.
        mapping: what its tags mean.
        spec: the plant.
        logged: the plant's margins, by which trips are found.

    Returns:
        The rows, and an account of all steps: rows + rejected + gap + not_running + outside_limits = steps.

    Raises:
        BadInput: when the mapping does not fit the plant or the export, or the export is not in order.
    """
    try:
        conversions = mapping.conversions(spec)
        observed = list(mapping.by_signal(spec.observation, ("observation", "set_point")).values())
        acting = list(mapping.by_signal(spec.action, ("action",)).values())
    except ValueError as error:
        raise BadInput(f"{error}: correct the mapping of plant {spec.name}.") from error
    export = Export.open(path, mapping)
    begin, end = export.period()
    grid = _grid(export, mapping, acting[0], begin, end)
    if len(grid) < 2:
        raise BadInput(
            f"expected at least one control step of {mapping.period_seconds:g} s in {path.name}, got a log from "
            f"{begin} to {end}: export a longer period."
        )
    account: dict[str, Any] = {}
    # The action of a step is what was in force at its middle, so that a scan's delay does not shift it by a step.
    middles = grid[:-1] + (grid[1:] - grid[:-1]) // 2
    observation = _resample(export, mapping, observed, conversions, grid, end.astype(np.int64), account)
    action = _resample(export, mapping, acting, conversions, middles, end.astype(np.int64), account)
    running, mode = _modes(export, mapping, grid, end.astype(np.int64), account)
    margins = margins_of(logged, observation.values)
    with np.errstate(invalid="ignore"):
        outside = (margins < 0).any(axis=1)

    fate = _fates(observation, action, running, outside)
    keep = fate <= Fate.REJECTED
    terminals = keep & (fate == Fate.ROW) & outside[1:]
    changed = mode[1:] != mode[:-1]
    ends = terminals | changed | ~np.append(keep[1:], False)
    ends |= _too_long(keep, ends, mapping.episodes.max_steps or spec.horizon)
    fault = np.where(observation.fault[:-1] != "", observation.fault[:-1], observation.fault[1:])
    fault = np.where(fault != "", fault, action.fault)
    rows: Rows = {
        "observations": observation.values[:-1],
        "actions": action.values,
        "next_observations": observation.values[1:],
        "terminals": terminals,
        "timeouts": ends & ~terminals,
        "timestamps": grid[:-1],
        "rejected": np.where(fate == Fate.REJECTED, fault, ""),
        "numbers": np.arange(len(fate)),
    }
    account["steps"] = len(fate)
    account |= {("rows" if f is Fate.ROW else f.name.lower()): int((fate == f).sum()) for f in Fate}
    account["trips"] = int(terminals.sum())
    return HistorianLog({key: values[keep] for key, values in rows.items()}, account)


def scored_blocks(log: HistorianLog, logged: LoggedSignals, block_rows: int = BLOCK_ROWS) -> Iterator[Rows]:
    """A log's rows with rewards and costs by the plant's own formulas, block by block."""
    for start in range(0, len(log.rows["numbers"]), block_rows):
        block = {key: values[start : start + block_rows] for key, values in log.rows.items()}
        yield with_costs(with_rewards(block, logged), logged)


def _grid(export: Export, mapping: HistorianMapping, action: str, begin: np.datetime64, end: np.datetime64) -> Times:
    """The control steps' times (G,), ns, within [begin, end]."""
    period = round(mapping.period_seconds * SECOND)
    if mapping.origin is None:
        origin = int(export.samples(action, 1.0, 0.0).times[0])
    else:
        origin = round(mapping.origin.timestamp() * SECOND)
    first, last = begin.astype(np.int64), end.astype(np.int64)
    return np.arange(first + (origin - first) % period, last + 1, period, dtype=np.int64)


def _resample(
    export: Export,
    mapping: HistorianMapping,
    tags: list[str],
    conversions: dict[str, tuple[float, float]],
    at: Times,
    end: int,
    account: dict[str, Any],
) -> _Signals:
    limit = round(mapping.episodes.max_gap_seconds * SECOND)
    values, gap, fault = np.empty((len(at), len(tags))), np.zeros(len(at), bool), np.full(len(at), "", dtype=object)
    for i, tag in enumerate(tags):
        samples = export.samples(tag, *conversions[tag])
        found = _one(samples, mapping, tag, at, end, account)
        far = (found.reach > limit) | np.isnan(found.values)
        bad = far & found.across_bad
        values[:, i] = np.where(far, np.nan, found.values)
        gap |= far & ~bad
        fault[bad & (fault == "")] = f"{tag} was Bad for more than {mapping.episodes.max_gap_seconds:g} s"
    return _Signals(values, gap, fault)


def _one(
    samples: Samples, mapping: HistorianMapping, tag: str, at: Times, end: int, account: dict[str, Any]
) -> Resampled:
    grade = severity(samples.statuses)
    numbers = np.isfinite(samples.values)
    account.setdefault("samples", {})[tag] = {
        "good": int(((grade == 0) & numbers).sum()),
        "uncertain": int(((grade == 1) & numbers).sum()),
        "bad": int((grade >= 2).sum()),
        "not_finite": int(((grade < 2) & ~numbers).sum()),
    }
    stepped = mapping.tags[tag].interpolation == "stepped"
    return interpolative(samples, at, stepped, mapping.treat_uncertain_as_bad, end)


def _modes(
    export: Export, mapping: HistorianMapping, grid: Times, end: int, account: dict[str, Any]
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.int64]]:
    """Whether the plant runs as it should (G,), and a number that changes with any mode (G,)."""
    running, changes = np.ones(len(grid), bool), np.zeros(len(grid), np.int64)
    for tag in mapping.modes:
        found = _one(export.samples(tag, 1.0, 0.0), mapping, tag, grid, end, account)
        running &= np.isin(found.values, mapping.tags[tag].running)
        filled = np.nan_to_num(found.values, nan=np.inf)
        changes[1:] += np.cumsum(filled[1:] != filled[:-1])
    return running, changes


def _fates(
    observation: _Signals, action: _Signals, running: npt.NDArray[np.bool_], outside: npt.NDArray[np.bool_]
) -> npt.NDArray[np.int64]:
    """What becomes of each step (G - 1,); a step that ends in a trip is kept although the plant then stops."""
    fault = observation.fault != ""
    fate = np.full(len(running) - 1, Fate.ROW)
    fate[fault[:-1] | fault[1:] | (action.fault != "")] = Fate.REJECTED
    fate[observation.gap[:-1] | observation.gap[1:] | action.gap] = Fate.GAP
    fate[outside[:-1]] = Fate.OUTSIDE_LIMITS
    fate[~running[:-1] | (~running[1:] & ~outside[1:])] = Fate.NOT_RUNNING
    return fate


def _too_long(keep: npt.NDArray[np.bool_], ends: npt.NDArray[np.bool_], steps: int) -> npt.NDArray[np.bool_]:
    """Every `steps`-th step since an episode began."""
    index = np.arange(len(keep))
    begins = keep & np.append(True, ends[:-1] | ~keep[:-1])
    return keep & ((index - np.maximum.accumulate(np.where(begins, index, 0)) + 1) % steps == 0)
