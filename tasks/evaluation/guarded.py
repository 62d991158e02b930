"""Batches of episodes that survive crashes and time-outs: certification counts such batches as violations."""

from __future__ import annotations

import logging
from collections.abc import Callable
from threading import Thread

import jax

from neorl_core.plants.base import EpisodeResult

SECONDS = 600.0
"""Budget of a batch, including compilation; a compiled batch of the reactor takes a fraction of a second."""


def guarded(simulate: Callable[[], EpisodeResult], plant: str, seconds: float = SECONDS) -> EpisodeResult | None:
    """Return the results of a batch, or None if it crashes or exceeds the time budget.

    The thread of a late batch cannot be stopped; it ends with the process.

    Args:
        plant: name of the plant, for the log.
        seconds: time budget.
    """
    found: list[EpisodeResult] = []
    why = f"it did not end within {seconds:g} s"

    def work() -> None:
        nonlocal why
        try:
            result = simulate()
            jax.block_until_ready(result)  # type: ignore[no-untyped-call]
            found.append(result)
        # No exception of a simulator, including a user's, may go unpunished.
        except Exception as error:
            why = f"it ended with {type(error).__name__}: {' '.join(str(error).split())[:200]}"

    thread = Thread(target=work, daemon=True)
    thread.start()
    thread.join(seconds)
    if found:
        return found[0]
    logging.getLogger(__name__).warning("all episodes of a batch of %s count as violated: %s", plant, why)
    return None
