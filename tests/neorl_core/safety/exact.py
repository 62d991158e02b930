"""The sequential test of certification by its plain definition, computed exactly, as a reference for other tests."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from scipy.stats import binom


def betting_stop(violations: npt.NDArray[np.bool_], p0: float, alpha: float) -> int | None:
    """Episodes after which the e-value of a bet on p0 / 10 against p0 first reaches 1 / alpha; None if never.

    Args:
        violations: (E,), whether each episode was violated, in the order of their seeds.
        p0: violation probability to refute.
        alpha: error probability of the attempt.
    """
    per_success, per_violation = math.log((1 - p0 / 10) / (1 - p0)), math.log(1 / 10)
    log_e = np.cumsum(np.where(violations, per_violation, per_success))
    # Sums of thousands of numbers have rounding errors.
    reached = np.flatnonzero(log_e >= -math.log(alpha) - 1e-9)
    return int(reached[0]) + 1 if reached.size else None


def certification_probability(p: float, boundaries: Sequence[int]) -> float:
    """Exact probability that a test checked after every episode ever certifies, at true violation probability p.

    The test certifies at n = boundaries[k] with k violations so far. Counts that have not certified are carried from
    boundary to boundary by binomial convolution. At p = p0 this is the rate of false certification, at a smaller p the
    power.

    Args:
        p: true probability of violation per episode.
        boundaries: non-decreasing; entry k is the least number of episodes at which k violations certify.
    """
    kept = len(boundaries)
    counts = np.zeros(kept)
    counts[0] = 1.0
    certified, done = 0.0, 0
    for k, boundary in enumerate(boundaries):
        # Counts beyond the last boundary never certify, so they are dropped.
        arrivals = binom.pmf(np.arange(kept), boundary - done, p)
        counts = np.convolve(counts, arrivals)[:kept]
        # A path with fewer violations has already certified.
        certified += float(counts[k])
        counts[k] = 0.0
        done = boundary
    return certified
