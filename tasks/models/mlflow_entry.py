"""Entry point of the models that MLflow stores: their code imports this module and nothing else of NeoRL.

Stored models of all NeoRL versions import this module. Therefore its path, the arguments of `load_policy` and the
fields of the result must not change. Older models import `tasks.adapters`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np


class StoredPolicy(NamedTuple):
    """A composite that computes actions for a table of observations."""

    observations: tuple[str, ...]
    actions: tuple[str, ...]
    first_actions: Callable[[np.ndarray], np.ndarray]
    """(N, O) observations, each the first of an episode -> (N, A) actions, all in physical units."""


def load_policy(bundle: Path, digest: str) -> StoredPolicy:
    """Load a bundle after comparing it with its digest.

    Raises:
        Refused: if the bundle was altered or has another digest.
    """
    import jax

    from neorl_core.safety.composite import composite_controller, first_applied
    from tasks.models.bundles.bundle import load_bundle

    plant, composite = load_bundle(bundle, digest)
    controller = composite_controller(plant)

    @jax.jit
    @jax.vmap
    def first_action(observation: jax.Array) -> jax.Array:
        memory = controller.init(composite, observation)
        applied = first_applied(plant, composite, observation)
        return controller.act(composite, memory, observation, applied)[1]

    def first_actions(observations: np.ndarray) -> np.ndarray:
        return np.asarray(first_action(np.asarray(observations, np.float32)), float)

    return StoredPolicy(plant.spec.observation.names, plant.spec.action.names, first_actions)
