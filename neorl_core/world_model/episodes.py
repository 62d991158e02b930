"""Episodes of a controller in a learned model: an estimate that is worth what the model is, and certifies nothing."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from neorl_core.history import begun
from neorl_core.networks import Ensemble, Normaliser, normalise, to_unit
from neorl_core.types import Controller, Params
from neorl_core.world_model import dynamics
from neorl_core.world_model.dynamics import Reach


class ModelEpisodes(NamedTuple):
    """What came of a controller in the plants that the members believe in."""

    ret: Float[Array, "M E"]
    """Sum of the rewards of H steps, in the reward's unit."""
    violated: Bool[Array, "M E"]
    """Whether an observation left the limits."""
    handed_over: Float[Array, "M E"]
    """Share of the steps before the episode's end in which the fallback overruled the policy."""


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
    """Roll a controller out in every member, with the member's own noise.

    The controller sees plain observations and keeps its own history; the members' begins anew with the episode.

    Args:
        members: M members' weights.
        reach: where an observation would leave it, it is clipped.
        normaliser: scale of the members' observations and actions.
        rewards: mean and deviation of the rewards, by which they were standardised.
        controller: with the state of a composite's.
        params: the controller's.
        starts: (E, O) first observations, physical units.
        applied: (E, A) actions in force at them.
        limits: lowest and highest allowed of each observation, physical units; infinite where there is none.
        key: randomness of the noise, the same for all controllers that are compared.
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
            following = dynamics.within(reach, mean + jnp.exp(log_deviation) * noise)
            reward, logit = dynamics.reward_and_termination(member, x, u, following)
            physical = following * normaliser.scale[: start.shape[0]] + normaliser.mean[: start.shape[0]]
            out = ~jnp.all((physical >= limits[0]) & (physical <= limits[1]))
            paid = alive * (rewards[0] + rewards[1] * reward)
            found = (paid, out & (alive > 0), alive * memory.handed_over, alive)
            after = dynamics.onward(reach, stacked, action, physical)
            return (memory, after, action, alive * (logit <= 0.0)), found

        noises = jax.random.normal(key, (horizon, start.shape[0]), start.dtype)
        fresh = controller.init(params, start), begun(reach.history, start, before)
        paid, out, handed, lived = jax.lax.scan(step, (*fresh, before, jnp.ones((), start.dtype)), noises)[1]
        return ModelEpisodes(jnp.sum(paid), jnp.any(out), jnp.sum(handed) / jnp.sum(lived))

    found = []
    for number, member in enumerate(members):
        keys = jax.random.split(jax.random.fold_in(key, number), starts.shape[0])
        found.append(jax.vmap(partial(one, member))(starts, applied, keys))
    together: ModelEpisodes = jax.tree.map(lambda *x: jnp.stack(x), *found)
    return together
