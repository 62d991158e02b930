"""Behaviour cloning: regression on the logged actions, the baseline that offline RL must beat."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from neorl_core.algorithms import losses
from neorl_core.networks import Params, actor_apply, actor_init, body_of
from neorl_core.training import optimisers
from neorl_core.training.optimisers import Optimiser, Recipe
from neorl_core.training.population import Algorithm, Hyperparameters, Metrics, hyperparameters
from neorl_core.types import PlantSpec, Transition


class Config(NamedTuple):
    """Defaults of BC; a population may vary the floats."""

    hidden: tuple[int, ...] = (64, 64)
    gru: int = 0
    """Units of a recurrent unit that reads the run's `history` before the actor's layers; none by default."""
    graph: int = 0
    """Rounds of message passing over the plant's layout in place of dense layers; none by default."""
    huber: float = 2.0
    """Error of an action, in half ranges and above 0, beyond which it counts linearly. No error is greater than 2, so
    that by default all are squared and the clone is the mean of what was logged at a state. The smaller it is, the
    nearer is the clone to the median, which acts as one of several controllers did, and at a bound where one did."""
    actor_lr: float = 1e-3
    actor_recipe: Recipe = optimisers.TD3


class State(NamedTuple):
    """All that behaviour cloning remembers between two updates."""

    actor: Params
    actor_optimiser: Optimiser
    hyper: Hyperparameters


def init(key: PRNGKeyArray, spec: PlantSpec, config: Config) -> State:
    """Fresh parameters and optimiser.

    Args:
        key: randomness of all draws.
        spec: names, units and bounds of observations and actions.
        config: hyper-parameters.
    """
    body = body_of(spec, config.hidden, config.gru, config.graph)
    actor = actor_init(key, spec.observation.size, spec.action.size, config.hidden, body)
    return State(actor, optimisers.init(config.actor_recipe, actor), hyperparameters(config))


def actor_loss(actor: Params, batch: Transition, huber: Float[Array, ""]) -> Float[Array, ""]:
    """Mean over the batch of `losses.robust_cloning_loss`.

    Args:
        actor: weights of the actor.
        batch: transitions (B, ...).
        huber: error of an action beyond which it counts linearly.
    """
    loss = jax.vmap(losses.robust_cloning_loss, in_axes=(0, 0, None))
    return jnp.mean(loss(actor_apply(actor, batch.observation), batch.action, huber))


def update(state: State, batches: Transition, key: PRNGKeyArray) -> tuple[State, Metrics]:
    """One gradient step; `batches` is (1, B, ...).

    Args:
        state: the learner's state.
        batches: transitions (batches, B, ...), one batch for each gradient step.
        key: randomness of all draws.
    """
    batch: Transition = jax.tree.map(lambda x: x[0], batches)
    loss, gradient = jax.value_and_grad(actor_loss)(state.actor, batch, state.hyper["huber"])
    actor, optimiser = optimisers.step(state.actor, gradient, state.actor_optimiser, state.hyper["actor_lr"])
    return State(actor, optimiser, state.hyper), {"actor_loss": loss}


def act(state: State, observation: Float[Array, "*n O"]) -> Float[Array, "*n A"]:
    """Unit action for a normalised observation."""
    return actor_apply(state.actor, observation)


BC = Algorithm(
    name="bc", Config=Config, batches_per_update=1, init=init, update=update, act=act, actor=lambda s: s.actor
)
