"""What a training run keeps of itself: checkpoints now and then, and the last good state however it ends."""

from __future__ import annotations

import fcntl
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from configs.errors import Refused
from neorl_core.training.loop import Progress
from tasks.adapters.models.checkpoints import Checkpoints
from tasks.progress import Report


@contextmanager
def exclusive(folder: Path) -> Iterator[None]:
    """Keep others out of a folder; the system lets go of it when the process ends, however it ends."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Refused(
                f"expected nobody else to train in {folder.parent}, got another run there: wait for it, or name "
                "another folder with --out."
            ) from None
        yield


class Keeper:
    """Resumes a run and saves what the training loop reports.

    Args:
        checkpoints: of this run.
        progress: told of updates done.
        seconds: least time between two checkpoints; the end is kept in any case.
        updates: least updates between two checkpoints.
        score: an estimate by which checkpoints are compared, from off-policy evaluation and never from rollouts; the
            best one outlives the newest.
    """

    def __init__(
        self,
        checkpoints: Checkpoints,
        progress: Report | None = None,
        *,
        seconds: float = 0.0,
        updates: int = 0,
        score: Callable[[Progress], float] | None = None,
    ) -> None:
        self._checkpoints, self._progress, self._score = checkpoints, progress, score
        self._seconds, self._updates = seconds, updates
        self.last: Progress | None = None
        """What was reported last."""
        self._kept, self._saved = 0, time.monotonic()
        self._reached: list[tuple[int, float]] = []

    def resume(self, fresh: Progress) -> Progress:
        """Where the last run of this folder came to, else the fresh start."""
        latest = self._checkpoints.latest()
        if latest is None:
            return fresh
        kept, _ = self._checkpoints.restore(fresh._asdict())
        self._kept = latest
        return Progress(**kept)

    def report(self, state: Progress, updates: int) -> None:
        """Save when it is time to, and pass on how far training came."""
        done = state.done
        if self.last is None and done:
            print(f"  train: goes on from {done:,} of {updates:,} updates", file=sys.stderr, flush=True)
        self.last = state
        self._reached.append((done, time.monotonic()))
        due = time.monotonic() - self._saved >= self._seconds and done - self._kept >= self._updates
        if done == updates or due:
            self._save(state)
        if self._progress:
            self._progress(done, updates, "updates")

    def leave(self) -> str:
        """Save the last good state before a run ends too soon; says where it is."""
        if self.last is None or self.last.done == 0:
            return "nothing was trained yet"
        self._save(self.last)
        return f"kept at update {self.last.done:,} in {self._checkpoints.folder}"

    def rate(self) -> float:
        """Updates per second of one member after the first chunk, which compiles; 0 where there was no other."""
        if len(self._reached) < 3:
            return 0.0
        (before, begun), (after, ended) = self._reached[1], self._reached[-1]
        return (after - before) / (ended - begun)

    def _save(self, state: Progress) -> None:
        if self._kept == state.done:
            return
        score = self._score(state) if self._score else None
        self._checkpoints.save(state.done, state._asdict(), {}, score)
        self._kept, self._saved = state.done, time.monotonic()
