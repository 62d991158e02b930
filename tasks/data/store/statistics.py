"""Compute statistics of a dataset, for its card and for validation, in one pass and constant memory.

A dataset has N rows, E episodes, F signals and K limits. The signals are all observations and actions. For a discrete
action, each choice is a signal: 1 if the choice was taken, otherwise 0.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from neorl_core.types import PlantSpec, Space
from tasks.data.store.episodes import action_vectors, vector_space
from tasks.data.store.reader import StoredDataset
from tasks.data.store.row_checks import find_failures
from tasks.data.store.schema import Rows

Floats = npt.NDArray[np.float64]
Index = npt.NDArray[np.int64]
Columns = dict[str, npt.NDArray[Any]]

BLOCK_ROWS = 32768
"""Rows per block."""
SAMPLE = 50_000
"""Approximate number of evenly spaced rows for quantiles."""
AT_BOUND = 1e-3
"""Distance from a bound, as a share of the range, within which an action counts as at the bound."""
PERIODS = 60
"""Number of equal periods in the timeline."""
DECILES = 10
NO_GAP = 1.5
"""Longest time between two episodes, in control periods, that does not count as a gap."""


class Signal(NamedTuple):
    """Statistics of one signal, in its unit."""

    mean: float
    deviation: float
    least: float
    greatest: float
    low: float
    """5 % quantile."""
    high: float
    """95 % quantile."""
    covered: float
    """Distance between these quantiles, as a share of the signal's range (see `signal_ranges`)."""
    change: float
    """Mean absolute difference of consecutive rows within episodes."""
    distinct: int
    """Number of distinct values in the sample."""
    at_bounds: float


class Statistics(NamedTuple):
    rows: int
    episodes: Columns
    """Table with one line per episode; each column is an array (E,)."""
    signals: dict[str, Signal]
    covariance: Floats
    sample: dict[str, Floats]
    violated: Index
    """Number of rows that violate each limit (K,); (1,) if the log has only a total cost, (0,) if it has no costs."""
    worst: Floats
    """Greatest excess over each limit, in the limit's unit (K,)."""
    gaps: Floats
    """Length of each gap between consecutive episodes in s (n,)."""
    present: Floats
    """Share of each of `PERIODS` equal periods that rows cover; empty without timestamps."""
    span: tuple[int, int]
    """Start of the first row and end of the last row, in ns since 1970; zeros without timestamps."""
    period: float
    """Length of a control step in s; 0 without timestamps."""
    doubled: float
    """Share of the episodes' total time that two episodes cover."""
    terminated: int
    over: tuple[int, int]
    """Numbers of rows with the spec's clock at its end: rows that end an episode, and other rows."""
    rewards: tuple[float, float]
    faults: Counter[str]
    """Invalid rows by reason; empty if rows were not checked."""


def signal_names(spec: PlantSpec) -> list[str]:
    return [f"observation {n}" for n in spec.observation.names] + [f"action {n}" for n in vector_space(spec).names]


def signals_of(rows: Rows, spec: PlantSpec) -> Floats:
    """Return the signals of n rows, observations and then actions, as one array (n, F)."""
    acting = action_vectors(rows["actions"], spec)
    return np.concatenate([rows["observations"], acting], axis=1, dtype=np.float64)


def signal_bounds(spec: PlantSpec) -> tuple[Floats, Floats]:
    """Return the lower and the upper bounds of all signals (F,), in the order of `signal_names`."""
    both: tuple[Space, Space] = (spec.observation, vector_space(spec))
    return np.concatenate([s.low for s in both]), np.concatenate([s.high for s in both])


def summarise(
    dataset: StoredDataset,
    spec: PlantSpec,
    progress: Callable[[int, int, str], None] | None = None,
    block_rows: int = BLOCK_ROWS,
    check_rows: bool = True,
) -> Statistics:
    """Compute the statistics of a dataset in one pass.

    Args:
        progress: called with (done, total, unit); the unit is rows.
        block_rows: number of rows in memory at a time; it does not change the result.
        check_rows: also count invalid rows, which doubles the time.
    """
    low, high = signal_bounds(spec)
    origin: Floats = signals_of(dataset.read(0, 1, ["observations", "actions"]), spec)[0]
    per, whole = _PerEpisode(dataset, origin, low, high), _Whole(dataset, spec)
    faults: Counter[str] = Counter()
    for block in _blocks(dataset, spec, origin, block_rows):
        if check_rows:
            faults.update(_faults(block, spec))
        per.add(block)
        whole.add(block)
        if progress:
            progress(block.first + len(block.x), dataset.rows, "rows")
    return _statistics(per, whole, faults, spec)


