"""Double DQN (van Hasselt, Guez & Silver 2015, arXiv 1509.06461) on logged transitions.

Double DQN does not avoid choices that are missing in the logs, so the logs must contain every choice in all situations.
`discrete_cql` reuses these functions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from neorl_core.algorithms import losses
from neorl_core.networks import Params, mlp_apply, mlp_init
from neorl_core.training import optimisers
from neorl_core.training.optimisers import Optimiser, Recipe
from neorl_core.training.population import Algorithm, Hyperparameters, Metrics, hyperparameters, polyak
from neorl_core.types import PlantSpec, Transition


class Config(NamedTuple):
    """Default hyper-parameters of double DQN. Float fields may differ between members.

    The target network is updated by Polyak averaging at every step; the paper copies it periodically.
    """

    hidden: tuple[int, ...] = (64, 64)
    discount: float = 0.99
    tau: float = 0.005
    critic_lr: float = 3e-4
    critic_recipe: Recipe = optimisers.TD3


class State(NamedTuple):
    """Training state of double DQN."""

    critic: Params
    """Weights of a network with one output per choice; this network is the shipped policy."""
    critic_target: Params
    critic_optimiser: Optimiser
    hyper: Hyperparameters


def init(key: PRNGKeyArray, spec: PlantSpec, config: Any) -> State:
    """Return the initial training state; `config` has the fields of `Config`."""
    critic = mlp_init(key, spec.observation.size, (*config.hidden, spec.acting))
    return State(critic, critic, optimisers.init(config.critic_recipe, critic), hyperparameters(config))


def targets(state: State, batch: Transition) -> Float[Array, " B"]:
    """Return TD targets (B,): `losses.double_q_target` of the critic and the target network."""
    q_online, q_target = (mlp_apply(params, batch.next_observation) for params in (state.critic, state.critic_target))
    target = jax.vmap(losses.double_q_target, in_axes=(0, None, 0, 0, 0))
    return target(batch.reward, state.hyper["discount"], batch.terminated, q_online, q_target)


def td_loss(q: Float[Array, "B C"], batch: Transition, target: Float[Array, " B"]) -> Float[Array, ""]:
    """Return the batch mean of `losses.td_loss` at the logged choices, for values (B, C) and targets (B,)."""
    return jnp.mean(jax.vmap(losses.td_loss)(jnp.sum(q * batch.action, axis=-1, keepdims=True), target))


CriticLoss = Callable[
    [Float[Array, "B C"], Transition, Float[Array, " B"], Hyperparameters], tuple[Float[Array, ""], Metrics]
]
"""(values of the choices, batch, target, hyper-parameters) -> (loss, metrics)."""


def critic_loss(
    q: Float[Array, "B C"], batch: Transition, target: Float[Array, " B"], h: Hyperparameters
) -> tuple[Float[Array, ""], Metrics]:
    """Return `td_loss` as the loss, and metrics."""
    loss = td_loss(q, batch, target)
    return loss, {"critic_loss": loss}


def make_update(loss: CriticLoss) -> Callable[[State, Transition, PRNGKeyArray], tuple[State, Metrics]]:
    """Build the function that updates critic and target network on one batch (1, B, ...) with a given critic loss."""

    def update(state: State, batches: Transition, key: PRNGKeyArray) -> tuple[State, Metrics]:
        batch: Transition = jax.tree.map(lambda x: x[0], batches)
        h, target = state.hyper, targets(state, batch)

        def critic_loss_at(critic: Params) -> tuple[Float[Array, ""], Metrics]:
            return loss(mlp_apply(critic, batch.observation), batch, target, h)

        gradient, metrics = jax.grad(critic_loss_at, has_aux=True)(state.critic)
        critic, optimiser = optimisers.step(state.critic, gradient, state.critic_optimiser, h["critic_lr"])
        critic_target = polyak(state.critic_target, critic, h["tau"])
        return State(critic, critic_target, optimiser, h), metrics | {"q": jnp.mean(target)}

    return update


def act(state: State, observation: Float[Array, "*n O"]) -> Float[Array, "*n C"]:
    """Return one value per choice (..., C) at normalised observations (..., O)."""
    return mlp_apply(state.critic, observation)


DOUBLE_DQN = Algorithm(
    name="double_dqn",
    Config=Config,
    batches_per_update=1,
    init=init,
    update=make_update(critic_loss),
    act=act,
    actor=lambda s: s.critic,
    discrete=True,
)
