"""Behaviour policies for made data: a controller blended with uniformly random actions, or with exploration noise.

Source: the qualities follow D4RL (Fu et al. 2020, arXiv 2004.07219, section 5) and NeoRL (Qin et al. 2021, arXiv
2102.00714, section 4): random, a medium policy, the best known one, and blends of whole episodes of these.
"""

from __future__ import annotations

from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key, PRNGKeyArray

from neorl_core.plants.base import EpisodeResult, clip_to, rollout, summarise
from neorl_core.types import Controller, Params, Plant, PlantSpec


class Behaviour(NamedTuple):
    """What makes a policy out of a controller; leading axis (E,) for episodes that differ."""

    blend: Float[Array, "*e"]
    """Share of a uniformly random action in each action: 0 is the controller itself, 1 random."""
    noise: Float[Array, "*e"]
    """Deviation of the normal noise on each action, as a share of half of its range."""


class BehaviourParams(NamedTuple):
    """Parameters of a blended controller in one episode."""

    base: Params
    behaviour: Behaviour
    key: PRNGKeyArray


def blended(base: Controller, spec: PlantSpec) -> Controller:
    """a = (1 − β) clip(base(o)) + β u + σ h w, u ~ U(low, high), w ~ N(0, 1), h half of the range.

    Args:
        base: the controller.
        spec: gives the actions' bounds, which must be finite.

    Returns:
        A controller with `BehaviourParams`; both u and w are new at every step, and `base` is told of neither.
    """

    def init(params: BehaviourParams, observation: Float[Array, " O"]) -> tuple[Any, ...]:
        resting = jnp.zeros(spec.action.size, observation.dtype)
        return base.init(params.base, observation), resting, jnp.zeros((), jnp.int32)

    def act(
        params: BehaviourParams, memory: Any, observation: Float[Array, " O"], applied: Float[Array, " A"]
    ) -> tuple[Any, Float[Array, " A"]]:
        inner, own, step = memory
        # A controller that tracked what was added to its output would integrate it.
        inner, wanted = base.act(params.base, inner, observation, jnp.where(step == 0, applied, own))
        wanted = clip_to(spec.action, wanted)
        low, high = (jnp.asarray(bound, wanted.dtype) for bound in (spec.action.low, spec.action.high))
        key_uniform, key_noise = jax.random.split(jax.random.fold_in(params.key, step))
        uniform = jax.random.uniform(key_uniform, wanted.shape, wanted.dtype, low, high)
        noise = jax.random.normal(key_noise, wanted.shape, wanted.dtype)
        beta, sigma = params.behaviour
        action = (1 - beta) * wanted + beta * uniform + sigma * (high - low) / 2 * noise
        return (inner, wanted, step + 1), jnp.where(beta >= 1, uniform, action)

    return Controller(init, act)


@cache
def _blended(base: Controller, spec: PlantSpec) -> Controller:
    """The same object for the same controller, so that programs are compiled once."""
    return blended(base, spec)


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
    controller = _blended(base, plant.spec)

    def episode(key: PRNGKeyArray, own: Behaviour) -> EpisodeResult:
        key_constants, key_run, key_act = jax.random.split(key, 3)
        constants = plant.sample_params(key_constants, plant.domain)
        trajectory = rollout(plant, controller, BehaviourParams(base_params, own, key_act), key_run, constants)
        return summarise(trajectory)._replace(trajectory=trajectory if trace else None)

    return jax.vmap(episode)(keys, behaviour)
