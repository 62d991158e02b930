"""Estimate from logs how signals respond to actions: mean changes of a signal, grouped by the size of the action.

No model is used, so the responses include the reactions of the logged controller.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from neorl_core.panels import set_points
from neorl_core.types import PlantSpec
from tasks.data.store.episodes import action_vectors, vector_space
from tasks.data.store.reader import StoredDataset
from tasks.data.store.records import ChangeCard, ResponseCard
from tasks.data.store.statistics import BLOCK_ROWS, Floats

AHEAD = (1, 10)
"""Numbers of control steps after which the change of a signal is measured."""
LEVELS = 10
"""Number of groups of rows, by size of an action; each group has about as many rows."""
LOOKED_AT = 20_000
MOST_BLOCKS = 16
LEAST = 20
"""Minimum number of rows in a group, to show the group's mean."""
CHANCE = 4.0
"""Standard deviations by which a response must exceed the effect of chance, to be shown."""
MOST_SIGNALS, MOST_ACTIONS = 6, 4

Index = npt.NDArray[np.int64]


class _Changes(NamedTuple):
    """Changes of each signal over a number of steps, for n rows and O observations."""

    sums: tuple[Floats, Floats, Floats]
    """Three arrays (n, O): whether the change is known (1 or 0), the change (0 if unknown), and its square."""
    total: Floats
    """Number of known changes (O,), at least 1."""
    centre: Floats
    """Mean change (O,)."""
    spread: Floats
    """Sum of squared deviations from the mean (O,)."""

    @classmethod
    def of(cls, change: Floats) -> _Changes:
        """Summarise changes (n, O); NaN marks unknown changes, after the end of an episode."""
        known = np.isfinite(change)
        value = np.where(known, change, 0.0)
        total = np.maximum(known.sum(axis=0), 1).astype(np.float64)
        centre = value.sum(axis=0) / total
        spread = (np.where(known, value - centre, 0.0) ** 2).sum(axis=0)
        return cls((known.astype(np.float64), value, value * value), total, centre, spread)


def responses_of(dataset: StoredDataset, spec: PlantSpec) -> tuple[ResponseCard, ...]:
    """Return the clearest responses of signals to actions, in the plant's order.

    Set points, and observations with the name of the action, are omitted.
    """
    (taken, changes), acting = _sample(dataset, spec), vector_space(spec)
    grouped = [_grouped(taken[:, i]) for i in range(acting.size)]
    goals = set_points(spec).values()
    clear = np.zeros((acting.size, spec.observation.size))
    for i, groups in enumerate(grouped):
        if groups is not None:
            clear[i] = np.max([_explained(change, groups) for change in changes], axis=0)
        clear[i, [name in (acting.names[i], *goals) for name in spec.observation.names]] = 0.0
    actions = _best(clear.max(axis=1, initial=0.0), MOST_ACTIONS)
    signals = _best(clear[actions].max(axis=0, initial=0.0), MOST_SIGNALS)
    found = []
    for j in signals:
        for i in actions:
            groups = grouped[i]
            if groups is not None and clear[i, j] > 0:
                found.append(_card(spec, taken[:, i], changes, groups, i, j))
    return tuple(found)


