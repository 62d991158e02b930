"""BPTT trains a deterministic policy by back-propagation through time, on rollouts in a learned model.

The gradient of a rollout's return passes through reward, dynamics and policy (SVG(inf) of Heess et al. 2015, arXiv
1510.09142, with a learned model). Two penalties keep the policy near the data: the disagreement of the ensemble, and
the distance beyond the edge of the support (`world_model.support`). The distance is needed because members may agree on
a wrong prediction far from the logs. During warm-up, the ensemble learns and the policy clones the logged actions.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from neorl_core.algorithms import losses
from neorl_core.networks import Ensemble, Params, actor_apply, actor_init
from neorl_core.recurrent import make_recurrence
from neorl_core.training import optimisers
from neorl_core.training.optimisers import Optimiser, Recipe
from neorl_core.training.population import Algorithm, Hyperparameters, Metrics, hyperparameters
from neorl_core.types import PlantSpec, Transition
from neorl_core.world_model import dynamics, support
from neorl_core.world_model.dynamics import Model, Reach
from neorl_core.world_model.rollouts import ModelSteps, expected_rollouts
from neorl_core.world_model.support import Edge, Support


class Config(NamedTuple):
    """Default hyper-parameters for a run of 4,000 updates. Float fields may differ between members.

    The first 3,200 updates are the warm-up, which trains the model.
    """

    hidden: tuple[int, ...] = (64, 64)
    gru: int = 0
    """Units of a GRU that reads the history before the dense layers; 0 for no GRU."""
    model_hidden: tuple[int, ...] = (32, 32)
    members: int = 5
    elites: int = 3
    warm_up_updates: int = 3200
    horizon: int = 25
    starts: int = 128
    """Rollouts per gradient step. They start from the first rows of the batch."""
    discount: float = 0.99
    penalty: float = 1.0
    """Weight of the ensemble's disagreement about observation and reward, all in standard deviations."""
    support: float = 10.0
    """Weight of the distance beyond the support: standard deviations of the reward per support radius."""
    actor_lr: float = 5e-3
    clone_lr: float = 1e-3
    model_lr: float = 1e-2
    actor_recipe: Recipe = Recipe(clip=1.0, schedule="cosine", steps=800)
    model_recipe: Recipe = Recipe(schedule="cosine", steps=3200)


class Shape(NamedTuple):
    """Integers that determine array sizes in rollouts, so they are static in compiled programs."""

    elites: int
    horizon: int
    starts: int


jax.tree_util.register_static(Shape)


class State(NamedTuple):
    """Training state of BPTT."""

    actor: Params
    model: Model
    support: Support
    actor_optimiser: Optimiser
    clone_optimiser: Optimiser
    hyper: Hyperparameters
    shape: Shape


def init(key: PRNGKeyArray, spec: PlantSpec, config: Config) -> State:
    """Return the initial training state."""
    actor_key, model_key = jax.random.split(key)
    support_key = jax.random.fold_in(key, 2)
    sizes = spec.observation.size, spec.action.size
    actor = actor_init(actor_key, *sizes, config.hidden, make_recurrence(spec, config.gru))
    return State(
        actor,
        dynamics.init(model_key, *sizes, config.model_hidden, config.members, config.model_recipe, spec.history),
        support.init(support_key, sum(sizes)),
        actor_optimiser=optimisers.init(config.actor_recipe, actor),
        clone_optimiser=optimisers.init(Recipe(), actor),
        hyper=hyperparameters(config),
        shape=Shape(min(config.elites, config.members), config.horizon, config.starts),
    )


def actor_loss(
    actor: Params,
    members: Ensemble,
    reach: Reach,
    edge: Edge,
    starts: Float[Array, "M B O"],
    horizon: int,
    h: Hyperparameters,
) -> tuple[Float[Array, ""], ModelSteps]:
    """Return the mean of `losses.rollout_loss` over rollouts, and their steps; rewards outside the support are reduced.

    Args:
        reach: range to which rollouts clip their observations.
        starts: (M, B, O) normalised initial observations of B rollouts in each of M members.
    """
    steps = expected_rollouts(members, reach, lambda observation: actor_apply(actor, observation), starts, horizon)
    outside = support.excess(edge, jnp.concatenate([steps.observation, steps.action], axis=-1))
    steps = steps._replace(reward=steps.reward - h["support"] * outside)
    rollout_loss = jax.vmap(jax.vmap(losses.rollout_loss, in_axes=(0, 0, 0, None, None)), in_axes=(0, 0, 0, None, None))
    loss = rollout_loss(steps.reward, steps.alive, steps.disagreement, h["discount"], h["penalty"])
    return jnp.mean(loss), steps


def cloning_loss(actor: Params, batch: Transition) -> Float[Array, ""]:
    """Return the batch mean of `losses.behaviour_cloning_loss`."""
    return jnp.mean(jax.vmap(losses.behaviour_cloning_loss)(actor_apply(actor, batch.observation), batch.action))


def update(state: State, batches: Transition, key: PRNGKeyArray) -> tuple[State, Metrics]:
    """Take one gradient step of the actor on one batch (1, B, ...); each elite model simulates some of the rollouts."""
    h, shape = state.hyper, state.shape
    members = dynamics.elites(state.model, shape.elites)
    rows = batches.observation[0, : shape.starts]
    logged_steps = jnp.concatenate([batches.observation[0], batches.action[0]], axis=-1)
    each = max(rows.shape[0] // shape.elites, 1)
    starts = rows[: each * shape.elites].reshape(shape.elites, each, -1)
    edge = support.edge(state.support, logged_steps)
    (loss, steps), gradient = jax.value_and_grad(actor_loss, has_aux=True)(
        state.actor, members, dynamics.reach(state.model), edge, starts, shape.horizon, h
    )
    actor, optimiser = optimisers.step(state.actor, gradient, state.actor_optimiser, h["actor_lr"])
    metrics = {
        "actor_loss": loss,
        "disagreement": jnp.mean(steps.disagreement),
        "model_error": jnp.mean(state.model.error),
    }
    return state._replace(actor=actor, actor_optimiser=optimiser), metrics


def warm_up(state: State, batches: Transition, key: PRNGKeyArray) -> tuple[State, Metrics]:
    """Take one training step of the ensemble and one cloning step of the actor, on one batch (1, B, ...)."""
    batch: Transition = jax.tree.map(lambda x: x[0], batches)
    model, metrics = dynamics.update(state.model, batch, state.hyper["model_lr"], key)
    gradient = jax.grad(cloning_loss)(state.actor, batch)
    actor, optimiser = optimisers.step(state.actor, gradient, state.clone_optimiser, state.hyper["clone_lr"])
    error = metrics["model_error"]
    zero = jnp.zeros_like(error)
    metrics = {"actor_loss": zero, "disagreement": zero, "model_error": error}
    seen = support.accumulate(state.support, jnp.concatenate([batch.observation, batch.action], axis=-1))
    return state._replace(actor=actor, clone_optimiser=optimiser, model=model, support=seen), metrics


def act(state: State, observation: Float[Array, "*n O"]) -> Float[Array, "*n A"]:
    """Return unit actions (..., A) at normalised observations (..., O)."""
    return actor_apply(state.actor, observation)


BPTT = Algorithm(
    name="bptt",
    Config=Config,
    batches_per_update=1,
    init=init,
    update=update,
    act=act,
    actor=lambda s: s.actor,
    warm_up=warm_up,
    usual_updates=4_000,
)
