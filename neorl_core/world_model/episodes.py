"""Episodes of a controller in a learned model. The estimate is only as good as the model and certifies nothing."""

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
    """Results of a controller in each member of the ensemble."""

    ret: Float[Array, "M E"]
    """Sum of the rewards of H steps, in the unit of the reward."""
    violated: Bool[Array, "M E"]
    """Whether an observation exceeded the limits."""
    handed_over: Float[Array, "M E"]
    """Share of the steps before the end of the episode in which the fallback overruled the policy."""


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
    """Roll a controller out in every member, with the noise of the member.

    The controller sees plain observations and keeps its own history; the history of the members restarts with each
    episode.

    Args:
        members: weights of M members.
        reach: bounds that clip the observations.
        normaliser: scale of the members' observations and actions.
        rewards: mean and standard deviation that the rewards were standardised by.
        controller: controller with the state of a composite.
        params: parameters of the controller.
        starts: (E, O) initial observations in physical units.
        applied: (E, A) actions in force at the start.
        limits: lowest and highest allowed value of each observation in physical units, or infinity.
        key: PRNG key of the noise; use the same key for all controllers that are compared.
        horizon: steps H.
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
