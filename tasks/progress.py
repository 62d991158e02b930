"""Show the progress of a long task: a bar on a terminal, lines in a log, an artifact in Prefect."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

if TYPE_CHECKING:
    import numpy as np

    from tasks.references import Learning

Report = Callable[[int, int, str], None]
"""Progress callback: number of units done, number in total, name of the unit."""


class CurveLog(Protocol):
    """Receiver of learning curves during a training."""

    def log(self, curves: Mapping[str, np.ndarray], updates: int) -> None:
        """Log each metric's curves (P members, L points over the training); points after `updates` are NaN."""

    def end(self, sound: np.ndarray) -> None:
        """End the log of a training; `sound` (P,) is False for failed members."""


FollowLearning = Callable[["Learning"], AbstractContextManager[CurveLog]]

SECONDS_BETWEEN_LINES = 10.0
SECONDS_BETWEEN_ARTIFACTS = 2.0
SHARE_BEFORE_ESTIMATE = 0.05
"""Share of the work to finish, after at least SECONDS_BETWEEN_LINES, before the time left is shown."""


class StageProgress:
    """Show the progress of one task. The object is a context manager and a progress callback.

    Args:
        stage: name of the task, shown before the bar and on the artifact.

    Example:
        >>> with StageProgress("train") as report:  # doctest: +SKIP
        ...     report(500, 20_000, "updates")
    """

    def __init__(self, stage: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._stage, self._clock = stage, clock
        self._console = Console(stderr=True)
        self._bar: Progress | None = None
        self._artifact: object | None = None
        self._mute = False
        self._start = self._line = self._published = clock()
        self._first: int | None = None

    def __enter__(self) -> Self:
        return self

    def __call__(self, done: int, total: int, unit: str) -> None:
        now = self._clock()
        if self._bar is None and self._console.is_terminal:
            columns = (TextColumn("{task.description:>10}"), BarColumn(), TextColumn("{task.fields[rate]}"))
            self._bar = Progress(*columns, console=self._console)
            self._bar.add_task(self._stage, total=total, rate="")
            self._bar.start()
        if self._first is None:
            # The rate excludes work before a resume and the time of compilation.
            self._first, self._start, self._published = done, now, now - SECONDS_BETWEEN_ARTIFACTS
            self._line = now
        speed = self._speed(done, total, unit, now - self._start)
        text = f"{done:,} of {total:,} {unit}{speed}"
        if self._bar is not None:
            rate = f"{done:,}/{total:,}{speed.replace(', ', '  ', 1)}"
            self._bar.update(self._bar.task_ids[0], completed=done, total=total, rate=rate)
        elif now - self._line > SECONDS_BETWEEN_LINES or done >= total:
            print(f"  {self._stage}: {text}", file=sys.stderr, flush=True)
            self._line = now
        if now - self._published >= SECONDS_BETWEEN_ARTIFACTS or done >= total:
            self._publish(100.0 * done / max(total, 1), text)
            self._published = now

    def _speed(self, done: int, total: int, unit: str, seconds: float) -> str:
        """Return the rate and, once enough is done, the time left, such as ", 4 s/controller, 2 min left"."""
        new = done - (self._first or 0)
        if new <= 0:
            return ""
        each = max(seconds, 1e-9) / new
        rate = f"{1 / each:,.0f} {unit}/s" if each <= 1 else f"{_duration(each)}/{unit.removesuffix('s')}"
        enough = seconds >= SECONDS_BETWEEN_LINES and new >= SHARE_BEFORE_ESTIMATE * (new + total - done)
        return f", {rate}" + (f", {_duration(each * (total - done))} left" if enough and done < total else "")

    def _publish(self, percent: float, text: str) -> None:
        if self._mute or "prefect" not in sys.modules:  # without a flow, do not import Prefect, which takes a second
            return
        import httpx
        from prefect.artifacts import create_progress_artifact, update_progress_artifact
        from prefect.context import TaskRunContext

        if TaskRunContext.get() is None:
            return
        description = f"{self._stage}: {text}"
        try:
            if self._artifact is None:
                key = f"{self._stage.replace('_', '-')}-progress"
                self._artifact = create_progress_artifact(percent, key=key, description=description)
            else:
                update_progress_artifact(self._artifact, percent, description=description)  # type: ignore[arg-type]
        except httpx.HTTPError as error:
            # Progress must not fail the task; the next task reports a missing server.
            self._mute = True
            print(f"  {self._stage}: progress not shown in Prefect ({type(error).__name__})", file=sys.stderr)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()


def _duration(seconds: float) -> str:
    """Return a duration in hours, minutes or seconds, such as "1.5 min"."""
    size, unit = (3600, "h") if seconds >= 5400 else (60, "min") if seconds >= 90 else (1, "s")
    return f"{seconds / size:.2g} {unit}" if seconds / size < 9.95 else f"{seconds / size:,.0f} {unit}"
