"""COMBO (Yu et al. 2021, arXiv 2102.08363): SAC on logged steps and steps in a learned model.

Instead of penalising uncertain rewards, COMBO lowers Q on model steps and raises Q on logged steps.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from neorl_core.algorithms import losses, mopo, sac_n
from neorl_core.networks import Ensemble, critics_apply
from neorl_core.training import optimisers
from neorl_core.training.optimisers import Recipe
from neorl_core.training.population import Algorithm, Metrics
from neorl_core.types import Transition


class Config(NamedTuple):
    """Default hyper-parameters of COMBO for a run of 6,000 updates. Float fields may differ between members."""

    hidden: tuple[int, ...] = (64, 64)
    model_hidden: tuple[int, ...] = (32, 32)
    members: int = 5
    elites: int = 2
    warm_up_updates: int = 3000
    horizon: int = 5
    critics: int = 2
    beta: float = 1.0
    """Weight of `losses.model_gap`. The paper uses 0.5 to 5, with half the squared error in the critic loss."""
    penalty: float = 0.0
    """Weight of MOPO's uncertainty penalty, which COMBO does not use."""
    real: float = 0.5
    """Share of logged rows in a batch."""
    discount: float = 0.99
    tau: float = 0.005
    actor_lr: float = 1e-4
    critic_lr: float = 3e-4
    temperature: float = 1.0
    temperature_lr: float = 1e-4
    model_lr: float = 1e-2
    actor_recipe: Recipe = optimisers.SAC
    critic_recipe: Recipe = optimisers.SAC
    model_recipe: Recipe = Recipe(schedule="cosine", steps=3000)


def critic_loss(
    critics: Ensemble,
    sac: sac_n.State,
    mixed: Transition,
    target: Float[Array, " B"],
    logged: Transition,
    modelled: Transition,
) -> tuple[Float[Array, ""], Metrics]:
    """Return SAC's critic loss on the mixed batch plus beta times the mean `losses.model_gap`, and metrics.

    Args:
        sac: state of SAC, which supplies beta.
        mixed: transitions (B, ...), logged rows and model steps.
        target: (B,) TD targets of the mixed batch.
        logged: transitions (B, ...), logged rows only.
        modelled: transitions (B, ...), model steps only.
    """
    loss, metrics = sac_n.critic_loss(critics, sac, mixed, target)
    q_modelled = critics_apply(critics, modelled.observation, modelled.action)
    q_logged = critics_apply(critics, logged.observation, logged.action)
    gap = jnp.mean(jax.vmap(losses.model_gap, in_axes=(1, 1))(q_modelled, q_logged))
    return loss + sac.hyper["beta"] * gap, {**metrics, "gap": gap}


COMBO = Algorithm(
    name="combo",
    Config=Config,
    batches_per_update=mopo.STEPS,
    init=mopo.init,
    update=mopo.make_update(critic_loss),
    act=mopo.act,
    actor=mopo.MOPO.actor,
    warm_up=mopo.make_warm_up((*mopo.METRICS, "gap")),
    usual_updates=6_000,
)
