"""TD3+BC (Fujimoto & Gu 2021, arXiv 2106.06860) with any number of critics."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from neorl_core.algorithms import losses
from neorl_core.networks import Ensemble, Params, actor_apply, actor_init, critics_apply, critics_init, make_body
from neorl_core.training import optimisers
from neorl_core.training.optimisers import Optimiser, Recipe
from neorl_core.training.population import Algorithm, Hyperparameters, Metrics, hyperparameters, polyak
from neorl_core.types import PlantSpec, Transition


class Config(NamedTuple):
    """Default hyper-parameters of TD3+BC. Float fields may differ between members."""

    hidden: tuple[int, ...] = (64, 64)
    gru: int = 0
    """Units of a GRU that reads the history before the dense layers; 0 for no GRU."""
    graph: int = 0
    """Rounds of message passing in a graph network instead of dense layers; 0 for dense layers."""
    critics: int = 2
    alpha: float = 2.5
    discount: float = 0.99
    tau: float = 0.005
    actor_lr: float = 3e-4
    critic_lr: float = 3e-4
    noise: float = 0.2
    noise_clip: float = 0.5
    actor_recipe: Recipe = optimisers.TD3
    critic_recipe: Recipe = optimisers.TD3


class State(NamedTuple):
    """Training state of TD3+BC."""

    actor: Params
    critics: Ensemble
    actor_target: Params
    critics_target: Ensemble
    actor_optimiser: Optimiser
    critics_optimiser: Optimiser
    hyper: Hyperparameters


def init(key: PRNGKeyArray, spec: PlantSpec, config: Config) -> State:
    """Return the initial training state; target networks start equal to the networks."""
    actor_key, critic_key = jax.random.split(key)
    sizes = spec.observation.size, spec.action.size
    body = make_body(spec, config.hidden, config.gru, config.graph)
    actor = actor_init(actor_key, *sizes, config.hidden, body)
    critics = critics_init(critic_key, *sizes, config.hidden, config.critics, body=body)
    return State(
        actor,
        critics,
        actor_target=actor,
        critics_target=critics,
        actor_optimiser=optimisers.init(config.actor_recipe, actor),
        critics_optimiser=optimisers.init(config.critic_recipe, critics),
        hyper=hyperparameters(config),
    )


def critic_loss(critics: Ensemble, batch: Transition, target: Float[Array, " B"]) -> Float[Array, ""]:
    """Return the batch mean of `losses.td_loss` for targets (B,)."""
    q = critics_apply(critics, batch.observation, batch.action)
    return jnp.mean(jax.vmap(losses.td_loss, in_axes=(1, 0))(q, target))


def next_action(state: State, batch: Transition, key: PRNGKeyArray) -> Float[Array, "B A"]:
    """Return next actions (B, A): `losses.smoothed_action` of the target actor."""
    noise = jax.random.normal(key, batch.action.shape, batch.action.dtype)
    smoothed = jax.vmap(losses.smoothed_action, in_axes=(0, 0, None, None))
    action = actor_apply(state.actor_target, batch.next_observation)
    return smoothed(action, noise, state.hyper["noise"], state.hyper["noise_clip"])


def targets(state: State, batch: Transition, key: PRNGKeyArray) -> Float[Array, " B"]:
    """Return TD targets (B,): `losses.td_target` at the smoothed action of the target actor."""
    action = next_action(state, batch, key)
    q_next = critics_apply(state.critics_target, batch.next_observation, action)
    target = jax.vmap(losses.td_target, in_axes=(0, None, 0, 1))
    return target(batch.reward, state.hyper["discount"], batch.terminated, q_next)


def followed(critics: Ensemble) -> Ensemble:
    """Return the critics that the actor maximises: the first of two critics as in the paper, else all critics.

    A larger ensemble serves pessimism (An et al. 2021, arXiv 2110.01548), so the actor needs all critics.
    """
    return critics[:1] if len(critics) == 2 else critics


def actor_loss(actor: Params, critics: Ensemble, batch: Transition, alpha: Float[Array, ""]) -> Float[Array, ""]:
    """Return the batch mean of `losses.td3_bc_actor_loss`."""
    action = actor_apply(actor, batch.observation)
    q = jnp.min(critics_apply(followed(critics), batch.observation, action), axis=0)
    weight = jax.lax.stop_gradient(losses.q_weight(alpha, q))
    loss = jax.vmap(losses.td3_bc_actor_loss, in_axes=(0, None, 0, 0))
    return jnp.mean(loss(q, weight, action, batch.action))


def update_critics(state: State, batch: Transition, key: PRNGKeyArray) -> tuple[State, Metrics]:
    """Take one gradient step of all critics towards `targets`."""
    target = targets(state, batch, key)
    loss, gradient = jax.value_and_grad(critic_loss)(state.critics, batch, target)
    critics, optimiser = optimisers.step(state.critics, gradient, state.critics_optimiser, state.hyper["critic_lr"])
    metrics = {"critic_loss": loss, "q": jnp.mean(target)}
    return state._replace(critics=critics, critics_optimiser=optimiser), metrics


def update_actor(state: State, batch: Transition) -> tuple[State, Metrics]:
    """Take one gradient step of the actor, then update all target networks."""
    h = state.hyper
    loss, gradient = jax.value_and_grad(actor_loss)(state.actor, state.critics, batch, h["alpha"])
    actor, optimiser = optimisers.step(state.actor, gradient, state.actor_optimiser, h["actor_lr"])
    state = state._replace(
        actor=actor,
        actor_optimiser=optimiser,
        actor_target=polyak(state.actor_target, actor, h["tau"]),
        critics_target=polyak(state.critics_target, state.critics, h["tau"]),
    )
    return state, {"actor_loss": loss}


def update(state: State, batches: Transition, key: PRNGKeyArray) -> tuple[State, Metrics]:
    """Take two critic steps and one actor step, the delay of the paper; fields of `batches` are (2, B, ...)."""
    first, second = (jax.tree.map(lambda x, i=i: x[i], batches) for i in range(2))
    first_key, second_key = jax.random.split(key)
    state, _ = update_critics(state, first, first_key)
    state, critic_metrics = update_critics(state, second, second_key)
    state, actor_metrics = update_actor(state, second)
    return state, critic_metrics | actor_metrics


def act(state: State, observation: Float[Array, "*n O"]) -> Float[Array, "*n A"]:
    """Return unit actions (..., A) at normalised observations (..., O)."""
    return actor_apply(state.actor, observation)


TD3_BC = Algorithm(
    name="td3_bc", Config=Config, batches_per_update=2, init=init, update=update, act=act, actor=lambda s: s.actor
)
