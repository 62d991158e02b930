"""The log that `neorl generate PLANT` writes by default; the deployment of a simulated plant starts with this log."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from configs.home import Home
from tasks.data.synthetic.reactor_history import HISTORIES
from tasks.models.plants.known import KnownPlant

DEFAULT_STEPS = 60_000
"""Approximate number of control steps in a generated log; for most plants, some weeks."""
HISTORY_WEEKS = 3.0


class DefaultLog(NamedTuple):
    behaviour: str
    """`historian` for a historian export, otherwise the policy that acts in the episodes."""
    out: Path
    """Folder of the historian export, or file of the episodes."""
    episodes: int | None

    @property
    def log(self) -> Path:
        """The file that a retraining reads."""
        return self.out / "historian.parquet" if self.behaviour == "historian" else self.out


def default_log(
    home: Home, plant: KnownPlant, episodes: int | None = None, weeks: float | None = None, out: Path | None = None
) -> DefaultLog:
    """Return the parameters of a simulated plant's default log.

    Args:
        home: the log is written to its folder `generated` unless `out` is given.
        episodes: number of episodes; by default, enough for `DEFAULT_STEPS` control steps.
        weeks: write a historian export of this length instead of episodes.
    """
    folder = home.root / "generated" / plant.name
    if weeks is not None or (plant.name in HISTORIES and episodes is None):
        return DefaultLog("historian", out or folder, episodes)
    count = episodes or max(DEFAULT_STEPS // plant.spec.horizon, 1)
    return DefaultLog("pid", out or folder / "episodes.hdf5", count)


def make_default_log(
    home: Home, plant: KnownPlant, named: str, progress: Callable[[int, int, str], None] | None = None
) -> Path:
    """Generate the default log of a simulated plant if it is missing, and return its path.

    `named` is the plant's name, or the plant file.
    """
    from tasks.data.synthetic.episodes import generate as play
    from tasks.data.synthetic.reactor_history import generate as write

    default = default_log(home, plant)
    if not default.log.exists():
        if default.behaviour == "historian":
            write(plant.name, default.out, 0, HISTORY_WEEKS, progress)
        else:
            play(named, default.behaviour, default.episodes or 1, 0, default.out, progress)
    return default.log
