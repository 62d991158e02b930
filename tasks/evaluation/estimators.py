"""Estimate the value of a policy by several estimators, fitted to held-out episodes, and combine their results."""

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
from tasks.data.store.histories import RowHistory
from tasks.evaluation.cluster import in_order
from tasks.evaluation.model_based import LearnedModelEvaluator, fit_learned_model, lasting, logged_steps, windows
from tasks.models.plants.known import plant_of

if TYPE_CHECKING:
    from distributed import Client

    from tasks.progress import Report

GUESSING = 3
"""Number of models of each family whose guesses of action values serve as features of fitted Q evaluation (FQE).

Each run of FQE uses one guess. With two guesses, FQE diverges in their difference, which the logs hardly determine."""
GUESSED_STEPS = 50
"""Number of steps that a guess covers; fitted Q evaluation estimates the later steps."""
Answer = TypeVar("Answer")


class Episodes(NamedTuple):
    """Held-out episodes with history, cut into windows, and the settings of the estimators."""

    run: OpenedRun
    logs: Logs
    """Logs with the policies' history, cut into windows."""
    horizon: int
    """Steps of the estimated return: the plant's horizon, or the median length of the windows if shorter."""
    normaliser: Normaliser
    """Scale of observations with history, and of actions."""
    history: History | None

    @property
    def steps(self) -> fqe.LoggedSteps:
        """Normalised logs."""
        return logged_steps(self.logs, self.normaliser)

    @property
    def allowed(self) -> tuple[float, float]:
        """Lowest and highest possible value, given the logged rewards and the horizon."""
        logged = self.logs.transitions
        reward, ends = jnp.asarray(logged.reward), jnp.any(jnp.asarray(logged.terminated) > 0)
        settings = (self.horizon, self.run.evaluate.discount)
        least, most = fqe.reachable(reward[:, None], jnp.ones_like(reward), ends, *settings)
        return float(least[0]), float(most[0])


class Estimators(NamedTuple):
    """Learned models of two families (networks, regressions), and fitted Q evaluation that uses the models' guesses."""

    episodes: Episodes
    learned: LearnedModelEvaluator

    def of(self, policy: Policy) -> Estimate:
        """Estimate a policy's value, with the same bootstrap resamples for all policies."""
        run, steps, decided = self.episodes.run, self.episodes.steps, decisions(self.episodes, policy)
        settings = (self.episodes.horizon, run.evaluate.discount, run.evaluate.bootstraps)
        rounds = [
            [fqe.evaluate(steps, decided, guesses, jax.random.key(run.seed), *settings) for guesses in family]
            for family in self.guesses(policy, decided)
        ]
        return self._together(rounds, self.learned.evaluate(policy))

    def logged(self) -> Estimate:
        """Estimate the value of the logged controller."""
        run, steps = self.episodes.run, self.episodes.steps
        settings = (self.episodes.horizon, run.evaluate.discount, run.evaluate.bootstraps)
        known = fqe.logged(steps, jax.random.key(run.seed), *settings)
        return self._together([[known] * GUESSING] * 2, self.learned.logged())

    def guesses(self, policy: Policy, decided: fqe.Decisions) -> list[list[fqe.Guesses]]:
        """Return guesses of the policy's action values, first by the networks, then by the regressions."""
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


def episodes_of(run: OpenedRun, plain: Logs, past: RowHistory, normaliser: Normaliser) -> Episodes:
    """Prepare the data for the estimators.

    Args:
        plain: held-out episodes, without history.
        past: adds the policies' history to observations.
        normaliser: scale of observations with history, and of actions.
    """
    every = past.stacked(plain)
    horizon = lasting(every, plant_of(run).spec.horizon)
    return Episodes(run, windows(every, horizon), horizon, normaliser, past.history)


def decisions(episodes: Episodes, policy: Policy) -> fqe.Decisions:
    """Return a policy's normalised actions at all next observations and at the first observation of each window."""
    t, scale = episodes.logs.transitions, episodes.normaliser
    return fqe.Decisions(
        to_unit(scale, policy_act(policy, jnp.asarray(t.next_observation))),
        to_unit(scale, policy_act(policy, jnp.asarray(t.observation[episodes.logs.starts]))),
    )


def fit_estimators(episodes: Episodes, progress: Report | None = None) -> Estimators:
    """Fit the estimators to held-out episodes."""
    settings = (episodes.normaliser, episodes.history, episodes.horizon, progress)
    return Estimators(episodes, fit_learned_model(episodes.run, episodes.steps, *settings))


def estimates_by_workers(
    client: Client, episodes: Episodes, policies: Sequence[Policy], progress: Report | None = None
) -> tuple[Estimate, list[Estimate]]:
    """Fit the estimators on one worker of a Dask cluster, and estimate policies on any worker.

    Returns:
        The estimate of the logged controller, and one estimate per policy, identical to those of one process.

    Raises:
        Refused: as `in_order`.
        ServiceMissing: as `in_order`, or if a task killed its workers.
    """
    done, of = count(1), 2 + len(policies)

    def whole(answers: Iterator[Answer | None]) -> Iterator[Answer]:
        for answer in answers:
            if answer is None:
                raise ServiceMissing(
                    f"estimating {len(policies)} policies crashed the Dask workers: give the workers more memory, then "
                    "repeat the command"
                )
            if progress:
                progress(next(done), of, "estimates")
            yield answer

    (fitted,) = whole(in_order(client, _fitted, [None], jax.device_get(episodes)))
    logged, *found = whole(in_order(client, _answer, [None, *jax.device_get(policies)], fitted))
    return logged, found


def _fitted(_: None, episodes: Episodes) -> Estimators:
    """Fit the estimators on a worker."""
    found: Estimators = jax.device_get(fit_estimators(episodes))
    return found


def _answer(policy: Policy | None, fitted: Estimators) -> Estimate:
    """Estimate a policy, or the logged controller, on a worker."""
    return fitted.logged() if policy is None else fitted.of(policy)
