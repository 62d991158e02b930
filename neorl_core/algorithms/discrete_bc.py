"""Behaviour cloning of a discrete action: classification of the logged choices."""

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
    """Defaults of discrete BC; a population may vary the floats."""

    hidden: tuple[int, ...] = (64, 64)
    actor_lr: float = 1e-3
    actor_recipe: Recipe = optimisers.TD3


def init(key: PRNGKeyArray, spec: PlantSpec, config: Config) -> State:
    """Fresh parameters and optimiser.

    Args:
        key: randomness of all draws.
        spec: names, units and bounds of observations, and the choices.
        config: hyper-parameters.
    """
    actor = mlp_init(key, spec.observation.size, (*config.hidden, spec.acting))
    return State(actor, optimisers.init(config.actor_recipe, actor), hyperparameters(config))


def actor_loss(actor: Params, batch: Transition) -> Float[Array, ""]:
    """Mean over the batch of `losses.cross_entropy_loss`."""
    return jnp.mean(jax.vmap(losses.cross_entropy_loss)(mlp_apply(actor, batch.observation), batch.action))


def update(state: State, batches: Transition, key: PRNGKeyArray) -> tuple[State, Metrics]:
    """One gradient step; `batches` is (1, B, ...).

    Args:
        state: the learner's state.
        batches: transitions (batches, B, ...), one batch for each gradient step.
        key: randomness of all draws.
    """
    batch: Transition = jax.tree.map(lambda x: x[0], batches)
    loss, gradient = jax.value_and_grad(actor_loss)(state.actor, batch)
    actor, optimiser = optimisers.step(state.actor, gradient, state.actor_optimiser, state.hyper["actor_lr"])
    return State(actor, optimiser, state.hyper), {"actor_loss": loss}


def act(state: State, observation: Float[Array, "*n O"]) -> Float[Array, "*n C"]:
    """Logits of the choices for a normalised observation."""
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
