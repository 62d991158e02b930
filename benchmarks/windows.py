"""Measure programs on a shared machine: in turn, in short time windows, of which only the quiet ones count."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

import psutil

QUIET = 0.1
"""Largest number of cores used by other processes in a quiet window."""


class Kept(NamedTuple):
    """Result of one program."""

    seconds: float
    """Median over the quiet windows; over all windows if none was quiet."""
    windows: int
    quiet: int

    @property
    def note(self) -> str:
        return "" if self.quiet else " (not quiet)"


def _busy() -> float:
    """Return the CPU seconds of the whole machine since it started."""
    times = psutil.cpu_times()
    # "Steal" is time that other virtual machines used. Guest time is already part of user time.
    return times.user + times.nice + times.system + times.irq + times.softirq + getattr(times, "steal", 0.0)


def _own() -> float:
    """Return the CPU seconds of this process and its running children."""
    me = psutil.Process()
    found = 0.0
    for process in (me, *me.children(recursive=True)):
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        found += times.user + times.system
    return found


def timed(work: Callable[[], float | None]) -> tuple[float, float]:
    """Call `work`; return its seconds (the returned number, if any) and the cores that other processes used."""
    busy, own, started = _busy(), _own(), time.perf_counter()
    value = work()
    elapsed = time.perf_counter() - started
    others = max((_busy() - busy) - (_own() - own), 0.0) / elapsed
    return (elapsed if value is None else value), others


def interleaved(
    works: Mapping[str, Callable[[], float | None]], rounds: int, limit: float, warm_up: bool = True
) -> dict[str, Kept]:
    """Run programs in turn until each has `rounds` quiet windows, or until `limit` seconds have passed.

    Args:
        works: functions by name. A call is one window; it returns None or the seconds that it measured itself.
        rounds: number of quiet windows of each program.
        limit: seconds after which no new round starts; there is at least one round.
        warm_up: whether to call each program once before the measurement, to compile it.

    Returns:
        The result of each program by name.
    """
    if warm_up:
        for work in works.values():
            work()
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in works}
    started = time.perf_counter()
    while True:
        for name, work in works.items():
            found[name].append(timed(work))
        quiet = {name: [s for s, others in windows if others <= QUIET] for name, windows in found.items()}
        if min(map(len, quiet.values())) >= rounds or time.perf_counter() - started > limit:
            break
    return {
        name: Kept(statistics.median(quiet[name] or [s for s, _ in windows]), len(windows), len(quiet[name]))
        for name, windows in found.items()
    }
