"""Statistics of certification: exact binomial bounds, a sequential test by betting, confidence intervals.

All functions compute with counts in float64 NumPy. Violation probabilities are per episode.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy import special

FloatVector = npt.NDArray[np.float64]


class Interval(NamedTuple):
    """A point estimate with two-sided confidence limits."""

    value: float
    lower: float
    upper: float


def _check_probability(name: str, value: float) -> None:
    if not 0.0 < value < 1.0:
        raise ValueError(f"{name} must lie strictly between 0 and 1, got {value}: give it as a fraction")


def clopper_pearson_upper(violations: int, episodes: int, alpha: float) -> float:
    """Return the one-sided exact upper confidence bound of a binomial probability.

    The p that solves P(Binomial(n, p) <= k) = alpha; 1 - alpha**(1/n) for k = 0 (Clopper and Pearson, Biometrika 26,
    1934).

    Args:
        violations: k.
        episodes: n, fixed in advance; a sequential test must use `log_e_value` instead.
        alpha: 1 - confidence.

    Returns:
        The bound; 1.0 if every episode was violated.

    Raises:
        ValueError: on impossible counts or alpha.
    """
    if not 0 <= violations <= episodes or episodes < 1:
        raise ValueError(
            f"violations must lie between 0 and the number of episodes, which must be at least 1, got {violations} "
            f"violations in {episodes} episodes: count every started episode"
        )
    _check_probability("alpha", alpha)
    if violations == episodes:
        return 1.0
    return float(special.betainccinv(violations + 1, episodes - violations, alpha))


def clopper_pearson_lower(violations: int, episodes: int, alpha: float) -> float:
    """Return the one-sided exact lower confidence bound of a binomial probability; see `clopper_pearson_upper`."""
    return 1.0 - clopper_pearson_upper(episodes - violations, episodes, alpha)


def rollouts_needed(p0: float, violations: int, alpha: float) -> int:
    """Return the smallest number of episodes that shows, despite k violations, a violation probability of at most p0.

    This is the smallest n with P(Binomial(n, p0) <= k) <= alpha (Clopper and Pearson).

    Args:
        p0: claimed violation probability.
        violations: episodes with a violation, k.
        alpha: 1 - confidence.
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
    """Return the share of alpha that attempt j = 1, 2, ... of a lineage spends: alpha / (j (j + 1))."""
    _check_probability("alpha", alpha)
    if attempt < 1:
        raise ValueError(f"attempt must be at least 1, got {attempt}: the first attempt of a lineage is 1")
    return alpha / (attempt * (attempt + 1))


def log_bets(p0: float, p1: float | None = None) -> tuple[float, float]:
    """Return the change of the log e-value (`log_e_value`) per success and per violation.

    log((1 - p1)/(1 - p0)) and log(p1/p0), with the claimed probability p0 and a bet on p1, by default p0/10.
    """
    p1 = p0 / 10.0 if p1 is None else p1
    _check_probability("p0", p0)
    _check_probability("p1", p1)
    if p1 >= p0:
        raise ValueError(f"p1 must be below p0 = {p0}, got {p1}: bet on a smaller violation probability")
    return math.log1p(-p1) - math.log1p(-p0), math.log(p1 / p0)


def log_e_value(successes: int, violations: int, p0: float, p1: float | None = None) -> float:
    """Return the log of e, the betting evidence against "the violation probability is at least p0".

    e = ((1 - p1)/(1 - p0))**successes * (p1/p0)**violations. If the violation probability is p0 or more, e is a
    supermartingale that starts at 1. By Ville's inequality, the probability that e ever reaches 1/alpha is then at most
    alpha, even if e is checked after every episode.

    Source: Wald, Ann. Math. Stat. 16 (1945); Ramdas et al., Statistical Science 38 (2023).

    Args:
        p0: claimed violation probability.
        p1: violation probability that the bet favours; p0/10 by default.
    """
    per_success, per_violation = log_bets(p0, p1)
    return successes * per_success + violations * per_violation


def betting_episodes(p0: float, violations: int, alpha: float) -> int:
    """Return the smallest number of episodes at which the e-value reaches 1/alpha in spite of the violations.

    Args:
        p0: claimed violation probability.
        alpha: 1 - confidence.
    """
    _check_probability("alpha", alpha)
    per_success, per_violation = log_bets(p0)
    successes = math.ceil((-math.log(alpha) - violations * per_violation) / per_success)
    return successes + violations


def mean_interval(values: npt.ArrayLike, confidence: float = 0.95) -> Interval:
    """Return Student's t interval of a mean: x̄ ± t_{n-1} s/√n, two-sided.

    The interval is for comparing returns. It is too narrow for rare events, so it cannot certify safety.

    Args:
        values: (n,), independent values, such as returns of episodes; one value alone gives an infinite interval.
        confidence: coverage of the interval, between 0 and 1.

    Raises:
        ValueError: without values, or on a non-finite value.
    """
    x: FloatVector = np.asarray(values, dtype=np.float64).ravel()
    _check_probability("confidence", confidence)
    if x.size == 0 or not np.isfinite(x).all():
        raise ValueError(
            f"values must be finite and at least one, got {x.size} with {int((~np.isfinite(x)).sum())} not finite: "
            "find the episodes that failed, and do not leave them out"
        )
    mean = float(x.mean())
    if x.size == 1:
        return Interval(mean, -math.inf, math.inf)
    half = float(special.stdtrit(x.size - 1, 0.5 + confidence / 2.0) * x.std(ddof=1) / math.sqrt(x.size))
    return Interval(mean, mean - half, mean + half)


def paired_difference_interval(ours: npt.ArrayLike, theirs: npt.ArrayLike, confidence: float = 0.95) -> Interval:
    """Return Student's t interval of the mean of `ours - theirs` over pairs with the same seeds.

    Args:
        ours: (n,), values by episode.
        theirs: (n,), values on the same episodes.
        confidence: coverage of the interval, between 0 and 1.

    Raises:
        ValueError: on different lengths or a non-finite value.
    """
    x, y = np.asarray(ours, dtype=np.float64).ravel(), np.asarray(theirs, dtype=np.float64).ravel()
    if x.size != y.size:
        raise ValueError(f"pairs must have equal lengths, got {x.size} and {y.size}: run both on the same seeds")
    return mean_interval(x - y, confidence)
