"""MOPO (Yu et al. 2020, arXiv 2005.13239): SAC on short rollouts of a learned model with penalised rewards.

Each update simulates rollouts from the states of its first batch. Then it takes one gradient step per batch, in which
model steps replace part of the logged rows. COMBO reuses these functions with another critic loss.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from neorl_core.algorithms import losses, sac_n
from neorl_core.networks import Ensemble, Params, gaussian_apply, squash
from neorl_core.training import optimisers
from neorl_core.training.optimisers import Recipe
from neorl_core.training.population import Algorithm, Metrics
from neorl_core.types import PlantSpec, Transition
from neorl_core.world_model import dynamics
from neorl_core.world_model.dynamics import Model
from neorl_core.world_model.rollouts import branched_rollouts

STEPS = 4
"""Gradient steps per set of rollouts."""


class Config(NamedTuple):
    """Default hyper-parameters of MOPO for a run of 9,000 updates. Float fields may differ between members."""

    hidden: tuple[int, ...] = (64, 64)
    model_hidden: tuple[int, ...] = (32, 32)
    members: int = 5
    """The paper uses seven members (five elites) with four layers of 200."""
    elites: int = 2
    warm_up_updates: int = 3000
    horizon: int = 5
    critics: int = 2
    penalty: float = 1.0
    """Weight lambda of the uncertainty: standard deviations of the reward per standard deviation of an observation."""
    real: float = 0.05
    """Share of logged rows in a batch."""
    discount: float = 0.99
    tau: float = 0.005
    actor_lr: float = 3e-4
    critic_lr: float = 3e-4
    temperature: float = 1.0
    temperature_lr: float = 3e-4
    model_lr: float = 1e-2
    actor_recipe: Recipe = optimisers.SAC
    critic_recipe: Recipe = optimisers.SAC
    model_recipe: Recipe = Recipe(schedule="cosine", steps=3000)


class Shape(NamedTuple):
    """Integers that determine array sizes in rollouts, so they are static in compiled programs."""

    elites: int
    horizon: int


jax.tree_util.register_static(Shape)


class State(NamedTuple):
    """Training state of MOPO."""

    sac: sac_n.State
    model: Model
    shape: Shape

    @property
    def actor(self) -> Params:
        return self.sac.actor


def init(key: PRNGKeyArray, spec: PlantSpec, config: Any) -> State:
    """Return the initial training state; `config` has the fields of `Config`."""
    sac_key, model_key = jax.random.split(key)
    sizes = spec.observation.size, spec.action.size
    model = dynamics.init(model_key, *sizes, config.model_hidden, config.members, config.model_recipe, spec.history)
    shape = Shape(min(config.elites, config.members), config.horizon)
    return State(sac_n.init(sac_key, spec, config), model, shape)


def model_rollouts(state: State, logged: Transition, key: PRNGKeyArray) -> tuple[Transition, Float[Array, " N"]]:
    """Simulate H policy steps from each of B logged states; return N = B H model steps and their uncertainty (N,).

    Args:
        state: training state, which supplies policy, model and H.
        logged: transitions (B, ...); rollouts start at their observations.
    """

    def policy(observation: Float[Array, " O"], noise: Float[Array, " A"]) -> Float[Array, " A"]:
        return squash(gaussian_apply(state.sac.actor, observation), noise)[0]

    model, actions = state.model, logged.action.shape[-1]
    leading = dynamics.best_members(model, state.shape.elites)
    steps, uncertainty = branched_rollouts(
        model.members, leading, dynamics.reach(model), policy, actions, logged.observation, key, state.shape.horizon
    )
    flat: Transition = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), steps)
    return flat, uncertainty.reshape(-1)


def mix(logged: Transition, modelled: Transition, real: Float[Array, ""]) -> Transition:
    """Return a batch in which the first rows are logged (a share `real`) and the other rows are model steps.

    Args:
        real: share of logged rows, 0 to 1.
    """
    rows = logged.reward.shape[0]
    keep = jnp.arange(rows) < real * rows

    def choose(real_row: Array, model_row: Array) -> Array:
        return jnp.where(keep.reshape(rows, *[1] * (real_row.ndim - 1)), real_row, model_row)

    mixed: Transition = jax.tree.map(choose, logged._replace(next_action=None), modelled)
    return mixed


CriticLoss = Callable[
    [Ensemble, sac_n.State, Transition, Float[Array, " B"], Transition, Transition],
    tuple[Float[Array, ""], Metrics],
]
"""(critics, SAC state, mixed batch, targets of the mixed batch, logged batch, model batch) -> (loss, metrics)."""


def critic_loss(
    critics: Ensemble,
    sac: sac_n.State,
    mixed: Transition,
    target: Float[Array, " B"],
    logged: Transition,
    modelled: Transition,
) -> tuple[Float[Array, ""], Metrics]:
    """Return SAC's critic loss on the mixed batch, and metrics."""
    return sac_n.critic_loss(critics, sac, mixed, target)


