"""The statistics of certification: exact binomial bounds, a sequential test by betting, confidence intervals.

Everything here is float64 NumPy outside jit, on counts: a log wealth summed in float32 over thousands of
episodes drifts by more than one violation is worth. Probabilities of violation are per episode.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
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
        episodes: n, fixed before looking (for a sequential test use `betting_stop`).
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


def betting_stop(violations: Sequence[bool] | npt.NDArray[np.bool_], p0: float, alpha: float) -> int | None:
    """The number of episodes, taken in order, after which the e-value first reaches 1/alpha.

    Args:
        violations: (E,) whether each episode was violated, in the order of their seeds.
        p0: the violation probability to be refuted.
        alpha: what this attempt may spend.
    Returns: n (1-based), or None if it is never reached.
    """
    _check_probability("alpha", alpha)
    flags = np.asarray(violations, dtype=bool)
    per_success, per_violation = log_bets(p0)
    lost = np.cumsum(flags)
    log_e = (np.arange(1, flags.size + 1) - lost) * per_success + lost * per_violation
    reached = np.flatnonzero(log_e >= -math.log(alpha))
    return int(reached[0]) + 1 if reached.size else None


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


def successes_per_violation(p0: float) -> float:
    """Further successes that win back what one violation costs the e-value: 2557.02 at p0 = 1e-3."""
    per_success, per_violation = log_bets(p0)
    return -per_violation / per_success


def certification_probability(p: float, boundaries: Sequence[int]) -> float:
    """Exact probability that a test which looks after every episode ever certifies, at true violation probability p.

    The test certifies at n = boundaries[k] if k violations were seen so far. Counts that have not certified are
    carried from boundary to boundary by binomial convolution. At p = p0 this is the rate of false certification,
    at a smaller p the power.

    Args:
        p: true probability of violation per episode.
        boundaries: non-decreasing; entry k is the least number of episodes at which k violations certify.
    Returns: the probability of certifying at any boundary.
    """
    if any(later < earlier for earlier, later in itertools.pairwise(boundaries)):
        raise ValueError("boundaries must not decrease: more violations cannot need fewer episodes")
    kept = len(boundaries)
    counts = np.zeros(kept)
    counts[0] = 1.0
    certified, done = 0.0, 0
    for k, boundary in enumerate(boundaries):
        # Counts beyond the last boundary never certify, so they may drop out of the array.
        arrivals = _binomial(np.arange(kept), boundary - done, p)
        counts = np.convolve(counts, arrivals)[:kept]
        # A path with fewer violations has certified already.
        certified += float(counts[k])
        counts[k] = 0.0
        done = boundary
    return certified


def _binomial(k: npt.NDArray[np.int64], n: int, p: float) -> FloatVector:
    """P(Binomial(n, p) = k): `n! / (k! (n - k)!) p^k (1 - p)^(n - k)`, 0 beyond n."""
    # scipy.stats has it too, but takes a second to import, which every command would pay.
    choices = special.gammaln(n + 1) - special.gammaln(k + 1) - special.gammaln(np.maximum(n - k, 0) + 1)
    probability = np.exp(choices + special.xlogy(k, p) + special.xlog1py(n - k, -p))
    return np.where(k <= n, probability, 0.0)


def hoeffding_half_width(episodes: int, delta: float, low: float = 0.0, high: float = 1.0) -> float:
    """Two-sided Hoeffding half width of a mean of values in [low, high]: (high - low) sqrt(log(2/delta) / (2 n)).

    Source: Hoeffding, JASA 58 (1963), theorem 2.

    Args:
        episodes: independent episodes, n.
        delta: probability with which the interval may be wrong.
        low: least value that is possible.
        high: greatest value that is possible.
    """
    _check_counts(0, episodes)
    _check_probability("delta", delta)
    return (high - low) * math.sqrt(math.log(2.0 / delta) / (2.0 * episodes))


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
