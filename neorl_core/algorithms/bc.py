"""Behaviour cloning: regression on the logged actions, the baseline that offline RL must beat."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PRNGKeyArray

from neorl_core.algorithms import losses
from neorl_core.networks import Params, actor_apply, actor_init
from neorl_core.training import Algorithm, Hyperparameters, Metrics, adam_step, hyperparameters
from neorl_core.types import PlantSpec, Transition


class Config(NamedTuple):
    """Defaults of BC; a population may vary the floats."""

    hidden: tuple[int, ...] = (64, 64)
    actor_lr: float = 1e-3


class State(NamedTuple):
    actor: Params
    actor_optimiser: optax.OptState
    hyper: Hyperparameters


def init(key: PRNGKeyArray, spec: PlantSpec, config: Config) -> State:
    """Fresh parameters and optimiser."""
    actor = actor_init(key, spec.observation.size, spec.action.size, config.hidden)
    return State(actor, optax.scale_by_adam().init(actor), hyperparameters(config))


def actor_loss(actor: Params, batch: Transition) -> Float[Array, ""]:
    """Mean over the batch of `losses.behaviour_cloning_loss`."""
    return jnp.mean(jax.vmap(losses.behaviour_cloning_loss)(actor_apply(actor, batch.observation), batch.action))


def update(state: State, batches: Transition, key: PRNGKeyArray) -> tuple[State, Metrics]:
    """One gradient step; `batches` is (1, B, ...)."""
    batch: Transition = jax.tree.map(lambda x: x[0], batches)
    loss, gradient = jax.value_and_grad(actor_loss)(state.actor, batch)
    actor, optimiser = adam_step(state.actor, gradient, state.actor_optimiser, state.hyper["actor_lr"])
    return State(actor, optimiser, state.hyper), {"actor_loss": loss}


def act(state: State, observation: Float[Array, "*n O"]) -> Float[Array, "*n A"]:
    """Unit action for a normalised observation."""
    return actor_apply(state.actor, observation)


BC = Algorithm(
    name="bc", Config=Config, batches_per_update=1, init=init, update=update, act=act, actor=lambda s: s.actor
)