def penalise(steps: Transition, uncertainty: Float[Array, " N"], penalty: Float[Array, ""]) -> Transition:
    """Replace the rewards of N model steps by `losses.penalised_reward`."""
    reward = jax.vmap(losses.penalised_reward, in_axes=(0, None, 0))(steps.reward, penalty, uncertainty)
    return steps._replace(reward=reward)


def make_update(loss: CriticLoss) -> Callable[[State, Transition, PRNGKeyArray], tuple[State, Metrics]]:
    """Build the function that takes `STEPS` SAC steps on mixed batches with a given critic loss."""

    def update(state: State, batches: Transition, key: PRNGKeyArray) -> tuple[State, Metrics]:
        rollout_key, steps_key = jax.random.split(key)
        h = state.sac.hyper
        fresh, uncertainty = model_rollouts(state, jax.tree.map(lambda x: x[0], batches), rollout_key)
        pool = penalise(fresh, uncertainty, h["penalty"])

        def one(sac: sac_n.State, inputs: tuple[Transition, PRNGKeyArray]) -> tuple[sac_n.State, Metrics]:
            logged, key = inputs
            rows, actions = logged.action.shape
            rows_key, noise_key = jax.random.split(key)
            indices = jax.random.randint(rows_key, (rows,), 0, pool.reward.shape[0])
            modelled: Transition = jax.tree.map(lambda x: x[indices], pool)
            mixed = mix(logged, modelled, h["real"])
            noise = jax.random.normal(noise_key, (2, rows, actions), logged.action.dtype)
            target = sac_n.targets(sac, mixed, noise[0], jnp.ones((), mixed.reward.dtype))
            gradient, critic_metrics = jax.grad(loss, has_aux=True)(sac.critics, sac, mixed, target, logged, modelled)
            sac, actor_metrics = sac_n.update_actor(sac_n.step_critics(sac, gradient), mixed, noise[1])
            return sac, critic_metrics | actor_metrics

        keys = jax.random.split(steps_key, batches.reward.shape[0])
        sac, metrics = jax.lax.scan(one, state.sac, (batches, keys))
        metrics = jax.tree.map(jnp.mean, metrics)
        metrics |= {"uncertainty": jnp.mean(uncertainty), "model_error": jnp.mean(state.model.error)}
        return state._replace(sac=sac), metrics

    return update


def make_warm_up(names: tuple[str, ...]) -> Callable[[State, Transition, PRNGKeyArray], tuple[State, Metrics]]:
    """Build the function that trains the ensemble for `STEPS` steps, one batch each; metrics in `names` are zero."""

    def warm_up(state: State, batches: Transition, key: PRNGKeyArray) -> tuple[State, Metrics]:
        def one(model: Model, inputs: tuple[Transition, PRNGKeyArray]) -> tuple[Model, Metrics]:
            batch, key = inputs
            return dynamics.update(model, batch, state.sac.hyper["model_lr"], key)

        keys = jax.random.split(key, batches.reward.shape[0])
        model, metrics = jax.lax.scan(one, state.model, (batches, keys))
        error = jnp.mean(metrics["model_error"])
        return state._replace(model=model), {**dict.fromkeys(names, jnp.zeros_like(error)), "model_error": error}

    return warm_up


def act(state: State, observation: Float[Array, "*n O"]) -> Float[Array, "*n A"]:
    """Return unit actions (..., A) at normalised observations (..., O): tanh of the mean."""
    return sac_n.act(state.sac, observation)


METRICS = ("critic_loss", "q", "actor_loss", "temperature", "entropy", "uncertainty")

MOPO = Algorithm(
    name="mopo",
    Config=Config,
    batches_per_update=STEPS,
    init=init,
    update=make_update(critic_loss),
    act=act,
    actor=lambda s: sac_n.SAC_N.actor(s.sac),
    warm_up=make_warm_up(METRICS),
    usual_updates=9_000,
)
