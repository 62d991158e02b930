"""Privacy accountants: compute epsilon, the privacy lost in many rounds of the subsampled Gaussian mechanism.

A mechanism is (epsilon, delta)-private if adding or removing one site (or row) changes the probability of any outcome
by at most a factor e^epsilon, plus delta. Each round includes every site independently with probability q (Poisson
sampling). The sum over the sites gets normal noise with a standard deviation of z clip norms. If every round has a
fixed number of sites instead, epsilon is a customary approximation without proof. All computations are float64 NumPy.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import logsumexp, ndtr

Floats = npt.NDArray[np.float64]

ORDERS: Floats = np.concatenate([np.arange(1.1, 11.0, 0.1), np.arange(11.0, 64.0), [128.0, 256.0, 512.0, 1024.0]])
"""Orders of the Rényi divergence to minimise over."""


LEAST_NOISE = 0.1
"""Smallest noise z of the computations. For less noise, epsilon is above 100 and returned as infinite."""
LARGEST_GRID = 2**22
"""Largest number of points of the loss grid. Larger sums use a coarser grid, which can only overstate epsilon."""


class Mechanism(NamedTuple):
    """Rounds of the subsampled Gaussian mechanism."""

    noise: float
    """z, the standard deviation of the noise in clip norms."""
    rate: float
    """q, the probability that a site (or row) takes part in a round."""
    rounds: int


def renyi_epsilon(mechanism: Mechanism, delta: float) -> float:
    """Return epsilon of T rounds by Rényi divergences D_a: `min_a T D_a + log(1 - 1/a) - log(a delta) / (a - 1)`.

    D_a is `renyi_divergence`: Mironov, Talwar & Zhang 2019 (arXiv 1908.10530), theorem 4 and section 3.3. Epsilon:
    Canonne, Kamath & Steinke 2020 (arXiv 2004.00010), proposition 12.

    Args:
        delta: in (0, 1).

    Raises:
        ValueError: if a number is out of range.
    """
    _check(mechanism, delta)
    if mechanism.noise < LEAST_NOISE:
        return math.inf
    divergence = np.array([renyi_divergence(mechanism.noise, mechanism.rate, order) for order in ORDERS])
    epsilon = mechanism.rounds * divergence + np.log1p(-1 / ORDERS) - np.log(delta * ORDERS) / (ORDERS - 1)
    return max(float(epsilon.min()), 0.0)


def renyi_divergence(noise: float, rate: float, order: float) -> float:
    """Return D_a of one round, `log E_(x ~ N(0, z^2)) [(1 - q + q e^((2 x - 1) / (2 z^2)))^a] / (a - 1)`.

    Args:
        noise: z, positive.
        rate: q.
        order: a, above 1.
    """
    if rate == 0.0:
        return 0.0
    # The integrand peaks between 0 and a; the peaks are as wide as the noise.
    x = np.linspace(-20 * noise, order + 20 * noise, math.ceil(20 * (order / noise + 40)) + 1)
    log_ratio = np.logaddexp(_log(1 - rate), math.log(rate) + (2 * x - 1) / (2 * noise**2))
    log_density = -0.5 * (x / noise) ** 2 - math.log(noise * math.sqrt(2 * math.pi))
    return float(logsumexp(order * log_ratio + log_density) + math.log(x[1] - x[0])) / (order - 1)


def loss_epsilon(mechanism: Mechanism, delta: float, width: float = 1e-4) -> float:
    """Return epsilon by convolving the privacy loss distribution; this bound is tighter than `renyi_epsilon`.

    Koskela, Jälkö & Honkela 2020 (arXiv 1906.03049) for the convolution by FFT; Doroshenko et al. 2022 (arXiv
    2207.04380) for a loss grid that never understates epsilon.

    Args:
        delta: in (0, 1).

    Raises:
        ValueError: if a number is out of range.
    """
    _check(mechanism, delta)
    if mechanism.noise < LEAST_NOISE:
        return math.inf
    if mechanism.rate == 0.0:
        return 0.0
    return max(_epsilon_of(mechanism, delta, width, removed) for removed in (True, False))


class _Losses(NamedTuple):
    first: int
    """Index of the smallest loss on the grid."""
    mass: Floats
    """Probability of each loss from there on; the rest to 1 belongs to an infinite loss."""


def _losses(noise: float, rate: float, width: float, removed: bool) -> _Losses:
    """Return the privacy losses of one round on a grid, by connecting the dots.

    The outcome is `(1 - q) N(0, z^2) + q N(1, z^2)` with the site and `N(0, z^2)` without it. The outcomes between two
    grid losses, u < v as factors, have probabilities P and Q under the two. P is split between u and v so that both P
    and Q are kept: `v (P - u Q) / (v - u)` goes to v. Delta is then exact at every epsilon of the grid and overstated
    between.
    """

    def outcome(log_ratio: Floats) -> Floats:
        """Return the outcome with this log density ratio, or -inf if there is none."""
        with np.errstate(divide="ignore", invalid="ignore"):
            inner = np.log((np.exp(log_ratio) - (1 - rate)) / rate)
        return np.nan_to_num(noise**2 * inner + 0.5, nan=-np.inf, neginf=-np.inf)

    # Beyond fifteen standard deviations probabilities underflow to 0.
    ends = np.array([-15 * noise, 1 + 15 * noise])
    ratio = np.logaddexp(_log(1 - rate), math.log(rate) + (2 * ends - 1) / (2 * noise**2))
    low, high = ratio if removed else -ratio[::-1]
    first, last = math.floor(low / width), math.ceil(high / width)
    losses = width * np.arange(first, last + 1)
    edges = outcome(losses if removed else -losses)
    without, shifted = ndtr(edges / noise), ndtr((edges - 1) / noise)
    # Upper tails are computed separately: near 1, differences of probabilities lose all digits.
    without_up, shifted_up = ndtr(-edges / noise), ndtr((1 - edges) / noise)
    lower_half = edges[1:] < 0 if removed else edges[:-1] < 0
    empty = np.where(lower_half, np.abs(np.diff(without)), np.abs(np.diff(without_up)))
    full = np.where(lower_half, np.abs(np.diff(shifted)), np.abs(np.diff(shifted_up)))
    with_site = (1 - rate) * empty + rate * full
    p, q = (with_site, empty) if removed else (empty, with_site)
    u, v = np.exp(losses[:-1]), np.exp(losses[1:])
    up = np.clip(v * (p - u * q) / (v - u), 0.0, p)
    mass = np.zeros(len(losses))
    mass[1:] += up
    mass[:-1] += p - up
    return _Losses(first, mass)


def _epsilon_of(mechanism: Mechanism, delta: float, width: float, removed: bool) -> float:
    one = _losses(mechanism.noise, mechanism.rate, width, removed)
    losses = width * (one.first + np.arange(len(one.mass)))
    mean = float(one.mass @ losses)
    deviation = math.sqrt(max(float(one.mass @ losses**2) - mean**2, 0.0))
    # Sums of T losses farther than this from their mean have far less probability than any delta.
    reach = 20 * deviation * math.sqrt(mechanism.rounds) + 2 * float(losses[-1] - losses[0])
    size = 2 ** math.ceil(math.log2(max(2 * reach / width, len(losses))))
    if size > LARGEST_GRID:
        return _epsilon_of(mechanism, delta, 4 * width, removed)
    centre = round(mechanism.rounds * (mean / width - one.first))
    spectrum = np.fft.rfft(one.mass, size) ** mechanism.rounds
    summed = np.clip(np.roll(np.fft.irfft(spectrum, size), size // 2 - centre % size), 0.0, None)
    sums = width * (mechanism.rounds * one.first + centre - size // 2 + np.arange(size))
    infinite = max(-math.expm1(mechanism.rounds * math.log(min(one.mass.sum(), 1.0))), 0.0)
    if infinite > delta:
        return math.inf

    # delta(epsilon) = sum over larger losses of m (1 - e^(epsilon - loss)), by cumulative sums from the largest loss.
    positive = sums > 0.0
    losses, above = sums[positive], np.cumsum(summed[positive][::-1])[::-1]
    shrunk = np.cumsum((summed[positive] * np.exp(-losses))[::-1])[::-1]
    # exp overflows beyond 700; the smaller factor overstates delta.
    at_losses = np.append(above[1:] - np.exp(np.minimum(losses[:-1], 700.0)) * shrunk[1:], 0.0)
    first = int(np.argmax(at_losses <= delta - infinite))
    excess = above[first] - (delta - infinite)
    if shrunk[first] == 0.0:
        return float(losses[first])
    return max(math.log(excess / shrunk[first]), 0.0) if excess > 0.0 else 0.0


def _log(x: float) -> float:
    return math.log(x) if x > 0.0 else -math.inf


def _check(mechanism: Mechanism, delta: float) -> None:
    noise, rate, rounds = mechanism
    if not (0.0 <= noise < math.inf and 0.0 <= rate <= 1.0 and rounds >= 1 and 0.0 < delta < 1.0):
        raise ValueError(
            f"noise must be at least 0, rate in [0, 1], rounds at least 1 and delta in (0, 1), got noise {noise:g}, "
            f"rate {rate:g}, {rounds} rounds and delta {delta:g}: correct the number outside its range"
        )
