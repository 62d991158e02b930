"""The log that `neorl generate PLANT` makes without more words: what a simulated plant's deployment reads at first."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from configs.home import Home
from tasks.data.synthetic.plant_log import HISTORIES
from tasks.models.plants.known import KnownPlant

USUAL_STEPS = 60_000
"""Control steps of a generated log, of which a fifth is held out: some weeks of most plants."""
HISTORY_WEEKS = 3.0


class UsualLog(NamedTuple):
    """What is generated of a plant."""

    behaviour: str
    """`historian`, or who acts in the episodes."""
    out: Path
    """A history's folder, or the file of episodes."""
    episodes: int | None

    @property
    def log(self) -> Path:
        """The file that a retraining reads."""
        return self.out / "historian.parquet" if self.behaviour == "historian" else self.out


def usual_log(
    home: Home, plant: KnownPlant, episodes: int | None = None, weeks: float | None = None, out: Path | None = None
) -> UsualLog:
    """What is generated of a plant where no behaviour is named.

    Args:
        home: in whose folder `generated` it is.
        plant: a simulated one.
        episodes: how many; as many as make the usual number of steps when not given.
        weeks: of a history, in place of episodes.
        out: where else.
    """
    folder = home.root / "generated" / plant.name
    if weeks is not None or (plant.name in HISTORIES and episodes is None):
        return UsualLog("historian", out or folder, episodes)
    count = episodes or max(USUAL_STEPS // plant.spec.horizon, 1)
    return UsualLog("pid", out or folder / "episodes.hdf5", count)


def make_usual(
    home: Home, plant: KnownPlant, named: str, progress: Callable[[int, int, str], None] | None = None
) -> Path:
    """Make the usual log of a simulated plant, unless it is there; the same bytes wherever it is made.

    Args:
        home: in whose folder `generated` it is.
        plant: a simulated one.
        named: the plant's name, or the file of its code.
        progress: called with (done, total, unit).
    """
    from tasks.data.synthetic.episodes import generate as play
    from tasks.data.synthetic.plant_log import generate as write

    usual = usual_log(home, plant)
    if not usual.log.exists():
        if usual.behaviour == "historian":
            write(plant.name, usual.out, 0, HISTORY_WEEKS, progress)
        else:
            play(named, usual.behaviour, usual.episodes or 1, 0, usual.out, progress)
    return usual.log
