"""What members and checkpoints are compared by: rollouts in a twin that is fitted to the held-out episodes."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray

from configs.run import RunConfig
from neorl_core.networks import Normaliser, Policy, normalise, to_unit
from neorl_core.ope import model as model_based
from neorl_core.ope.fqe import LoggedSteps
from neorl_core.plants import PLANTS
from neorl_core.types import Transition
from neorl_core.world_model import dynamics
from tasks.adapters.store.episodes import Logs
from tasks.progress import Report

CHUNKS = 20


class Judge(NamedTuple):
    """A trained twin and where its episodes begin."""

    twin: model_based.Twin
    normaliser: Normaliser
    starts: Array
    """(E, O), normalised."""
    key: PRNGKeyArray
    horizon: int
    discount: float
    bootstraps: int

    def imagine(self, policy: Policy) -> model_based.Imagination:
        """A policy's value in the twin, on the host; every policy meets the same resamples."""
        settings = (self.horizon, self.discount, self.bootstraps)
        found: model_based.Imagination = jax.device_get(
            model_based.evaluate(self.twin, self.normaliser, policy, self.starts, self.key, *settings)
        )
        return found

    def best(self, policies: list[Policy]) -> float:
        """The highest value among policies; one that is not finite counts as none, and -inf is of no policy."""
        values = [float(self.imagine(policy).value) for policy in policies]
        return max((value for value in values if np.isfinite(value)), default=-np.inf)


def judge_of(run: RunConfig, steps: LoggedSteps, normaliser: Normaliser, progress: Report | None = None) -> Judge:
    """Fit the twin.

    Args:
        run: its seed, its twin's updates and its discount.
        steps: of held-out episodes.
        normaliser: by which `steps` are normalised.
        progress: told of updates done.
    """
    init_key, train_key = jax.random.split(jax.random.key(run.seed + 2))
    data = Transition(
        steps.observation, steps.action, steps.reward, steps.cost, steps.next_observation, steps.terminated
    )
    chunk = max(run.evaluate.model_updates // CHUNKS, 1)
    twin, data = model_based.start(init_key, data, chunk * CHUNKS)
    model = twin.model
    for done in range(0, chunk * CHUNKS, chunk):
        if progress:
            progress(done, chunk * CHUNKS, "updates of the twin")
        model, _ = dynamics.train(model, train_key, data, jnp.int32(done), chunk)
        jax.block_until_ready(model)
    if progress:
        progress(chunk * CHUNKS, chunk * CHUNKS, "updates of the twin")
    settings = (PLANTS[run.plant].spec.horizon, run.evaluate.discount, run.evaluate.bootstraps)
    starts = steps.observation[steps.starts]
    return Judge(twin._replace(model=model), normaliser, starts, jax.random.key(run.seed), *settings)


def logged_steps(logs: Logs, normaliser: Normaliser) -> LoggedSteps:
    """The logs as the networks see them; reward and cost keep their units."""
    t = logs.transitions
    return LoggedSteps(
        observation=normalise(normaliser, jnp.asarray(t.observation)),
        action=to_unit(normaliser, jnp.asarray(t.action)),
        reward=jnp.asarray(t.reward),
        cost=jnp.asarray(t.cost),
        next_observation=normalise(normaliser, jnp.asarray(t.next_observation)),
        terminated=jnp.asarray(t.terminated),
        followed=jnp.asarray(logs.followed),
        episode=jnp.asarray(logs.episode, jnp.int32),
        starts=jnp.asarray(logs.starts, jnp.int32),
    )