class _Block(NamedTuple):
    """n consecutive rows, divided into p parts of one episode each."""

    rows: Rows
    x: Floats
    """Signals (n, F)."""
    apart: Floats
    """Signals minus the signals in the dataset's first row (n, F), so that squares do not lose precision."""
    first: int
    """Number of the block's first row in the dataset."""
    cut: Index
    """First row of each part within the block (p,)."""
    episode: Index
    """Episode of each part (p,)."""
    begins: npt.NDArray[np.bool_]
    """Whether a part begins its episode (p,)."""
    ends: npt.NDArray[np.bool_]
    """Whether a row ends its episode (n,)."""


def _blocks(dataset: StoredDataset, spec: PlantSpec, origin: Floats, rows: int) -> Iterator[_Block]:
    bounds, first = dataset.episodes, 0
    for block in dataset.blocks(rows=rows):
        x = signals_of(block, spec)
        last = first + len(x)
        low, high = np.searchsorted(bounds, [first, last])
        cut = np.union1d(bounds[low:high], [first])
        episode = np.searchsorted(bounds, cut, side="right") - 1
        ends = np.zeros(len(x), bool)
        low, high = np.searchsorted(bounds, [first, last], side="right")
        ends[bounds[low:high] - 1 - first] = True
        yield _Block(block, x, x - origin, first, cut - first, episode, bounds[episode] == cut, ends)
        first = last


def _faults(block: _Block, spec: PlantSpec) -> Counter[str]:
    faults = Counter(str(reason) for reason in find_failures(block.rows, spec) if reason)
    terminals, timeouts = block.rows["terminals"], block.rows["timeouts"]
    if wrong := int(((terminals | timeouts) != block.ends).sum()):
        faults["episodes do not end where terminals and timeouts say"] += wrong
    if both := int((terminals & timeouts).sum()):
        faults["a row is both terminal and timeout"] += both
    return faults


class _PerEpisode:
    """Sums and extreme values of the signals for each episode, as arrays (E, F) that are filled block by block."""

    def __init__(self, dataset: StoredDataset, origin: Floats, low: Floats, high: Floats) -> None:
        self.lengths = np.diff(dataset.episodes)
        shape = len(self.lengths), len(low)
        margin = AT_BOUND * np.where(np.isfinite(high - low), high - low, 0.0)
        self._low, self._high = low + margin, high - margin
        self.origin = origin
        self.plain, self.square, self.moved, self.at_bounds = (np.zeros(shape) for _ in range(4))
        self.least, self.greatest = np.full(shape, np.inf), np.full(shape, -np.inf)
        self.gained, self.violating = np.zeros(shape[0]), np.zeros(shape[0])
        self._before = np.zeros(len(low))

    def add(self, block: _Block) -> None:
        x, apart, cut, which = block.x, block.apart, block.cut, block.episode
        step = np.abs(np.diff(x, axis=0, prepend=self._before[None]))
        step[cut[block.begins]] = 0.0
        self.plain[which] += np.add.reduceat(apart, cut)
        self.square[which] += np.add.reduceat(apart * apart, cut)
        self.moved[which] += np.add.reduceat(step, cut)
        self.at_bounds[which] += np.add.reduceat(((x <= self._low) | (x >= self._high)).astype(float), cut)
        self.least[which] = np.minimum(self.least[which], np.minimum.reduceat(x, cut))
        self.greatest[which] = np.maximum(self.greatest[which], np.maximum.reduceat(x, cut))
        self.gained[which] += np.add.reduceat(block.rows["rewards"].astype(np.float64), cut)
        if "costs" in block.rows:
            self.violating[which] += np.add.reduceat(block.rows["costs"].astype(np.float64), cut)
        self._before = x[-1]

    def table(self, names: list[str]) -> Columns:
        mean = self.plain / self.lengths[:, None]
        deviation = np.sqrt(np.maximum(self.square / self.lengths[:, None] - mean**2, 0.0))
        table: Columns = {
            "episode": np.arange(len(self.lengths)),
            "length": self.lengths,
            "return": self.gained,
            "rows violating a limit": self.violating,
        }
        columns = {"mean": self.origin + mean, "deviation": deviation, "min": self.least, "max": self.greatest}
        table |= {f"{name} {key}": values[:, i] for i, name in enumerate(names) for key, values in columns.items()}
        for i, name in enumerate(names):
            if name.startswith("action "):
                table[f"{name} at bounds"] = self.at_bounds[:, i] / self.lengths
                table[f"{name} change"] = self.moved[:, i] / np.maximum(self.lengths - 1, 1)
        return table


