"""Multi-step forecasts of logged episodes by a plant's deterministic model, and statistics of their errors."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from neorl_core.control.mpc import Predict
from neorl_core.plants.base import AnyArray, Trajectory
from neorl_core.types import Params

RIDGE = 0.01
"""Share of the identity that is mixed into the correlation of the signals' errors."""
POOLED = 10.0
"""The overall deviation of a signal counts as this many errors in the estimate for one step of a segment."""


class Episodes(NamedTuple):
    """Logged episodes of T steps.

    NaN in an observation means 'not measured': a missing sample, steps after the episode's end, or a state without an
    instrument (a whole column).
    """

    observations: Float[AnyArray, "*e T1 O"]
    """(E, T + 1, O), before each step, and after the last."""
    actions: Float[AnyArray, "*e T A"]
    """(E, T, A), physical and finite; ignored after the end."""


def episodes_of(trajectory: Trajectory) -> Episodes:
    """Convert rollouts (E, H) to episodes; observations after an episode's end become NaN."""
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
    """Stack the rows of consecutive logged episodes; shorter episodes are padded with NaN.

    Args:
        next_observation: (N, O), after each step.
        lengths: (E,), steps of each episode, with sum N.

    Raises:
        ValueError: if the sum is not N, or an episode has no step.
    """
    if not len(lengths) or np.min(lengths) < 1 or int(np.sum(lengths)) != len(observation):
        raise ValueError(
            f"lengths must be at least 1 and sum to {len(observation)} rows, got {len(lengths)} lengths with sum "
            f"{int(np.sum(lengths))}: leave empty episodes out"
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
    """Forecast one episode with the model, restarting from the measurements every `segment` steps.

    At the start of a segment, measured signals are set to their measurements. Signals that are not measured keep the
    value and gradient of the model. Measured inputs are set to their measurements at every step.

    Args:
        start: (O,), state at the start of the episode.
        observations: (T + 1, O), NaN where not measured; the first row is not used.
        actions: (T, A), physical.
        inputs: (O,), signals that act on the plant and are not predicted.

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

    # Replace NaN, because even an unused NaN would reach the gradient.
    readings = jnp.where(taken, observations[:-1], 0.0)
    return jax.lax.scan(step, start, (readings, taken, actions))[1]


def errors(forecasts: Float[Array, "T O"], observations: Float[Array, "T1 O"]) -> Float[Array, "T O"]:
    """Return measurement minus forecast, zero where not measured."""
    following = observations[1:]
    measured = jnp.isfinite(following)
    return jnp.where(measured, jnp.where(measured, following, 0.0) - forecasts, 0.0)


class Noise(NamedTuple):
    """Statistics of the forecast errors."""

    deviation: Float[Array, "*n S O"]
    """Root mean square of each signal's error, 1 to S steps ahead, in the signal's unit."""
    whitening: Float[Array, "*n O O"]
    """Symmetric inverse root of the correlation between the signals' standardised errors at the same time."""
    inflation: Float[Array, "*n O"]
    """Variance of a mean of the errors relative to that of independent errors, at least 1."""


def noise_of(
    residuals: Float[Array, "E T O"], measured: Float[Array, "E T O"], segment: int, floor: Float[Array, " O"]
) -> Noise:
    """Estimate the statistics of forecast errors; the deviation of each step is averaged with the overall deviation.

    Args:
        residuals: (E, T, O), zero where not measured.
        measured: (E, T, O), one where measured, else zero.
        floor: (O,), minimum variance, set by the precision of the arithmetic.
    """
    steps, signals = residuals.shape[1:]
    pad = ((0, 0), (0, -steps % segment), (0, 0))
    by_step = (-1, segment, signals)
    squares = jnp.sum(jnp.pad(residuals**2, pad).reshape(by_step), axis=0)
    counts = jnp.sum(jnp.pad(measured, pad).reshape(by_step), axis=0)
    overall = jnp.sum(squares, axis=0) / jnp.maximum(jnp.sum(counts, axis=0), 1.0)
    deviation = jnp.sqrt(jnp.maximum((squares + POOLED * overall) / (counts + POOLED), floor))
    standard = residuals / deviation[jnp.arange(steps) % segment]
    product = jnp.einsum("eto,etp->op", standard, standard)
    size = jnp.sqrt(jnp.maximum(jnp.diagonal(product), 1.0))
    identity = jnp.eye(signals, dtype=product.dtype)
    shrunk = (1.0 - RIDGE) * product / jnp.outer(size, size)
    correlation = jnp.where(identity > 0, 1.0, shrunk)
    values, vectors = jnp.linalg.eigh(correlation)
    # Rounding may leave an eigenvalue below the ridge.
    root = (vectors / jnp.sqrt(jnp.maximum(values, RIDGE))) @ vectors.T
    return Noise(deviation, root, inflation_of(standard @ root))


def inflation_of(residuals: Float[Array, "E T O"]) -> Float[Array, " O"]:
    """Return the variance of a mean over an episode relative to that of T independent errors: `1 + 2 Σ_k ρ_k`.

    `ρ_k = Σ_t e_t e_{t+k} / Σ_t e_t²`, with both sums over all episodes. The sum over k ends before the first pair ρ_2m
    + ρ_2m+1 that is not positive (Geyer 1992, Practical Markov chain Monte Carlo, Statistical Science 7, section 3.3).
    No mean is subtracted, because the true mean is zero.

    Args:
        residuals: (E, T, O), standardised, zero where not measured.
    """
    steps = residuals.shape[1]
    length = 2 * (-(-steps // 2) * 2)
    spectrum = jnp.abs(jnp.fft.rfft(residuals, n=length, axis=1)) ** 2
    covariance = jnp.sum(jnp.fft.irfft(spectrum, n=length, axis=1), axis=0)[: length // 2]
    rho = covariance / jnp.maximum(covariance[0], np.finfo(residuals.dtype).tiny)
    pairs = rho[0::2] + rho[1::2]
    kept = jnp.cumprod((pairs > 0).astype(residuals.dtype), axis=0)
    total: Float[Array, " O"] = 2.0 * jnp.sum(pairs * kept, axis=0) - 1.0
    return jnp.maximum(total, 1.0)
