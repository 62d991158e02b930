"""Inputs of learners that learn in the simulator: the simulator, the policy's shield, and the scale of its inputs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

import jax
import jax.numpy as jnp

from configs.run import OpenedRun
from neorl_core.online.learner import CHUNK, Setting, observe, without_rows
from neorl_core.safety.shield import ShieldParams, envelope_of
from neorl_core.training.loop import schedule
from tasks.identify import simulator_of
from tasks.models.plants.known import plant_of
from tasks.references import Identification
from tasks.training.data import TrainingData
from tasks.training.shielding import shield_of

LEAST_FINITE = 0.5
"""Smallest share of episodes with a finite gradient."""
OBSERVED_SEED = 20_270_000
"""Added to the run's seed for the episodes that determine the scale of a policy's inputs."""


def shield_around(run: OpenedRun, data: TrainingData) -> ShieldParams:
    """Return the run's shield, which hands over outside the range of the learner's rows."""
    low, high = jnp.asarray(data.moments.observation_low), jnp.asarray(data.moments.observation_high)
    envelope = envelope_of(low, high, data.scaling.normaliser.scale[: len(low)], run.shield.envelope)
    return shield_of(plant_of(run).spec, run.shield, envelope)


def setting_of(run: OpenedRun, data: TrainingData, config: Any, identification: Identification) -> Setting:
    """Return the simulator over the run's operating domain, with the shield that the policy will have.

    Args:
        config: settings of the learner.
        identification: constants of the simulator that were estimated from logs.
    """
    plant = simulator_of(plant_of(run), identification)
    plant = plant._replace(domain=plant.domain._replace(**run.certify.domain))
    return Setting(plant, shield_around(run, data), observe(plant, jax.random.key(OBSERVED_SEED + run.seed)), config)


def without_batches(run: OpenedRun, data: TrainingData, warm_up: int) -> TrainingData:
    """Return the training data of a learner that uses the logs only for the shield's range."""
    plan = schedule(run.train.updates, min(run.train.checkpoint_every, CHUNK), 1, warm_up)
    # Penalties and gradients may be large, because limits have any unit.
    scaling, rows = data.scaling._replace(limit=math.inf), without_rows(plant_of(run).spec)
    return data._replace(plan=plan, scaling=scaling, streamed=False, open=lambda mesh: nullcontext(rows))


def useless(plant: str, metrics: Mapping[str, float]) -> str | None:
    """Return why a simulator's gradients are of no use, from the mean metrics of some updates; None if they are.

    Always None for a learner without gradients of the simulator, which has no metrics `finite` and `gradient`.
    """
    smooth = "make the simulator smooth, or use the learner ppo"
    if metrics.get("finite", 1.0) < LEAST_FINITE:
        return f"only {metrics['finite']:.0%} of the episodes of {plant} have a finite gradient: {smooth}"
    if metrics.get("gradient") == 0.0:
        return f"the gradient of the return of {plant} by the actions is 0, as after rounding: {smooth}"
    return None
