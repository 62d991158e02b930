"""Every estimator of a policy's value, fitted to some held-out episodes, and what they say together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp

from configs.errors import ServiceMissing
from configs.run import RunConfig
from neorl_core.history import History
from neorl_core.networks import Normaliser, Policy, policy_act, to_unit
from neorl_core.ope import fqe
from neorl_core.ope.agreement import Estimate, together
from neorl_core.ope.model import ModelValue
from tasks.adapters.plants.known import plant_of
from tasks.adapters.store.episodes import Logs
from tasks.adapters.store.histories import Past
from tasks.evaluation.cluster import in_order
from tasks.evaluation.model_based import LearnedModelEvaluator, fit_learned_model, lasting, logged_steps, windows

if TYPE_CHECKING:
    from distributed import Client

    from tasks.progress import Report

FEATURE_SETS = 3
"""Sets of features that fitted Q evaluation is made on, each learned from weights and batches of its own."""
MODELS = FEATURE_SETS
"""Number of the learned models, which come after the sets of features."""


class Episodes(NamedTuple):
    """What estimators are fitted to."""

    run: RunConfig
    logs: Logs
    """With the history that the policies see, cut into windows."""
    horizon: int
    """Steps whose return is estimated: the plant's, or as many as half of the windows last."""
    normaliser: Normaliser
    """Scale of observations with that history, and of actions."""
    history: History | None

    @property
    def steps(self) -> fqe.LoggedSteps:
        """The logs as the networks see them."""
        return logged_steps(self.logs, self.normaliser)


class Rounds(NamedTuple):
    """Fitted Q evaluation on one set of features."""

    episodes: Episodes
    steps: fqe.LoggedSteps
    layers: fqe.Layers

    def evaluate(self, policy: Policy) -> fqe.Evaluation:
        """A policy's value, on the host; every policy meets the same resamples."""
        return self._of(decisions(self.episodes, policy))

    def logged(self) -> fqe.Evaluation:
        """The logged controller's own value, of the same resamples."""
        return self._of(fqe.logged_decisions(self.steps))

    def _of(self, decided: fqe.Decisions) -> fqe.Evaluation:
        run = self.episodes.run
        settings = (self.episodes.horizon, run.evaluate.discount, run.evaluate.bootstraps)
        found: fqe.Evaluation = jax.device_get(
            fqe.evaluate(self.layers, self.steps, decided, jax.random.key(run.seed), *settings)
        )
        return found


class Estimators(NamedTuple):
    """Fitted Q evaluation on several sets of features and models of two families, all of the same windows."""

    episodes: Episodes
    rounds: tuple[Rounds, ...]
    learned: LearnedModelEvaluator

    def of(self, policy: Policy) -> Estimate:
        """A policy's estimate; policies of the same estimators meet the same resamples."""
        return self._together([one.evaluate(policy) for one in self.rounds], self.learned.evaluate(policy))

    def logged(self) -> Estimate:
        """The logged controller's own estimate; its replay is the log itself."""
        return self._together([one.logged() for one in self.rounds], self.learned.logged())

    def _together(self, rounds: list[fqe.Evaluation], models: ModelValue) -> Estimate:
        return together(rounds, models, len(self.learned.windows.reward), self.episodes.run.evaluate.confidence)


def episodes_of(run: RunConfig, plain: Logs, past: Past, normaliser: Normaliser) -> Episodes:
    """What estimators are fitted to.

    Args:
        run: its plant, seed and evaluation.
        plain: held-out episodes, without a history.
        past: the history that the policies see.
        normaliser: scale of observations with that history, and of actions.
    """
    every = past.stacked(plain)
    horizon = lasting(every, plant_of(run).spec.horizon)
    return Episodes(run, windows(every, horizon), horizon, normaliser, past.history)


