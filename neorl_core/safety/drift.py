"""A drift alarm with a stated false-alarm rate: has the plant stopped behaving as it did in a reference?

Each new score is ranked among the reference's and those before it (online conformal p-values); bets that it is too
large make an e-value; e-values of every possible beginning of a drift are summed (Shiryaev and Roberts). While scores
are exchangeable, the mean time until the sum first reaches A is at least A steps, so a false-alarm rate is kept by the
choice of A and needs no simulation.

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
"""Exponents of the bets, which share the stake: small ones bet on the very smallest p-values."""

LEAST_REFERENCE = 50
"""Reference scores for a drift to be found that is there from the first new score on: new ones are soon ranked among
each other. Of a shift by any size, thirty find every seventh within 300 scores, fifty nearly all, twenty none."""

YEAR = 365.25 * 24 * 3600
"""Seconds."""


class Drift(NamedTuple):
    """What the detector has seen."""

    log_evidence: npt.NDArray[np.float64]
    """(T,) log of the summed e-values after each score."""
    log_threshold: float
    alarm: int | None
    """First position at which the threshold was reached."""


def alarm_threshold(blocks_per_year: float, alarms_per_year: float) -> float:
    """The evidence A at which an alarm is raised: while nothing drifts, A blocks at least pass on average before it.

    Args:
        blocks_per_year: scores in a year of operation.
        alarms_per_year: false alarms in a year that are put up with, such as 0.1.
    """
    if blocks_per_year <= 0 or alarms_per_year <= 0:
        raise ValueError(f"expected positive rates, got {blocks_per_year} blocks and {alarms_per_year} alarms a year")
    return max(blocks_per_year / alarms_per_year, 1.0)


def fewest_to_alarm(reference: int, log_evidence: float) -> int:
    """The fewest scores after which the evidence can be so large: each larger than all before it.

    Args:
        reference: n scores of the reference, at least `LEAST_REFERENCE`.
        log_evidence: that is to be reached.

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
    """Watch scores that grow when a plant drifts.

    `p_t = #{s <= t or in the reference: score_s >= score_t} / (n + t)`, `e_t(k) = k p_t^(k - 1)`,
    `R_t(k) = (R_{t-1}(k) + 1) e_t(k)`, evidence = mean over k of R_t(k).

    Args:
        reference: (n,) scores of a time without drift, exchangeable with new ones while nothing drifts.
        scores: (T,) in the order of time; one that is not finite counts as the largest.
        threshold: from `alarm_threshold`.
    """
    known = sorted(_ranked(reference))
    powers = np.asarray(POWERS)
    log_sums = np.full(len(powers), -np.inf)
    found = []
    for score in _ranked(scores):
        at_least = len(known) - bisect.bisect_left(known, score) + 1
        bisect.insort(known, score)
        log_p = math.log(at_least / len(known))
        log_sums = np.logaddexp(log_sums, 0.0) + np.log(powers) + (powers - 1) * log_p
        found.append(float(np.logaddexp.reduce(log_sums) - math.log(len(powers))))
    evidence, bar = np.asarray(found), math.log(threshold)
    reached = np.flatnonzero(evidence >= bar)
    return Drift(evidence, bar, int(reached[0]) if reached.size else None)


def _ranked(scores: npt.ArrayLike) -> list[float]:
    """Scores with one that is not finite, on either side, as the largest: what went astray is no sign of health."""
    given = np.asarray(scores, np.float64)
    found: list[float] = np.where(np.isfinite(given), given, np.inf).tolist()
    return found


def autocorrelation_time(scores: npt.ArrayLike) -> float:
    """`1 + 2 sum_k rho_k` up to the first correlation that is not positive: scores that count as one.

    Sokal 1997, Monte Carlo Methods in Statistical Mechanics, section 3. Geyer 1992 (Statistical Science
    7) sums pairs instead, as `identify.noise` does.

    Args:
        scores: (T,) in the order of time.
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
    """Means of whole blocks of consecutive scores of one episode; what is left at an episode's end is left out.

    Args:
        scores: (T,).
        episode: (T,) in ascending order.
        length: scores in a block.
    """
    x, names = np.asarray(scores, np.float64), np.asarray(episode)
    found = []
    for name in np.unique(names):
        own = x[names == name]
        whole = len(own) // length
        found.append(own[: whole * length].reshape(whole, length).mean(axis=1))
    return np.concatenate(found) if found else np.empty(0)
