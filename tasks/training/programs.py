"""Limit the memory of compiled programs in long-lived processes."""

from __future__ import annotations

import gc
from pathlib import Path

import jax

MAPPED = 10_000
"""Number of memory mappings at which caches are cleared; Linux allows 65,530 (`vm.max_map_count`)."""


def forget_programs(most: int = MAPPED) -> None:
    """Clear JAX's caches if compiled programs use many memory mappings.

    Each program keeps about ten mappings. Beyond the limit of Linux, the next compilation ends in a segmentation fault.

    Args:
        most: allowed number of mappings. Only Linux reports the number; elsewhere nothing is cleared.

    Example:
        >>> forget_programs()
    """
    maps = Path("/proc/self/maps")
    if maps.exists() and maps.read_bytes().count(b"\n") > most:
        jax.clear_caches()  # type: ignore[no-untyped-call]
        # Reference cycles keep much of the caches alive.
        gc.collect()
