"""Prediction errors of a simulator on logs, and the errors that its operating domain explains.

Noise, disturbances, hidden states and uncertain constants cause prediction errors even if the simulator is right. A
parametric bootstrap shows how large these errors may be (Efron and Tibshirani, An Introduction to the Bootstrap,
chapter 6.5): plants drawn from the operating domain replay the logged actions, and each replay has errors of its own.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key, PRNGKeyArray

from neorl_core.types import Params, Plant


class LoggedEpisodes(NamedTuple):
    """E logged episodes, padded to the T steps of the longest episode."""

    observations: Float[Array, "E T O"]
    """Observations before each step."""
    actions: Float[Array, "E T A"]
    next_observations: Float[Array, "E T O"]
    present: Bool[Array, "E T"]
    """True if the step was logged, false if it is padding. Padding comes last."""


class ReplayErrors(NamedTuple):
    """Root-mean-square prediction errors for K horizons and O signals, in the signals' units."""

    logged: Float[Array, "*n K O"]
    simulated: Float[Array, "*n B K O"]
    """Errors on replays by B plants, drawn from the operating domain."""
    held: Bool[Array, "*n O"]
    """True if the plant never predicts a change of the signal, for example of a set point."""


# The program runs once, in less time than XLA would need to optimise it.
@partial(jax.jit, static_argnames="plant", compiler_options={"xla_backend_optimization_level": 0})
def replay_errors(
    plant: Plant,
    params: Params,
    logs: LoggedEpisodes,
    horizons: Int[Array, " K"],
    keys: Key[Array, " B"],
    domain: Params,
) -> ReplayErrors:
    """Return prediction errors on logs, and on replays of the logged actions by plants of an operating domain.

    e = √(mean (ŷ(t + k) − y(t + k))²) at t = 0, k, 2k, …: k one-step predictions lead from observation y(t) to ŷ(t + k)

    Every k steps `plant.resume` sets each drawn plant to the logged observation; hidden states keep their values. A
    plant without `resume` starts from `reset`, and y is its own observation. Steps after a termination are ignored.

    Args:
        plant: supplies `predict` and the drawn plants; `plant.params` is not used.
        horizons: (K,), numbers k of steps; a number may exceed the length of the episodes.
        keys: (B,), random keys, one per drawn plant.
    """
    drawn = jax.vmap(plant.sample_params, (0, None))(jax.vmap(lambda key: jax.random.fold_in(key, 0))(keys), domain)
    episode_keys = jax.vmap(lambda key: jax.random.split(jax.random.fold_in(key, 1), len(logs.present)))(keys)
    # With `resume`, all drawn plants start from the logged states and so share the predictions for the logs.
    own = 0 if plant.resume is None else None

    def ahead(steps: Int[Array, ""]) -> tuple[Array, Array, Array]:
        forecast = partial(_forecast, plant, params, steps)
        predicted = jax.vmap(forecast)(logs.observations, logs.actions)
        ends = logs.present & ((jnp.arange(logs.present.shape[1]) + 1) % steps == 0)
        replay = jax.vmap(partial(_replay, plant, steps), (None, 0, 0))
        replayed = jax.vmap(replay, (0, 0, None))(drawn, episode_keys, logs)
        forecasts = (
            jax.vmap(jax.vmap(forecast), (0, None))(replayed.observations, logs.actions) if own == 0 else predicted
        )
        simulated = jax.vmap(_rms, (own, 0, 0))(forecasts, replayed.next_observations, replayed.present & ends)
        begins = logs.present & (jnp.arange(logs.present.shape[1]) % steps == 0)
        held = jnp.all((predicted == logs.observations) | ~begins[..., None], axis=(0, 1))
        return _rms(predicted, logs.next_observations, ends), simulated, held

    logged, simulated, held = jax.lax.map(ahead, horizons)
    return ReplayErrors(logged, jnp.swapaxes(simulated, 0, 1), jnp.all(held, axis=0))


def _forecast(
    plant: Plant, params: Params, steps: Int[Array, ""], observations: Float[Array, "T O"], actions: Float[Array, "T A"]
) -> Float[Array, "T O"]:
    """Predict every step of an episode, restarting from the logged observation every `steps` steps."""

    def step(predicted: Float[Array, " O"], at: tuple[Array, Array, Array]) -> tuple[Array, Array]:
        t, seen, action = at
        next_observation = plant.predict(jnp.where(t % steps == 0, seen, predicted), action, params)[0]
        return next_observation, next_observation

    return jax.lax.scan(step, observations[0], (jnp.arange(len(actions)), observations, actions))[1]


def _replay(
    plant: Plant, steps: Int[Array, ""], constants: Params, key: PRNGKeyArray, log: LoggedEpisodes
) -> LoggedEpisodes:
    """Simulate one drawn plant under the actions of one logged episode."""
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
        state, timestep = plant.step(key_step, state, now.actions, constants)
        replayed = LoggedEpisodes(observation, now.actions, timestep.observation, now.present & alive)
        return (state, constants, timestep.observation, alive & ~timestep.terminated), replayed

    # `resume` returns arrays of the simulation's precision, so the carry needs the same types.
    constants = jax.tree.map(lambda x: jnp.asarray(x, observation.dtype), constants)
    begin = (state, constants, observation, jnp.asarray(True))
    replayed: LoggedEpisodes = jax.lax.scan(step, begin, (jnp.arange(len(log.present)), keys, log))[1]
    return replayed


def _rms(
    predicted: Float[Array, "E T O"], following: Float[Array, "E T O"], counted: Bool[Array, "E T"]
) -> Float[Array, " O"]:
    # Uncounted entries may be NaN or infinite, and NaN times zero is NaN.
    squares = jnp.where(counted[..., None], jnp.square(predicted - following), 0.0)
    return jnp.sqrt(jnp.sum(squares, (0, 1)) / jnp.sum(counted))
