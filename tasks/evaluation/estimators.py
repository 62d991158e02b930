"""Every estimator of a policy's value, fitted to some held-out episodes, and what they say together."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp

from configs.run import RunConfig
from neorl_core.networks import Normaliser, Policy, policy_act, to_unit
from neorl_core.ope import fqe
from neorl_core.ope.agreement import Estimate, together
from tasks.adapters.plants.known import plant_of
from tasks.adapters.store.episodes import Logs
from tasks.adapters.store.histories import Past
from tasks.evaluation.model_based import LearnedModelEvaluator, fit_learned_model, lasting, logged_steps, windows

if TYPE_CHECKING:
    from tasks.progress import Report

FEATURE_SETS = 3
"""Sets of features that fitted Q evaluation is made on, each learned from weights and batches of its own."""


class Estimators(NamedTuple):
    """Fitted Q evaluation on several sets of features and models of two families, all of the same windows."""

    run: RunConfig
    logs: Logs
    """With the history that the policies see, cut into windows."""
    horizon: int
    """Steps whose return is estimated: the plant's, or as many as half of the windows last."""
    steps: fqe.LoggedSteps
    layers: tuple[fqe.Layers, ...]
    learned: LearnedModelEvaluator

    def of(self, policy: Policy) -> Estimate:
        """A policy's estimate; policies of the same estimators meet the same resamples."""
        rounds, models = self._rounds(self.decisions(policy)), self.learned.evaluate(policy)
        return together(rounds, models, len(self.learned.windows.reward), self.run.evaluate.confidence)

    def decisions(self, policy: Policy) -> fqe.Decisions:
        """What a policy does on the logs."""
        t, scale = self.logs.transitions, self.learned.normaliser
        return fqe.Decisions(
            to_unit(scale, policy_act(policy, jnp.asarray(t.next_observation))),
            to_unit(scale, policy_act(policy, jnp.asarray(t.observation[self.logs.starts]))),
        )

    def logged(self) -> Estimate:
        """The logged controller's own estimate; its replay is the log itself."""
        rounds = self._rounds(fqe.logged_decisions(self.steps))
        return together(rounds, self.learned.logged(), len(self.learned.windows.reward), self.run.evaluate.confidence)

    def _rounds(self, decisions: fqe.Decisions) -> list[fqe.Evaluation]:
        asked, key = self.run.evaluate, jax.random.key(self.run.seed)
        settings = (key, self.horizon, asked.discount, asked.bootstraps)
        return [jax.device_get(fqe.evaluate(layers, self.steps, decisions, *settings)) for layers in self.layers]


def fit_estimators(
    run: RunConfig, plain: Logs, past: Past, normaliser: Normaliser, progress: Report | None = None
) -> Estimators:
    """Fit all estimators to some episodes.

    Args:
        run: its plant, seed and evaluation.
        plain: held-out episodes, without a history.
        past: the history that the policies see.
        normaliser: scale of observations with that history, and of actions.
        progress: told of gradient steps made.
    """
    every = past.stacked(plain)
    horizon = lasting(every, plant_of(run).spec.horizon)
    logs = windows(every, horizon)
    steps = logged_steps(logs, normaliser)
    layers = _features(run, steps, progress)
    learned = fit_learned_model(run, steps, normaliser, past.history, horizon, progress)
    return Estimators(run, logs, horizon, steps, layers, learned)


def _features(run: RunConfig, steps: fqe.LoggedSteps, progress: Report | None) -> tuple[fqe.Layers, ...]:
    """The sets of features; their gradient steps together are those that the run asks for."""
    targets, each = fqe.feature_targets(steps), max(run.evaluate.fqe_updates // FEATURE_SETS, 1)
    found: list[fqe.Layers] = []
    for number in range(FEATURE_SETS):
        if progress:
            progress(number * each, FEATURE_SETS * each, "updates")
        init_key, train_key = jax.random.split(jax.random.fold_in(jax.random.key(run.seed + 1), number))
        fresh = fqe.init_features(init_key, steps)
        found.append(fqe.train_features(fresh, train_key, steps, targets, each, each)[0].layers)
        jax.block_until_ready(found[-1])  # type: ignore[no-untyped-call]
    if progress:
        progress(FEATURE_SETS * each, FEATURE_SETS * each, "updates")
    return tuple(found)
