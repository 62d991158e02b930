"""The statistics against outside values (shared truth, section 2, unless another source is given)."""

from __future__ import annotations

import math

import numpy as np
import pytest

from neorl_core.safety import bounds
from tests.neorl_core.safety.exact import betting_stop, certification_probability


@pytest.mark.parametrize(
    ("k", "n", "alpha", "expected"),
    [
        (0, 10, 0.05, 0.25886555),
        (0, 10, 0.01, 0.36904266),
        (0, 20, 0.05, 0.13910834),
        (0, 20, 0.01, 0.20567177),
        (0, 100, 0.05, 0.02951305),
        (0, 100, 0.01, 0.04500741),
        (0, 1000, 0.05, 0.0029912495),
        (0, 1000, 0.01, 0.0045945826),
        (0, 3000, 0.05, 0.00099807901),
        (0, 3000, 0.01, 0.0015338791),
        (1, 100, 0.05, 0.04655981),
        (3, 1000, 0.05, 0.00773524),
        (5, 1000, 0.05, 0.01048408),
        (11, 600, 0.05, 0.03016356),
    ],
)
def test_clopper_pearson_upper(k: int, n: int, alpha: float, expected: float) -> None:
    assert bounds.clopper_pearson_upper(k, n, alpha) == pytest.approx(expected, abs=6e-9)
    if k == 0:
        assert bounds.clopper_pearson_upper(k, n, alpha) == pytest.approx(1 - alpha ** (1 / n), rel=1e-12)


def test_clopper_pearson_lower_mirrors_the_upper() -> None:
    assert bounds.clopper_pearson_lower(0, 50, 0.05) == 0.0
    assert bounds.clopper_pearson_upper(50, 50, 0.05) == 1.0
    # All of n: the p with p**n = alpha.
    assert bounds.clopper_pearson_lower(50, 50, 0.05) == pytest.approx(0.05 ** (1 / 50), rel=1e-12)


@pytest.mark.parametrize(
    ("p0", "alpha", "expected"),
    [
        (1e-2, 0.05, (299, 473, 628, 773)),
        (1e-2, 0.01, (459, 662, 838, 1001)),
        (1e-3, 0.05, (2995, 4742, 6294, 7752)),
        (1e-3, 0.01, (4603, 6636, 8403, 10042)),
        (1e-4, 0.05, (29956, 47437, 62956, 77535)),
        (1e-4, 0.01, (46050, 66381, 84057, 100448)),
    ],
)
def test_rollouts_needed(p0: float, alpha: float, expected: tuple[int, ...]) -> None:
    for k, n in enumerate(expected):
        assert bounds.rollouts_needed(p0, k, alpha) == n
        # The definition, by the other function.
        assert bounds.clopper_pearson_upper(k, n, alpha) <= p0 < bounds.clopper_pearson_upper(k, n - 1, alpha)


@pytest.mark.parametrize(("alpha", "expected"), [(0.05, 3327), (0.01, 5115)])
def test_betting_stops_without_violations(alpha: float, expected: int) -> None:
    assert betting_stop(np.zeros(6000, dtype=bool), 1e-3, alpha) == expected
    assert bounds.betting_episodes(1e-3, 0, alpha) == expected
    assert betting_stop(np.zeros(expected - 1, dtype=bool), 1e-3, alpha) is None


def test_each_violation_costs_the_same() -> None:
    per_success, per_violation = bounds.log_bets(1e-3)
    assert -per_violation / per_success == pytest.approx(2557.02, abs=0.005)
    flags = np.zeros(20_000, dtype=bool)
    flags[[10, 3000]] = True
    # 3326.9 + 2 * 2557.02 successes, rounded up, plus the two violations.
    needed = math.ceil(math.log(20) / per_success + 2 * 2557.02) + 2
    assert betting_stop(flags, 1e-3, 0.05) == needed == bounds.betting_episodes(1e-3, 2, 0.05)


def test_e_value_is_the_likelihood_ratio() -> None:
    # Powers computed directly, where they do not overflow.
    direct = ((1 - 1e-4) / (1 - 1e-3)) ** 500 * (1e-4 / 1e-3) ** 3
    assert bounds.log_e_value(500, 3, 1e-3) == pytest.approx(math.log(direct), rel=1e-12)


@pytest.mark.parametrize(
    ("attempt", "e_process", "clopper_pearson"), [(1, 4097, 3688), (2, 5317, 4786), (3, 6087, 5478), (10, 8547, 7693)]
)
def test_alpha_spending(attempt: int, e_process: int, clopper_pearson: int) -> None:
    alpha = bounds.alpha_spent(0.05, attempt)
    assert bounds.betting_episodes(1e-3, 0, alpha) == e_process
    assert betting_stop(np.zeros(10_000, dtype=bool), 1e-3, alpha) == e_process
    assert bounds.rollouts_needed(1e-3, 0, alpha) == clopper_pearson


def test_spent_alpha_never_exceeds_the_lineage() -> None:
    total = sum(bounds.alpha_spent(0.05, j) for j in range(1, 10_001))
    assert total < 0.05
    assert total == pytest.approx(0.05, rel=2e-4)


