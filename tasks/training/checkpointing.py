"""Checkpointing of a training: resume, save at intervals, and keep the last good state."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from configs.errors import Refused
from neorl_core.training.loop import RunState
from tasks.files.canonical import exclusive, read_json, write_json
from tasks.models.bundles.checkpoints import Checkpoints

if TYPE_CHECKING:
    from tasks.progress import CurveLog, Report


def sole_training(folder: Path) -> AbstractContextManager[None]:
    """Lock a folder for one training; raises `Refused` on entry if another training holds the lock."""

    def refuse() -> None:
        raise Refused(
            f"another training is active in {folder.parent}: wait for it, or name a different folder with --out"
        )

    return exclusive(folder / "lock", refuse)


def one_at_a_time(folder: Path) -> AbstractContextManager[None]:
    """Wait until no other process trains in a folder; the second training then resumes from the first one's
    checkpoints.

    Two writers would corrupt a folder of checkpoints, because each writer deletes the unfinished files of the other as
    leftovers of a killed run.
    """

    def held() -> None:
        print(f"  train: waits for another training in {folder}", file=sys.stderr, flush=True)

    return exclusive(folder / "lock", held)


def keep_programs(path: Path, programs: Mapping[str, str]) -> None:
    """Add the digests of a training's programs to a file, so that a resumed training has to use the same programs.

    Args:
        path: JSON file, which is created if missing.
        programs: digest of each program, by the digest of the request for it.

    Raises:
        Refused: if a program differs from an earlier one of the same training.
    """
    kept = read_json(path) if path.exists() else {}
    if not (isinstance(kept, dict) and all(isinstance(digest, str) for digest in kept.values())):
        raise Refused(f"{path} holds {str(kept)[:40]} instead of digests of programs: delete {path.parent}")
    for name, digest in programs.items():
        if (before := kept.get(name, digest)) != digest:
            raise Refused(
                f"the algorithm gives program {digest[:12]} instead of {before[:12]}, which this training began with: "
                "it depends on more than its source (clock, random numbers, process or version of JAX): remove the "
                f"dependence, delete {path.parent}, and train again"
            )
    if not programs.keys() <= kept.keys():
        write_json(path, kept | dict(programs))


class Checkpointing:
    """Callbacks for `neorl_core.training.loop.train` that restore and save one training.

    Args:
        seconds: minimum time between two checkpoints; the final state is always saved.
        updates: minimum number of gradient steps between two checkpoints.
        score: off-policy estimate for comparing checkpoints; the best and the newest checkpoint are kept.
        programs: returns the digests of a user algorithm's programs, as `KnownAlgorithm.programs`.

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
        programs: Callable[[], Mapping[str, str]] = dict,
    ) -> None:
        self._programs = programs
        self._checkpoints, self._progress, self._score, self._log = checkpoints, progress, score, log
        self._seconds, self._updates = seconds, updates
        self.last: RunState | None = None
        self._saved_step, self._saved_at = 0, time.monotonic()
        self._reports: list[tuple[int, float]] = []

    def resume(self, fresh: RunState) -> RunState:
        """Return the state of the newest checkpoint, or the fresh state if there is none."""
        latest = self._checkpoints.latest()
        if latest is None:
            return fresh
        state = self._checkpoints.restore(fresh._asdict())
        self._saved_step = latest
        return RunState(**state)

    def report(self, state: RunState, updates: int) -> None:
        """Save the state if a checkpoint is due, and report progress.

        Raises:
            Refused: if the programs are not those with which the training began.
        """
        done = state.done
        if self.last is None and done:
            print(f"  train: resumes at {done:,} of {updates:,} updates", file=sys.stderr, flush=True)
        if found := self._programs():
            keep_programs(self._checkpoints.folder / "programs.json", found)
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
        """Save the last good state of an interrupted training, and describe where it is."""
        if self.last is None or self.last.done == 0:
            return "nothing was trained yet"
        self._save(self.last)
        return f"kept at update {self.last.done:,} in {self._checkpoints.folder}"

    def rate(self) -> float:
        """Return one member's gradient steps per second without the first chunk, which compiles; 0 if too few chunks
        have run."""
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
