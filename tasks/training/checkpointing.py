"""Checkpointing of a training run: resumed where it was, saved now and then, and left in its last good state."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from configs.errors import Refused
from neorl_core.training.loop import RunState
from tasks.files.locks import exclusive
from tasks.models.bundles.checkpoints import Checkpoints

if TYPE_CHECKING:
    from tasks.progress import CurveLog, Report


def sole_training(folder: Path) -> AbstractContextManager[None]:
    """Keep other training runs out of a folder; entering it raises `Refused` when one is there."""

    def refuse() -> None:
        raise Refused(
            f"expected nobody else to train in {folder.parent}, got another run there: wait for it, or name "
            "another folder with --out."
        )

    return exclusive(folder / "lock", refuse)


def one_at_a_time(folder: Path) -> AbstractContextManager[None]:
    """Wait until no other process trains in a folder, for the one that comes second goes on from what is left there.

    What two write into one folder of checkpoints neither can read: each would take the other's, while it is written,
    for what a killed run left.
    """

    def held() -> None:
        print(f"  train: waits for another training in {folder}", file=sys.stderr, flush=True)

    return exclusive(folder / "lock", held)


class Checkpointing:
    """What `neorl_core.training.loop.train` takes as `resume` and `report`: it restores and saves one run.

    Args:
        checkpoints: the run's checkpoints.
        progress: told of gradient steps made.
        seconds: least time between two checkpoints; the end is saved in any case.
        updates: least number of gradient steps between two checkpoints.
        score: an estimate by which checkpoints are compared, from off-policy evaluation and never from rollouts on the
            simulator; the best one outlives the newest.
        log: takes the learning curves as they grow.

    Example:
        >>> with Checkpoints(folder, identity) as checkpoints:  # doctest: +SKIP
        ...     run = Checkpointing(checkpoints)
        ...     train(algorithm, fresh, data, plan, 256, resume=run.resume, report=run.report)
    """

    def __init__(
        self,
        checkpoints: Checkpoints,
        progress: Report | None = None,
        *,
        seconds: float = 0.0,
        updates: int = 0,
        score: Callable[[RunState], float] | None = None,
        log: CurveLog | None = None,
    ) -> None:
        self._checkpoints, self._progress, self._score, self._log = checkpoints, progress, score, log
        self._seconds, self._updates = seconds, updates
        self.last: RunState | None = None
        """The state that was reported last."""
        self._saved_step, self._saved_at = 0, time.monotonic()
        self._reports: list[tuple[int, float]] = []

    def resume(self, fresh: RunState) -> RunState:
        """The newest checkpoint's state, or the fresh start where there is none."""
        latest = self._checkpoints.latest()
        if latest is None:
            return fresh
        state = self._checkpoints.restore(fresh._asdict())
        self._saved_step = latest
        return RunState(**state)

    def report(self, state: RunState, updates: int) -> None:
        """Save the state when it is time to, and pass on how far training came.

        Args:
            state: the run's state.
            updates: gradient steps of the whole run.
        """
        done = state.done
        if self.last is None and done:
            print(f"  train: goes on from {done:,} of {updates:,} updates", file=sys.stderr, flush=True)
        self.last = state
        self._reports.append((done, time.monotonic()))
        due = time.monotonic() - self._saved_at >= self._seconds and done - self._saved_step >= self._updates
        if done == updates or due:
            self._save(state)
        if self._log is not None:
            self._log.log(state.curves, updates)
        if self._progress:
            self._progress(done, updates, "updates")

    def leave(self) -> str:
        """Save the last good state before a run ends too soon; says where it is."""
        if self.last is None or self.last.done == 0:
            return "nothing was trained yet"
        self._save(self.last)
        return f"kept at update {self.last.done:,} in {self._checkpoints.folder}"

    def rate(self) -> float:
        """Gradient steps of one member per second after the first chunk, which compiles; 0 where there was no other."""
        if len(self._reports) < 3:
            return 0.0
        (before, begun), (after, ended) = self._reports[1], self._reports[-1]
        return (after - before) / (ended - begun)

    def _save(self, state: RunState) -> None:
        if self._saved_step == state.done:
            return
        score = self._score(state) if self._score else None
        self._checkpoints.save(state.done, state._asdict(), score)
        self._saved_step, self._saved_at = state.done, time.monotonic()