def boundaries(p0: float, alpha: float, most: int, rule: str) -> list[int]:
    need = bounds.betting_episodes if rule == "betting" else bounds.rollouts_needed
    found: list[int] = []
    while (n := need(p0, len(found), alpha)) <= most:
        found.append(n)
    return found


def stepwise(p: float, at: list[int], most: int) -> float:
    """Second implementation: one episode at a time instead of boundary to boundary."""
    need = np.array([*at, most + 1])
    alive, certified = np.zeros(need.size), 0.0
    alive[0] = 1.0
    for n in range(1, most + 1):
        alive[1:] = alive[1:] * (1 - p) + alive[:-1] * p
        alive[0] *= 1 - p
        certified += float(alive[need <= n].sum())
        alive[need <= n] = 0.0
    return certified


def test_false_certification_rates_are_exact() -> None:
    p0 = 1e-3
    one = certification_probability(p0, [2995])
    assert one == pytest.approx(0.0500, abs=5e-5)  # Clopper-Pearson, fixed n
    assert 1 - (1 - one) ** 10 == pytest.approx(0.401, abs=5e-4)  # best of ten
    # A bootstrap or t-test of 1000 episodes certifies whenever there is no violation.
    assert certification_probability(p0, [1000]) == pytest.approx(0.368, abs=5e-4)
    spent = [bounds.rollouts_needed(p0, 0, bounds.alpha_spent(0.05, j)) for j in range(1, 11)]
    refused = math.prod(1 - certification_probability(p0, [n]) for n in spent)
    assert 1 - refused == pytest.approx(0.0448, abs=1e-4)
    # By simulation 5.02 %; Ville's inequality promises 5 %, and the exact rate is just below.
    betting = certification_probability(p0, boundaries(p0, 0.05, 20_000, "betting"))
    assert betting == pytest.approx(0.0502, abs=2e-3)
    assert betting <= 0.05


def test_peeking_at_clopper_pearson() -> None:
    p0 = 1e-3
    at = boundaries(p0, 0.05, 20_000, "clopper_pearson")
    every = certification_probability(p0, at)
    assert every == pytest.approx(stepwise(p0, at, 20_000), abs=1e-12)
    # The truth's 16.9 % does not state its grid. Checking every episode gives 17.0 %, every 25th 16.9 %.
    assert every == pytest.approx(0.1702, abs=5e-5)
    coarse = [-(-n // 25) * 25 for n in at]
    assert certification_probability(p0, coarse) == pytest.approx(0.169, abs=5e-4)


def test_certification_probability_agrees_with_simulation() -> None:
    p0, alpha, most, tries = 0.05, 0.1, 400, 4000
    flags = np.random.default_rng(7).random((tries, most)) < p0
    rate = np.mean([betting_stop(row, p0, alpha) is not None for row in flags])
    exact = certification_probability(p0, boundaries(p0, alpha, most, "betting"))
    assert rate == pytest.approx(exact, abs=4 * math.sqrt(exact * (1 - exact) / tries))
    # Power: a controller ten times safer is certified most of the time.
    assert certification_probability(p0 / 10, boundaries(p0, alpha, most, "betting")) > 0.95


def test_mean_interval_by_hand() -> None:
    # Mean 3, s = sqrt(2.5), n = 5, t(.975, 4) = 2.776445 (any printed table of Student's t).
    mean, lower, upper = bounds.mean_interval([1, 2, 3, 4, 5])
    half = 2.776445 * math.sqrt(2.5) / math.sqrt(5)
    assert (mean, lower, upper) == pytest.approx((3.0, 3.0 - half, 3.0 + half), abs=1e-6)
    assert bounds.mean_interval([4.0]) == (4.0, -math.inf, math.inf)


def test_paired_difference_removes_common_variation() -> None:
    shared = np.array([10.0, -20.0, 30.0, 400.0])
    value, lower, upper = bounds.paired_difference_interval(shared + np.array([1.0, 1.1, 0.9, 1.0]), shared)
    assert value == pytest.approx(1.0)
    assert 0.8 < lower < upper < 1.2


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: bounds.clopper_pearson_upper(3, 2, 0.05), "3 violations in 2 episodes"),
        (lambda: bounds.clopper_pearson_upper(0, 0, 0.05), "0 violations in 0 episodes"),
        (lambda: bounds.clopper_pearson_upper(0, 5, 1.0), "alpha"),
        (lambda: bounds.alpha_spent(0.05, 0), "attempt must be at least 1, got 0"),
        (lambda: bounds.log_bets(1e-3, 1e-2), "p1 must be below p0"),
        (lambda: bounds.mean_interval([1.0, math.nan]), "1 not finite"),
        (lambda: bounds.mean_interval([]), "at least one"),
        (lambda: bounds.paired_difference_interval([1.0], [1.0, 2.0]), "1 and 2"),
    ],
)
def test_invalid_arguments_are_rejected(call: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()  # type: ignore[operator]
