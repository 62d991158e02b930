"""Simulate episodes of a controller in a learned model. The results are estimates and are not used for certificates."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from neorl_core.history import stack_first
from neorl_core.networks import Ensemble, Normaliser, normalise, to_unit
from neorl_core.types import Controller, Params
from neorl_core.world_model import dynamics
from neorl_core.world_model.dynamics import Reach


class ModelEpisodes(NamedTuple):
    """Results of a controller in each of M members of the ensemble, for E episodes."""

    ret: Float[Array, "M E"]
    """Return of the episode: sum of its rewards, at most H, in the reward's unit."""
    violated: Bool[Array, "M E"]
    """Whether an observation of the episode was outside the limits."""
    handed_over: Float[Array, "M E"]
    """Share of the episode's steps in which the fallback acted instead of the policy."""


@partial(jax.jit, static_argnames=("controller", "horizon"))
def model_episodes(
    members: Ensemble,
    reach: Reach,
    normaliser: Normaliser,
    rewards: tuple[float, float],
    controller: Controller,
    params: Params,
    starts: Float[Array, "E O"],
    applied: Float[Array, "E A"],
    limits: tuple[Float[Array, " O"], Float[Array, " O"]],
    key: PRNGKeyArray,
    horizon: int,
) -> ModelEpisodes:
    """Simulate E episodes of a controller in every member of the ensemble, with the noise that the member predicts.

    Args:
        reach: range to which predicted observations are clipped.
        normaliser: conversion of observations and actions to the members' units.
        rewards: mean and standard deviation with which the training rewards were scaled.
        controller: controller of a composite, from `composite_controller`.
        starts: (E, O) initial observations, in physical units, without history.
        applied: (E, A) actions applied before the first step, in physical units.
        limits: lowest and highest allowed value (O,) of each observation in physical units; infinite without a limit.
        key: PRNG key of the noise. Use the same key for all controllers that you compare.
    """

    def one(member: Params, start: Float[Array, " O"], before: Float[Array, " A"], key: PRNGKeyArray) -> ModelEpisodes:
        def step(
            carry: tuple[Params, Array, Array, Array], noise: Float[Array, " O"]
        ) -> tuple[tuple[Params, Array, Array, Array], tuple[Array, Array, Array, Array]]:
            memory, stacked, applied, alive = carry
            memory, action = controller.act(params, memory, stacked[: start.shape[0]], applied)
            x, u = normalise(normaliser, stacked), to_unit(normaliser, action)
            mean, log_deviation = dynamics.transition(member, x, u)
            following = dynamics.clip(reach, mean + jnp.exp(log_deviation) * noise)
            reward, logit = dynamics.reward_and_termination(member, x, u, following)
            physical = following * normaliser.scale[: start.shape[0]] + normaliser.mean[: start.shape[0]]
            out = ~jnp.all((physical >= limits[0]) & (physical <= limits[1]))
            paid = alive * (rewards[0] + rewards[1] * reward)
            record = (paid, out & (alive > 0), alive * memory.handed_over, alive)
            after = dynamics.stack_outcome(reach, stacked, action, physical)
            return (memory, after, action, alive * (logit <= 0.0)), record

        noises = jax.random.normal(key, (horizon, start.shape[0]), start.dtype)
        fresh = controller.init(params, start), stack_first(reach.history, start, before)
        paid, out, handed, lived = jax.lax.scan(step, (*fresh, before, jnp.ones((), start.dtype)), noises)[1]
        return ModelEpisodes(jnp.sum(paid), jnp.any(out), jnp.sum(handed) / jnp.sum(lived))

    episodes = []
    for number, member in enumerate(members):
        keys = jax.random.split(jax.random.fold_in(key, number), starts.shape[0])
        episodes.append(jax.vmap(partial(one, member))(starts, applied, keys))
    stacked: ModelEpisodes = jax.tree.map(lambda *x: jnp.stack(x), *episodes)
    return stacked
