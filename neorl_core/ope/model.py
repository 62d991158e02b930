"""Model-based evaluation: a policy's value by rollouts in an ensemble that was fitted to held-out episodes.

The ensemble must not be one that the policy was trained in: a policy goes where its own model errs to its favour
(optimiser's curse). Fitted to other episodes, the errors are others. Rewards are standardised for the fit and put back
into their units for the value.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from neorl_core.networks import Ensemble, Normaliser, Policy, policy_act, to_unit
from neorl_core.training.optimisers import Recipe
from neorl_core.types import History, Transition
from neorl_core.world_model import dynamics
from neorl_core.world_model.dynamics import Model
from neorl_core.world_model.rollouts import expected_rollouts

MEMBERS = 3
HIDDEN = (32, 32)


class LearnedModel(NamedTuple):
    """An ensemble in normalised units and what turns its rewards back into the plant's."""

    model: Model
    reward_mean: Float[Array, ""]
    reward_scale: Float[Array, ""]


class ModelValue(NamedTuple):
    """A policy's discounted return over the horizon from the initial states of held-out episodes."""

    value: Float[Array, "*p"]
    draws: Float[Array, "*p B"]
    """Draws of `value` over members and initial states. Same key, same resamples: subtract two policies' draws."""
    disagreement: Float[Array, "*p"]
    """How far the members lie apart, a mean over all steps, in standard deviations of an observation."""


@partial(jax.jit, static_argnames=("updates", "history"))
def init(
    key: PRNGKeyArray, data: Transition, updates: int, history: History | None = None
) -> tuple[LearnedModel, Transition]:
    """A learned model before its training, and the data as `dynamics.train` takes them.

    Args:
        key: randomness of the ensemble's initial weights.
        data: (N, ...), observations and actions normalised, rewards in their own unit.
        updates: gradient steps that will be made, over which the learning rate falls.
        history: which earlier values stand behind the observations.
    """
    scale = jnp.std(data.reward)
    scale = jnp.where(scale > 1e-6, scale, jnp.ones_like(scale))
    mean = jnp.mean(data.reward)
    sizes = data.observation.shape[-1], data.action.shape[-1]
    model = dynamics.init(key, *sizes, HIDDEN, MEMBERS, Recipe(schedule="cosine", steps=updates), history)
    return LearnedModel(model, mean, scale), data._replace(reward=(data.reward - mean) / scale)


@partial(jax.jit, static_argnames=("horizon", "bootstraps"))
def evaluate(
    learned: LearnedModel,
    normaliser: Normaliser,
    policy: Policy,
    starts: Float[Array, "E S"],
    key: PRNGKeyArray,
    horizon: int,
    discount: float = 0.99,
    bootstraps: int = 1000,
) -> ModelValue:
    """Value of one policy, a mean over all members and initial states.

    `V = mean_{m,e} sum_{t<H} discount^t alive_t r_t`; draws resample members and initial states, each with
    replacement, as two crossed factors of which both were drawn by chance (Owen 2007, The pigeonhole bootstrap).

    Args:
        learned: trained on episodes that the policy was not.
        normaliser: scale of the model's observations and actions; the policy has its own.
        policy: whose value is asked for.
        starts: (E, S) normalised initial states.
        key: randomness of the resamples; use one for all policies that are compared.
        horizon: steps H.
        discount: discount factor per step.
        bootstraps: resamples B.
    """
    members: Ensemble = learned.model.members
    count, episodes = len(members), starts.shape[0]

    def act(observation: Float[Array, " S"]) -> Float[Array, " A"]:
        physical = observation * normaliser.scale + normaliser.mean
        return to_unit(normaliser, policy_act(policy, physical))

    steps = expected_rollouts(
        members, dynamics.reach(learned.model), act, jnp.broadcast_to(starts, (count, *starts.shape)), horizon
    )
    weight = jnp.asarray(discount, starts.dtype) ** jnp.arange(horizon, dtype=starts.dtype)
    returns = (steps.alive * (learned.reward_mean + learned.reward_scale * steps.reward)) @ weight

    def draw(key: PRNGKeyArray) -> Float[Array, ""]:
        of_members, of_starts = jax.random.split(key)
        chosen = returns[jax.random.randint(of_members, (count,), 0, count)]
        return jnp.mean(chosen[:, jax.random.randint(of_starts, (episodes,), 0, episodes)])

    draws = jax.vmap(draw)(jax.random.split(key, bootstraps))
    return ModelValue(jnp.mean(returns), draws, jnp.mean(steps.disagreement))
