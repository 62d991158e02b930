"""A sequential drift test with a known false-alarm rate: do new scores exceed the scores of a reference?

Each new score is ranked among the reference and earlier scores (online conformal p-values). Bets on large scores give
e-values. The evidence is the sum of the e-values over all possible start times of a drift (Shiryaev–Roberts). As long
as scores are exchangeable, the evidence takes at least A steps on average to reach A. So the choice of A fixes the
false-alarm rate without simulation.

Vovk, Gammerman and Shafer 2005, Algorithmic Learning in a Random World, chapter 7; Shin, Ramdas and Rinaldo 2024,
E-detectors (New England Journal of Statistics in Data Science 2).
"""

from __future__ import annotations

import bisect
import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

POWERS = (0.1, 0.3, 0.5, 0.7, 0.9)
"""Exponents k of the bets, which have equal stakes. Bets with small exponents win most on the smallest p-values."""

LEAST_REFERENCE = 50
"""Smallest number of reference scores. With fewer, new scores are soon ranked mostly among each other, so a drift that
starts with the first new score is missed. Within 300 scores, 20 references find no shift, 30 find every seventh shift,
50 find nearly all."""

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
    powers, log_sums, scores = np.asarray(POWERS), np.full(len(POWERS), -np.inf), 0
    while np.logaddexp.reduce(log_sums) - math.log(len(POWERS)) < log_evidence:
        scores += 1
        log_p = -math.log(reference + scores)
        log_sums = np.logaddexp(log_sums, 0.0) + np.log(powers) + (powers - 1) * log_p
    return max(scores, 1)


def detect(reference: npt.ArrayLike, scores: npt.ArrayLike, threshold: float) -> Drift:
    """Test whether scores have grown since a reference.

    The p-value p_t is the share of scores that are at least score t, among the n reference scores and the first t new
    scores. `e_t(k) = k p_t^(k - 1)`, `R_t(k) = (R_{t-1}(k) + 1) e_t(k)`, evidence = mean over k in `POWERS` of R_t(k).

    Args:
        reference: (n,), scores without drift.
        scores: (T,), in the order of time; a non-finite score counts as the largest.
        threshold: from `alarm_threshold`.
    """
    ranked = sorted(_ranked(reference))
    powers = np.asarray(POWERS)
    log_sums = np.full(len(powers), -np.inf)
    history = []
    for score in _ranked(scores):
        at_least = len(ranked) - bisect.bisect_left(ranked, score) + 1
        bisect.insort(ranked, score)
        log_p = math.log(at_least / len(ranked))
        log_sums = np.logaddexp(log_sums, 0.0) + np.log(powers) + (powers - 1) * log_p
        history.append(float(np.logaddexp.reduce(log_sums) - math.log(len(powers))))
    evidence, log_threshold = np.asarray(history), math.log(threshold)
    reached = np.flatnonzero(evidence >= log_threshold)
    return Drift(evidence, log_threshold, int(reached[0]) if reached.size else None)


def _ranked(scores: npt.ArrayLike) -> list[float]:
    """Replace non-finite scores, of either sign, by the largest, because divergence is no sign of health."""
    x = np.asarray(scores, np.float64)
    ranked: list[float] = np.where(np.isfinite(x), x, np.inf).tolist()
    return ranked


def autocorrelation_time(scores: npt.ArrayLike) -> float:
    """Return the number of scores that are worth one independent score: `1 + 2 Σ_k ρ_k`.

    The sum ends before the first ρ_k <= 0 (Sokal 1997, Monte Carlo Methods in Statistical Mechanics, section 3).

    Args:
        scores: (T,), in the order of time.
    """
    x = np.asarray(scores, np.float64)
    x = x - x.mean()
    if x.size < 3 or not (variance := float(x @ x)) > 0:
        return 1.0
    transformed = np.fft.rfft(x, 2 * x.size)
    rho = np.fft.irfft(transformed * np.conj(transformed))[: x.size] / variance
    total = 0.0
    for value in rho[1:]:
        if value <= 0:
            break
        total += float(value)
    return 1.0 + 2.0 * total


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
