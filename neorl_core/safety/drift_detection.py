"""A sequential drift test with a known false-alarm rate: do new scores exceed the scores of a reference?

Each new score is ranked among the reference and earlier scores (online conformal p-values). Bets on large scores give
e-values. The evidence is the sum of the e-values over all possible start times of a drift (Shiryaev–Roberts). As long
as scores are exchangeable, the evidence takes at least A steps on average to reach A. So the choice of A fixes the
false-alarm rate without simulation. Means of long blocks of a stationary signal are nearly exchangeable.

Vovk, Gammerman and Shafer 2005, Algorithmic Learning in a Random World, chapter 7; Shin, Ramdas and Rinaldo 2024,
E-detectors (New England Journal of Statistics in Data Science 2).
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.fft import dct
from scipy.special import ndtri
from scipy.stats import chi2, f

SHIFT = 1.0
"""Shift that is bet on, in standard deviations of a score. Shifts of less than half of this size are not found, because
a reference cannot exclude changes that are so small and slow."""

LEAST_REFERENCE = 50
"""Smallest number of reference scores. With fewer, new scores are soon ranked mostly among each other, so a drift that
starts with the first new score is missed."""

TIMES = 12.0
"""Smallest length of a block in autocorrelation times. Neighbouring means of an autoregression then have a correlation
of 0.04."""
SLOW = 1e-3
"""Significance level at which blocks are too short, because the means of a signal change slowly; signals share it."""
ALL_SLOW = 1e-4
"""Significance level at which the signals show together that they change slowly."""
MOST_REFERENCE = 4000
"""Largest number of reference blocks; longer references have longer blocks."""

YEAR = 365.25 * 24 * 3600
"""Length of a year [s]."""


class Drift(NamedTuple):
    """Result of the drift test."""

    log_evidence: npt.NDArray[np.float64]
    """(T,), log of the evidence after each score."""
    log_threshold: float
    alarm: int | None
    """First position at which the threshold was reached; None without alarm."""


def alarm_threshold(blocks_per_year: float, alarms_per_year: float) -> float:
    """Return A, the evidence that raises an alarm; without drift, the mean time to an alarm is at least A blocks.

    Args:
        blocks_per_year: scores per year of operation.
        alarms_per_year: accepted false alarms per year, e.g. 0.1.

    Raises:
        ValueError: if a rate is not positive.
    """
    if blocks_per_year <= 0 or alarms_per_year <= 0:
        raise ValueError(
            f"rates must be positive, got {blocks_per_year} blocks and {alarms_per_year} false alarms per year"
        )
    return max(blocks_per_year / alarms_per_year, 1.0)


def fewest_to_alarm(reference: int, log_evidence: float) -> int:
    """Return the smallest number of new scores that can raise an alarm: each new score is larger than all earlier ones.

    Args:
        reference: number n of reference scores, at least `LEAST_REFERENCE`.
        log_evidence: log of the evidence to reach.

    Example:
        >>> fewest_to_alarm(50, 15.5)
        11
    """
    highest: list[float] = []
    while not highest or _log_evidence(np.asarray(highest))[-1] < log_evidence:
        highest.append(-float(ndtri(0.5 / (reference + len(highest) + 1))))
    return len(highest)


def detect(reference: npt.ArrayLike, scores: npt.ArrayLike, threshold: float) -> Drift:
    """Test whether scores have grown since a reference.

    The p-value p_t is the share of scores that are at least score t, minus half a score, among the n reference scores
    and the first t new scores. `z_t = Φ⁻¹(1 - p_t)`, `e_t = exp(δ z_t - δ² / 2)` with δ = `SHIFT`, evidence
    `R_t = (R_{t-1} + 1) e_t`. The expectation of e_t is at most 1, because a mean over midpoints of ranks is below the
    integral over a normal distribution.

    Args:
        reference: (n,), scores without drift.
        scores: (T,), in the order of time; a non-finite score counts as the largest.
        threshold: from `alarm_threshold`.
    """
    ranked = sorted(_ranked(reference))
    p = []
    for score in _ranked(scores):
        at_least = len(ranked) - bisect.bisect_left(ranked, score) + 1
        bisect.insort(ranked, score)
        p.append((at_least - 0.5) / len(ranked))
    evidence, log_threshold = _log_evidence(-ndtri(np.asarray(p))), math.log(threshold)
    reached = np.flatnonzero(evidence >= log_threshold)
    return Drift(evidence, log_threshold, int(reached[0]) if reached.size else None)


def _log_evidence(z: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the log of the evidence (T,) of normal scores (T,): `R_t = Σ_s exp(S_t - S_{s-1})` with sums S of logs."""
    sums = np.cumsum(SHIFT * z - SHIFT**2 / 2)
    evidence: npt.NDArray[np.float64] = sums + np.logaddexp.accumulate(-np.append(0.0, sums)[:-1])
    return evidence


