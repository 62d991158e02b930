"""Implicit Q-learning (Kostrikov, Nair & Levine 2021, arXiv 2110.06169) with any number of critics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from neorl_core.algorithms import losses
from neorl_core.networks import (
    Ensemble,
    NormalActor,
    Params,
    actor_apply,
    critics_apply,
    critics_init,
    make_body,
    mlp_apply,
    normal_apply,
    normal_init,
    normal_log_prob,
    value_init,
)
from neorl_core.training import optimisers
from neorl_core.training.optimisers import Optimiser, Recipe
from neorl_core.training.population import Algorithm, Hyperparameters, Metrics, hyperparameters, polyak
from neorl_core.types import PlantSpec, Transition


class Config(NamedTuple):
    """Default hyper-parameters of IQL, from the paper's locomotion tasks. Float fields may differ between members.

    The paper's code decays the learning rate: `actor_recipe: {schedule: cosine, steps: <updates of the run>}`.
    """

    hidden: tuple[int, ...] = (64, 64)
    gru: int = 0
    """Units of a GRU that reads the history before the dense layers; 0 for no GRU."""
    graph: int = 0
    """Rounds of message passing in a graph network instead of dense layers; 0 for dense layers."""
    critics: int = 2
    expectile: float = 0.7
    beta: float = 3.0
    """Inverse temperature of the advantage. 0 gives behaviour cloning; large values favour large advantages."""
    discount: float = 0.99
    tau: float = 0.005
    actor_lr: float = 3e-4
    critic_lr: float = 3e-4
    """Learning rate of the critics and of the value network."""
    actor_recipe: Recipe = optimisers.TD3
    critic_recipe: Recipe = optimisers.TD3


class State(NamedTuple):
    """Training state of IQL."""

    actor: NormalActor | Params
    value: Params
    critics: Ensemble
    critics_target: Ensemble
    actor_optimiser: Optimiser
    value_optimiser: Optimiser
    critics_optimiser: Optimiser
    hyper: Hyperparameters


def init(key: PRNGKeyArray, spec: PlantSpec, config: Config) -> State:
    """Return the initial training state; the target critics start equal to the critics."""
    actor_key, value_key, critic_key = jax.random.split(key, 3)
    sizes = spec.observation.size, spec.action.size
    body = make_body(spec, config.hidden, config.gru, config.graph)
    actor = normal_init(actor_key, *sizes, config.hidden, body)
    value = value_init(value_key, spec.observation.size, config.hidden, body)
    critics = critics_init(critic_key, *sizes, config.hidden, config.critics, body=body)
    return fresh(config, actor, value, critics)


def fresh(config: Any, actor: NormalActor | Params, value: Params, critics: Ensemble) -> State:
    """Return the initial training state with given networks; `config` has the fields of `Config`."""
    return State(
        actor,
        value,
        critics,
        critics_target=critics,
        actor_optimiser=optimisers.init(config.actor_recipe, actor),
        value_optimiser=optimisers.init(config.critic_recipe, value),
        critics_optimiser=optimisers.init(config.critic_recipe, critics),
        hyper=hyperparameters(config),
    )


def logged_values(critics: Ensemble, batch: Transition) -> Float[Array, "C B"]:
    """Return the value of the logged actions by each critic (C, B)."""
    return critics_apply(critics, batch.observation, batch.action)


def logged_log_prob(actor: Any, batch: Transition) -> Float[Array, " B"]:
    """Return the log densities (B,) of the logged actions under a `NormalActor`."""
    return normal_log_prob(normal_apply(actor, batch.observation), batch.action)


Values = Callable[[Ensemble, Transition], Float[Array, "C B"]]
LogProb = Callable[[Any, Transition], Float[Array, " B"]]


def value_loss(
    value: Params, batch: Transition, q: Float[Array, " B"], expectile: Float[Array, ""]
) -> tuple[Float[Array, ""], Float[Array, " B"]]:
    """Return the batch mean of `losses.expectile_loss`, and the advantages `Q(s, a) - V(s)` (B,).

    Args:
        q: (B,) minimum over the target critics at the logged actions.
        expectile: tau, in (0, 1).
    """
    advantage = q - mlp_apply(value, batch.observation)[..., 0]
    return jnp.mean(jax.vmap(losses.expectile_loss, in_axes=(0, None))(advantage, expectile)), advantage


def targets(state: State, batch: Transition) -> Float[Array, " B"]:
    """Return TD targets (B,): `losses.td_target` with V(s') as value of the next step (equation 6)."""
    v_next = mlp_apply(state.value, batch.next_observation)  # (B, 1)
    target = jax.vmap(losses.td_target, in_axes=(0, None, 0, 0))
    return target(batch.reward, state.hyper["discount"], batch.terminated, v_next)


def critic_loss(
    critics: Ensemble, batch: Transition, target: Float[Array, " B"], values: Values = logged_values
) -> Float[Array, ""]:
    """Return the batch mean of `losses.td_loss` at targets (B,) (equation 6)."""
    return jnp.mean(jax.vmap(losses.td_loss, in_axes=(1, 0))(values(critics, batch), target))


def actor_loss(
    actor: NormalActor | Params, batch: Transition, weight: Float[Array, " B"], log_prob: LogProb = logged_log_prob
) -> Float[Array, ""]:
    """Return the batch mean of `losses.weighted_regression_loss` on the logged actions."""
    return jnp.mean(jax.vmap(losses.weighted_regression_loss)(log_prob(actor, batch), weight))


def make_update(
    values: Values = logged_values, log_prob: LogProb = logged_log_prob
) -> Callable[[State, Transition, PRNGKeyArray], tuple[State, Metrics]]:
    """Build the function that updates all networks on one batch (1, B, ...), for continuous or discrete actions.

    All gradients are computed before a network changes. The paper's code updates the value network first; the paper's
    algorithm 1 trains the policy last.
    """

    def update(state: State, batches: Transition, key: PRNGKeyArray) -> tuple[State, Metrics]:
        batch: Transition = jax.tree.map(lambda x: x[0], batches)
        h = state.hyper
        q = jnp.min(values(state.critics_target, batch), axis=0)
        value_step = jax.value_and_grad(value_loss, has_aux=True)(state.value, batch, q, h["expectile"])
        (v_loss, advantage), value_gradient = value_step
        target = targets(state, batch)
        q_loss, critics_gradient = jax.value_and_grad(critic_loss)(state.critics, batch, target, values)
        weight = jax.vmap(losses.advantage_weight, in_axes=(0, None))(advantage, h["beta"])
        pi_loss, actor_gradient = jax.value_and_grad(actor_loss)(state.actor, batch, weight, log_prob)

        value, value_optimiser = optimisers.step(state.value, value_gradient, state.value_optimiser, h["critic_lr"])
        critics, critics_optimiser = optimisers.step(
            state.critics, critics_gradient, state.critics_optimiser, h["critic_lr"]
        )
        actor, actor_optimiser = optimisers.step(state.actor, actor_gradient, state.actor_optimiser, h["actor_lr"])
        critics_target = polyak(state.critics_target, critics, h["tau"])
        state = State(actor, value, critics, critics_target, actor_optimiser, value_optimiser, critics_optimiser, h)
        return state, {"actor_loss": pi_loss, "critic_loss": q_loss, "value_loss": v_loss, "q": jnp.mean(target)}

    return update


def act(state: State, observation: Float[Array, "*n O"]) -> Float[Array, "*n A"]:
    """Return the policy's mean unit actions (..., A) at normalised observations (..., O)."""
    return actor_apply(IQL.actor(state), observation)


IQL = Algorithm(
    name="iql",
    Config=Config,
    batches_per_update=1,
    init=init,
    update=make_update(),
    act=act,
    actor=lambda s: s.actor.mean,
)
