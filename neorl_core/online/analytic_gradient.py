"""Analytic policy gradient: differentiate the return of whole episodes by the weights of the policy.

The gradient passes through reward, plant and policy (SVG(inf) of Heess et al. 2015, arXiv 1510.09142, on the simulator
itself). The policy observes the action and the state of the plant's controller, and corrects the action, so it starts
about as good as the controller. The first updates run the policy without the shield. The last updates run the
composite, so that the gradient passes through the shield's choices and the policy learns to keep control. Every update
simulates new episodes of the operating domain.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray, UInt32

from neorl_core.networks import Normaliser, Policy, actor_init
from neorl_core.plants.base import clip_to, rollout, rollouts
from neorl_core.safety.composite import (
    Composite,
    composite_controller,
    correction_inputs,
    make_composite,
    unshielded_controller,
)
from neorl_core.safety.shield import ShieldParams
from neorl_core.training import optimisers
from neorl_core.training.optimisers import Optimiser, Recipe
from neorl_core.training.population import Metrics
from neorl_core.types import Params, Plant, PlantSpec, varies

OBSERVED = 64
"""Episodes of the plant's controller that determine the normaliser."""
FIRST = 0.01
"""Factor of the last layer's first weights."""


class Config(NamedTuple):
    """Hyper-parameters of a run."""

    hidden: tuple[int, ...] = (64, 64)
    updates: int = 600
    protected_updates: int = 300
    """Updates at the end that run the composite instead of the policy without the shield."""
    episodes: int = 64
    """Episodes of an update."""
    actor_lr: float = 2e-3
    margin: float = 0.15
    """Margin below which a step is penalised, as a share of the limit's width (in the limit's unit if one-sided)."""
    margin_weight: float = 100.0
    """Points of score that an episode loses for a step on a limit; the loss grows with the square of the lack."""


class State(NamedTuple):
    """Training state."""

    actor: Params
    optimiser: Optimiser
    key: UInt32[Array, " 2"]
    """Never changes; each update derives its key from this key and `step`."""
    step: Int[Array, ""]


class Setting(NamedTuple):
    """Everything that stays the same during a run."""

    plant: Plant
    shield: ShieldParams
    normaliser: Normaliser
    config: Config


def observe(plant: Plant, key: PRNGKeyArray) -> Normaliser:
    """Run the plant's controller over the operating domain, and return the normaliser of a policy that corrects it."""
    keys = jax.random.split(key, OBSERVED)
    seen = rollouts(plant, plant.fallback, plant.fallback_params, keys, plant.domain, trace=True).trajectory
    assert seen is not None
    rows = _inputs(plant, seen.observations, seen.actions)
    rows = np.asarray(rows)[np.asarray(seen.alive)].astype(np.float64)
    mean, deviation = rows.mean(0), rows.std(0)
    low, high = (np.asarray(bound) for bound in plant.spec.action[2:])
    scale = np.where(varies(mean, deviation), deviation, 1.0)
    found = mean, scale, (low + high) / 2, (high - low) / 2
    return Normaliser(*(jnp.asarray(x, jnp.float32) for x in found))


@partial(jax.jit, static_argnames="plant")
def _inputs(plant: Plant, observations: Float[Array, "N T O"], actions: Float[Array, "N T A"]) -> Float[Array, "N T I"]:
    """Return `correction_inputs` of every step of the plant's controller."""

    def episode(observations: Float[Array, "T O"], actions: Float[Array, "T A"]) -> Float[Array, "T I"]:
        def step(memory: Any, now: Any) -> Any:
            memory, command = plant.fallback.act(plant.fallback_params, memory, *now)
            return memory, correction_inputs(now[0], memory, clip_to(plant.spec.action, command))

        applied = jnp.concatenate([plant.applied(observations[0])[None], actions[:-1]])
        start = plant.fallback.init(plant.fallback_params, observations[0])
        rows: Float[Array, "T I"] = jax.lax.scan(step, start, (observations, applied))[1]
        return rows

    return jax.vmap(episode)(observations, actions)


def init(key: PRNGKeyArray, setting: Setting) -> State:
    """Return the initial training state: an actor that hardly corrects the plant's controller."""
    actor_key, train_key = jax.random.split(key)
    spec, config = setting.plant.spec, setting.config
    actor = actor_init(actor_key, len(setting.normaliser.mean), spec.action.size, config.hidden)
    last = f"Dense_{len(config.hidden)}"
    actor = actor | {last: jax.tree.map(lambda x: FIRST * x, actor[last])}
    recipe = Recipe(clip=1.0, schedule="cosine", steps=config.updates)
    return State(actor, optimisers.init(recipe, actor), jax.random.key_data(train_key), jnp.int32(0))


def composite_of(actor: Params, setting: Setting) -> Composite:
    """Return the composite of an actor, which moves the controller's action by at most half of the action's range."""
    policy, reach = Policy(actor, setting.normaliser), setting.normaliser.action_half_range
    return make_composite(setting.plant, policy, setting.shield, correction=reach)