def _ranked(scores: npt.ArrayLike) -> list[float]:
    """Replace non-finite scores, of either sign, by the largest, because divergence is no sign of health."""
    x = np.asarray(scores, np.float64)
    ranked: list[float] = np.where(np.isfinite(x), x, np.inf).tolist()
    return ranked


def autocorrelation_time(scores: npt.ArrayLike) -> float:
    """Return the integrated autocorrelation time `1/2 + Σ_k ρ_k`; twice as many scores are worth one independent score.

    The sum ends before the first ρ_k <= 0 (Sokal 1997, Monte Carlo Methods in Statistical Mechanics, section 3).

    Args:
        scores: (T,), in the order of time.
    """
    x = np.asarray(scores, np.float64)
    x = x - x.mean()
    if x.size < 3 or not (variance := float(x @ x)) > 0:
        return 0.5
    transformed = np.fft.rfft(x, 2 * x.size)
    rho = np.fft.irfft(transformed * np.conj(transformed))[: x.size] / variance
    ends = np.flatnonzero(rho <= 0)
    return 0.5 + float(rho[1 : ends[0] if ends.size else None].sum())


def block_length(scores: npt.ArrayLike, level: float = SLOW) -> int:
    """Return the number of scores in a block, so that means of blocks are nearly independent.

    The length is twelve autocorrelation times. A slow, weak part of a signal hardly shows in the autocorrelation of
    scores. If block means show such a part (`p_slow`), the length is doubled. If fewer than `LEAST_REFERENCE` blocks
    remain, the length is twelve autocorrelation times of the means.

    Args:
        scores: (n,), in the order of time.
        level: significance level of `p_slow`.
    """
    x = np.asarray(scores, np.float64)
    length = max(math.ceil(TIMES * autocorrelation_time(x)), len(x) // MOST_REFERENCE)
    while len(x) // length >= LEAST_REFERENCE and p_slow(x, length) < level:
        if len(x) // (2 * length) < LEAST_REFERENCE:
            return max(2 * length, math.ceil(TIMES * length * autocorrelation_time(_means(x, length))))
        length *= 2
    return length


def p_slow(scores: npt.ArrayLike, length: int) -> float:
    """Return the p-value of the hypothesis that means of blocks are independent, against slow changes.

    The coefficients of the cosine transform of independent normal means are independent with equal variances. Each
    F-test compares the 1, 2, 4, ... slowest with the faster ones; the smallest p-value is multiplied by the number of
    tests (Bonferroni). Half of a yearly season is a change of the slowest coefficients.

    Args:
        scores: (n,), in the order of time.
        length: scores per block.
    """
    power = dct(_means(np.asarray(scores, np.float64), length), norm="ortho")[1:] ** 2
    counts = [2**k for k in range(20) if 2**k <= len(power) // 4]
    ratios = ((k, float(power[:k].mean()), float(power[k:].mean())) for k in counts)
    found = [float(f.sf(slow / fast, k, len(power) - k)) for k, slow, fast in ratios if fast > 0]
    return min(1.0, len(found) * min(found)) if found else 1.0


def all_slow(p_values: Sequence[float]) -> bool:
    """Return whether p-values of two or more signals show together that signals change slowly (Fisher's method).

    A signal counts at most `ALL_SLOW`, so that a single slow signal among others that are not slow has little effect.
    """
    total = -2.0 * sum(math.log(max(p, ALL_SLOW)) for p in p_values)
    return bool(chi2.sf(total, 2 * len(p_values)) < ALL_SLOW)


def _means(x: npt.NDArray[np.float64], length: int) -> npt.NDArray[np.float64]:
    whole = len(x) // length
    found: npt.NDArray[np.float64] = x[: whole * length].reshape(whole, length).mean(axis=1)
    return found


def block_means(scores: npt.ArrayLike, episode: npt.ArrayLike, length: int) -> npt.NDArray[np.float64]:
    """Return the mean of each complete block of consecutive scores; no block spans two episodes.

    Args:
        episode: (T,), episode of each score, ascending.
    """
    x, names = np.asarray(scores, np.float64), np.asarray(episode)
    means = []
    for name in np.unique(names):
        own = x[names == name]
        whole = len(own) // length
        means.append(own[: whole * length].reshape(whole, length).mean(axis=1))
    return np.concatenate(means) if means else np.empty(0)
