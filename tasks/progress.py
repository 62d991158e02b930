"""Progress of a long task with rate and time left: a bar on a terminal, lines in a log, an artifact in Prefect."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

if TYPE_CHECKING:
    import numpy as np

    from tasks.references import Learning

Report = Callable[[int, int, str], None]
"""Progress callback: (done, total, unit)."""


class CurveLog(Protocol):
    """Record of a training's learning curves while they grow."""

    def log(self, curves: Mapping[str, np.ndarray], updates: int) -> None:
        """Log the (P, L) values of each metric; NaN beyond the current update, L points over all updates."""

    def end(self, sound: np.ndarray) -> None:
        """End the record; members that are not `sound` (P,) have failed."""


FollowLearning = Callable[["Learning"], AbstractContextManager[CurveLog]]

SECONDS_BETWEEN_LINES = 10.0
SECONDS_BETWEEN_ARTIFACTS = 2.0


class StageProgress:
    """Show the progress of one task; use it as a context manager and call it.

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
            self._bar = Progress(*columns, TimeRemainingColumn(), console=self._console)
            self._bar.add_task(self._stage, total=total, rate="")
            self._bar.start()
        if self._first is None:
            # Work before a resume, or during compilation, does not count for the rate.
            self._first, self._start, self._published = done, now, now - SECONDS_BETWEEN_ARTIFACTS
            self._line = now
        rate = (done - self._first) / max(now - self._start, 1e-9) if done > self._first else 0.0
        left = f", {(total - done) / rate:,.0f} s left" if rate and done < total else ""
        text = f"{done:,} of {total:,} {unit}" + (f", {rate:,.0f} {unit}/s{left}" if rate else "")
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=done, total=total, rate=text.split(", ")[0])
            if rate:
                self._bar.update(self._bar.task_ids[0], rate=f"{done:,}/{total:,}  {rate:,.0f} {unit}/s")
        elif now - self._line > SECONDS_BETWEEN_LINES or done >= total:
            print(f"  {self._stage}: {text}", file=sys.stderr, flush=True)
            self._line = now
        if now - self._published >= SECONDS_BETWEEN_ARTIFACTS or done >= total:
            self._publish(100.0 * done / max(total, 1), text)
            self._published = now

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
