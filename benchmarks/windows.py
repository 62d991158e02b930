"""Measure beside other work: windows of several programs in turn, kept only if nothing else used the machine."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

import psutil

QUIET = 0.1
"""Largest number of cores used by other processes in a quiet window."""


class Kept(NamedTuple):
    """Windows of one program."""

    seconds: float
    """Median over the quiet windows, or over all if none was quiet."""
    windows: int
    quiet: int

    @property
    def note(self) -> str:
        return "" if self.quiet else " (not quiet)"


def _busy() -> float:
    """Return the CPU seconds of the whole machine since it started."""
    times = psutil.cpu_times()
    # Time stolen by the hypervisor counts as other work; guest time is already part of user time.
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
    """Return the seconds of one call (its own value if it returns a number), and the cores that others used."""
    busy, own, started = _busy(), _own(), time.perf_counter()
    value = work()
    elapsed = time.perf_counter() - started
    others = max((_busy() - busy) - (_own() - own), 0.0) / elapsed
    return (elapsed if value is None else value), others


def interleaved(
    works: Mapping[str, Callable[[], float | None]], rounds: int, limit: float, warm_up: bool = True
) -> dict[str, Kept]:
    """Run all programs in turn until each has `rounds` quiet windows, or `limit` seconds are over.

    Args:
        works: calls that make one window; they return None, or the seconds that they measured themselves.
        rounds: number of quiet windows of each program.
        limit: seconds after which no new round starts; there is at least one round.
        warm_up: whether to discard a first call of each program, which compiles.

    Returns:
        The windows by name.
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
