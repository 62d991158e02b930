"""The statistics of certification: exact binomial bounds, a sequential test by betting, confidence intervals.

Everything here is float64 NumPy outside jit, on counts: a log wealth summed in float32 over thousands of
episodes drifts by more than one violation is worth. Probabilities of violation are per episode.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy import special

FloatVector = npt.NDArray[np.float64]


class Interval(NamedTuple):
    """A point estimate between its two-sided confidence limits."""

    value: float
    lower: float
    upper: float


def _check_probability(name: str, value: float) -> None:
    if not 0.0 < value < 1.0:
        raise ValueError(f"{name} must lie strictly between 0 and 1, got {value}; give it as a fraction")


def _check_counts(violations: int, episodes: int) -> None:
    if not 0 <= violations <= episodes or episodes < 1:
        raise ValueError(
            f"expected 0 <= violations <= episodes with at least one episode, got {violations} of {episodes}; "
            "count every episode that was started"
        )


def clopper_pearson_upper(violations: int, episodes: int, alpha: float) -> float:
    """One-sided exact upper confidence bound of a binomial probability.

    The p that solves P(Binomial(n, p) <= k) = alpha; 1 - alpha**(1/n) for k = 0.

    Args:
        violations: k.
        episodes: n, fixed before looking (a sequential test stops at `betting_episodes`).
        alpha: 1 - confidence.
    Returns: the bound, 1.0 when every episode was violated.
    Raises: ValueError for impossible counts or alpha.
    Source: Clopper and Pearson, Biometrika 26 (1934).
    """
    _check_counts(violations, episodes)
    _check_probability("alpha", alpha)
    if violations == episodes:
        return 1.0
    return float(special.betainccinv(violations + 1, episodes - violations, alpha))


def clopper_pearson_lower(violations: int, episodes: int, alpha: float) -> float:
    """One-sided exact lower confidence bound of a binomial probability: the mirror of `clopper_pearson_upper`.

    Args:
        violations: episodes with a violation.
        episodes: independent episodes, n.
        alpha: probability with which the bound may be wrong.
    """
    return 1.0 - clopper_pearson_upper(episodes - violations, episodes, alpha)


def rollouts_needed(p0: float, violations: int, alpha: float) -> int:
    """Least n such that `violations` of n keep the Clopper-Pearson upper bound at or below p0.

    The least n with P(Binomial(n, p0) <= k) <= alpha.

    Args:
        p0: violation probability that is claimed.
        violations: episodes with a violation.
        alpha: probability with which the bound may be wrong.
    """
    _check_probability("p0", p0)
    _check_probability("alpha", alpha)
    low, high = violations, violations + 1
    while special.bdtr(violations, high, p0) > alpha:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        if special.bdtr(violations, middle, p0) > alpha:
            low = middle
        else:
            high = middle
    return high


def alpha_spent(alpha: float, attempt: int) -> float:
    """What attempt j = 1, 2, ... of a lineage may spend: alpha / (j (j + 1)), which sums to alpha."""
    _check_probability("alpha", alpha)
    if attempt < 1:
        raise ValueError(f"attempts are counted from 1, got {attempt}; number the first attempt of a lineage 1")
    return alpha / (attempt * (attempt + 1))


def log_bets(p0: float, p1: float | None = None) -> tuple[float, float]:
    """What one success and one violation add to the log wealth of a bet on p1 against p0.

    log((1 - p1)/(1 - p0)) and log(p1/p0); p1 = p0/10 unless given.
    """
    p1 = p0 / 10.0 if p1 is None else p1
    _check_probability("p0", p0)
    _check_probability("p1", p1)
    if p1 >= p0:
        raise ValueError(f"the bet p1 must be safer than p0 = {p0}, got {p1}; choose p1 below p0")
    return math.log1p(-p1) - math.log1p(-p0), math.log(p1 / p0)


def log_e_value(successes: int, violations: int, p0: float, p1: float | None = None) -> float:
    """Log of the betting e-value against "the violation probability is at least p0".

    e = ((1 - p1)/(1 - p0))**successes * (p1/p0)**violations. Under any p >= p0 it is a supermartingale that starts
    at 1, so by Ville's inequality it ever reaches 1/alpha with probability at most alpha, however often one looks.

    Source: Wald, Ann. Math. Stat. 16 (1945); Ramdas et al., Statistical Science 38 (2023).

    Args:
        successes: episodes without a violation.
        violations: episodes with a violation.
        p0: violation probability that is claimed.
        p1: violation probability under which the bet is best; the default of `log_bets` without one.
    """
    per_success, per_violation = log_bets(p0, p1)
    return successes * per_success + violations * per_violation


def betting_episodes(p0: float, violations: int, alpha: float) -> int:
    """Episodes after which the e-value reaches 1/alpha when `violations` of them were violated.

    Args:
        p0: violation probability that is claimed.
        violations: episodes with a violation.
        alpha: probability with which the bound may be wrong.
    """
    _check_probability("alpha", alpha)
    per_success, per_violation = log_bets(p0)
    successes = math.ceil((-math.log(alpha) - violations * per_violation) / per_success)
    return successes + violations


def mean_interval(values: npt.ArrayLike, confidence: float = 0.95) -> Interval:
    """Student's t interval of a mean: x̄ ± t_{n-1} s/√n, two-sided.

    Args:
        values: (n,) independent values, such as returns of episodes; a single value has an infinite interval.
        confidence: coverage.
    Returns: mean, lower, upper. It compares returns; it never certifies safety (see the docs on rare events).
    Raises: ValueError when a value is missing or not finite.
    """
    x: FloatVector = np.asarray(values, dtype=np.float64).ravel()
    _check_probability("confidence", confidence)
    if x.size == 0 or not np.isfinite(x).all():
        raise ValueError(
            f"expected at least one value, all finite, got {x.size} with {int((~np.isfinite(x)).sum())} not finite; "
            "leave out nothing silently: find the episodes that failed"
        )
    mean = float(x.mean())
    if x.size == 1:
        return Interval(mean, -math.inf, math.inf)
    half = float(special.stdtrit(x.size - 1, 0.5 + confidence / 2.0) * x.std(ddof=1) / math.sqrt(x.size))
    return Interval(mean, mean - half, mean + half)


def paired_difference_interval(ours: npt.ArrayLike, theirs: npt.ArrayLike, confidence: float = 0.95) -> Interval:
    """Student's t interval of the mean of ours - theirs over pairs (the same seeds for both).

    Args:
        ours, theirs: (n,) paired by episode.
        confidence: coverage.
    Raises: ValueError when the lengths differ or a value is not finite.
    """
    x, y = np.asarray(ours, dtype=np.float64).ravel(), np.asarray(theirs, dtype=np.float64).ravel()
    if x.size != y.size:
        raise ValueError(f"pairs must have equal lengths, got {x.size} and {y.size}; run both on the same seeds")
    return mean_interval(x - y, confidence)