def decisions(episodes: Episodes, policy: Policy) -> fqe.Decisions:
    """What a policy does on the logs."""
    t, scale = episodes.logs.transitions, episodes.normaliser
    return fqe.Decisions(
        to_unit(scale, policy_act(policy, jnp.asarray(t.next_observation))),
        to_unit(scale, policy_act(policy, jnp.asarray(t.observation[episodes.logs.starts]))),
    )


def fit_estimators(episodes: Episodes, progress: Report | None = None) -> Estimators:
    """Fit all estimators.

    Args:
        episodes: what to fit them to.
        progress: told of gradient steps made.
    """
    steps = episodes.steps
    rounds = tuple(_rounds(episodes, steps, number, progress) for number in range(FEATURE_SETS))
    return Estimators(episodes, rounds, _models(episodes, steps, progress))


def estimates_by_workers(
    client: Client, episodes: Episodes, policies: Sequence[Policy], progress: Report | None = None
) -> tuple[Estimate, list[Estimate]]:
    """What `fit_estimators` comes to, each estimator being fitted and asked by a worker of a Dask cluster.

    Args:
        client: of the cluster; no worker needs access to the home.
        episodes: what to fit the estimators to.
        policies: to estimate the values of.
        progress: told of estimators that have answered.

    Returns:
        The logged controller's estimate and those of the policies, the same to the last bit as in one process.

    Raises:
        Refused: as `in_order`.
        ServiceMissing: as `in_order`, and when an estimator killed its workers.
    """
    data = jax.device_get(_Asked(episodes, tuple(policies)))
    found: list[_Answer] = []
    for answer in in_order(client, _answer, range(FEATURE_SETS + 1), data):
        if answer is None:
            raise ServiceMissing(
                "expected Dask workers to fit estimators, got workers that died of it: give them more memory, then "
                "run the same command again."
            )
        found.append(answer)
        if progress:
            progress(len(found), FEATURE_SETS + 1, "estimators")
    *rounds, models = found
    logged, *values = (
        together(
            [one.values[at] for one in rounds], models.values[at], models.windows, episodes.run.evaluate.confidence
        )
        for at in range(1 + len(policies))
    )
    return logged, values


class _Asked(NamedTuple):
    episodes: Episodes
    policies: tuple[Policy, ...]


class _Answer(NamedTuple):
    values: list[Any]
    """Of the logged controller, then of each policy."""
    windows: int
    """Logged windows behind the models' draws; of the rounds none."""


def _answer(number: int, asked: _Asked) -> _Answer:
    """What a worker does."""
    episodes, steps = asked.episodes, asked.episodes.steps
    if number < MODELS:
        rounds = _rounds(episodes, steps, number, None)
        return _Answer([rounds.logged(), *map(rounds.evaluate, asked.policies)], 0)
    learned = _models(episodes, steps, None)
    return _Answer([learned.logged(), *map(learned.evaluate, asked.policies)], len(learned.windows.reward))


def _rounds(episodes: Episodes, steps: fqe.LoggedSteps, number: int, progress: Report | None) -> Rounds:
    """One set of features; the gradient steps of all together are those that the run asks for."""
    run = episodes.run
    each = max(run.evaluate.fqe_updates // FEATURE_SETS, 1)
    if progress:
        progress(number * each, FEATURE_SETS * each, "updates")
    init_key, train_key = jax.random.split(jax.random.fold_in(jax.random.key(run.seed + 1), number))
    fresh, targets = fqe.init_features(init_key, steps), fqe.feature_targets(steps)
    layers = fqe.train_features(fresh, train_key, steps, targets, each, each)[0].layers
    jax.block_until_ready(layers)  # type: ignore[no-untyped-call]
    if progress:
        progress((number + 1) * each, FEATURE_SETS * each, "updates")
    return Rounds(episodes, steps, layers)


def _models(episodes: Episodes, steps: fqe.LoggedSteps, progress: Report | None) -> LearnedModelEvaluator:
    settings = (episodes.normaliser, episodes.history, episodes.horizon, progress)
    return fit_learned_model(episodes.run, steps, *settings)