def _sample(dataset: StoredDataset, spec: PlantSpec) -> tuple[Floats, list[_Changes]]:
    """Read a sample of n rows; return their actions (n, A), and for each of `AHEAD` the changes of the signals.

    A change is unknown if the episode or the block of rows ends before.
    """
    blocks, bounds = _blocks(dataset.rows), dataset.episodes
    stride = max(-(-sum(stop - first for first, stop in blocks) // LOOKED_AT), 1)
    actions, changes = list[Floats](), list[Floats]()
    for first, stop in blocks:
        block, count = dataset.read(first, stop, ("observations", "actions", "next_observations")), stop - first
        chosen = np.arange((-first) % stride, count, stride)
        if len(chosen):
            end = bounds[np.searchsorted(bounds, first + chosen, side="right")] - first
            begin, later = block["observations"][chosen].astype(np.float64), block["next_observations"]
            moved = np.full((len(chosen), len(AHEAD), begin.shape[1]), np.nan)
            for k, ahead in enumerate(AHEAD):
                known = chosen + ahead <= np.minimum(end, count)
                moved[known, k] = later[chosen[known] + ahead - 1] - begin[known]
            actions.append(action_vectors(block["actions"][chosen], spec).astype(np.float64))
            changes.append(moved)
    moved = np.concatenate(changes)
    return np.concatenate(actions), [_Changes.of(moved[:, k]) for k in range(len(AHEAD))]


def _blocks(rows: int) -> list[tuple[int, int]]:
    """Return the blocks of rows to read, each as (first, one past the last); some are skipped in large datasets."""
    count = -(-rows // BLOCK_ROWS)
    chosen = np.unique(np.linspace(0, count - 1, min(count, MOST_BLOCKS)).astype(np.int64))
    return [(int(i) * BLOCK_ROWS, min((int(i) + 1) * BLOCK_ROWS, rows)) for i in chosen]


def _grouped(action: Floats) -> Index | None:
    """Return the group of each row (n,) by size of the action; None if the action hardly varies."""
    edges = np.unique(np.quantile(action, np.linspace(0, 1, LEVELS + 1)[1:-1]))
    groups = np.searchsorted(edges, action, side="right")
    _, groups, counts = np.unique(groups, return_inverse=True, return_counts=True)
    return groups if (counts >= LEAST).sum() > 1 else None


def _means(change: _Changes, groups: Index) -> tuple[Floats, Floats, Floats]:
    """Return the mean change, the standard error and the number of rows of each of B groups, as arrays (B, O)."""
    size = int(groups.max()) + 1
    # Group sums as a matrix product: adding row by row takes ten times as long.
    member = (np.arange(size)[:, None] == groups).astype(np.float64)
    count, plain, square = (member @ part for part in change.sums)
    most = np.maximum(count, 1)
    mean = plain / most
    deviation = np.sqrt(np.maximum(square / most - mean**2, 0.0))
    return mean, deviation / np.sqrt(most), count


def _explained(change: _Changes, groups: Index) -> Floats:
    """Return the share of each signal's variance (O,) that the groups explain, minus the share that chance explains.

    For B groups of n rows in total, chance explains (B - 1) / n on average; the standard deviation is
    sqrt(2 (B - 1)) / n. The average plus `CHANCE` standard deviations is subtracted.
    """
    mean, _, count = _means(change, groups)
    between = (count * (mean - change.centre) ** 2).sum(axis=0)
    free = len(mean) - 1
    chance = (free + CHANCE * np.sqrt(2 * free)) / change.total
    return np.asarray(np.maximum(between / np.where(change.spread > 0, change.spread, np.inf) - chance, 0.0))


def _best(clear: Floats, most: int) -> list[int]:
    chosen = np.argsort(-clear, kind="stable")[:most]
    return sorted(int(i) for i in chosen if clear[i] > 0)


def _card(
    spec: PlantSpec, taken: Floats, changes: list[_Changes], groups: Index, action: int, signal: int
) -> ResponseCard:
    size = int(groups.max()) + 1
    levels = np.bincount(groups, taken, size) / np.bincount(groups, minlength=size)
    after = []
    for ahead, moved in zip(AHEAD, changes, strict=True):
        mean, error, count = (sums[:, signal] for sums in _means(moved, groups))
        enough = count >= LEAST
        if enough.sum() > 1:
            chosen = (levels[enough], mean[enough], 2 * error[enough])
            level, change, error_bar = (tuple(map(float, values)) for values in chosen)
            after.append(ChangeCard(steps=ahead, level=level, change=change, error=error_bar))
    return ResponseCard(
        action=vector_space(spec).names[action],
        action_unit=vector_space(spec).units[action],
        signal=spec.observation.names[signal],
        unit=spec.observation.units[signal],
        after=tuple(after),
    )
