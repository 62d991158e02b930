"""EDAC (An et al. 2021, arXiv 2110.01548): SAC-N with a penalty on similar action gradients of the critics."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from neorl_core.algorithms import losses, sac_n
from neorl_core.networks import Ensemble, critics_apply
from neorl_core.training import optimisers
from neorl_core.training.optimisers import Recipe
from neorl_core.training.population import Metrics
from neorl_core.types import Transition


class Config(NamedTuple):
    """Default hyper-parameters of EDAC. Float fields may differ between members. The paper uses three layers of 256."""

    hidden: tuple[int, ...] = (64, 64)
    critics: int = 10
    diversity: float = 1.0
    """Weight of the penalty, the paper's eta: 1 for most tasks, 5 for HalfCheetah-expert data. 0 gives SAC-N."""
    discount: float = 0.99
    tau: float = 0.005
    actor_lr: float = 3e-4
    critic_lr: float = 3e-4
    temperature: float = 1.0
    temperature_lr: float = 3e-4
    actor_recipe: Recipe = optimisers.SAC
    critic_recipe: Recipe = optimisers.SAC


def action_gradients(
    critics: Ensemble, observation: Float[Array, "B O"], action: Float[Array, "B A"]
) -> Float[Array, "C B A"]:
    """Return the gradient of each critic with respect to the action (C, B, A)."""

    def total(action: Float[Array, "B A"], critic: Ensemble) -> Float[Array, ""]:
        return jnp.sum(critics_apply(critic, observation, action))

    return jnp.stack([jax.grad(total)(action, (params,)) for params in critics])


def critic_loss(
    critics: Ensemble, state: sac_n.State, batch: Transition, target: Float[Array, " B"]
) -> tuple[Float[Array, ""], Metrics]:
    """Return SAC-N's critic loss plus `diversity` times the mean `losses.diversity_loss`, and metrics."""
    loss, metrics = sac_n.critic_loss(critics, state, batch, target)
    gradients = action_gradients(critics, batch.observation, batch.action)
    diversity = jnp.mean(jax.vmap(losses.diversity_loss, in_axes=1)(gradients))
    return loss + state.hyper["diversity"] * diversity, metrics | {"diversity": diversity}


EDAC = sac_n.SAC_N._replace(name="edac", Config=Config, update=sac_n.make_update(critic_loss))