def least_margins(spec: PlantSpec, share: float) -> Float[np.ndarray, " K"]:
    """Return the margin of each limit below which a step is penalised: a share of the width, or of 1 if one-sided."""
    widths = np.asarray([limit.high - limit.low for limit in spec.constraints])
    return share * np.where(np.isfinite(widths), widths, 1.0)


def loss(actor: Params, setting: Setting, key: PRNGKeyArray, protected: bool) -> tuple[Float[Array, ""], Metrics]:
    """Return the loss of one episode, in points of score, and metrics.

    loss = −return/point + weight · Σ relu(1 − margin/least)², over steps and limits.

    Args:
        key: key of the episode, as for `rollouts`.
        protected: whether the composite runs, or the policy without the shield.
    """
    plant, config = setting.plant, setting.config
    controller = composite_controller(plant) if protected else unshielded_controller(plant)
    params = composite_of(actor, setting)
    key_constants, key_run = jax.random.split(key)
    trace = rollout(plant, controller, params, key_run, plant.sample_params(key_constants, plant.domain))
    lack = jax.nn.relu(1.0 - trace.margins / least_margins(plant.spec, config.margin))
    penalty = jnp.sum(jnp.where(trace.alive[:, None], lack, 0.0) ** 2)
    low, high = plant.spec.score_range
    score = (jnp.sum(trace.rewards) - low) / (high - low) * 100.0
    taken = jnp.sum(trace.handed_over) / jnp.sum(trace.alive)
    crossed = jnp.any((trace.margins < 0) & trace.alive[:, None]).astype(float)
    metrics = {"score": score, "penalty": penalty, "violated": crossed, "taken_over": taken}
    return -score + config.margin_weight * penalty, metrics


def bounded_mean(gradients: Params) -> tuple[Params, Float[Array, ""]]:
    """Return the mean of E gradients, each scaled down to a median norm, and the share of finite gradients.

    The gradient of a chaotic episode is many orders of magnitude larger than the others and says nothing about the
    mean (Metz et al. 2021, arXiv 2111.05803). The median is over gradients that are finite and not zero. A gradient
    that is not finite counts as zero.

    Args:
        gradients: leaves (E, ...).
    """
    leaves = jax.tree.leaves(gradients)
    norm = jnp.sqrt(sum(jnp.sum(leaf.reshape(leaf.shape[0], -1) ** 2, axis=1) for leaf in leaves))
    finite = jnp.isfinite(norm)
    median = jnp.nan_to_num(jnp.nanmedian(jnp.where(finite & (norm > 0), norm, jnp.nan)))
    weight = jnp.where(finite, jnp.minimum(1.0, median / jnp.maximum(norm, 1e-30)), 0.0) / norm.shape[0]

    def mean(leaf: Float[Array, "E ..."]) -> Float[Array, ...]:
        along = weight.reshape(-1, *(1,) * (leaf.ndim - 1))
        return jnp.sum(jnp.where(along > 0, leaf * along, 0.0), axis=0)

    return jax.tree.map(mean, gradients), jnp.mean(finite)


def update(state: State, setting: Setting, protected: bool) -> tuple[State, Metrics]:
    """Take one gradient step on new episodes."""
    key = jax.random.fold_in(jax.random.wrap_key_data(state.key, impl="threefry2x32"), state.step)
    keys = jax.random.split(key, setting.config.episodes)
    slope = jax.grad(loss, has_aux=True)
    gradients, metrics = jax.vmap(lambda key: slope(state.actor, setting, key, protected))(keys)
    gradient, finite = bounded_mean(gradients)
    actor, optimiser = optimisers.step(state.actor, gradient, state.optimiser, jnp.asarray(setting.config.actor_lr))
    steep = jnp.max(jnp.stack([jnp.max(jnp.abs(leaf)) for leaf in jax.tree.leaves(gradient)]))
    found = jax.tree.map(jnp.mean, metrics) | {"finite": finite, "gradient": steep}
    return State(actor, optimiser, state.key, state.step + 1), found


def make_chunk(setting: Setting, updates: int, protected: bool) -> partial[tuple[State, Metrics]]:
    """Return a function that takes `updates` updates and returns the last state and the means of the metrics.

    Settings of one plant share the compiled program.
    """
    return partial(_compiled(setting.plant, setting.config, updates, protected), setting.shield, setting.normaliser)


@lru_cache(maxsize=16)
def _compiled(plant: Plant, config: Config, updates: int, protected: bool) -> Callable[..., tuple[State, Metrics]]:
    @jax.jit
    def chunk(shield: ShieldParams, normaliser: Normaliser, state: State) -> tuple[State, Metrics]:
        setting = Setting(plant, shield, normaliser, config)
        state, metrics = jax.lax.scan(lambda s, _: update(s, setting, protected), state, length=updates)
        return state, jax.tree.map(jnp.mean, metrics)

    return chunk
