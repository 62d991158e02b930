"""The drift test: false-alarm rate without drift, power with drift, and parts by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from neorl_core.safety.drift_detection import (
    LEAST_REFERENCE,
    POWERS,
    alarm_threshold,
    autocorrelation_time,
    block_means,
    detect,
    fewest_to_alarm,
)


def test_first_step_by_hand() -> None:
    # The largest of four: p = 1 / 4, and each bet k p^(k - 1) on a sum of (0 + 1).
    found = detect([1.0, 2.0, 3.0], [4.0], threshold=10.0)
    by_hand = np.mean([k * 0.25 ** (k - 1) for k in POWERS])
    assert math.isclose(found.log_evidence[0], math.log(by_hand))
    assert found.alarm is None


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
    assert found(LEAST_REFERENCE // 3) == 0


def test_non_finite_score_counts_as_largest() -> None:
    reference = np.arange(100.0)
    worst = detect(reference, [200.0, 200.0], 10.0).log_evidence
    for odd in ([math.nan, math.inf], [-math.inf, math.nan]):
        np.testing.assert_allclose(detect(reference, odd, 10.0).log_evidence, worst)


def test_autocorrelation_time_of_an_autoregression() -> None:
    """(1 + phi) / (1 - phi) for x' = phi x + noise."""
    rng = np.random.default_rng(5)
    x, found = np.zeros(200_000), rng.normal(size=200_000)
    for t in range(1, len(x)):
        x[t] = 0.6 * x[t - 1] + found[t]
    assert autocorrelation_time(x) == pytest.approx(4.0, rel=0.1)
    assert autocorrelation_time(np.ones(5)) == 1.0


def test_blocks_do_not_cross_episodes() -> None:
    found = block_means([1.0, 3.0, 9.0, 5.0, 7.0, 9.0], [0, 0, 0, 1, 1, 1], 2)
    np.testing.assert_array_equal(found, [2.0, 6.0])


def test_rate_must_be_positive() -> None:
    with pytest.raises(ValueError, match="rates must be positive, got"):
        alarm_threshold(100.0, 0.0)
