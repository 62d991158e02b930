"""Fit learned models to held-out episodes, and estimate the values of policies in these models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from configs.run import OpenedRun
from neorl_core.networks import Normaliser, Policy, normalise, to_unit
from neorl_core.ope import model_based
from neorl_core.ope.action_values import action_values
from neorl_core.ope.fqe import LoggedSteps
from neorl_core.ope.logged import uncut_share
from neorl_core.types import History, Transition
from neorl_core.world_model import bootstrap
from tasks.data.store.episodes import Logs

if TYPE_CHECKING:
    from tasks.progress import Report


class LearnedModelEvaluator(NamedTuple):
    """Estimator of policies' values by learned models of two families, networks and regressions."""

    model: model_based.LearnedModel
    normaliser: Normaliser
    windows: model_based.Windows
    discount: float

    def evaluate(self, policy: Policy) -> model_based.ModelValue:
        """Return a policy's value in the models as NumPy arrays."""
        found: model_based.ModelValue = jax.device_get(
            model_based.evaluate(self.model, self.normaliser, policy, self.windows, self.discount)
        )
        return found

    def action_values(self, policy: Policy, observation: Array, action: Array, members: int, steps: int) -> Array:
        """Return a policy's action values in M models of both families at n rows, (M, n, 2)."""
        settings = (members, steps, self.discount)
        found: Array = action_values(self.model, self.normaliser, policy, observation, action, *settings)
        return found

    def logged(self) -> model_based.ModelValue:
        """Return the logged controller's value."""
        found: model_based.ModelValue = jax.device_get(model_based.logged_value(self.windows, self.discount))
        return found

    def best(self, policies: Sequence[Policy]) -> float:
        """Return the highest finite value among policies; -inf if there is none."""
        values = [float(np.mean(self.evaluate(policy).value)) for policy in policies]
        return max((value for value in values if np.isfinite(value)), default=-np.inf)


def fit_learned_model(
    run: OpenedRun,
    steps: LoggedSteps,
    normaliser: Normaliser,
    history: History | None,
    horizon: int,
    progress: Report | None = None,
) -> LearnedModelEvaluator:
    """Fit models of the plant to logged steps.

    Args:
        steps: logged steps of held-out windows, with history.
        normaliser: scale of `steps`.
        history: number of earlier values of each signal in the observations.
        horizon: number of steps of the estimated return.
    """
    of_weights, of_resample, of_batches, of_ridge = jax.random.split(jax.random.key(run.seed + 2), 4)
    data = Transition(
        steps.observation, steps.action, steps.reward, steps.cost, steps.next_observation, steps.terminated
    )
    updates = run.evaluate.model_updates
    model, scaled, rewards = model_based.init(of_weights, data, updates, history)
    starts = np.asarray(steps.starts)
    counts = bootstrap.resample(of_resample, steps.episode, len(starts), model_based.MEMBERS)
    report = None if progress is None else lambda done, of: progress(done, of, "updates of the learned model")
    model = bootstrap.train(model, of_batches, scaled, counts, updates, report)
    found = model_based.complete_windows(model_based.stack_windows(data, starts, len(model.low), horizon), horizon)
    discount = run.evaluate.discount
    learned = model_based.fit_regressions(of_ridge, model, data, rewards, steps.episode, steps.starts, discount)
    return LearnedModelEvaluator(learned, normaliser, found, discount)


def windows(logs: Logs, horizon: int) -> Logs:
    """Cut episodes into windows of at most `horizon` steps.

    Args:
        logs: logs in chronological order.
        horizon: largest number of steps of a window.
    """
    at = np.arange(len(logs.episode)) - logs.starts[logs.episode]
    begins = at % horizon == 0
    return logs._replace(episode=np.cumsum(begins) - 1, starts=np.flatnonzero(begins))


def lasting(logs: Logs, horizon: int) -> int:
    """Return the number of steps that half of the windows reach, because longer returns are observed too rarely.

    For a window that ended by termination, the length without termination is unknown. The estimate accounts for this.

    Args:
        logs: logs in chronological order.
        horizon: steps of an episode of the plant, the largest possible result.
    """
    found = windows(logs, horizon)
    ends = np.append(found.starts[1:], len(found.episode))
    lasts, ended = ends - found.starts, np.asarray(found.transitions.terminated)[ends - 1] > 0
    share = uncut_share(jnp.asarray(lasts), jnp.asarray(~ended & (lasts < horizon)), horizon)
    # In single precision a product of exactly one half may come out slightly lower.
    return int(np.flatnonzero(np.asarray(share) > 0.5 - 1e-4)[-1])


def logged_steps(logs: Logs, normaliser: Normaliser) -> LoggedSteps:
    """Normalise observations (with history) and actions of logs; reward and cost keep their units."""
    t = logs.transitions
    return LoggedSteps(
        observation=normalise(normaliser, jnp.asarray(t.observation)),
        action=to_unit(normaliser, jnp.asarray(t.action)),
        reward=jnp.asarray(t.reward),
        cost=jnp.asarray(t.cost),
        next_observation=normalise(normaliser, jnp.asarray(t.next_observation)),
        terminated=jnp.asarray(t.terminated),
        episode=jnp.asarray(logs.episode, jnp.int32),
        starts=jnp.asarray(logs.starts, jnp.int32),
    )
