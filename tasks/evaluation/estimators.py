"""Every estimator of a policy's value, fitted to some held-out episodes, and what they say together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import jax
import jax.numpy as jnp

from configs.errors import ServiceMissing
from configs.run import OpenedRun
from neorl_core.networks import Normaliser, Policy, policy_act, to_unit
from neorl_core.ope import fqe
from neorl_core.ope.agreement import Estimate, combine
from neorl_core.ope.model_based import ModelValue, effective_windows
from neorl_core.types import History
from tasks.data.store.episodes import Logs
from tasks.data.store.histories import Past
from tasks.evaluation.cluster import in_order
from tasks.evaluation.model_based import LearnedModelEvaluator, fit_learned_model, lasting, logged_steps, windows
from tasks.models.plants.known import plant_of

if TYPE_CHECKING:
    from distributed import Client

    from tasks.progress import Report

GUESSING = 3
"""Members of each family of models on whose guesses fitted Q evaluation is made, one guess at a time: two would differ
in a direction that the logs hardly determine, along which the rounds run away."""
GUESSED_STEPS = 50
"""Steps of a rollout that a guess is made of; what comes later the rounds of fitted Q evaluation add."""
Answer = TypeVar("Answer")


class Episodes(NamedTuple):
    """What estimators are fitted to."""

    run: OpenedRun
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

    @property
    def allowed(self) -> tuple[float, float]:
        """The lowest and the highest value that the logged rewards allow over the horizon."""
        logged = self.logs.transitions
        reward, ends = jnp.asarray(logged.reward), jnp.any(jnp.asarray(logged.terminated) > 0)
        settings = (self.horizon, self.run.evaluate.discount)
        least, most = fqe.reachable(reward[:, None], jnp.ones_like(reward), ends, *settings)
        return float(least[0]), float(most[0])


class Estimators(NamedTuple):
    """Models of two families, and fitted Q evaluation whose features are what some of their members guess."""

    episodes: Episodes
    learned: LearnedModelEvaluator

    def of(self, policy: Policy) -> Estimate:
        """A policy's estimate; policies of the same estimators meet the same resamples."""
        run, steps, decided = self.episodes.run, self.episodes.steps, decisions(self.episodes, policy)
        settings = (self.episodes.horizon, run.evaluate.discount, run.evaluate.bootstraps)
        rounds = [
            [fqe.evaluate(steps, decided, guesses, jax.random.key(run.seed), *settings) for guesses in family]
            for family in self.guesses(policy, decided)
        ]
        return self._together(rounds, self.learned.evaluate(policy))

    def logged(self) -> Estimate:
        """The logged controller's own estimate, which is what was logged."""
        run, steps = self.episodes.run, self.episodes.steps
        settings = (self.episodes.horizon, run.evaluate.discount, run.evaluate.bootstraps)
        known = fqe.logged(steps, jax.random.key(run.seed), *settings)
        return self._together([[known] * GUESSING] * 2, self.learned.logged())

    def guesses(self, policy: Policy, decided: fqe.Decisions) -> list[list[fqe.Guesses]]:
        """Of the policy's action values, by networks and by regressions."""
        steps = self.episodes.steps
        observation = jnp.concatenate([steps.observation, steps.next_observation, steps.observation[steps.starts]])
        action = jnp.concatenate([steps.action, decided.next_action, decided.initial_action])
        ahead, rows = min(GUESSED_STEPS, self.episodes.horizon), len(steps.reward)
        every = self.learned.action_values(policy, observation, action, GUESSING, ahead)
        families = jnp.moveaxis(every, -1, 0)[..., None]
        return [[fqe.Guesses(*jnp.split(guessed, [rows, 2 * rows])) for guessed in family] for family in families]

    def _together(self, rounds: list[list[fqe.Evaluation]], models: ModelValue) -> Estimate:
        windows = effective_windows(self.learned.windows)
        return combine(
            jax.device_get(rounds), models, self.episodes.allowed, windows, self.episodes.run.evaluate.confidence
        )


def episodes_of(run: OpenedRun, plain: Logs, past: Past, normaliser: Normaliser) -> Episodes:
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
    settings = (episodes.normaliser, episodes.history, episodes.horizon, progress)
    return Estimators(episodes, fit_learned_model(episodes.run, episodes.steps, *settings))


def estimates_by_workers(
    client: Client, episodes: Episodes, policies: Sequence[Policy], progress: Report | None = None
) -> tuple[Estimate, list[Estimate]]:
    """What `fit_estimators` comes to, fitted by a worker of a Dask cluster and asked of each policy by any.

    Args:
        client: of the cluster; no worker needs access to the home.
        episodes: what to fit the estimators to.
        policies: to estimate the values of.
        progress: told of what was fitted or has answered.

    Returns:
        The logged controller's estimate and those of the policies, the same to the last bit as in one process.

    Raises:
        Refused: as `in_order`.
        ServiceMissing: as `in_order`, and when fitting or a policy killed its workers.
    """
    done, of = count(1), 2 + len(policies)

    def whole(answers: Iterator[Answer | None]) -> Iterator[Answer]:
        for answer in answers:
            if answer is None:
                raise ServiceMissing(
                    "expected Dask workers to make estimates, got workers that died of it: give them more memory, then "
                    "run the same command again."
                )
            if progress:
                progress(next(done), of, "estimates")
            yield answer

    (fitted,) = whole(in_order(client, _fitted, [None], jax.device_get(episodes)))
    logged, *found = whole(in_order(client, _answer, [None, *jax.device_get(policies)], fitted))
    return logged, found


def _fitted(_: None, episodes: Episodes) -> Estimators:
    """What a worker does first."""
    found: Estimators = jax.device_get(fit_estimators(episodes))
    return found


def _answer(policy: Policy | None, fitted: Estimators) -> Estimate:
    """What a worker does for a policy, or for the logged controller."""
    return fitted.logged() if policy is None else fitted.of(policy)