class _Whole:
    def __init__(self, dataset: StoredDataset, spec: PlantSpec) -> None:
        self._spec, signals = spec, len(signal_names(spec))
        self._stride = max(dataset.rows // SAMPLE, 1)
        self.period = _period(dataset)
        self._sample: list[Floats] = []
        episodes = len(dataset.episodes) - 1 if self.period else 0
        self._begins, self._ends = np.zeros(episodes, np.int64), np.zeros(episodes, np.int64)
        self.product = np.zeros((signals, signals))
        self.violated, self.worst = np.zeros(0, np.int64), np.zeros(0)
        self.terminated = 0
        self.over = 0, 0
        self.rewards = np.inf, -np.inf

    def add(self, block: _Block) -> None:
        self.product += block.apart.T @ block.apart
        # Copy, because a view would keep the whole block in memory.
        self._sample.append(block.x[-block.first % self._stride :: self._stride].copy())
        excess = _excess(block.rows)
        if not block.first:
            self.violated, self.worst = np.zeros(excess.shape[1], np.int64), np.zeros(excess.shape[1])
        self.violated += (excess > 0).sum(axis=0)
        self.worst = np.maximum(self.worst, excess.max(axis=0, initial=0.0))
        self.terminated += int(block.rows["terminals"].sum())
        over = self._spec.over(block.rows["next_observations"])
        last = int((over & block.ends).sum())
        self.over = self.over[0] + last, self.over[1] + int(over.sum()) - last
        rewards = block.rows["rewards"]
        self.rewards = min(self.rewards[0], float(rewards.min())), max(self.rewards[1], float(rewards.max()))
        if self.period:
            stamps = block.rows["timestamps"]
            self._begins[block.episode[block.begins]] = stamps[block.cut[block.begins]]
            ended = stamps[block.ends]
            self._ends[block.episode[: len(ended)]] = ended

    @property
    def gaps(self) -> Floats:
        """Length of each gap between consecutive episodes in s, minus one control period (n,)."""
        apart = (self._begins[1:] - self._ends[:-1]) / 1e9
        return np.asarray(apart[apart > NO_GAP * self.period] - self.period)

    @property
    def span(self) -> tuple[int, int]:
        if not len(self._begins):
            return 0, 0
        return int(self._begins.min()), int(self._ends.max()) + round(self.period * 1e9)

    @property
    def doubled(self) -> float:
        order = np.argsort(self._begins)
        begins, ends = self._begins[order], self._ends[order] + round(self.period * 1e9)
        twice = np.maximum(np.minimum(np.maximum.accumulate(ends)[:-1], ends[1:]) - begins[1:], 0)
        return float(twice.sum() / max((ends - begins).sum(), 1))

    @property
    def present(self) -> Floats:
        first, last = self.span
        if last <= first:
            return np.zeros(0)
        begins, ends = self._begins.astype(float), self._ends + self.period * 1e9
        order = np.argsort(begins)
        times = np.stack([begins[order], np.maximum(ends[order], begins[order])], axis=1).ravel()
        # The covered time grows during an episode and is constant between episodes.
        covered = np.append(0.0, np.repeat(np.cumsum((ends - begins)[order]), 2)[:-1])
        edges = np.linspace(first, last, PERIODS + 1)
        share = np.diff(np.interp(edges, np.maximum.accumulate(times), covered)) / (edges[1] - edges[0])
        return np.asarray(np.clip(share, 0.0, 1.0))

    @property
    def sample(self) -> Floats:
        return np.concatenate(self._sample)


def _excess(rows: Rows) -> npt.NDArray[Any]:
    """Return the excess over each limit (n, K); (n, 1) if the log has only a total cost, (n, 0) if it has no costs."""
    if "constraint_costs" in rows:
        return rows["constraint_costs"]
    return rows["costs"][:, None] if "costs" in rows else np.zeros((len(rows["rewards"]), 0))


def _period(dataset: StoredDataset) -> float:
    """Return the seconds between two rows of an episode; 0 without timestamps or if no episode has two rows."""
    if "timestamps" not in dataset.keys:
        return 0.0
    bounds = dataset.episodes
    if not len(long := np.flatnonzero(np.diff(bounds) > 1)):
        return 0.0
    first = int(bounds[long[0]])
    stamps = dataset.read(first, first + 2, ["timestamps"])["timestamps"]
    return float(stamps[1] - stamps[0]) / 1e9


def _statistics(per: _PerEpisode, whole: _Whole, faults: Counter[str], spec: PlantSpec) -> Statistics:
    names = signal_names(spec)
    total, episodes, sample = int(per.lengths.sum()), len(per.lengths), whole.sample
    least, greatest = per.least.min(axis=0), per.greatest.max(axis=0)
    centre = per.plain.sum(axis=0) / total
    deviation = np.sqrt(np.maximum(per.square.sum(axis=0) / total - centre**2, 0.0))
    q05, q95 = np.quantile(sample, [0.05, 0.95], axis=0)
    low, high = signal_ranges(spec, least, greatest)
    signals = {
        name: Signal(
            mean=float(per.origin[i] + centre[i]),
            deviation=float(deviation[i]),
            least=float(least[i]),
            greatest=float(greatest[i]),
            low=float(q05[i]),
            high=float(q95[i]),
            covered=float((q95[i] - q05[i]) / (high[i] - low[i])),
            change=float(per.moved[:, i].sum() / max(total - episodes, 1)),
            distinct=len(np.unique(sample[:, i])),
            at_bounds=float(per.at_bounds[:, i].sum() / total),
        )
        for i, name in enumerate(names)
    }
    return Statistics(
        rows=total,
        episodes=per.table(names),
        signals=signals,
        covariance=whole.product / total - np.outer(centre, centre),
        sample={name: sample[:, i] for i, name in enumerate(names)},
        violated=whole.violated,
        worst=whole.worst,
        gaps=whole.gaps,
        present=whole.present,
        span=whole.span,
        period=whole.period,
        doubled=whole.doubled,
        terminated=whole.terminated,
        over=whole.over,
        rewards=whole.rewards,
        faults=faults,
    )


def signal_ranges(spec: PlantSpec, least: Floats, greatest: Floats) -> tuple[Floats, Floats]:
    """Return the lower and upper ends of the signals' ranges (F,): the spec's bounds or, if infinite, the data's range.

    `least` and `greatest` are the extreme values in the data. A range of width 0 becomes one unit wide.
    """
    low, high = signal_bounds(spec)
    low, high = np.where(np.isfinite(low), low, least), np.where(np.isfinite(high), high, greatest)
    return low, np.where(high > low, high, low + 1.0)


def mean_shift(new: Statistics, old: Statistics, name: str) -> float:
    """Return the distance of a signal's new mean from its old mean, in standard deviations of the old data."""
    a, b = new.signals[name], old.signals[name]
    gap = abs(a.mean - b.mean)
    return gap / b.deviation if b.deviation > 0 else float(gap > 0) * 1e9


def stability_index(new: Floats, old: Floats) -> float:
    """Return the population stability index, a measure of drift: `sum (p - q) ln(p / q)` over the old data's deciles.

    p and q are the shares of the new and the old values in a decile; an empty decile counts as half a value. By the
    usual rule, below 0.1 is stable and above 0.25 is drift (Siddiqi 2006, Credit Risk Scorecards).
    """
    edges = np.unique(np.quantile(old, np.linspace(0, 1, DECILES + 1)[1:-1]))
    counts = [np.bincount(np.searchsorted(edges, x, side="right"), minlength=len(edges) + 1) for x in (new, old)]
    p, q = np.maximum(counts[0], 0.5) / len(new), np.maximum(counts[1], 0.5) / len(old)
    return float(np.sum((p - q) * np.log(p / q)))
