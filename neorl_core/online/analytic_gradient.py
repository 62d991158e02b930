"""Analytic policy gradient: differentiate the return of whole episodes by the weights of the policy.

The gradient passes through reward, plant and policy (SVG(inf) of Heess et al. 2015, arXiv 1510.09142, on the simulator
itself). The policy observes the action and the state of the plant's controller, and moves its action or set points, so
it starts about as good as the controller. The first updates run the policy without the shield. The last updates run the
composite, so that the gradient passes through the shield's choices and the policy learns to keep control. Every update
simulates new episodes of the operating domain. The backward pass stores the state before each step and the shield's
choice, and computes the rest of the step again.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from neorl_core.networks import Normaliser
from neorl_core.online.learner import Learner, Setting, composite_of, first_actor, shortfalls, without_plant
from neorl_core.plants.base import rollout
from neorl_core.safety.composite import (
    composite_controller,
    unshielded_controller,
)
from neorl_core.safety.shield import ShieldParams
from neorl_core.training import optimisers
from neorl_core.training.optimisers import Optimiser, Recipe
from neorl_core.training.population import Algorithm, Hyperparameters, Metrics, hyperparameters
from neorl_core.types import Params


class Config(NamedTuple):
    """Hyper-parameters. Float fields may differ between members."""

    hidden: tuple[int, ...] = (64, 64)
    warm_up_updates: int = 300
    """Updates at the start that run the policy without the shield; the later updates run the composite."""
    episodes: int = 64
    """Episodes of an update."""
    actor_lr: float = 2e-3
    recipe: Recipe = Recipe(clip=1.0, schedule="cosine", steps=600)
    margin: float = 1.2
    """Margin below which a step is penalised, as a multiple of the shield's buffer."""
    margin_weight: float = 100.0
    """Points of score that an episode loses for a step on a limit; the loss grows with the square of the shortfall."""


class State(NamedTuple):
    """Training state."""

    actor: Params
    optimiser: Optimiser
    hyper: Hyperparameters
    shield: ShieldParams
    """Never changes. Shield and normaliser are in the state, so that programs do not depend on their numbers."""
    normaliser: Normaliser


def init(key: PRNGKeyArray, setting: Setting) -> State:
    """Return the initial training state: an actor that hardly moves the plant's controller."""
    _, shield, normaliser, config = setting
    actor = first_actor(key, normaliser, config.hidden)
    return State(actor, optimisers.init(config.recipe, actor), hyperparameters(config), shield, normaliser)


def loss(actor: Params, setting: Setting, key: PRNGKeyArray, protected: bool) -> tuple[Float[Array, ""], Metrics]:
    """Return the loss of one episode, in points of score, and metrics.

    loss = −score + weight · Σ relu(1 − margin/least)², over steps and limits.

    Args:
        key: key of the episode, as for `rollouts`.
        protected: whether the composite runs, or the policy without the shield.
    """
    plant, config = setting.plant, setting.config
    controller = composite_controller(plant) if protected else unshielded_controller(plant)
    params = composite_of(actor, setting)
    key_constants, key_run = jax.random.split(key)
    trace = rollout(plant, controller, params, key_run, plant.sample_params(key_constants, plant.domain), True)
    shortfall = shortfalls(trace.margins, setting.shield, config.margin)
    penalty = jnp.sum(jnp.where(trace.alive[:, None], shortfall, 0.0) ** 2)
    low, high = plant.spec.score_range
    score = (jnp.sum(trace.rewards) - low) / (high - low) * 100.0
    taken = jnp.sum(trace.handed_over) / jnp.sum(trace.alive)
    crossed = jnp.any((trace.margins < 0) & trace.alive[:, None]).astype(float)
    metrics = {"score": score, "penalty": penalty, "violated": crossed, "taken_over": taken}
    return -score + config.margin_weight * penalty, metrics


def bounded_mean(gradients: Params) -> tuple[Params, Float[Array, ""]]:
    """Return the mean of E gradients, each scaled down to a median norm, and the share of finite gradients.

    The gradient of a chaotic episode is many orders of magnitude larger than the others and says nothing about the
    mean (Metz et al. 2021, arXiv 2111.05803). The median is over gradients that are finite and not zero. A gradient
    that is not finite counts as zero.

    Args:
        gradients: leaves (E, ...).
    """
    leaves = jax.tree.leaves(gradients)
    norm = jnp.sqrt(sum(jnp.sum(leaf.reshape(leaf.shape[0], -1) ** 2, axis=1) for leaf in leaves))
    finite = jnp.isfinite(norm)
    median = jnp.nan_to_num(jnp.nanmedian(jnp.where(finite & (norm > 0), norm, jnp.nan)))
    weight = jnp.where(finite, jnp.minimum(1.0, median / jnp.maximum(norm, 1e-30)), 0.0) / norm.shape[0]

    def mean(leaf: Float[Array, "E ..."]) -> Float[Array, ...]:
        along = weight.reshape(-1, *(1,) * (leaf.ndim - 1))
        return jnp.sum(jnp.where(along > 0, leaf * along, 0.0), axis=0)

    return jax.tree.map(mean, gradients), jnp.mean(finite)


def update(state: State, setting: Setting, key: PRNGKeyArray, protected: bool) -> tuple[State, Metrics]:
    """Take one gradient step on new episodes."""
    slope = jax.grad(loss, has_aux=True)
    keys = jax.random.split(key, setting.config.episodes)
    gradients, metrics = jax.vmap(lambda key: slope(state.actor, setting, key, protected))(keys)
    gradient, finite = bounded_mean(gradients)
    actor, optimiser = optimisers.step(state.actor, gradient, state.optimiser, jnp.asarray(setting.config.actor_lr))
    steep = jnp.max(jnp.stack([jnp.max(jnp.abs(leaf)) for leaf in jax.tree.leaves(gradient)]))
    # An episode that is not finite counts in `finite` only.
    means = jax.tree.map(lambda x: jnp.mean(x, where=jnp.isfinite(x)), metrics)
    found = means | {"finite": finite, "gradient": steep}
    return state._replace(actor=actor, optimiser=optimiser), found


LEARNER = Learner(
    Algorithm(
        name="analytic_gradient",
        Config=Config,
        batches_per_update=1,
        init=without_plant,
        update=without_plant,
        act=without_plant,
        actor=lambda state: state.actor,
        warm_up=without_plant,
        usual_updates=600,
    ),
    init,
    update,
)
