"""The default log that `neorl generate PLANT` makes, which the deployment of a simulated plant reads at first."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from configs.home import Home
from tasks.data.synthetic.reactor_history import HISTORIES
from tasks.models.plants.known import KnownPlant

DEFAULT_STEPS = 60_000
"""Control steps of a generated log, a fifth of which is held out; some weeks for most plants."""
HISTORY_WEEKS = 3.0


class DefaultLog(NamedTuple):
    """Parameters of the default log."""

    behaviour: str
    """`historian`, or the behaviour in the episodes."""
    out: Path
    """Folder of a history, or file of episodes."""
    episodes: int | None

    @property
    def log(self) -> Path:
        """The file for a retraining."""
        return self.out / "historian.parquet" if self.behaviour == "historian" else self.out


def default_log(
    home: Home, plant: KnownPlant, episodes: int | None = None, weeks: float | None = None, out: Path | None = None
) -> DefaultLog:
    """Return the parameters of a simulated plant's default log.

    Args:
        home: contains the log in the folder `generated`.
        plant: a simulated one.
        episodes: by default as many as give the default number of steps.
        weeks: length of a history instead of episodes.
        out: another place for the log.
    """
    folder = home.root / "generated" / plant.name
    if weeks is not None or (plant.name in HISTORIES and episodes is None):
        return DefaultLog("historian", out or folder, episodes)
    count = episodes or max(DEFAULT_STEPS // plant.spec.horizon, 1)
    return DefaultLog("pid", out or folder / "episodes.hdf5", count)


def make_default_log(
    home: Home, plant: KnownPlant, named: str, progress: Callable[[int, int, str], None] | None = None
) -> Path:
    """Generate the default log of a simulated plant if it is missing; the bytes are the same on every machine.

    `named` is the plant's name, or the plant file. `progress` is called with (done, total, unit).
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
