"""Behaviour cloning: regression on the logged actions, the baseline that offline RL must beat."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from neorl_core.algorithms import losses
from neorl_core.networks import Params, actor_apply, actor_init, make_body
from neorl_core.training import optimisers
from neorl_core.training.optimisers import Optimiser, Recipe
from neorl_core.training.population import Algorithm, Hyperparameters, Metrics, hyperparameters
from neorl_core.types import PlantSpec, Transition


class Config(NamedTuple):
    """Default hyper-parameters of BC. Float fields may differ between members."""

    hidden: tuple[int, ...] = (64, 64)
    gru: int = 0
    """Units of a GRU that reads the history before the dense layers; 0 for no GRU."""
    graph: int = 0
    """Rounds of message passing in a graph network instead of dense layers; 0 for dense layers."""
    huber: float = 2.0
    """Threshold of the Huber loss in unit actions, positive. At 2, the largest possible error, the policy learns the
    mean of the logged actions. At small values, the policy learns their median."""
    actor_lr: float = 1e-3
    actor_recipe: Recipe = optimisers.TD3


class State(NamedTuple):
    """Training state of BC."""

    actor: Params
    actor_optimiser: Optimiser
    hyper: Hyperparameters


def init(key: PRNGKeyArray, spec: PlantSpec, config: Config) -> State:
    """Return the initial training state."""
    body = make_body(spec, config.hidden, config.gru, config.graph)
    actor = actor_init(key, spec.observation.size, spec.action.size, config.hidden, body)
    return State(actor, optimisers.init(config.actor_recipe, actor), hyperparameters(config))


def actor_loss(actor: Params, batch: Transition, huber: Float[Array, ""]) -> Float[Array, ""]:
    """Return the batch mean of `losses.robust_cloning_loss`."""
    loss = jax.vmap(losses.robust_cloning_loss, in_axes=(0, 0, None))
    return jnp.mean(loss(actor_apply(actor, batch.observation), batch.action, huber))


def update(state: State, batches: Transition, key: PRNGKeyArray) -> tuple[State, Metrics]:
    """Take one gradient step on one batch; fields of `batches` are (1, B, ...)."""
    batch: Transition = jax.tree.map(lambda x: x[0], batches)
    loss, gradient = jax.value_and_grad(actor_loss)(state.actor, batch, state.hyper["huber"])
    actor, optimiser = optimisers.step(state.actor, gradient, state.actor_optimiser, state.hyper["actor_lr"])
    return State(actor, optimiser, state.hyper), {"actor_loss": loss}


def act(state: State, observation: Float[Array, "*n O"]) -> Float[Array, "*n A"]:
    """Return unit actions (..., A) at normalised observations (..., O)."""
    return actor_apply(state.actor, observation)


BC = Algorithm(
    name="bc", Config=Config, batches_per_update=1, init=init, update=update, act=act, actor=lambda s: s.actor
)
