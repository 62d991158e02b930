"""Implicit Q-learning (Kostrikov, Nair & Levine 2021, arXiv 2110.06169) for discrete actions.

The value and critic losses are those of `iql`. A critic has one output per choice; the policy is a softmax.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from neorl_core.algorithms import iql, losses
from neorl_core.algorithms.iql import Config, State
from neorl_core.networks import Ensemble, Params, mlp_apply, mlp_init
from neorl_core.training.population import Algorithm
from neorl_core.types import PlantSpec, Transition


def init(key: PRNGKeyArray, spec: PlantSpec, config: Config) -> State:
    """Return the initial training state; the target critics start equal to the critics."""
    actor_key, value_key, critic_key = jax.random.split(key, 3)
    observed, layers = spec.observation.size, (*config.hidden, spec.acting)
    critics = tuple(mlp_init(k, observed, layers) for k in jax.random.split(critic_key, config.critics))
    value = mlp_init(value_key, observed, (*config.hidden, 1))
    return iql.fresh(config, mlp_init(actor_key, observed, layers), value, critics)


def logged_values(critics: Ensemble, batch: Transition) -> Float[Array, "C B"]:
    """Return the value of the logged choices by each critic (C, B)."""
    return jnp.stack([jnp.sum(mlp_apply(critic, batch.observation) * batch.action, axis=-1) for critic in critics])


def logged_log_prob(actor: Params, batch: Transition) -> Float[Array, " B"]:
    """Return the log probabilities (B,) of the logged choices."""
    return -jax.vmap(losses.cross_entropy_loss)(mlp_apply(actor, batch.observation), batch.action)


def act(state: State, observation: Float[Array, "*n O"]) -> Float[Array, "*n C"]:
    """Return one logit per choice (..., C) at normalised observations (..., O)."""
    return mlp_apply(DISCRETE_IQL.actor(state), observation)


DISCRETE_IQL = Algorithm(
    name="discrete_iql",
    Config=Config,
    batches_per_update=1,
    init=init,
    update=iql.make_update(logged_values, logged_log_prob),
    act=act,
    actor=lambda s: s.actor,
    discrete=True,
)
