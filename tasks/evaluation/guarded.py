"""Rollouts that survive crashes and time-outs: certification counts such batches as violations."""

from __future__ import annotations

import logging
from threading import Thread

import jax

from neorl_core.plants.base import EpisodeResult, rollouts
from neorl_core.safety.certify import Run
from neorl_core.types import Controller, Params, Plant

SECONDS = 600.0
"""Budget of a batch, including compilation; a compiled batch of the reactor takes a fraction of a second."""


def guarded(seconds: float = SECONDS) -> Run:
    """Return a function that returns None for a batch that crashes or exceeds the time budget.

    The thread of a late batch cannot be stopped; it ends with the process.
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
            # No exception of a simulator, including a user's, may go unpunished.
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
