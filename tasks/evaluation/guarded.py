"""Rollouts in which a crash or time-out does not end the certification, but counts as violation of the whole batch."""

from __future__ import annotations

import logging
from threading import Thread

import jax

from neorl_core.plants.base import EpisodeResult, rollouts
from neorl_core.safety.certify import Run
from neorl_core.types import Controller, Params, Plant

SECONDS = 600.0
"""Time limit of a batch, including compilation. A compiled batch of the reactor takes a fraction of a second."""


def guarded(seconds: float = SECONDS) -> Run:
    """Return a rollout function that returns None if the batch crashes or exceeds the time limit.

    The thread of a late batch cannot be stopped, so the thread runs on until the process ends.
    """

    def run(
        plant: Plant, controller: Controller, params: Params, keys: jax.Array, domain: Params
    ) -> EpisodeResult | None:
        found: list[EpisodeResult] = []
        why = f"the simulation did not end within {seconds:g} s"

        def work() -> None:
            nonlocal why
            try:
                result = rollouts(plant, controller, params, keys, domain)
                jax.block_until_ready(result)  # type: ignore[no-untyped-call]
                found.append(result)
            # Any exception counts, because a simulator that crashes must not pass the test.
            except Exception as error:
                why = f"the simulation raised {type(error).__name__}: {' '.join(str(error).split())[:200]}"

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
