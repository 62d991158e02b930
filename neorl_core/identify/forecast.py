"""Multi-step forecasts of logged episodes by a plant's deterministic model, and their errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from neorl_core.plants.base import AnyArray, Trajectory
from neorl_core.types import Params

Predict = Callable[[Float[Array, " O"], Float[Array, " A"], Params], tuple[Float[Array, " O"], Float[Array, " K"]]]
"""(observation, action, params) -> (next observation, least margins): `Plant.predict`."""


class Episodes(NamedTuple):
    """Logged episodes of T steps.

    NaN in an observation means 'not measured': a sample that is missing, steps after the episode's end, or a whole
    column where the model has a state that the plant has no instrument for.
    """

    observations: Float[AnyArray, "*e T1 O"]
    """(E, T + 1, O): the one before each step, and the last."""
    actions: Float[AnyArray, "*e T A"]
    """(E, T, A), physical and finite; after the end they do not matter."""


def episodes_of(trajectory: Trajectory) -> Episodes:
    """Episodes of a traced rollout, leading axes (E, H): what follows an episode's end is not measured."""
    alive = jnp.asarray(trajectory.alive)[..., None]
    following = jnp.where(alive, jnp.asarray(trajectory.next_observations), jnp.nan)
    observations = jnp.concatenate([jnp.asarray(trajectory.observations)[..., :1, :], following], axis=-2)
    return Episodes(observations, jnp.asarray(trajectory.actions))


def stack_rows(
    observation: Float[np.ndarray, "N O"],
    action: Float[np.ndarray, "N A"],
    next_observation: Float[np.ndarray, "N O"],
    lengths: Int[np.ndarray, " E"],
) -> Episodes:
    """Episodes of logged rows that lie one after another, the shorter ones filled up with NaN.

    Args:
        observation: (N, O), before each step.
        action: (N, A).
        next_observation: (N, O), after it.
        lengths: (E,), steps of each episode; they add up to N.

    Raises:
        ValueError: where they do not, or an episode has no step.
    """
    if not len(lengths) or np.min(lengths) < 1 or int(np.sum(lengths)) != len(observation):
        raise ValueError(
            f"expected lengths from 1 that add up to {len(observation)} rows, got {len(lengths)} of "
            f"{int(np.sum(lengths))} together: leave empty episodes out."
        )
    longest = int(np.max(lengths))
    observations = np.full(
        (len(lengths), longest + 1, observation.shape[1]), np.nan, np.result_type(observation, np.float32)
    )
    actions = np.zeros((len(lengths), longest, action.shape[1]), action.dtype)
    ends = np.cumsum(lengths)
    for i, (end, length) in enumerate(zip(ends, lengths, strict=True)):
        rows = slice(end - length, end)
        observations[i, 0] = observation[end - length]
        observations[i, 1 : length + 1] = next_observation[rows]
        actions[i, :length] = action[rows]
        actions[i, length:] = action[end - 1]
    return Episodes(observations, actions)


def forecast(
    predict: Predict,
    params: Params,
    start: Float[Array, " O"],
    observations: Float[Array, "T1 O"],
    actions: Float[Array, "T A"],
    segment: int,
    inputs: Bool[Array, " O"],
) -> Float[Array, "T O"]:
    """What the model expects along one episode, begun anew from what was measured every `segment` steps.

    Where a segment begins, each signal that was measured takes its measurement; one that was not goes on from the
    model's own run since the episode's start (its gradient, too). Measured inputs take theirs at every step.

    Args:
        predict: the model of one step.
        params: its constants.
        start: (O,), the state at the episode's start.
        observations: (T + 1, O), NaN where not measured; the first row is not looked at.
        actions: (T, A), physical.
        segment: steps of a segment.
        inputs: (O,), signals that act on the plant and that the model does not predict.

    Returns:
        (T, O): row t is the forecast of `observations[t + 1]`, t mod segment + 1 steps ahead.
    """
    count = jnp.arange(actions.shape[0])
    measured = jnp.isfinite(observations[:-1])
    begins = ((count % segment == 0) & (count > 0))[:, None]
    taken = measured & (begins | inputs) & (count > 0)[:, None]

    def step(
        state: Float[Array, " O"], now: tuple[Float[Array, " O"], Bool[Array, " O"], Float[Array, " A"]]
    ) -> tuple[Float[Array, " O"], Float[Array, " O"]]:
        seen, take, action = now
        following, _ = predict(jnp.where(take, seen, state), action, params)
        return following, following

    # No NaN may reach a gradient, not even one that is then left out.
    readings = jnp.where(taken, observations[:-1], 0.0)
    return jax.lax.scan(step, start, (readings, taken, actions))[1]


def errors(forecasts: Float[Array, "T O"], observations: Float[Array, "T1 O"]) -> Float[Array, "T O"]:
    """Measurement minus forecast, zero where nothing was measured."""
    following = observations[1:]
    measured = jnp.isfinite(following)
    return jnp.where(measured, jnp.where(measured, following, 0.0) - forecasts, 0.0)
