"""Model-based evaluation: policies are compared by rollouts in a model that is learned from the held-out episodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from configs.run import RunConfig
from neorl_core.networks import Normaliser, Policy, normalise, to_unit
from neorl_core.ope import model as model_based
from neorl_core.ope.fqe import LoggedSteps
from neorl_core.types import Transition
from neorl_core.world_model import dynamics
from tasks.adapters.plants.known import plant_of
from tasks.adapters.store.episodes import Logs
from tasks.adapters.store.histories import observed_spec

if TYPE_CHECKING:
    from tasks.progress import Report

CHUNKS = 20
"""Parts that a fit is cut into, so that its progress can be told."""


class LearnedModelEvaluator(NamedTuple):
    """A model that is learned from held-out episodes, and where these begin."""

    model: model_based.LearnedModel
    normaliser: Normaliser
    starts: Array
    """(E, S), initial observations, normalised."""
    key: Array
    """Key of the resamples."""
    horizon: int
    """Steps of a rollout."""
    discount: float
    """Per step."""
    bootstraps: int

    def evaluate(self, policy: Policy) -> model_based.ModelValue:
        """A policy's value in the model, on the host; every policy meets the same resamples."""
        settings = (self.horizon, self.discount, self.bootstraps)
        found: model_based.ModelValue = jax.device_get(
            model_based.evaluate(self.model, self.normaliser, policy, self.starts, self.key, *settings)
        )
        return found

    def best(self, policies: Sequence[Policy]) -> float:
        """The highest value among policies; one that is not finite counts as none, and -inf is of no policy."""
        values = [float(self.evaluate(policy).value) for policy in policies]
        return max((value for value in values if np.isfinite(value)), default=-np.inf)


def fit_learned_model(
    run: RunConfig, steps: LoggedSteps, normaliser: Normaliser, progress: Report | None = None
) -> LearnedModelEvaluator:
    """Learn a model of the plant from logged steps.

    Args:
        run: its plant, seed and evaluation.
        steps: logged steps of held-out episodes, with the run's history.
        normaliser: scale by which `steps` are normalised.
        progress: told of gradient steps made.
    """
    init_key, train_key = jax.random.split(jax.random.key(run.seed + 2))
    data = Transition(
        steps.observation, steps.action, steps.reward, steps.cost, steps.next_observation, steps.terminated
    )
    chunk = max(run.evaluate.model_updates // CHUNKS, 1)
    learned, data = model_based.init(init_key, data, chunk * CHUNKS, observed_spec(run).history)
    model = learned.model
    for done in range(0, chunk * CHUNKS, chunk):
        if progress:
            progress(done, chunk * CHUNKS, "updates of the learned model")
        model, _ = dynamics.train(model, train_key, data, jnp.int32(done), chunk)
        jax.block_until_ready(model)  # type: ignore[no-untyped-call]
    if progress:
        progress(chunk * CHUNKS, chunk * CHUNKS, "updates of the learned model")
    settings = (plant_of(run).spec.horizon, run.evaluate.discount, run.evaluate.bootstraps)
    starts = steps.observation[steps.starts]
    return LearnedModelEvaluator(learned._replace(model=model), normaliser, starts, jax.random.key(run.seed), *settings)


def logged_steps(logs: Logs, normaliser: Normaliser) -> LoggedSteps:
    """Logs, with the history that the normaliser has, as the networks see them; reward and cost keep their units."""
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
