"""The drift test: false-alarm rate without drift, power with drift, and parts by hand."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
import pytest
from scipy.signal import lfilter

from neorl_core.safety.drift_detection import (
    ALL_SLOW,
    LEAST_REFERENCE,
    SHIFT,
    alarm_threshold,
    all_slow,
    autocorrelation_time,
    block_length,
    block_means,
    detect,
    fewest_to_alarm,
    p_slow,
)


def test_first_step_by_hand() -> None:
    # The largest of four: p = 1 / 8, the middle of the first quarter.
    found = detect([1.0, 2.0, 3.0], [4.0], threshold=10.0)
    z = NormalDist().inv_cdf(1 - 1 / 8)
    assert math.isclose(found.log_evidence[0], SHIFT * z - SHIFT**2 / 2)
    assert found.alarm is None


@pytest.mark.parametrize("count", [3, 51, 52, 1000, 5001])
def test_a_bet_is_fair(count: int) -> None:
    # Every rank among `count` scores is equally probable; `fewest_to_alarm` and Ville need a mean of at most 1.
    ranks = [
        detect(np.arange(count - 1.0), [k - 0.5], 1e9).log_evidence[0] for k in range(0, count, max(count // 50, 1))
    ]
    z = [NormalDist().inv_cdf(1 - (k + 0.5) / count) for k in range(count)]
    payoffs = [math.exp(SHIFT * each - SHIFT**2 / 2) for each in z]
    assert math.fsum(payoffs) / count <= 1.0
    np.testing.assert_allclose(ranks, np.log(payoffs[::-1][:: max(count // 50, 1)]), rtol=1e-9)


def autoregression(rng: np.random.Generator, phi: float, size: int) -> np.ndarray:
    found: np.ndarray = lfilter([1.0], [1.0, -phi], rng.normal(size=size + 10_000))[10_000:] * math.sqrt(1 - phi**2)
    return found


@pytest.mark.parametrize(("phi", "size"), [(0.0, 26_000), (0.5, 26_000), (0.9, 26_000), (0.99, 200_000)])
def test_a_block_has_twelve_autocorrelation_times(phi: float, size: int) -> None:
    """The autocorrelation time of an autoregression is (1 + phi) / (1 - phi) / 2."""
    rng = np.random.default_rng(8)
    time = (1 + phi) / (1 - phi) / 2
    found = [block_length(autoregression(rng, phi, size)) for _ in range(10)]
    assert 11 * time <= np.median(found) <= 14 * time
    assert min(found) >= 9 * time
    assert max(found) <= 24 * time


@pytest.mark.parametrize(
    "slow", ["autocorrelation 0.999", "half a year", "a weak slow part", "a step", "regimes of two weeks"]
)
def test_slow_signals_leave_too_few_blocks(slow: str) -> None:
    rng = np.random.default_rng(9)
    size, t = 26_000, np.arange(26_000)
    white = rng.normal(size=size)
    switches = (-1.0) ** np.cumsum(rng.uniform(size=size) < 1 / 2016)
    signals = {
        "autocorrelation 0.999": autoregression(rng, 0.999, size),
        "half a year": white + 0.3 * math.sqrt(2) * np.sin(np.pi * t / size),
        "a weak slow part": white + 0.2 * autoregression(rng, 0.999, size),
        "a step": white + 0.2 * (t > size / 2),
        "regimes of two weeks": white + switches,
    }
    assert size // block_length(signals[slow]) < LEAST_REFERENCE


def test_slow_changes_have_a_known_error_probability() -> None:
    rng = np.random.default_rng(10)
    p = np.asarray([p_slow(rng.normal(size=1000), 10) for _ in range(2000)])
    for level in (0.01, 0.05, 0.2):
        # Five tests overlap, so that Bonferroni is a bound.
        assert (p <= level).mean() <= level + 3 * math.sqrt(level / 2000)
    assert (p <= 0.2).mean() > 0.05
    assert p_slow(np.ones(1000), 10) == 1.0


def test_many_weak_signs_count_and_one_strong_sign_does_not() -> None:
    assert not all_slow([ALL_SLOW / 1000, *[0.5] * 9])
    assert all_slow([0.01] * 6)
    assert not all_slow([0.3] * 100)


@pytest.mark.parametrize(("reference", "bar"), [(50, 15.5), (50, 8.2), (365, 15.5), (1000, 0.0)])
def test_fewest_scores_to_alarm(reference: int, bar: float) -> None:
    # Source: the drift test itself on scores that are each larger than all before.
    fewest = fewest_to_alarm(reference, bar)
    found = detect(np.zeros(reference), np.arange(1, fewest + 2), math.exp(bar))
    assert found.alarm == fewest - 1


@pytest.mark.slow
def test_false_alarm_rate_is_kept() -> None:
    """The mean time to a false alarm is at least A: by T = A steps, at most about 1 - 1/e of the runs have alarmed.

    Stronger, by Ville's inequality for sums that start at each step: P(alarm by T) <= T / A.
    """
    rng = np.random.default_rng(3)
    threshold, steps, trials = 2_000.0, 200, 1_500
    alarms = 0
    for _ in range(trials):
        scores = rng.exponential(size=steps + 100)
        alarms += detect(scores[:100], scores[100:], threshold).alarm is not None
    stated = steps / threshold
    assert alarms / trials <= stated + 3 * math.sqrt(stated / trials)


def test_shift_is_detected_soon() -> None:
    rng = np.random.default_rng(4)
    threshold = alarm_threshold(blocks_per_year=50_000, alarms_per_year=0.1)
    delays = []
    for _ in range(40):
        reference, calm = rng.normal(size=300), rng.normal(size=100)
        found = detect(reference, np.concatenate([calm, rng.normal(2.5, 1.0, size=100)]), threshold)
        assert found.alarm is not None
        delays.append(found.alarm - 100)
    assert min(delays) >= 0
    assert np.median(delays) < 40


def test_immediate_drift_needs_enough_references() -> None:
    """New scores are soon ranked among each other: with a small reference even the largest drift looks normal."""
    rng = np.random.default_rng(6)
    threshold = alarm_threshold(blocks_per_year=600_000, alarms_per_year=0.1)

    def found(reference: int) -> int:
        drawn = (rng.normal(size=reference + 300) + 100 * (np.arange(reference + 300) >= reference) for _ in range(20))
        return sum(detect(x[:reference], x[reference:], threshold).alarm is not None for x in drawn)

    assert found(LEAST_REFERENCE) >= 18
    assert found(LEAST_REFERENCE // 10) == 0


def test_non_finite_score_counts_as_largest() -> None:
    reference = np.arange(100.0)
    worst = detect(reference, [200.0, 200.0], 10.0).log_evidence
    for odd in ([math.nan, math.inf], [-math.inf, math.nan]):
        np.testing.assert_allclose(detect(reference, odd, 10.0).log_evidence, worst)


def test_autocorrelation_time_of_an_autoregression() -> None:
    """(1 + phi) / (1 - phi) / 2 for x' = phi x + noise."""
    rng = np.random.default_rng(5)
    x, found = np.zeros(200_000), rng.normal(size=200_000)
    for t in range(1, len(x)):
        x[t] = 0.6 * x[t - 1] + found[t]
    assert autocorrelation_time(x) == pytest.approx(2.0, rel=0.1)
    assert autocorrelation_time(np.ones(5)) == 0.5


def test_blocks_do_not_cross_episodes() -> None:
    found = block_means([1.0, 3.0, 9.0, 5.0, 7.0, 9.0], [0, 0, 0, 1, 1, 1], 2)
    np.testing.assert_array_equal(found, [2.0, 6.0])


def test_rate_must_be_positive() -> None:
    with pytest.raises(ValueError, match="rates must be positive, got"):
        alarm_threshold(100.0, 0.0)
