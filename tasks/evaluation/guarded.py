"""Rollouts whose crash or time-out is found out: certification counts the episodes of such a batch as violated."""

from __future__ import annotations

import logging
from threading import Thread

import jax

from neorl_core.plants.base import EpisodeResult, rollouts
from neorl_core.safety.certify import Run
from neorl_core.types import Controller, Params, Plant

SECONDS = 600.0
"""What a batch may take, compilation included; a batch of the reactor takes a fraction of a second once compiled."""


def guarded(seconds: float = SECONDS) -> Run:
    """Rollouts that give no result for a batch that crashes or takes too long.

    A batch that takes too long cannot be stopped from here: its thread is left behind, and ends with the process.

    Args:
        seconds: budget of a batch.
    """

    def run(
        plant: Plant, controller: Controller, params: Params, keys: jax.Array, domain: Params
    ) -> EpisodeResult | None:
        found: list[EpisodeResult] = []
        why = f"it did not end within {seconds:g} s"

        def work() -> None:
            nonlocal why
            try:
                result = rollouts(plant, controller, params, keys, domain)
                jax.block_until_ready(result)  # type: ignore[no-untyped-call]
                found.append(result)
            # Whatever a simulator raises, a user's own included, must not be free.
            except Exception as error:
                why = f"it ended with {type(error).__name__}: {' '.join(str(error).split())[:200]}"

        thread = Thread(target=work, daemon=True)
        thread.start()
        thread.join(seconds)
        if found:
            return found[0]
        logging.getLogger(__name__).warning(
            "all %d episodes of a batch of %s count as violated: %s", len(keys), plant.spec.name, why
        )
        return None

    return run
