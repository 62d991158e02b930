"""A D4RL or DSRL file as the core takes it: transitions, a spec made from them, and an account of how it was read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from configs.errors import BadInput
from neorl_core.types import PlantSpec, Space, Transition
from tasks.adapters.files.canonical import file_sha256
from tasks.adapters.formats.hdf5.isolated import read_recording
from tasks.adapters.formats.hdf5.layouts import NO_SUCCESSOR, VECTORS, Layout

MAX_DROPPED = 0.05
"""Share of rows with NaN or infinity above which a file is refused."""
ACTION_BOX = 1.0 + 1e-6
"""The environments of both benchmarks take actions in [-1, 1]; a logged one may exceed it by its rounding."""

Array = npt.NDArray[Any]


class Recording(NamedTuple):
    """A file in memory; `print` it to see how it was read."""

    transitions: Transition
    """NumPy arrays (N, ...), float32."""
    spec: PlantSpec
    about: dict[str, Any]
    """The account, fit for JSON."""

    def __str__(self) -> str:
        return in_words(self.about)


def read(
    path: Path | str, horizon: int | None = None, progress: Callable[[int, int, str], None] | None = None
) -> Recording:
    """Read a whole D4RL or DSRL file; which of the two it is shows in its keys.

    Args:
        path: the HDF5 file.
        horizon: steps after which episodes were cut, for a file with neither timeouts nor next_observations.
        progress: told of rows read.

    Returns:
        The transitions of all rows that can be used.

    Raises:
        BadInput: as `read_blocks`, and when more than `MAX_DROPPED` of the rows are not finite.

    Example:
        >>> log = read("hopper-medium-v2.hdf5")  # doctest: +SKIP
        >>> print(log)  # doctest: +SKIP
    """
    path = Path(path)
    layout, blocks = read_recording(path, horizon)
    widths = {**layout.widths, "next_observations": layout.widths["observations"]}
    usable = {key: np.empty((layout.rows, widths[key]), np.float32) for key in VECTORS}
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
    _hold_to_threshold(path, layout, dropped)
    if kept == 0:
        raise BadInput(f"expected a row with a next observation in {path.name}, got none: export longer episodes.")
    usable = {key: values[:kept] for key, values in usable.items()}
    episodes = _episodes({key: np.concatenate(parts) for key, parts in every.items()})
    transitions = Transition(
        observation=usable["observations"],
        action=usable["actions"],
        reward=usable["rewards"],
        cost=usable["costs"],
        next_observation=usable["next_observations"],
        terminated=usable["terminals"],
    )
    about = {
        "file": path.name,
        "sha256": file_sha256(path),
        "format": layout.family,
        "rows": layout.rows,
        "transitions": kept,
        "observations": widths["observations"],
        "actions": widths["actions"],
        "next_observations": "file" if "next_observations" in layout.widths else "made",
        "ends_by_time": "file" if "timeouts" in layout.widths else "unknown" if horizon is None else f"every {horizon}",
        "cost_key": "costs" if "costs" in layout.widths else None,
        "left_out": dict(sorted(dropped.items())),
        **episodes,
    }
    return Recording(transitions, spec_of(path.stem, transitions, episodes["longest"]), about)


def spec_of(name: str, transitions: Transition, horizon: int) -> PlantSpec:
    """A spec for transitions of which nothing else is known.

    Observations are bounded by what was seen. Actions have the box [-1, 1] when all lie in it, else the range seen. No
    unit, limit or score is known, so that a return scores itself.
    """
    both = transitions.observation, transitions.next_observation
    least, most = np.min([x.min(axis=0) for x in both], axis=0), np.max([x.max(axis=0) for x in both], axis=0)
    observed = _space("obs", least, most)
    low, high = transitions.action.min(axis=0), transitions.action.max(axis=0)
    if max(-low.min(), high.max()) <= ACTION_BOX:
        low, high = -np.ones_like(low), np.ones_like(high)
    still = high <= low
    acted = _space("action", np.where(still, low - 1, low), np.where(still, high + 1, high))
    return PlantSpec(name, observed, acted, (), 1.0, "step", horizon, (0.0, 100.0))


def _space(prefix: str, low: Array, high: Array) -> Space:
    size = len(low)
    names = tuple(f"{prefix}_{i}" for i in range(size))
    return Space(names, ("",) * size, tuple(map(float, low)), tuple(map(float, high)))


def _hold_to_threshold(path: Path, layout: Layout, dropped: Mapping[str, int]) -> None:
    broken = {reason: n for reason, n in dropped.items() if reason != NO_SUCCESSOR}
    if sum(broken.values()) > MAX_DROPPED * layout.rows:
        found = ", ".join(f"{n} with {reason}" for reason, n in broken.items())
        raise BadInput(
            f"expected at most {MAX_DROPPED:.0%} of the {layout.rows} rows of {path.name} to be unusable, got {found}: "
            "mend the export."
        )


def _episodes(rows: Mapping[str, Array]) -> dict[str, Any]:
    """Counts, lengths, returns and costs of the episodes; a row that is not finite adds nothing to a sum."""
    ended = rows["terminals"] | rows["timeouts"]
    starts = np.flatnonzero(np.append(True, ended[:-1]))
    returns, costs = (
        np.add.reduceat(np.nan_to_num(rows[key].astype(np.float64), posinf=0.0, neginf=0.0), starts)
        for key in ("rewards", "costs")
    )
    return {
        "episodes": len(starts),
        "terminated": int(rows["terminals"].sum()),
        "cut": int((rows["timeouts"] & ~rows["terminals"]).sum()),
        "longest": int(np.diff(np.append(starts, len(ended))).max()),
        "return": {"mean": float(returns.mean()), "least": float(returns.min()), "most": float(returns.max())},
        "cost": {"mean": float(costs.mean()), "least": float(costs.min()), "most": float(costs.max())},
    }


def in_words(about: Mapping[str, Any]) -> str:
    """The account of a file, a line for each thing that a reader should check."""
    ends = {"terminated": about["terminated"], "cut by time": about["cut"]}
    ends["unfinished"] = about["episodes"] - about["terminated"] - about["cut"]
    ended = ", ".join(f"{n:,} {how}" for how, n in ends.items() if n)
    time_limits = {"file": "", "unknown": "; the file does not tell which were cut by time"}.get(
        about["ends_by_time"], f"; cut {about['ends_by_time']} steps, as told"
    )
    lines = [
        f"{about['file']}: {about['format']} layout, {about['rows']:,} rows in {about['episodes']:,} episode(s)",
        f"  episodes: {ended}{time_limits}; the longest has {about['longest']:,} steps",
        f"  return per episode: {_range(about['return'])}",
        f"  costs: read from '{about['cost_key']}', per episode {_range(about['cost'])}"
        if about["cost_key"]
        else "  costs: none in the file",
        "  next observations: "
        + ("in the file" if about["next_observations"] == "file" else "made, within episodes only"),
        *(f"  left out: {n:,} row(s), {reason}" for reason, n in about["left_out"].items()),
        f"  {about['transitions']:,} transitions of {about['observations']} observations, {about['actions']} actions",
    ]
    return "\n".join(lines)


def _range(values: Mapping[str, float]) -> str:
    return f"mean {values['mean']:.5g} (from {values['least']:.5g} to {values['most']:.5g})"
