"""Behaviour policies for made data: a controller as it is, detuned towards idling, replaced by random actions, noisy.

Source: the qualities follow D4RL (Fu et al. 2020, arXiv 2004.07219, section 5) and NeoRL (Qin et al. 2021, arXiv
2102.00714, section 4): random, policies that are part of the way to the best known one, and mixtures of these.
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
    """What makes a policy out of a controller; leading axis (E,) for episodes that differ."""

    random: Float[Array, "*e"]
    """Share of a uniformly random action in each action: 0 is the controller itself, 1 random."""
    detuned: Float[Array, "*e"]
    """Share of the plant's idle action in each action: the controller's gains and range are that much smaller."""
    noise: Float[Array, "*e"]
    """Deviation of the normal noise on each action, as a share of half of its range; of a discrete action the share of
    steps at which a random choice takes its place."""


class BehaviourParams(NamedTuple):
    """Parameters of a blended controller in one episode."""

    base: Params
    """Parameters of the controller that is blended."""
    behaviour: Behaviour
    key: PRNGKeyArray


def idle_action(plant: Plant, observation: Float[Array, " O"]) -> Float[Array, " A"]:
    """The action that a sensible idle holds from a first observation on.

    Args:
        plant: names it, or else what is in force is held.
        observation: (O,), the first of the episode.
    """
    return plant.applied(observation) if plant.idle is None else jnp.asarray(plant.idle, observation.dtype)


@cache
def idle(plant: Plant) -> Controller:
    """Holds the plant's idle action throughout, which scores 0; it has no parameters."""
    return Controller(
        lambda params, observation: idle_action(plant, observation),
        lambda params, held, observation, applied: (held,) * 2,
    )


@cache
def blended(base: Controller, plant: Plant) -> Controller:
    """a = (1 − ρ) (r + (1 − β) (clip(base(o)) − r)) + ρ u + σ h w, u ~ U(low, high), w ~ N(0, 1), h half of the range.

    At ρ = 1 the action is u alone, whatever σ is. To add noise there as well would make another program, which rounds
    other blends otherwise in the last bit, and so changes data that are made by it.

    Choices cannot be blended: a discrete action is a random one with probability ρ + σ, else r with probability β, else
    the controller's.

    Args:
        base: the controller.
        plant: gives the actions' bounds, which must be finite, and the idle action r.

    Returns:
        A controller with `BehaviourParams`; both u and w are new at every step, and `base` is told of neither. The same
        arguments give the same object, so that programs are compiled once.
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
        # A controller that tracked what was added to its output would integrate it.
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
    """E episodes in the plant's own operating domain, each by its own key and behaviour.

    Args:
        plant: the plant.
        base: the controller that is blended.
        base_params: its parameters.
        behaviour: (E,) each.
        keys: (E,), one per episode, so that an episode does not depend on the others.
        trace: keep all steps in `.trajectory`.

    Returns:
        Per-episode results with leading axis E.
    """
    controller = blended(base, plant)

    def episode(key: PRNGKeyArray, own: Behaviour) -> EpisodeResult:
        key_constants, key_run, key_act = jax.random.split(key, 3)
        constants = plant.sample_params(key_constants, plant.domain)
        trajectory = rollout(plant, controller, BehaviourParams(base_params, own, key_act), key_run, constants)
        return summarise(trajectory)._replace(trajectory=trajectory if trace else None)

    return jax.vmap(episode)(keys, behaviour)
