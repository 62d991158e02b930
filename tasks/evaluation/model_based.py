"""Models that are learned from held-out episodes: what they take policies' values for, and where they are outside."""

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
    """Models of two families that are learned from held-out episodes, and these episodes side by side."""

    model: model_based.LearnedModel
    normaliser: Normaliser
    windows: model_based.Windows
    discount: float
    """Per step."""

    def evaluate(self, policy: Policy) -> model_based.ModelValue:
        """A policy's value in the models, on the host."""
        found: model_based.ModelValue = jax.device_get(
            model_based.evaluate(self.model, self.normaliser, policy, self.windows, self.discount)
        )
        return found

    def action_values(self, policy: Policy, observation: Array, action: Array, members: int, steps: int) -> Array:
        """What the first members of both families take a policy's action values for: (M, n, 2)."""
        settings = (members, steps, self.discount)
        found: Array = action_values(self.model, self.normaliser, policy, observation, action, *settings)
        return found

    def logged(self) -> model_based.ModelValue:
        """The logged controller's value."""
        found: model_based.ModelValue = jax.device_get(model_based.logged_value(self.windows, self.discount))
        return found

    def best(self, policies: Sequence[Policy]) -> float:
        """The highest value among policies; one that is not finite counts as none, and -inf is of no policy."""
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
    """Learn models of the plant from logged steps.

    Args:
        run: its plant, seed and evaluation.
        steps: logged steps of held-out windows, with their history.
        normaliser: scale by which `steps` are normalised.
        history: which earlier values stand behind the observations.
        horizon: steps whose return is estimated; what windows count for in it `window_counts` tells.
        progress: told of gradient steps made.
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
    """Logs whose episodes are at most a horizon long: what is estimated is the return of that many steps.

    Args:
        logs: in the order of time.
        horizon: steps of an episode of the plant.
    """
    at = np.arange(len(logs.episode)) - logs.starts[logs.episode]
    begins = at % horizon == 0
    return logs._replace(episode=np.cumsum(begins) - 1, starts=np.flatnonzero(begins))


def lasting(logs: Logs, horizon: int) -> int:
    """The steps that nothing cuts in half of the windows: no longer return is seen in enough of them to be estimated.

    One that terminated counts as watched until then, and tells nothing of how long it would have been.

    Args:
        logs: in the order of time.
        horizon: steps of an episode of the plant, and the most.
    """
    found = windows(logs, horizon)
    ends = np.append(found.starts[1:], len(found.episode))
    lasts, ended = ends - found.starts, np.asarray(found.transitions.terminated)[ends - 1] > 0
    share = uncut_share(jnp.asarray(lasts), jnp.asarray(~ended & (lasts < horizon)), horizon)
    # A product of shares that is a half may be a little less in single precision.
    return int(np.flatnonzero(np.asarray(share) > 0.5 - 1e-4)[-1])


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
        episode=jnp.asarray(logs.episode, jnp.int32),
        starts=jnp.asarray(logs.starts, jnp.int32),
    )
