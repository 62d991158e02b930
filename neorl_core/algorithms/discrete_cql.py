"""CQL(H) (Kumar et al. 2020, arXiv 2006.04779) for discrete actions: double DQN with the conservative loss."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from neorl_core.algorithms import double_dqn, losses
from neorl_core.training import optimisers
from neorl_core.training.optimisers import Recipe
from neorl_core.training.population import Hyperparameters, Metrics
from neorl_core.types import Transition


class Config(NamedTuple):
    """Default hyper-parameters of discrete CQL. Float fields may differ between members."""

    hidden: tuple[int, ...] = (64, 64)
    alpha: float = 1.0
    """Weight of the conservative loss. The paper halves the squared TD error; this code does not."""
    discount: float = 0.99
    tau: float = 0.005
    critic_lr: float = 3e-4
    critic_recipe: Recipe = optimisers.TD3


def critic_loss(
    q: Float[Array, "B C"], batch: Transition, target: Float[Array, " B"], h: Hyperparameters
) -> tuple[Float[Array, ""], Metrics]:
    """Return `double_dqn.td_loss` plus alpha times the mean `losses.discrete_conservative_loss`, and metrics."""
    conservative = jnp.mean(jax.vmap(losses.discrete_conservative_loss)(q, batch.action))
    error = double_dqn.td_loss(q, batch, target)
    return error + h["alpha"] * conservative, {"critic_loss": error, "conservative_loss": conservative}


DISCRETE_CQL = double_dqn.DOUBLE_DQN._replace(
    name="discrete_cql", Config=Config, update=double_dqn.make_update(critic_loss)
)
