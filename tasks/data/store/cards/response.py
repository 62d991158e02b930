"""How signals move after actions, as the rows show it: the mean change of a signal by how large an action was.

No model is fitted. Where a controller answers to the signals, its answers are part of what is seen.
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
"""Control steps after which the change is taken."""
LEVELS = 10
"""Groups of equally many rows, by an action's size."""
LOOKED_AT = 20_000
"""Rows, evenly spaced."""
MOST_BLOCKS = 16
"""Blocks of rows that are read."""
LEAST = 20
"""Rows of a group below which its mean says nothing."""
CHANCE = 4.0
"""Deviations above what chance explains, from which on a response is shown."""
MOST_SIGNALS, MOST_ACTIONS = 6, 4
"""Signals and actions that are kept, those of the clearest responses."""

Index = npt.NDArray[np.int64]


class _Changes(NamedTuple):
    """What each signal changed by, so many steps ahead."""

    sums: tuple[Floats, Floats, Floats]
    """Of every row whether it is known, the change, 0 where it is not, and its square: what is summed (n, O)."""
    total: Floats
    """Known changes (O,), at least 1."""
    centre: Floats
    """Mean change (O,)."""
    spread: Floats
    """Sum of the squared deviations from it (O,)."""

    @classmethod
    def of(cls, change: Floats) -> _Changes:
        """Of changes (n, O), NaN where the episode ends before."""
        known = np.isfinite(change)
        value = np.where(known, change, 0.0)
        total = np.maximum(known.sum(axis=0), 1).astype(np.float64)
        centre = value.sum(axis=0) / total
        spread = (np.where(known, value - centre, 0.0) ** 2).sum(axis=0)
        return cls((known.astype(np.float64), value, value * value), total, centre, spread)


class _Rows(NamedTuple):
    actions: Floats
    """(n, A)."""
    changes: tuple[_Changes, ...]
    """For each of `AHEAD`."""


def responses_of(dataset: StoredDataset, spec: PlantSpec) -> tuple[ResponseCard, ...]:
    """The clearest responses of signals to actions, in the plant's order.

    Neither an action's own reading nor a set point responds to anything.

    Args:
        dataset: rows in order.
        spec: of its plant.
    """
    rows, acting = _sample(dataset, spec), vector_space(spec)
    grouped = [_grouped(rows.actions[:, i]) for i in range(acting.size)]
    goals = set_points(spec).values()
    clear = np.zeros((acting.size, spec.observation.size))
    for i, groups in enumerate(grouped):
        if groups is not None:
            clear[i] = np.max([_explained(change, groups) for change in rows.changes], axis=0)
        clear[i, [name in (acting.names[i], *goals) for name in spec.observation.names]] = 0.0
    actions = _best(clear.max(axis=1, initial=0.0), MOST_ACTIONS)
    signals = _best(clear[actions].max(axis=0, initial=0.0), MOST_SIGNALS)
    found = []
    for j in signals:
        for i in actions:
            groups = grouped[i]
            if groups is not None and clear[i, j] > 0:
                found.append(_card(spec, rows, groups, i, j))
    return tuple(found)


def _sample(dataset: StoredDataset, spec: PlantSpec) -> _Rows:
    """Evenly spaced rows of evenly spaced blocks, with what follows them in their episode and block."""
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
    return _Rows(np.concatenate(actions), tuple(_Changes.of(moved[:, k]) for k in range(len(AHEAD))))


def _blocks(rows: int) -> list[tuple[int, int]]:
    """First row of each block that is read, and one past its last: not of all, where reading them would take long."""
    count = -(-rows // BLOCK_ROWS)
    chosen = np.unique(np.linspace(0, count - 1, min(count, MOST_BLOCKS)).astype(np.int64))
    return [(int(i) * BLOCK_ROWS, min((int(i) + 1) * BLOCK_ROWS, rows)) for i in chosen]


def _grouped(action: Floats) -> Index | None:
    """The group of each row (n,), by the action's size; None of an action that hardly differs."""
    edges = np.unique(np.quantile(action, np.linspace(0, 1, LEVELS + 1)[1:-1]))
    groups = np.searchsorted(edges, action, side="right")
    _, groups, counts = np.unique(groups, return_inverse=True, return_counts=True)
    return groups if (counts >= LEAST).sum() > 1 else None


def _means(change: _Changes, groups: Index) -> tuple[Floats, Floats, Floats]:
    """Of each group the mean change and its standard error (B, O), and how many rows have one (B, O)."""
    size = int(groups.max()) + 1
    # Sums of groups as a product of matrices: adding row by row takes ten times as long.
    member = (np.arange(size)[:, None] == groups).astype(np.float64)
    count, plain, square = (member @ part for part in change.sums)
    most = np.maximum(count, 1)
    mean = plain / most
    deviation = np.sqrt(np.maximum(square / most - mean**2, 0.0))
    return mean, deviation / np.sqrt(most), count


def _explained(change: _Changes, groups: Index) -> Floats:
    """Share of each signal's changes that the action's group explains (O,), less what chance hardly reaches.

    Of B groups chance explains (B - 1) / n on average, with a deviation of sqrt(2 (B - 1)) / n.
    """
    mean, _, count = _means(change, groups)
    between = (count * (mean - change.centre) ** 2).sum(axis=0)
    free = len(mean) - 1
    chance = (free + CHANCE * np.sqrt(2 * free)) / change.total
    return np.asarray(np.maximum(between / np.where(change.spread > 0, change.spread, np.inf) - chance, 0.0))


def _best(clear: Floats, most: int) -> list[int]:
    """The clearest, in the plant's order."""
    chosen = np.argsort(-clear, kind="stable")[:most]
    return sorted(int(i) for i in chosen if clear[i] > 0)


def _card(spec: PlantSpec, rows: _Rows, groups: Index, action: int, signal: int) -> ResponseCard:
    size = int(groups.max()) + 1
    levels = np.bincount(groups, rows.actions[:, action], size) / np.bincount(groups, minlength=size)
    after = []
    for ahead, moved in zip(AHEAD, rows.changes, strict=True):
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
