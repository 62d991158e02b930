"""CQL(H) (Kumar et al. 2020, arXiv 2006.04779): SAC with lower Q at actions absent from the data."""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from neorl_core.algorithms import losses, sac_n
from neorl_core.networks import Ensemble, Params, critics_apply, gaussian_apply, squash
from neorl_core.training import optimisers
from neorl_core.training.optimisers import Optimiser, Recipe
from neorl_core.training.population import Algorithm, Metrics
from neorl_core.types import PlantSpec, Transition

SAMPLES = 10
"""Actions per state from each of three sources: uniform, the policy at the state, the policy at the next state."""
CHUNKS = 8
"""Parts of a batch, processed one after the other so that activations stay in the processor cache."""


class Config(NamedTuple):
    """Default hyper-parameters of CQL. Float fields may differ between members."""

    hidden: tuple[int, ...] = (64, 64)
    critics: int = 2
    alpha: float = 5.0
    """Weight of the conservative loss. The paper halves the squared TD error; this code does not."""
    alpha_lr: float = 0.0
    """Learning rate of a Lagrange multiplier that keeps the conservative loss at `threshold`; 0 for none."""
    threshold: float = 5.0
    entropy_backup: float = 0.0
    """Factor of the policy's entropy in the TD target: 0 in the paper, 1 in SAC."""
    discount: float = 0.99
    tau: float = 0.005
    actor_lr: float = 1e-4
    critic_lr: float = 3e-4
    temperature: float = 1.0
    temperature_lr: float = 1e-4
    actor_recipe: Recipe = optimisers.SAC
    critic_recipe: Recipe = optimisers.SAC


class State(NamedTuple):
    """Training state of CQL."""

    sac: sac_n.State
    log_multiplier: Float[Array, ""]
    multiplier_optimiser: Optimiser

    @property
    def actor(self) -> Params:
        return self.sac.actor


def init(key: PRNGKeyArray, spec: PlantSpec, config: Config) -> State:
    """Return the initial training state: a fresh state of SAC and a multiplier of 1."""
    log_multiplier = jnp.zeros(())
    return State(sac_n.init(key, spec, config), log_multiplier, optimisers.init(Recipe(), log_multiplier))


def proposals(
    actor: Params, batch: Transition, uniform: Float[Array, "B N A"], noise: Float[Array, "2 B N A"]
) -> tuple[Float[Array, "B K A"], Float[Array, "B K"]]:
    """Return K = 3 N unit actions per state (B, K, A), N from each source of `SAMPLES`, and log densities (B, K).

    Args:
        uniform: (B, N, A) uniform over [-1, 1].
        noise: (2, B, N, A) standard normal noise at the state and at the next state.
    """
    sample = jax.vmap(squash, in_axes=(None, 1), out_axes=1)
    here, here_density = sample(gaussian_apply(actor, batch.observation), noise[0])
    there, there_density = sample(gaussian_apply(actor, batch.next_observation), noise[1])
    uniform_density = jnp.full_like(here_density, -uniform.shape[2] * math.log(2.0))
    actions = jnp.concatenate([uniform, here, there], axis=1)
    return actions, jnp.concatenate([uniform_density, here_density, there_density], axis=1)


def critic_loss(
    critics: Ensemble,
    batch: Transition,
    target: Float[Array, " B"],
    actions: Float[Array, "B K A"],
    log_density: Float[Array, "B K"],
    weight: Float[Array, ""],
) -> tuple[Float[Array, ""], Metrics]:
    """Return the batch mean of `losses.td_loss` plus weighted `losses.conservative_loss` of all critics, and metrics.

    Args:
        actions: (B, K, A) proposed unit actions.
        log_density: (B, K) log density that each action was sampled with.
    """
    candidates = jnp.concatenate([batch.action[:, None], actions], axis=1)
    observation = jnp.broadcast_to(batch.observation[:, None], (*candidates.shape[:2], batch.observation.shape[-1]))
    q = critics_apply(critics, observation, candidates)
    error = jnp.mean(jax.vmap(losses.td_loss, in_axes=(1, 0))(q[:, :, 0], target))
    conservative_loss = jax.vmap(jax.vmap(losses.conservative_loss), in_axes=(0, None, 0))
    conservative = jnp.mean(conservative_loss(q[:, :, 1:], log_density, q[:, :, 0]))
    loss = error + weight * len(critics) * conservative
    return loss, {"critic_loss": loss, "conservative_loss": conservative}


def critic_gradient(
    critics: Ensemble,
    batch: Transition,
    target: Float[Array, " B"],
    actions: Float[Array, "B K A"],
    log_density: Float[Array, "B K"],
    weight: Float[Array, ""],
) -> tuple[Ensemble, Metrics]:
    """Return the gradient of `critic_loss`, and metrics, computed in `CHUNKS` parts of the batch."""
    rows = target.shape[0]
    chunks = math.gcd(rows, CHUNKS)
    inputs = batch, target, actions, log_density
    parts = jax.tree.map(lambda x: x.reshape(chunks, rows // chunks, *x.shape[1:]), inputs)

    def add(total: Ensemble, part: tuple[Transition, Array, Array, Array]) -> tuple[Ensemble, Metrics]:
        gradient, metrics = jax.grad(critic_loss, has_aux=True)(critics, *part, weight)
        return jax.tree.map(jnp.add, total, gradient), metrics

    total, metrics = jax.lax.scan(add, jax.tree.map(jnp.zeros_like, critics), parts)
    return jax.tree.map(lambda g: g / chunks, total), jax.tree.map(jnp.mean, metrics)


def update(state: State, batches: Transition, key: PRNGKeyArray) -> tuple[State, Metrics]:
    """Take one gradient step of critics, multiplier, actor and temperature on one batch (1, B, ...)."""
    sac, h = state.sac, state.sac.hyper
    batch: Transition = jax.tree.map(lambda x: x[0], batches)
    rows, actions = batch.action.shape
    keys = jax.random.split(jax.random.fold_in(key, 1))
    uniform = jax.random.uniform(keys[0], (rows, SAMPLES, actions), batch.action.dtype, -1.0, 1.0)
    proposal_noise = jax.random.normal(keys[1], (2, rows, SAMPLES, actions), batch.action.dtype)
    noise = jax.random.normal(key, (2, rows, actions), batch.action.dtype)
    target = sac_n.targets(sac, batch, noise[0], h["entropy_backup"])
    proposed, log_density = proposals(sac.actor, batch, uniform, proposal_noise)
    weight = h["alpha"] * jnp.exp(state.log_multiplier)
    gradient, metrics = critic_gradient(sac.critics, batch, target, proposed, log_density, weight)
    slope = jax.grad(losses.multiplier_loss)(state.log_multiplier, metrics["conservative_loss"], h["threshold"])
    multiplier = optimisers.step(state.log_multiplier, slope, state.multiplier_optimiser, h["alpha_lr"])
    sac, actor_metrics = sac_n.update_actor(sac_n.step_critics(sac, gradient), batch, noise[1])
    return State(sac, *multiplier), metrics | actor_metrics | {"q": jnp.mean(target), "alpha": weight}


def act(state: State, observation: Float[Array, "*n O"]) -> Float[Array, "*n A"]:
    """Return unit actions (..., A) at normalised observations (..., O): tanh of the mean."""
    return sac_n.act(state.sac, observation)


CQL = Algorithm(
    name="cql",
    Config=Config,
    batches_per_update=1,
    init=init,
    update=update,
    act=act,
    actor=lambda s: sac_n.SAC_N.actor(s.sac),
)
