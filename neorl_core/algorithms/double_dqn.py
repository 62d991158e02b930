"""Double DQN (van Hasselt, Guez & Silver 2015, arXiv 1509.06461) on logged transitions: the greedy choice of a critic.

Nothing holds its values down where the logs have no such choice: it is for logs in which every choice was tried
everywhere, and the base that `discrete_cql` is made of.
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
    """Defaults of double DQN; a population may vary the floats.

    The target network follows at every step as in the continuous algorithms, where the paper copies it now and then.
    """

    hidden: tuple[int, ...] = (64, 64)
    discount: float = 0.99
    tau: float = 0.005
    critic_lr: float = 3e-4
    critic_recipe: Recipe = optimisers.TD3


class State(NamedTuple):
    """All that double DQN remembers between two updates."""

    critic: Params
    """Weights of a network with an output for each choice: what ships."""
    critic_target: Params
    critic_optimiser: Optimiser
    hyper: Hyperparameters


def init(key: PRNGKeyArray, spec: PlantSpec, config: Any) -> State:
    """A fresh critic, its target equal to it, and its optimiser; `config` has the fields of `Config`.

    Args:
        key: randomness of all draws.
        spec: names, units and bounds of observations, and the choices.
        config: hyper-parameters.
    """
    critic = mlp_init(key, spec.observation.size, (*config.hidden, spec.acting))
    return State(critic, critic, optimisers.init(config.critic_recipe, critic), hyperparameters(config))


def targets(state: State, batch: Transition) -> Float[Array, " B"]:
    """`losses.double_q_target` of the critic and its target.

    Args:
        state: the learner's state.
        batch: transitions (B, ...).
    """
    chosen, valued = (mlp_apply(params, batch.next_observation) for params in (state.critic, state.critic_target))
    target = jax.vmap(losses.double_q_target, in_axes=(0, None, 0, 0, 0))
    return target(batch.reward, state.hyper["discount"], batch.terminated, chosen, valued)


def td_loss(q: Float[Array, "B C"], batch: Transition, target: Float[Array, " B"]) -> Float[Array, ""]:
    """Mean over the batch of `losses.td_loss` at the logged choices.

    Args:
        q: (B, C), values of the choices.
        batch: transitions (B, ...).
        target: (B,), what the critic is drawn towards.
    """
    return jnp.mean(jax.vmap(losses.td_loss)(jnp.sum(q * batch.action, axis=-1, keepdims=True), target))


CriticLoss = Callable[
    [Float[Array, "B C"], Transition, Float[Array, " B"], Hyperparameters], tuple[Float[Array, ""], Metrics]
]
"""(values of the choices, batch, target, hyper-parameters) -> (loss, metrics)."""


def critic_loss(
    q: Float[Array, "B C"], batch: Transition, target: Float[Array, " B"], h: Hyperparameters
) -> tuple[Float[Array, ""], Metrics]:
    """`td_loss`, and as a metric."""
    loss = td_loss(q, batch, target)
    return loss, {"critic_loss": loss}


def make_update(loss: CriticLoss) -> Callable[[State, Transition, PRNGKeyArray], tuple[State, Metrics]]:
    """One gradient step of a critic that descends `loss`, then of its target; `batches` is (1, B, ...)."""

    def update(state: State, batches: Transition, key: PRNGKeyArray) -> tuple[State, Metrics]:
        batch: Transition = jax.tree.map(lambda x: x[0], batches)
        h, target = state.hyper, targets(state, batch)

        def of_critic(critic: Params) -> tuple[Float[Array, ""], Metrics]:
            return loss(mlp_apply(critic, batch.observation), batch, target, h)

        gradient, metrics = jax.grad(of_critic, has_aux=True)(state.critic)
        critic, optimiser = optimisers.step(state.critic, gradient, state.critic_optimiser, h["critic_lr"])
        followed = polyak(state.critic_target, critic, h["tau"])
        return State(critic, followed, optimiser, h), metrics | {"q": jnp.mean(target)}

    return update


def act(state: State, observation: Float[Array, "*n O"]) -> Float[Array, "*n C"]:
    """Values of the choices for a normalised observation."""
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
