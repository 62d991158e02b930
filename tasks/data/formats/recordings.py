"""Read a D4RL or DSRL file into memory: transitions, a spec derived from the data, and counts of rejected rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from configs.errors import BadInput
from neorl_core.types import PlantSpec, Space, Transition
from tasks.data.formats.hdf5.flat_files import VECTORS, Layout
from tasks.data.formats.hdf5.isolated import read_recording
from tasks.data.formats.reading import Blocks
from tasks.data.store.episodes import transitions_of
from tasks.data.store.schema import NO_SUCCESSOR, Rows
from tasks.files.canonical import file_sha256

MAX_DROPPED = 0.05
"""Share of rows with NaN or infinity above which a file is rejected."""
ACTION_BOX = 1.0 + 1e-6
"""Largest absolute action, with rounding, for which the bounds of actions are set to [-1, 1] as in both benchmarks."""

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class PerEpisode:
    """Mean, smallest and largest value over episodes of a sum, such as the return."""

    mean: float
    least: float
    most: float

    def __str__(self) -> str:
        return f"mean {self.mean:.5g} (from {self.least:.5g} to {self.most:.5g})"


@dataclass(frozen=True)
class RecordingAccount:
    """Summary of a file that was read."""

    file: str
    sha256: str
    format: str
    rows: int
    transitions: int
    """Number of usable rows."""
    observations: int
    actions: int
    next_observations: Literal["file", "made"]
    ends_by_time: str
    """Origin of the time limits: "file", "unknown", or "every N" for a given limit of N steps."""
    cost_key: str | None
    left_out: dict[str, int]
    episodes: int
    terminated: int
    cut: int
    """Episodes cut by time."""
    longest: int
    returns: PerEpisode
    cost: PerEpisode
    dataset: str | None = None
    """Digest of the dataset, if a stored dataset was read instead of a file."""

    @property
    def name(self) -> str:
        """File name without the ending."""
        return Path(self.file).stem

    def __str__(self) -> str:
        ends = {"terminated": self.terminated, "cut by time": self.cut}
        ends["unfinished"] = self.episodes - self.terminated - self.cut
        ended = ", ".join(f"{n:,} {how}" for how, n in ends.items() if n)
        time_limits = {"file": "", "unknown": "; the file does not say which were cut by time"}.get(
            self.ends_by_time, f"; cut {self.ends_by_time} steps, as given"
        )
        origin = f"{self.format} layout"
        if self.dataset is not None:
            origin = f"dataset {self.dataset[:12]} of {self.format} rows"
        lines = [
            f"{self.file}: {origin}, {self.rows:,} rows in {self.episodes:,} episode(s)",
            f"  episodes: {ended}{time_limits}; the longest has {self.longest:,} steps",
            f"  return per episode: {self.returns}",
            f"  costs: read from '{self.cost_key}', per episode {self.cost}"
            if self.cost_key
            else "  costs: none in the file",
            "  next observations: "
            + ("in the file" if self.next_observations == "file" else "derived within episodes"),
            *(f"  left out: {n:,} row(s), {reason}" for reason, n in self.left_out.items()),
            f"  {self.transitions:,} transitions of {self.observations} observations, {self.actions} actions",
        ]
        return "\n".join(lines)


class Recording(NamedTuple):
    """A file that was read into memory; `print` shows the summary."""

    transitions: Transition
    """NumPy arrays (N, ...), float32."""
    spec: PlantSpec
    about: RecordingAccount

    def __str__(self) -> str:
        return str(self.about)


def read(
    path: Path | str, horizon: int | None = None, progress: Callable[[int, int, str], None] | None = None
) -> Recording:
    """Read the usable rows of a D4RL or DSRL file as transitions; the format is recognised by the file's keys.

    Args:
        horizon: time limit of episodes in steps; required if the file has neither timeouts nor next_observations.

    Raises:
        BadInput: the file is invalid (see `read_blocks`), or more than `MAX_DROPPED` of the rows have NaN or infinity.
    """
    path = Path(path)
    layout, blocks = read_recording(path, horizon)
    if layout.discrete:
        raise BadInput(
            f"{path.name} has discrete actions, which can be used only in a dataset: run 'neorl ingest {path.name}'."
        )
    usable, every, dropped = _read_usable(layout, blocks, progress)
    broken = {reason: n for reason, n in dropped.items() if reason != NO_SUCCESSOR}
    if sum(broken.values()) > MAX_DROPPED * layout.rows:
        counts = ", ".join(f"{n} with {reason}" for reason, n in broken.items())
        raise BadInput(
            f"at most {MAX_DROPPED:.0%} of the {layout.rows} rows of {path.name} may be unusable, got {counts}: "
            "correct the export."
        )
    kept = len(usable["rewards"])
    if kept == 0:
        raise BadInput(f"no row of {path.name} has a next observation: export longer episodes.")
    ended, terminals = every["terminals"] | every["timeouts"], every["terminals"]
    starts = np.flatnonzero(np.append(True, ended[:-1]))
    longest = int(np.diff(np.append(starts, len(ended))).max())
    about = RecordingAccount(
        file=path.name,
        sha256=file_sha256(path),
        format=layout.family,
        rows=layout.rows,
        transitions=kept,
        observations=layout.widths["observations"],
        actions=layout.widths["actions"],
        next_observations="file" if "next_observations" in layout.widths else "made",
        ends_by_time="file" if "timeouts" in layout.widths else "unknown" if horizon is None else f"every {horizon}",
        cost_key="costs" if "costs" in layout.widths else None,
        left_out=dict(sorted(dropped.items())),
        episodes=len(starts),
        terminated=int(terminals.sum()),
        cut=int((every["timeouts"] & ~terminals).sum()),
        longest=longest,
        returns=per_episode(every["rewards"], starts),
        cost=per_episode(every["costs"], starts),
    )
    spec = spec_of(path.stem, usable["observations"], usable["actions"], usable["next_observations"], longest)
    return Recording(transitions_of(usable), spec, about)


def _read_usable(
    layout: Layout, blocks: Blocks, progress: Callable[[int, int, str], None] | None
) -> tuple[Rows, Rows, Counter[str]]:
    """Return usable rows (N, ...); rewards, costs and ends of all rows; and counts of unusable rows by reason."""
    widths = {**layout.widths, "next_observations": layout.widths["observations"]}
    usable: Rows = {key: np.empty((layout.rows, widths[key]), np.float32) for key in VECTORS}
    usable |= {key: np.empty(layout.rows, np.float32) for key in ("rewards", "costs", "terminals")}
    every: dict[str, list[Array]] = {key: [] for key in ("rewards", "costs", "terminals", "timeouts")}
    kept, seen, dropped = 0, 0, Counter[str]()
    for rows in blocks:
        sound = rows["rejected"] == ""
        dropped.update(rows["rejected"][~sound].tolist())
        count = int(sound.sum())
        for key, values in usable.items():
            values[kept : kept + count] = rows[key][sound]
        for key, parts in every.items():
            parts.append(rows[key])
        kept, seen = kept + count, seen + len(sound)
        if progress:
            progress(seen, layout.rows, "rows")
    return (
        {key: values[:kept] for key, values in usable.items()},
        {key: np.concatenate(parts) for key, parts in every.items()},
        dropped,
    )


def spec_of(name: str, observations: Array, actions: Array, next_observations: Array, horizon: int) -> PlantSpec:
    """Derive a spec for an unknown plant from the smallest and largest values in its data.

    These values are the bounds of observations and actions. If all actions are within [-1, 1], these are the bounds.
    Units and limits stay empty, and the score equals the return.

    Args:
        observations: observations (N, O), at least the rows with the smallest and largest values.
        actions: actions (N, A), likewise.
        next_observations: next observations (N, O), likewise.
        horizon: steps of the longest episode.
    """
    both = observations, next_observations
    least, most = np.min([x.min(axis=0) for x in both], axis=0), np.max([x.max(axis=0) for x in both], axis=0)
    observed = _space("obs", least, most)
    low, high = actions.min(axis=0), actions.max(axis=0)
    if max(-low.min(), high.max()) <= ACTION_BOX:
        low, high = -np.ones_like(low), np.ones_like(high)
    still = high <= low
    acted = _space("action", np.where(still, low - 1, low), np.where(still, high + 1, high))
    return PlantSpec(name, observed, acted, (), 1.0, "step", horizon, (0.0, 100.0))


def _space(prefix: str, low: Array, high: Array) -> Space:
    size = len(low)
    names = tuple(f"{prefix}_{i}" for i in range(size))
    return Space(names, ("",) * size, tuple(map(float, low)), tuple(map(float, high)))


def per_episode(values: Array, starts: npt.NDArray[np.int64]) -> PerEpisode:
    """Return statistics of the sums of `values` over episodes, given each episode's first row; NaN counts as 0."""
    finite: npt.NDArray[np.float64] = np.nan_to_num(np.asarray(values, np.float64), posinf=0.0, neginf=0.0)
    sums = np.add.reduceat(finite, starts)
    return PerEpisode(mean=float(sums.mean()), least=float(sums.min()), most=float(sums.max()))
