"""Cloning by absolute differences: the policy learns the median of the logged actions, so outliers have no effect."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from neorl_core.networks import Params, actor_apply, actor_init
from neorl_core.training import optimisers
from neorl_core.training.population import Algorithm, Hyperparameters, Metrics, hyperparameters
from neorl_core.types import PlantSpec, Transition


class Config(NamedTuple):
    hidden: tuple[int, ...] = (64, 64)
    actor_lr: float = 1e-3
    actor_recipe: optimisers.Recipe = optimisers.TD3


class State(NamedTuple):
    actor: Params
    optimiser: optimisers.Optimiser
    hyper: Hyperparameters


def init(key: PRNGKeyArray, spec: PlantSpec, config: Config) -> State:
    actor = actor_init(key, spec.observation.size, spec.action.size, config.hidden)
    return State(actor, optimisers.init(config.actor_recipe, actor), hyperparameters(config))


def loss(actor: Params, batch: Transition) -> Float[Array, ""]:
    return jnp.mean(jnp.abs(actor_apply(actor, batch.observation) - batch.action))


def update(state: State, batches: Transition, key: PRNGKeyArray) -> tuple[State, Metrics]:
    batch: Transition = jax.tree.map(lambda x: x[0], batches)
    value, gradient = jax.value_and_grad(loss)(state.actor, batch)
    actor, optimiser = optimisers.step(state.actor, gradient, state.optimiser, state.hyper["actor_lr"])
    return State(actor, optimiser, state.hyper), {"actor_loss": value}


def act(state: State, observation: Float[Array, "*n O"]) -> Float[Array, "*n A"]:
    return actor_apply(state.actor, observation)


ALGORITHM = Algorithm("median_cloning", Config, 1, init, update, act, actor=lambda state: state.actor)
