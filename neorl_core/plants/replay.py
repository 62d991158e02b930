"""A simulator beside logs: what it predicts of logged steps, and what it would itself have done there.

A plant's prediction misses its logs by noise, disturbances, hidden states and constants that nobody knows exactly. How
much of that the operating domain explains is found by simulation: plants drawn from the domain are put where the log
says, given the logged actions, and their errors are counted as the log's are (a parametric bootstrap: Efron and
Tibshirani, An Introduction to the Bootstrap, chapter 6.5).
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key, PRNGKeyArray

from neorl_core.types import Params, Plant


class LoggedEpisodes(NamedTuple):
    """E logged episodes, filled up to the longest one's T steps."""

    observations: Float[Array, "E T O"]
    """Before each step."""
    actions: Float[Array, "E T A"]
    next_observations: Float[Array, "E T O"]
    present: Bool[Array, "E T"]
    """Whether the step was logged; all that were stand before all that were not."""


class ReplayErrors(NamedTuple):
    """Root mean square prediction errors by horizon, in the signals' units."""

    logged: Float[Array, "*n K O"]
    """On the logs."""
    simulated: Float[Array, "*n B K O"]
    """Of B plants of the operating domain in the logged plant's place."""
    held: Bool[Array, "*n O"]
    """Whether the plant predicts that the signal stays what it was: a set point, which somebody else moves."""


# It runs once, and for less time than XLA would take to make it fast.
@partial(jax.jit, static_argnames="plant", compiler_options={"xla_backend_optimization_level": 0})
def replay_errors(
    plant: Plant,
    params: Params,
    logs: LoggedEpisodes,
    horizons: Int[Array, " K"],
    keys: Key[Array, " B"],
    domain: Params,
) -> ReplayErrors:
    """Errors of a plant's predictions on logs, and where plants of a domain take the logged actions instead.

    e = √(mean (ŷ(t + k) − y(t + k))²), ŷ from `predict` applied k times to y(t), for t = 0, k, 2k, …

    Each drawn plant has the constants that its key draws. Every k steps it is put where the log says by `plant.resume`,
    which leaves alone what an observation does not tell. A plant without that function starts as `reset` has it, its
    errors are those of its own observations, and what follows the end of its episode is left out.

    Args:
        plant: gives `predict` and the drawn plants; its own constants are not looked at.
        params: the constants that are predicted with.
        logs: the episodes.
        horizons: (K,), steps ahead, of which no episode need have as many.
        keys: (B,), one for each drawn plant.
        domain: the operating domain.
    """
    drawn = jax.vmap(plant.sample_params, (0, None))(jax.vmap(lambda key: jax.random.fold_in(key, 0))(keys), domain)
    episode_keys = jax.vmap(lambda key: jax.random.split(jax.random.fold_in(key, 1), len(logs.present)))(keys)
    # What a plant is put back to is what was logged, so that all of them have the logs' predictions.
    own = 0 if plant.resume is None else None

    def ahead(steps: Int[Array, ""]) -> tuple[Array, Array, Array]:
        forecast = partial(_predicted, plant, params, steps)
        predicted = jax.vmap(forecast)(logs.observations, logs.actions)
        ends = logs.present & ((jnp.arange(logs.present.shape[1]) + 1) % steps == 0)
        replay = jax.vmap(partial(_replayed, plant, steps), (None, 0, 0))
        made = jax.vmap(replay, (0, 0, None))(drawn, episode_keys, logs)
        theirs = jax.vmap(jax.vmap(forecast), (0, None))(made.observations, logs.actions) if own == 0 else predicted
        simulated = jax.vmap(_rms, (own, 0, 0))(theirs, made.next_observations, made.present & ends)
        begins = logs.present & (jnp.arange(logs.present.shape[1]) % steps == 0)
        held = jnp.all((predicted == logs.observations) | ~begins[..., None], axis=(0, 1))
        return _rms(predicted, logs.next_observations, ends), simulated, held

    logged, simulated, held = jax.lax.map(ahead, horizons)
    return ReplayErrors(logged, jnp.swapaxes(simulated, 0, 1), jnp.all(held, axis=0))


def _predicted(
    plant: Plant, params: Params, steps: Int[Array, ""], observations: Float[Array, "T O"], actions: Float[Array, "T A"]
) -> Float[Array, "T O"]:
    """What is predicted after each step of an episode, begun anew from its observation every `steps` steps."""

    def step(predicted: Float[Array, " O"], at: tuple[Array, Array, Array]) -> tuple[Array, Array]:
        t, seen, action = at
        following = plant.predict(jnp.where(t % steps == 0, seen, predicted), action, params)[0]
        return following, following

    return jax.lax.scan(step, observations[0], (jnp.arange(len(actions)), observations, actions))[1]


def _replayed(
    plant: Plant, steps: Int[Array, ""], constants: Params, key: PRNGKeyArray, log: LoggedEpisodes
) -> LoggedEpisodes:
    """The log of one drawn plant along one logged episode's actions."""
    key_start, key_steps = jax.random.split(key)
    state, observation = plant.reset(key_start, constants)
    keys = jax.random.split(key_steps, (len(log.present), 2))

    def step(carry: Any, at: tuple[Array, PRNGKeyArray, LoggedEpisodes]) -> Any:
        state, constants, observation, alive = carry
        t, (key_noise, key_step), now = at
        if plant.resume is not None:
            resumed = plant.resume(key_noise, state, now.observations, constants)
            state, constants, observation = jax.tree.map(
                lambda new, old: jnp.where(t % steps == 0, new, old),
                (*resumed, now.observations),
                (state, constants, observation),
            )
            alive = jnp.asarray(True)
        state, found = plant.step(key_step, state, now.actions, constants)
        made = LoggedEpisodes(observation, now.actions, found.observation, now.present & alive)
        return (state, constants, found.observation, alive & ~found.terminated), made

    # All constants are arrays of the simulation's precision, as what `resume` gives back is.
    constants = jax.tree.map(lambda x: jnp.asarray(x, observation.dtype), constants)
    begin = (state, constants, observation, jnp.asarray(True))
    made: LoggedEpisodes = jax.lax.scan(step, begin, (jnp.arange(len(log.present)), keys, log))[1]
    return made


def _rms(
    predicted: Float[Array, "E T O"], following: Float[Array, "E T O"], counted: Bool[Array, "E T"]
) -> Float[Array, " O"]:
    # What is not counted may not be finite, and NaN times zero is NaN.
    squares = jnp.where(counted[..., None], jnp.square(predicted - following), 0.0)
    return jnp.sqrt(jnp.sum(squares, (0, 1)) / jnp.sum(counted))
