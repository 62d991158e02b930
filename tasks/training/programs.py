"""Compiled programs of a process that lives long."""

from __future__ import annotations

import gc
from pathlib import Path

import jax

MAPPED = 10_000
"""Memory mappings from which on a process forgets its programs; Linux allows 65,530 (`vm.max_map_count`)."""


def forget_programs(most: int = MAPPED) -> None:
    """Have JAX forget what this process compiled where that holds much memory; what is called again is compiled again.

    A program keeps about ten memory mappings for as long as JAX knows it. Where a process has as many as Linux allows,
    compiling the next one ends it by a segmentation fault.

    Args:
        most: mappings that the process may have. Only Linux tells how many it has; elsewhere nothing is forgotten.

    Example:
        >>> forget_programs()
    """
    maps = Path("/proc/self/maps")
    if maps.exists() and maps.read_bytes().count(b"\n") > most:
        jax.clear_caches()  # type: ignore[no-untyped-call]
        # Much of what is left of them hangs together in circles.
        gc.collect()
