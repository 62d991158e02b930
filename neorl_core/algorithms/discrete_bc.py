"""Behaviour cloning for discrete actions: classification of the logged choices."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from neorl_core.algorithms import losses
from neorl_core.algorithms.bc import State
from neorl_core.networks import Params, mlp_apply, mlp_init
from neorl_core.training import optimisers
from neorl_core.training.optimisers import Recipe
from neorl_core.training.population import Algorithm, Metrics, hyperparameters
from neorl_core.types import PlantSpec, Transition


class Config(NamedTuple):
    """Default hyper-parameters of discrete BC. Float fields may differ between members."""

    hidden: tuple[int, ...] = (64, 64)
    actor_lr: float = 1e-3
    actor_recipe: Recipe = optimisers.TD3


def init(key: PRNGKeyArray, spec: PlantSpec, config: Config) -> State:
    """Return the initial training state."""
    actor = mlp_init(key, spec.observation.size, (*config.hidden, spec.acting))
    return State(actor, optimisers.init(config.actor_recipe, actor), hyperparameters(config))


def actor_loss(actor: Params, batch: Transition) -> Float[Array, ""]:
    """Return the batch mean of `losses.cross_entropy_loss`."""
    return jnp.mean(jax.vmap(losses.cross_entropy_loss)(mlp_apply(actor, batch.observation), batch.action))


def update(state: State, batches: Transition, key: PRNGKeyArray) -> tuple[State, Metrics]:
    """Take one gradient step on one batch; fields of `batches` are (1, B, ...)."""
    batch: Transition = jax.tree.map(lambda x: x[0], batches)
    loss, gradient = jax.value_and_grad(actor_loss)(state.actor, batch)
    actor, optimiser = optimisers.step(state.actor, gradient, state.actor_optimiser, state.hyper["actor_lr"])
    return State(actor, optimiser, state.hyper), {"actor_loss": loss}


def act(state: State, observation: Float[Array, "*n O"]) -> Float[Array, "*n C"]:
    """Return one logit per choice (..., C) at normalised observations (..., O)."""
    return mlp_apply(state.actor, observation)


DISCRETE_BC = Algorithm(
    name="discrete_bc",
    Config=Config,
    batches_per_update=1,
    init=init,
    update=update,
    act=act,
    actor=lambda s: s.actor,
    discrete=True,
)
