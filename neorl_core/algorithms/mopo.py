"""MOPO (Yu et al. 2020, arXiv 2005.13239): SAC on short rollouts of a learned ensemble, at penalised rewards.

An update draws fresh rollouts from the states of its first batch, then makes a gradient step on each batch, some of
whose rows are replaced by steps in the learned model. COMBO has the same functions and another loss of the critics.

The paper keeps imagined steps of earlier policies in a buffer, for it draws rollouts once in a thousand steps and
needs them in between. Here an update of four gradient steps draws more rows (batch times horizon) than it uses, so that
nothing has to last: all are of the present policy, and an interrupted run has no buffer to lose.
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
    """Defaults of MOPO in a run of 9,000 updates; a population may vary the floats."""

    hidden: tuple[int, ...] = (64, 64)
    model_hidden: tuple[int, ...] = (32, 32)
    members: int = 5
    """The paper has seven, five of them elites, of four layers of 200."""
    elites: int = 2
    warm_up_updates: int = 3000
    horizon: int = 5
    critics: int = 2
    penalty: float = 1.0
    """lambda, in deviations of the reward per deviation of an observation."""
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
    """Whole numbers that shape the rollouts; structure, not arrays."""

    elites: int
    horizon: int


jax.tree_util.register_static(Shape)


class State(NamedTuple):
    """All that MOPO remembers between two updates."""

    sac: sac_n.State
    model: Model
    shape: Shape

    @property
    def actor(self) -> Params:
        return self.sac.actor


def init(key: PRNGKeyArray, spec: PlantSpec, config: Any) -> State:
    """A fresh state of SAC and a fresh ensemble; `config` has the fields of `Config`.

    Args:
        key: randomness of all draws.
        spec: names, units and bounds of observations and actions.
        config: hyper-parameters.
    """
    sac_key, model_key = jax.random.split(key)
    sizes = spec.observation.size, spec.action.size
    model = dynamics.init(model_key, *sizes, config.model_hidden, config.members, config.model_recipe, spec.history)
    shape = Shape(min(config.elites, config.members), config.horizon)
    return State(sac_n.init(sac_key, spec, config), model, shape)


def model_rollouts(state: State, logged: Transition, key: PRNGKeyArray) -> tuple[Transition, Float[Array, " N"]]:
    """N = B H steps of the policy from B logged states, at the ensemble's rewards, and their uncertainty.

    Args:
        state: the learner's state.
        logged: logged transitions.
        key: randomness of all draws.
    """

    def policy(observation: Float[Array, " O"], noise: Float[Array, " A"]) -> Float[Array, " A"]:
        return squash(gaussian_apply(state.sac.actor, observation), noise)[0]

    model, actions = state.model, logged.action.shape[-1]
    leading = dynamics.leading(model, state.shape.elites)
    steps, uncertainty = branched_rollouts(
        model.members, leading, dynamics.reach(model), policy, actions, logged.observation, key, state.shape.horizon
    )
    flat: Transition = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), steps)
    return flat, uncertainty.reshape(-1)


def mix(logged: Transition, modelled: Transition, real: Float[Array, ""]) -> Transition:
    """The first `real` of a batch's rows, and steps in the model in place of the others.

    Args:
        logged: logged transitions.
        modelled: steps in the learned model.
        real: share of logged rows, 0 to 1.
    """
    rows = logged.reward.shape[0]
    keep = jnp.arange(rows) < real * rows

    def choose(ours: Array, theirs: Array) -> Array:
        return jnp.where(keep.reshape(rows, *[1] * (ours.ndim - 1)), ours, theirs)

    mixed: Transition = jax.tree.map(choose, logged._replace(next_action=None), modelled)
    return mixed


CriticLoss = Callable[
    [Ensemble, sac_n.State, Transition, Float[Array, " B"], Transition, Transition],
    tuple[Float[Array, ""], Metrics],
]
"""(critics, state, mixed batch, its target, logged batch, batch of the model) -> (loss, metrics)."""


def critic_loss(
    critics: Ensemble,
    sac: sac_n.State,
    mixed: Transition,
    target: Float[Array, " B"],
    logged: Transition,
    modelled: Transition,
) -> tuple[Float[Array, ""], Metrics]:
    """That of SAC on the mixed batch.

    Args:
        critics: weights of the critics.
        sac: state of SAC.
        mixed: logged transitions and steps in the model.
        target: (B,), what the critics are drawn towards.
        logged: logged transitions.
        modelled: steps in the learned model.
    """
    return sac_n.critic_loss(critics, sac, mixed, target)


def penalise(steps: Transition, uncertainty: Float[Array, " N"], penalty: Float[Array, ""]) -> Transition:
    """Steps in the model at `losses.penalised_reward`.

    Args:
        steps: N steps in the learned model.
        uncertainty: (N,), uncertainty of the ensemble at each step.
        penalty: weight of the uncertainty.
    """
    reward = jax.vmap(losses.penalised_reward, in_axes=(0, None, 0))(steps.reward, penalty, uncertainty)
    return steps._replace(reward=reward)


def make_update(loss: CriticLoss) -> Callable[[State, Transition, PRNGKeyArray], tuple[State, Metrics]]:
    """`STEPS` gradient steps of SAC on logged rows and steps in the model, whose critics descend `loss`."""

    def update(state: State, batches: Transition, key: PRNGKeyArray) -> tuple[State, Metrics]:
        of_rollouts, of_steps = jax.random.split(key)
        h = state.sac.hyper
        fresh, uncertainty = model_rollouts(state, jax.tree.map(lambda x: x[0], batches), of_rollouts)
        pool = penalise(fresh, uncertainty, h["penalty"])

        def one(sac: sac_n.State, given: tuple[Transition, PRNGKeyArray]) -> tuple[sac_n.State, Metrics]:
            logged, key = given
            rows, actions = logged.action.shape
            of_rows, of_noise = jax.random.split(key)
            drawn = jax.random.randint(of_rows, (rows,), 0, pool.reward.shape[0])
            modelled: Transition = jax.tree.map(lambda x: x[drawn], pool)
            mixed = mix(logged, modelled, h["real"])
            noise = jax.random.normal(of_noise, (2, rows, actions), logged.action.dtype)
            target = sac_n.targets(sac, mixed, noise[0], jnp.ones((), mixed.reward.dtype))
            gradient, critic_metrics = jax.grad(loss, has_aux=True)(sac.critics, sac, mixed, target, logged, modelled)
            sac, actor_metrics = sac_n.update_actor(sac_n.step_critics(sac, gradient), mixed, noise[1])
            return sac, critic_metrics | actor_metrics

        keys = jax.random.split(of_steps, batches.reward.shape[0])
        sac, every = jax.lax.scan(one, state.sac, (batches, keys))
        metrics = jax.tree.map(jnp.mean, every)
        metrics |= {"uncertainty": jnp.mean(uncertainty), "model_error": jnp.mean(state.model.error)}
        return state._replace(sac=sac), metrics

    return update


def make_warm_up(names: tuple[str, ...]) -> Callable[[State, Transition, PRNGKeyArray], tuple[State, Metrics]]:
    """`STEPS` steps of the ensemble, each on a batch of its own; the metrics of `names` are zero meanwhile."""

    def warm_up(state: State, batches: Transition, key: PRNGKeyArray) -> tuple[State, Metrics]:
        def one(model: Model, given: tuple[Transition, PRNGKeyArray]) -> tuple[Model, Metrics]:
            batch, key = given
            return dynamics.update(model, batch, state.sac.hyper["model_lr"], key)

        keys = jax.random.split(key, batches.reward.shape[0])
        model, found = jax.lax.scan(one, state.model, (batches, keys))
        error = jnp.mean(found["model_error"])
        return state._replace(model=model), {**dict.fromkeys(names, jnp.zeros_like(error)), "model_error": error}

    return warm_up


def act(state: State, observation: Float[Array, "*n O"]) -> Float[Array, "*n A"]:
    """Unit action for a normalised observation: tanh of the mean."""
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
