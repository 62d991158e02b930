"""Behaviour policies for synthetic data: a controller with weaker action, random actions and noise.

The data qualities follow D4RL (Fu et al. 2020, arXiv 2004.07219, section 5) and NeoRL (Qin et al. 2021, arXiv
2102.00714, section 4): random policies, policies between random and the best known, and mixtures.
"""

from __future__ import annotations

from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key, PRNGKeyArray

from neorl_core.plants.base import EpisodeResult, clip_to, rollout, summarise
from neorl_core.types import Controller, Params, Plant


class Behaviour(NamedTuple):
    """Changes to a controller; fields are scalars, or (E,) with a value for each episode."""

    random: Float[Array, "*e"]
    """ρ, the share of a uniformly random action in each action: 0 is the controller alone, 1 is random."""
    detuned: Float[Array, "*e"]
    """β, the share of the plant's idle action in each action; reduces the controller's gains and range."""
    noise: Float[Array, "*e"]
    """σ, the standard deviation of the noise on each action, as a share of half the range. For a discrete action, the
    share of steps with a random choice."""


class BehaviourParams(NamedTuple):
    """Parameters of a blended controller for one episode."""

    base: Params
    """Parameters of the base controller."""
    behaviour: Behaviour
    key: PRNGKeyArray


def idle_action(plant: Plant, observation: Float[Array, " O"]) -> Float[Array, " A"]:
    """Return the plant's idle action, or the action in force at the first observation if the plant has none."""
    return plant.applied(observation) if plant.idle is None else jnp.asarray(plant.idle, observation.dtype)


@cache
def idle(plant: Plant) -> Controller:
    """Return a controller without parameters that always applies the plant's idle action, which scores 0."""
    return Controller(
        lambda params, observation: idle_action(plant, observation),
        lambda params, held, observation, applied: (held,) * 2,
    )


@cache
def blended(base: Controller, plant: Plant) -> Controller:
    """Build a controller that blends the action of a base controller with the idle action, a random action and noise.

    a = (1 − ρ) (r + (1 − β) (clip(base(o)) − r)) + ρ u + σ h w, with u ~ U(low, high) and w ~ N(0, 1)

    Here o is the observation, r the idle action, h half of the action range; `Behaviour` explains ρ, β and σ. At ρ = 1
    the action is u without noise.

    A discrete action is random with probability ρ + σ, otherwise r with probability β, otherwise base's action.

    Args:
        plant: supplies the actions' bounds, which must be finite, and the idle action r.

    Returns:
        A controller with parameters `BehaviourParams`. It draws u and w in every step and hides them from `base`. Equal
        arguments return the same object, so that programs are compiled once.
    """
    space = plant.spec.action

    def init(params: BehaviourParams, observation: Float[Array, " O"]) -> tuple[Any, ...]:
        resting = jnp.zeros(space.size, observation.dtype)
        held = idle_action(plant, observation)
        return base.init(params.base, observation), resting, held, jnp.zeros((), jnp.int32)

    def act(
        params: BehaviourParams, memory: Any, observation: Float[Array, " O"], applied: Float[Array, " A"]
    ) -> tuple[Any, Float[Array, " A"]]:
        inner, own, held, step = memory
        # The base controller receives its own output as applied; otherwise it would integrate the added noise.
        inner, wanted = base.act(params.base, inner, observation, jnp.where(step == 0, applied, own))
        wanted = clip_to(space, wanted)
        low, high = (jnp.asarray(bound, wanted.dtype) for bound in (space.low, space.high))
        key_uniform, key_noise = jax.random.split(jax.random.fold_in(params.key, step))
        uniform = jax.random.uniform(key_uniform, wanted.shape, wanted.dtype, low, high)
        noise = jax.random.normal(key_noise, wanted.shape, wanted.dtype)
        rho, beta, sigma = params.behaviour
        if plant.spec.choices is not None:
            coin, rest = jax.random.uniform(key_noise, (2, *wanted.shape), wanted.dtype)
            drawn = jax.random.randint(key_uniform, wanted.shape, 0, len(plant.spec.choices)).astype(wanted.dtype)
            action = jnp.where(coin < rho + sigma, drawn, jnp.where(rest < beta, held, wanted))
            return (inner, wanted, held, step + 1), action
        action = (1 - rho) * ((1 - beta) * wanted + beta * held) + rho * uniform + sigma * (high - low) / 2 * noise
        return (inner, wanted, held, step + 1), jnp.where(rho >= 1, uniform, action)

    return Controller(init, act)


@partial(jax.jit, static_argnames=("plant", "base", "trace"))
def play(
    plant: Plant,
    base: Controller,
    base_params: Params,
    behaviour: Behaviour,
    keys: Key[Array, " E"],
    trace: bool = False,
) -> EpisodeResult:
    """Simulate E episodes of a blended controller in the plant's operating domain.

    Args:
        behaviour: fields of shape (E,), one value per episode.
        trace: also return all steps, in `.trajectory`.

    Returns:
        Statistics of the episodes, with leading axis E.
    """
    controller = blended(base, plant)

    def episode(key: PRNGKeyArray, own: Behaviour) -> EpisodeResult:
        key_constants, key_run, key_act = jax.random.split(key, 3)
        constants = plant.sample_params(key_constants, plant.domain)
        trajectory = rollout(plant, controller, BehaviourParams(base_params, own, key_act), key_run, constants)
        return summarise(trajectory, plant)._replace(trajectory=trajectory if trace else None)

    return jax.vmap(episode)(keys, behaviour)
