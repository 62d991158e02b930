"""ReBRAC (Tarasov, Kurenkov, Nikulin & Kolesnikov 2023, arXiv 2305.09836): TD3+BC with a penalty on the critics too."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from neorl_core.algorithms import losses
from neorl_core.algorithms.td3_bc import State, act, critic_loss, next_action
from neorl_core.networks import Ensemble, Params, actor_apply, actor_init, critics_apply, critics_init
from neorl_core.training import optimisers
from neorl_core.training.optimisers import Recipe
from neorl_core.training.population import Algorithm, Metrics, hyperparameters, polyak
from neorl_core.types import PlantSpec, Transition


class Config(NamedTuple):
    """Default hyper-parameters of ReBRAC. Float fields may differ between members.

    For locomotion, the paper uses three layers, learning rates of 1e-3 and batches of 1024. It tunes both penalties per
    dataset: 0.001 to 0.1 for the actor, 0 to 0.5 for the critics, most often 0.01.
    """

    hidden: tuple[int, ...] = (64, 64, 64)
    critics: int = 2
    actor_penalty: float = 0.01
    critic_penalty: float = 0.01
    discount: float = 0.99
    tau: float = 0.005
    actor_lr: float = 1e-3
    critic_lr: float = 1e-3
    noise: float = 0.2
    noise_clip: float = 0.5
    actor_recipe: Recipe = optimisers.TD3
    critic_recipe: Recipe = optimisers.TD3


def init(key: PRNGKeyArray, spec: PlantSpec, config: Config) -> State:
    """Return the initial training state with layer-normalised critics; target networks start equal to the networks."""
    actor_key, critic_key = jax.random.split(key)
    sizes = spec.observation.size, spec.action.size
    actor = actor_init(actor_key, *sizes, config.hidden)
    critics = critics_init(critic_key, *sizes, config.hidden, config.critics, layer_norm=True)
    return State(
        actor,
        critics,
        actor_target=actor,
        critics_target=critics,
        actor_optimiser=optimisers.init(config.actor_recipe, actor),
        critics_optimiser=optimisers.init(config.critic_recipe, critics),
        hyper=hyperparameters(config),
    )


def targets(state: State, batch: Transition, key: PRNGKeyArray) -> Float[Array, " B"]:
    """Return TD targets (B,): `losses.penalised_td_target` at the smoothed action of the target actor.

    Raises:
        ValueError: if the batch has no `next_action`.
    """
    if batch.next_action is None:
        raise ValueError("rebrac needs transitions with next_action, got next_action=None: use `training.prepare`")
    action = next_action(state, batch, key)
    q_next = critics_apply(state.critics_target, batch.next_observation, action)
    target = jax.vmap(losses.penalised_td_target, in_axes=(0, None, 0, 1, None, 0, 0))
    h = state.hyper
    return target(batch.reward, h["discount"], batch.terminated, q_next, h["critic_penalty"], action, batch.next_action)


def actor_loss(actor: Params, critics: Ensemble, batch: Transition, penalty: Float[Array, ""]) -> Float[Array, ""]:
    """Return the batch mean of `losses.rebrac_actor_loss`; the weight lambda is `losses.q_weight` with alpha = 1."""
    action = actor_apply(actor, batch.observation)
    q = jnp.min(critics_apply(critics, batch.observation, action), axis=0)
    weight = jax.lax.stop_gradient(losses.q_weight(jnp.ones_like(penalty), q))
    loss = jax.vmap(losses.rebrac_actor_loss, in_axes=(0, None, None, 0, 0))
    return jnp.mean(loss(q, weight, penalty, action, batch.action))


def update(state: State, batches: Transition, key: PRNGKeyArray) -> tuple[State, Metrics]:
    """Take two critic steps and one actor step, then update all target networks; `batches` is (2, B, ...)."""
    h = state.hyper
    for i, critic_key in enumerate(jax.random.split(key)):
        batch: Transition = jax.tree.map(lambda x, i=i: x[i], batches)
        target = targets(state, batch, critic_key)
        q_loss, gradient = jax.value_and_grad(critic_loss)(state.critics, batch, target)
        critics, optimiser = optimisers.step(state.critics, gradient, state.critics_optimiser, h["critic_lr"])
        state = state._replace(critics=critics, critics_optimiser=optimiser)
    pi_loss, gradient = jax.value_and_grad(actor_loss)(state.actor, state.critics, batch, h["actor_penalty"])
    actor, optimiser = optimisers.step(state.actor, gradient, state.actor_optimiser, h["actor_lr"])
    state = state._replace(
        actor=actor,
        actor_optimiser=optimiser,
        actor_target=polyak(state.actor_target, actor, h["tau"]),
        critics_target=polyak(state.critics_target, state.critics, h["tau"]),
    )
    return state, {"actor_loss": pi_loss, "critic_loss": q_loss, "q": jnp.mean(target)}


REBRAC = Algorithm(
    name="rebrac", Config=Config, batches_per_update=2, init=init, update=update, act=act, actor=lambda s: s.actor
)
