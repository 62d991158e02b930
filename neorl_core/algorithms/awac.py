"""Advantage-weighted actor critic (Nair, Gupta, Dalal & Levine 2020, arXiv 2006.09359) with any number of critics."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from neorl_core.algorithms import losses
from neorl_core.algorithms.iql import actor_loss, critic_loss
from neorl_core.networks import (
    Ensemble,
    NormalActor,
    actor_apply,
    critics_apply,
    critics_init,
    normal_apply,
    normal_init,
    normal_sample,
)
from neorl_core.training import optimisers
from neorl_core.training.optimisers import Optimiser, Recipe
from neorl_core.training.population import Algorithm, Hyperparameters, Metrics, hyperparameters, polyak
from neorl_core.types import PlantSpec, Transition


class Config(NamedTuple):
    """Default hyper-parameters of AWAC. Float fields may differ between members.

    The advantage weights follow the paper and are clipped as in IQL; the paper's code normalises them by a softmax over
    the batch. The paper uses four layers of 256 units and a weight decay of 1e-4.
    """

    hidden: tuple[int, ...] = (64, 64)
    critics: int = 2
    temperature: float = 1.0
    """The paper's lambda. Large values give behaviour cloning; small values favour actions with a high Q."""
    discount: float = 0.99
    tau: float = 0.005
    actor_lr: float = 3e-4
    critic_lr: float = 3e-4
    actor_recipe: Recipe = optimisers.TD3
    critic_recipe: Recipe = optimisers.TD3


class State(NamedTuple):
    """Training state of AWAC."""

    actor: NormalActor
    critics: Ensemble
    critics_target: Ensemble
    actor_optimiser: Optimiser
    critics_optimiser: Optimiser
    hyper: Hyperparameters


def init(key: PRNGKeyArray, spec: PlantSpec, config: Config) -> State:
    """Return the initial training state; the target critics start equal to the critics."""
    actor_key, critic_key = jax.random.split(key)
    sizes = spec.observation.size, spec.action.size
    actor = normal_init(actor_key, *sizes, config.hidden)
    critics = critics_init(critic_key, *sizes, config.hidden, config.critics)
    return State(
        actor,
        critics,
        critics_target=critics,
        actor_optimiser=optimisers.init(config.actor_recipe, actor),
        critics_optimiser=optimisers.init(config.critic_recipe, critics),
        hyper=hyperparameters(config),
    )


def min_q(
    critics: Ensemble, actor: NormalActor, observation: Float[Array, "B O"], key: PRNGKeyArray
) -> Float[Array, " B"]:
    """Return `min_i Q_i(s, a)` (B,) over critics Q_i, at actions a sampled from the policy."""
    distribution = normal_apply(actor, observation)
    noise = jax.random.normal(key, distribution.mean.shape, distribution.mean.dtype)
    return jnp.min(critics_apply(critics, observation, normal_sample(distribution, noise)), axis=0)


def targets(state: State, batch: Transition, key: PRNGKeyArray) -> Float[Array, " B"]:
    """Return TD targets (B,): `losses.td_target` of the target critics, at next actions sampled from the policy."""
    q_next = min_q(state.critics_target, state.actor, batch.next_observation, key)
    target = jax.vmap(losses.td_target, in_axes=(0, None, 0, 0))
    return target(batch.reward, state.hyper["discount"], batch.terminated, q_next[:, None])


def weights(state: State, batch: Transition, key: PRNGKeyArray) -> Float[Array, " B"]:
    """Return weights (B,) of logged actions a: `losses.advantage_weight` of `Q(s, a) - Q(s, a')`, a' by the policy."""
    q = jnp.min(critics_apply(state.critics, batch.observation, batch.action), axis=0)
    advantage = q - min_q(state.critics, state.actor, batch.observation, key)
    return jax.vmap(losses.advantage_weight, in_axes=(0, None))(advantage, 1.0 / state.hyper["temperature"])


def update(state: State, batches: Transition, key: PRNGKeyArray) -> tuple[State, Metrics]:
    """Update the critics, then the actor with the new critics, on one batch; fields of `batches` are (1, B, ...)."""
    batch: Transition = jax.tree.map(lambda x: x[0], batches)
    h = state.hyper
    next_key, value_key = jax.random.split(key)
    target = targets(state, batch, next_key)
    q_loss, gradient = jax.value_and_grad(critic_loss)(state.critics, batch, target)
    critics, optimiser = optimisers.step(state.critics, gradient, state.critics_optimiser, h["critic_lr"])
    state = state._replace(
        critics=critics, critics_optimiser=optimiser, critics_target=polyak(state.critics_target, critics, h["tau"])
    )
    pi_loss, gradient = jax.value_and_grad(actor_loss)(state.actor, batch, weights(state, batch, value_key))
    actor, optimiser = optimisers.step(state.actor, gradient, state.actor_optimiser, h["actor_lr"])
    state = state._replace(actor=actor, actor_optimiser=optimiser)
    return state, {"actor_loss": pi_loss, "critic_loss": q_loss, "q": jnp.mean(target)}


def act(state: State, observation: Float[Array, "*n O"]) -> Float[Array, "*n A"]:
    """Return the policy's mean unit actions (..., A) at normalised observations (..., O)."""
    return actor_apply(state.actor.mean, observation)


AWAC = Algorithm(
    name="awac", Config=Config, batches_per_update=1, init=init, update=update, act=act, actor=lambda s: s.actor.mean
)
