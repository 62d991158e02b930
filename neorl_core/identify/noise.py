"""What forecast errors are like: their size, their correlation between signals, and that in time."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

RIDGE = 0.01
"""Share of independence that is mixed into the correlation of the signals' errors."""
POOLED = 10.0
"""Errors that a signal's deviation over all steps of a segment counts for in that of one step."""


class Noise(NamedTuple):
    """What the errors of forecasts are like."""

    deviation: Float[Array, "*n S O"]
    """Root mean square of each signal's error, 1 to S steps ahead, in its unit."""
    whitening: Float[Array, "*n O O"]
    """Symmetric inverse root of the correlation between the signals' errors, standardised, at the same time."""
    inflation: Float[Array, "*n O"]
    """How many times the variance of a mean of the errors exceeds that of independent ones, at least 1."""


def noise_of(
    residuals: Float[Array, "E T O"], measured: Float[Array, "E T O"], segment: int, floor: Float[Array, " O"]
) -> Noise:
    """Deviations of the errors by step of a segment, each pooled with its signal's over all steps, and the rest.

    Args:
        residuals: (E, T, O), zero where not measured.
        measured: (E, T, O), one where measured, else zero.
        segment: S.
        floor: (O,), least variance: what the precision of the arithmetic cannot tell from zero.
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
    # Rounding may leave an eigenvalue below what the ridge guarantees.
    root = (vectors / jnp.sqrt(jnp.maximum(values, RIDGE))) @ vectors.T
    return Noise(deviation, root, inflation_of(standard @ root))


def inflation_of(residuals: Float[Array, "E T O"]) -> Float[Array, " O"]:
    """How many times the variance of a mean over an episode exceeds that of T independent errors: `1 + 2 sum_k rho_k`.

    `rho_k = sum_t e_t e_{t+k} / sum_t e_t^2`, summed over episodes, which holds the factor 1 - k/T of a mean of T.
    Pairs rho_2m + rho_2m+1 are summed while they are positive: the initial positive sequence of Geyer 1992 (Practical
    Markov chain Monte Carlo, Statistical Science 7, section 3.3). The mean is known to be zero, so it stays in.

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
