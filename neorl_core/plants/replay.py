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


@partial(jax.jit, static_argnames=("plant", "steps"))
def logged_errors(plant: Plant, logs: LoggedEpisodes, steps: int) -> Float[Array, " O"]:
    """Root mean square error of the plant's prediction some steps ahead, under the logged actions.

    e = √(mean (ŷ(t + k) − y(t + k))²), ŷ from `predict` applied k times to y(t), for t = 0, k, 2k, …

    Args:
        plant: gives `predict` and the nominal constants.
        logs: the episodes.
        steps: k.
    """

    def episode(log: LoggedEpisodes) -> tuple[Float[Array, " O"], Array]:
        def step(predicted: Float[Array, " O"], at: tuple[Int[Array, ""], LoggedEpisodes]) -> Any:
            t, now = at
            predicted = jnp.where(t % steps == 0, now.observations, predicted)
            predicted = plant.predict(predicted, now.actions, plant.params)[0]
            return predicted, (jnp.square(predicted - now.next_observations), now.present & ((t + 1) % steps == 0))

        return _sums(jax.lax.scan(step, log.observations[0], (jnp.arange(len(log.present)), log))[1])

    squares, counts = jax.vmap(episode)(logs)
    return jnp.sqrt(jnp.sum(squares, 0) / jnp.sum(counts))


@partial(jax.jit, static_argnames=("plant", "steps"))
def simulated_errors(
    plant: Plant, logs: LoggedEpisodes, steps: int, keys: Key[Array, " B"], domain: Params
) -> Float[Array, "B O"]:
    """The same errors where plants of the operating domain take the logged actions in place of the logged plant.

    Each plant has the constants that its key draws. Every k steps it is put where the log says by `plant.resume`,
    which leaves alone what an observation does not tell. A plant without that function starts as `reset` has it, its
    errors are those of its own observations, and what follows the end of its episode is left out.

    Args:
        plant: the plant.
        logs: the episodes.
        steps: how many steps are predicted.
        keys: (B,), one for each plant.
        domain: the operating domain.
    """

    def drawn(key: PRNGKeyArray) -> Float[Array, " O"]:
        key_constants, key_episodes = jax.random.split(key)
        constants = plant.sample_params(key_constants, domain)
        episode_keys = jax.random.split(key_episodes, logs.present.shape[0])
        squares, counts = jax.vmap(partial(_replay, plant, steps, constants))(episode_keys, logs)
        return jnp.sqrt(jnp.sum(squares, 0) / jnp.sum(counts))

    found: Float[Array, "B O"] = jax.lax.map(drawn, keys)
    return found


def _replay(
    plant: Plant, steps: int, constants: Params, key: PRNGKeyArray, log: LoggedEpisodes
) -> tuple[Float[Array, " O"], Float[Array, ""]]:
    """Sums of one drawn plant's squared errors over one logged episode, and how many there are."""
    key_start, key_steps = jax.random.split(key)
    state, observation = plant.reset(key_start, constants)

    def step(carry: Any, at: tuple[Int[Array, ""], LoggedEpisodes]) -> Any:
        state, constants, observation, predicted, alive = carry
        t, now = at
        key_noise, key_step = jax.random.split(jax.random.fold_in(key_steps, t))
        begins = t % steps == 0
        if plant.resume is not None:
            resumed = plant.resume(key_noise, state, now.observations, constants)
            state, constants, observation = jax.tree.map(
                lambda new, old: jnp.where(begins, new, old),
                (*resumed, now.observations),
                (state, constants, observation),
            )
            alive = jnp.asarray(True)
        predicted = jnp.where(begins, observation, predicted)
        predicted = plant.predict(predicted, now.actions, plant.params)[0]
        state, found = plant.step(key_step, state, now.actions, constants)
        squares = jnp.square(predicted - found.observation)
        counts = now.present & alive & ((t + 1) % steps == 0)
        return (state, constants, found.observation, predicted, alive & ~found.terminated), (squares, counts)

    # All constants are arrays of the simulation's precision, as what `resume` gives back is.
    constants = jax.tree.map(lambda x: jnp.asarray(x, observation.dtype), constants)
    begin = (state, constants, observation, observation, jnp.asarray(True))
    return _sums(jax.lax.scan(step, begin, (jnp.arange(len(log.present)), log))[1])


def _sums(steps: tuple[Float[Array, "T O"], Bool[Array, " T"]]) -> tuple[Float[Array, " O"], Float[Array, ""]]:
    squares, counted = steps
    # What is not counted may not be finite, and NaN times zero is NaN.
    return jnp.sum(jnp.where(counted[:, None], squares, 0.0), 0), jnp.sum(counted).astype(squares.dtype)
