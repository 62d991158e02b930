"""The Interpolative aggregate against the worked tables of the standard, and properties it must have.

Source of the tables: OPC UA Part 13, release 1.04, annexes A.1.1 to A.1.3 (Historians 1, 2 and 3) and A.2.2.
"""

from __future__ import annotations

import numpy as np
import pytest

from tasks.data.historian.resample import BAD, GOOD, UNCERTAIN, Resampled, Rule, Samples, known_at

SECOND = 10**9
NAN = float("nan")
AT = np.arange(0, 100, 5) * SECOND

G, U = GOOD, UNCERTAIN
NO_DATA = np.uint32(0x809B0000)

HISTORIAN1 = [
    (0, NAN, NO_DATA),
    (10, 10, G),
    (20, 20, G),
    (30, 30, G),
    (40, 40, BAD),
    (50, 50, G),
    (60, 60, G),
    (70, 70, U),
    (80, 80, G),
    (90, 90, G),
]
HISTORIAN2 = [
    (0, NAN, NO_DATA),
    (2, 10, G),
    (25, 20, G),
    (28, 25, G),
    (39, 30, G),
    (42, NAN, BAD),
    (48, 40, G),
    (52, 50, G),
    (72, 60, G),
    (77, 70, U),
    (83, 70, G),
    (86, 80, G),
    (90, 90, G),
]
TREATED_AS_BAD = [(second, value, BAD if status == U else status) for second, value, status in HISTORIAN2]
"""Historians 2 and 3 use TreatUncertainAsBad, which the decoder applies."""
WORKED = {
    # Historian: samples, stepped, values every 5 s from 12:00:00 to 12:01:35, and which of them are
    # UncertainDataSubNormal for what was Bad (others are so for an Uncertain value, or past the end).
    "historian1": (
        HISTORIAN1,
        False,
        [NAN, NAN, 10, 15, 20, 25, 30, 35, 40, 45, 50, 55, 60, 65, 70, 75, 80, 85, 90, 90],
        {7, 8, 9},
    ),
    "historian2": (
        TREATED_AS_BAD,
        False,
        [
            *(NAN, 11.304, 13.478, 15.652, 17.826, 20, 25.909, 28.182, 31.111, 36.667),
            *(45, 51.5, 54, 56.5, 59, 62.727, 67.273, 76.667, 90, 90),
        ],
        {8, 9, 15, 16},
    ),
    "historian3": (
        TREATED_AS_BAD,
        True,
        [NAN, 10, 10, 10, 10, 20, 25, 25, 30, 30, 40, 50, 50, 50, 50, 60, 60, 70, 90, 90],
        {9, 16},
    ),
}


def samples(rows: list[tuple[int, float, np.uint32]]) -> Samples:
    times, values, statuses = zip(*rows, strict=True)
    return Samples(np.array(times) * SECOND, np.array(values, float), np.array(statuses, np.uint32))


def interpolated(history: Samples, stepped: bool, at: np.ndarray = AT) -> Resampled:
    """A tag without limits for interpolation."""
    return known_at(history, at, Rule(stepped, max_gap=3600 * SECOND), end=int(at[-1]))


@pytest.mark.parametrize("name", WORKED)
def test_agrees_with_the_tables_of_the_standard(name: str) -> None:
    rows, stepped, values, across = WORKED[name]
    got = interpolated(samples(rows), stepped)
    np.testing.assert_allclose(got.values, values, atol=5e-4)
    assert set(np.flatnonzero(got.across_bad).tolist()) == across


def test_reach_is_the_distance_of_the_values_used() -> None:
    got = interpolated(samples(HISTORIAN1), stepped=False)
    # By hand: 12:00:35 to 12:00:45 are between 30 s and 50 s; 12:01:35 is 5 s past the end; raw values have reach 0.
    seconds = (got.reach // SECOND).tolist()
    assert seconds == [0, 0, 0, 10, 0, 10, 0, 20, 20, 20, 0, 10, 0, 10, 0, 10, 0, 10, 0, 5]
    held = interpolated(samples(TREATED_AS_BAD), stepped=True)
    # By hand: held across the Bad value of 42 s at 45 s, and of 77 s at 80 s.
    assert {i: int(r) // SECOND for i, r in enumerate(held.reach) if r} == {9: 3, 16: 3}


def test_stepped_values_hold_until_the_next() -> None:
    got = interpolated(samples([(0, 1.0, G), (10, 2.0, G)]), stepped=True)
    np.testing.assert_array_equal(got.values, np.where(AT < 10 * SECOND, 1.0, 2.0))


def test_good_nan_counts_as_bad() -> None:
    got = interpolated(samples([(0, 0.0, G), (10, NAN, G), (20, 20.0, G)]), stepped=False, at=AT[:5])
    np.testing.assert_allclose(got.values, [0, 5, 10, 15, 20])
    assert got.across_bad.tolist() == [False, True, True, True, False]


def test_only_bad_values_give_no_data() -> None:
    got = interpolated(samples([(0, 1.0, BAD), (10, 2.0, BAD)]), stepped=False)
    assert np.isnan(got.values).all()
    nothing = Samples(*(np.zeros(0, t) for t in (np.int64, float, np.uint32)))
    assert np.isnan(interpolated(nothing, stepped=True).values).tolist() == [True] * 20


def test_agrees_with_numpy_for_good_values() -> None:
    rng = np.random.default_rng(0)
    times = np.cumsum(rng.integers(1, 10, 200)) * SECOND
    values = rng.normal(size=200)
    at = np.sort(rng.integers(times[0], times[-1], 500))
    got = interpolated(Samples(times, values, np.zeros(200, np.uint32)), stepped=False, at=at)
    np.testing.assert_allclose(got.values, np.interp(at, times, values), atol=1e-9)
    assert not got.across_bad.any()
