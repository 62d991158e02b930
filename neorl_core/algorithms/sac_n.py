"""SAC-N (An et al. 2021, arXiv 2110.01548): soft actor-critic with the minimum over N critics.

With two critics, SAC-N is SAC (Haarnoja et al. 2018, arXiv 1812.05905). EDAC, CQL and MOPO reuse these functions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from neorl_core.algorithms import losses
from neorl_core.networks import (
    Ensemble,
    Params,
    actor_apply,
    critics_apply,
    critics_init,
    gaussian_apply,
    gaussian_init,
    mean_actor,
    squash,
)
from neorl_core.training import optimisers
from neorl_core.training.optimisers import Optimiser, Recipe
from neorl_core.training.population import Algorithm, Hyperparameters, Metrics, hyperparameters, polyak
from neorl_core.types import PlantSpec, Transition


class Config(NamedTuple):
    """Default hyper-parameters of SAC-N. Float fields may differ between members. The paper has three layers of 256."""

    hidden: tuple[int, ...] = (64, 64)
    critics: int = 10
    discount: float = 0.99
    tau: float = 0.005
    actor_lr: float = 3e-4
    critic_lr: float = 3e-4
    temperature: float = 1.0
    """Initial temperature. Training adapts the temperature to a target entropy of minus the number of actions."""
    temperature_lr: float = 3e-4
    actor_recipe: Recipe = optimisers.SAC
    critic_recipe: Recipe = optimisers.SAC
    """The default clips gradients; the paper does not."""


class State(NamedTuple):
    """Training state of SAC-N."""

    actor: Params
    critics: Ensemble
    critics_target: Ensemble
    log_temperature: Float[Array, ""]
    actor_optimiser: Optimiser
    critics_optimiser: Optimiser
    temperature_optimiser: Optimiser
    hyper: Hyperparameters


def init(key: PRNGKeyArray, spec: PlantSpec, config: Any) -> State:
    """Return the initial training state; `config` is the `Config` of SAC-N or of an algorithm that builds on SAC-N."""
    actor_key, critic_key = jax.random.split(key)
    sizes = spec.observation.size, spec.action.size
    actor = gaussian_init(actor_key, *sizes, config.hidden)
    critics = critics_init(critic_key, *sizes, config.hidden, config.critics)
    log_temperature = jnp.log(jnp.asarray(config.temperature, jnp.result_type(float)))
    return State(
        actor,
        critics,
        critics_target=critics,
        log_temperature=log_temperature,
        actor_optimiser=optimisers.init(config.actor_recipe, actor),
        critics_optimiser=optimisers.init(config.critic_recipe, critics),
        temperature_optimiser=optimisers.init(Recipe(), log_temperature),
        hyper=hyperparameters(config),
    )


def targets(
    state: State, batch: Transition, noise: Float[Array, "B A"], entropy: Float[Array, ""]
) -> Float[Array, " B"]:
    """Return TD targets (B,): `losses.soft_td_target` at next actions sampled with `noise`.

    Args:
        entropy: factor of the entropy in the target: 1 for SAC, 0 for no entropy.
    """
    action, log_prob = squash(gaussian_apply(state.actor, batch.next_observation), noise)
    q_next = critics_apply(state.critics_target, batch.next_observation, action)
    target = jax.vmap(losses.soft_td_target, in_axes=(0, None, 0, 1, 0, None))
    weight = entropy * jnp.exp(state.log_temperature)
    return target(batch.reward, state.hyper["discount"], batch.terminated, q_next, log_prob, weight)


def critic_loss(
    critics: Ensemble, state: State, batch: Transition, target: Float[Array, " B"]
) -> tuple[Float[Array, ""], Metrics]:
    """Return the batch mean of `losses.td_loss` for targets (B,), and metrics."""
    q = critics_apply(critics, batch.observation, batch.action)
    loss = jnp.mean(jax.vmap(losses.td_loss, in_axes=(1, 0))(q, target))
    return loss, {"critic_loss": loss, "q": jnp.mean(target)}


def actor_loss(
    actor: Params, critics: Ensemble, batch: Transition, noise: Float[Array, "B A"], temperature: Float[Array, ""]
) -> tuple[Float[Array, ""], Float[Array, " B"]]:
    """Return the batch mean of `losses.sac_actor_loss`, and the log densities (B,) of the sampled actions."""
    action, log_prob = squash(gaussian_apply(actor, batch.observation), noise)
    q = critics_apply(critics, batch.observation, action)
    return jnp.mean(jax.vmap(losses.sac_actor_loss, in_axes=(1, 0, None))(q, log_prob, temperature)), log_prob


def temperature_loss(log_temperature: Float[Array, ""], log_prob: Float[Array, " B"], actions: int) -> Float[Array, ""]:
    """Return the batch mean of `losses.temperature_loss` for a target entropy of `-actions`."""
    target_entropy = jnp.asarray(-float(actions), log_prob.dtype)
    return jnp.mean(
        jax.vmap(losses.temperature_loss, in_axes=(None, 0, None))(log_temperature, log_prob, target_entropy)
    )


def step_critics(state: State, gradient: Ensemble) -> State:
    """Take one step of all critics along `gradient`."""
    critics, optimiser = optimisers.step(state.critics, gradient, state.critics_optimiser, state.hyper["critic_lr"])
    return state._replace(critics=critics, critics_optimiser=optimiser)


def update_actor(state: State, batch: Transition, noise: Float[Array, "B A"]) -> tuple[State, Metrics]:
    """Take one step of the actor and of the temperature on the same sampled actions, then update the target critics."""
    h = state.hyper
    temperature = jnp.exp(state.log_temperature)
    loss_and_gradient = jax.value_and_grad(actor_loss, has_aux=True)
    (loss, log_prob), gradient = loss_and_gradient(state.actor, state.critics, batch, noise, temperature)
    actor, actor_optimiser = optimisers.step(state.actor, gradient, state.actor_optimiser, h["actor_lr"])
    slope = jax.grad(temperature_loss)(state.log_temperature, log_prob, batch.action.shape[-1])
    log_temperature, temperature_optimiser = optimisers.step(
        state.log_temperature, slope, state.temperature_optimiser, h["temperature_lr"]
    )
    state = state._replace(
        actor=actor,
        actor_optimiser=actor_optimiser,
        log_temperature=log_temperature,
        temperature_optimiser=temperature_optimiser,
        critics_target=polyak(state.critics_target, state.critics, h["tau"]),
    )
    return state, {"actor_loss": loss, "temperature": temperature, "entropy": -jnp.mean(log_prob)}


CriticLoss = Callable[[Ensemble, State, Transition, Float[Array, " B"]], tuple[Float[Array, ""], Metrics]]
"""(critics, state, batch, target) -> (loss, metrics)."""


def make_update(loss: CriticLoss) -> Callable[[State, Transition, PRNGKeyArray], tuple[State, Metrics]]:
    """Build the function that takes one SAC step on one batch (1, B, ...) with a given critic loss."""

    def update(state: State, batches: Transition, key: PRNGKeyArray) -> tuple[State, Metrics]:
        batch: Transition = jax.tree.map(lambda x: x[0], batches)
        noise = jax.random.normal(key, (2, *batch.action.shape), batch.action.dtype)
        target = targets(state, batch, noise[0], jnp.ones((), batch.reward.dtype))
        gradient, critic_metrics = jax.grad(loss, has_aux=True)(state.critics, state, batch, target)
        state, actor_metrics = update_actor(step_critics(state, gradient), batch, noise[1])
        return state, critic_metrics | actor_metrics

    return update


def act(state: State, observation: Float[Array, "*n O"]) -> Float[Array, "*n A"]:
    """Return unit actions (..., A) at normalised observations (..., O): tanh of the mean."""
    return actor_apply(mean_actor(state.actor), observation)


SAC_N = Algorithm(
    name="sac_n",
    Config=Config,
    batches_per_update=1,
    init=init,
    update=make_update(critic_loss),
    act=act,
    actor=lambda s: mean_actor(s.actor),
)
