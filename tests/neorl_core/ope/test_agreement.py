"""Combined estimates from hand-made draws that agree, disagree, or are missing."""

from __future__ import annotations

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
import pytest

from neorl_core.ope.agreement import MOST_OUTSIDE, WIDE, WIDEST, Estimate, combine, interval
from neorl_core.ope.fqe import Evaluation
from neorl_core.ope.model_based import ModelValue, spread

LINE = np.linspace(-1, 1, 201)


def models(
    networks: float = 0.0,
    regressions: float = 0.0,
    outside: float = 0.0,
    below: float = 0.0,
    above: float = 0.0,
) -> ModelValue:
    unknown = (jnp.asarray(x) for x in (outside, below, above, 0.1))
    return ModelValue(jnp.asarray([networks, regressions]), *unknown)


def estimate(
    rounds: Sequence[Sequence[Evaluation]],
    found: ModelValue,
    windows: int = 1000,
    allowed: tuple[float, float] = (-1e3, 1e3),
) -> Estimate:
    return combine(rounds, found, allowed, windows, 0.95)


def rounds(value: float, supported: bool = True) -> Evaluation:
    """Draws within one of the value on both sides."""
    draws = jnp.stack([value + LINE, 0.1 + 0 * LINE], axis=1)
    return Evaluation(jnp.asarray([value, 0.1]), draws, jnp.asarray(0.9), jnp.asarray(10.0), jnp.asarray(supported))


RUNS_AWAY = rounds(99.0, supported=False)


def test_interval_covers_all_guesses() -> None:
    found = estimate([[rounds(5.0), rounds(4.0)], [rounds(6.0), RUNS_AWAY]], models(4.5, 6.5))
    assert found.supported
    # By hand: the means of the families are 4.5 and 6. A fortieth of evenly spread draws lies beyond .95 on each side,
    # and a thousand windows need almost no widening. Unsupported guesses do not count.
    assert found.value == pytest.approx(5.25)
    # The models differ by 2, so they span 2.5 to 8.5, plus the sampling error of the windows.
    assert found.bounds(0.95) == pytest.approx((2.5 - 0.95, 8.5 + 0.95), abs=0.01)
    alone = estimate([[rounds(5.0), rounds(4.0)], [rounds(6.0), RUNS_AWAY]], models(5.0, 5.0))
    assert alone.bounds(0.95) == pytest.approx((4.0 - 0.95, 6.0 + 0.95), abs=0.01)
    assert found.cost == pytest.approx(0.1)


def test_unsupported_values_are_ranked_by_models() -> None:
    found = estimate([[rounds(5.0)], [RUNS_AWAY]], models(3.0, 5.0))
    assert not found.supported
    assert found.value == pytest.approx(4.0)


def test_differences_widen_by_unknown_rewards_of_both() -> None:
    one = estimate([[rounds(3.0)]] * 2, models(3.0, 3.0, below=2.0, above=0.5))
    other = estimate([[rounds(1.0)]] * 2, models(1.0, 1.0, below=4.0, above=0.25))
    assert one.bounds(0.95) == pytest.approx((3.0 - 2.0 - 0.95, 3.0 + 0.5 + 0.95), abs=0.01)
    # Both share resamples, so their difference is 2 in each. By hand: at worst one loses 2 and the other gains .25, at
    # best one gains .5 and the other loses 4.
    difference = one.less(other)
    assert difference.value == pytest.approx(2.0)
    assert difference.bounds(0.95) == pytest.approx((2.0 - 2.25, 2.0 + 4.5), abs=1e-6)


def test_differences_use_guesses_supported_for_both() -> None:
    every = estimate([[rounds(5.0), rounds(9.0)], [rounds(6.0), rounds(6.0)]], models(5.0, 5.0))
    some = estimate([[rounds(4.0), RUNS_AWAY], [rounds(4.0), rounds(5.0)]], models(3.5, 3.5))
    # By hand: 5 - 4 for the networks; the mean of 6 - 4 and 6 - 5 for the regressions.
    difference = every.less(some)
    assert difference.value == pytest.approx((1.0 + 1.5) / 2)
    lower, upper = difference.bounds(0.95)
    assert (lower, upper) == pytest.approx((1.0, 2.0))
    # No network guess is supported for both, so the difference of the models is used.
    others = estimate([[RUNS_AWAY, rounds(9.0)], [rounds(4.0), rounds(5.0)]], models(1.0, 2.0))
    beside = some.less(others)
    assert beside.value == pytest.approx(3.5 - 1.5)
    lower, upper = beside.bounds(0.95)
    assert lower <= beside.value <= upper


def test_cost_uses_supported_guesses() -> None:
    nothing = RUNS_AWAY._replace(value=jnp.full(2, jnp.nan), draws=jnp.full((201, 2), jnp.nan))
    found = estimate([[rounds(5.0), nothing], [rounds(5.0), RUNS_AWAY]], models())
    assert found.cost == pytest.approx(0.1)
    assert interval(found.cost_draws, 0.95) == pytest.approx((0.1, 0.1))


def test_interval_of_no_draws_is_nan() -> None:
    assert np.isnan(interval(np.full((2, 3), np.nan), 0.95)).all()
    assert interval(np.array([[np.nan, 0.0], [1.0, 3.0]]), 0.5) == (1.5, 2.5)


def test_few_windows_widen_the_interval() -> None:
    few = estimate([[rounds(5.0)]] * 2, models(5.0, 5.0), windows=3)
    assert few.optimistic.max() == pytest.approx(5.0 + spread(3), rel=1e-6)


def test_values_are_capped_by_logged_rewards() -> None:
    # All rewards are negative. By hand: draws from -1 to 1 about -.5 are capped at 0, and steps outside the logs, which
    # may pay 2 more, cannot raise the upper end beyond it.
    costs = (-9.0, 0.0)
    found = estimate([[rounds(-0.5)]] * 2, models(-0.5, -0.5, above=2.0), allowed=costs)
    assert found.bounds(0.95) == pytest.approx((-0.5 - 0.95, 0.0), abs=0.01)
    above = estimate([[rounds(3.0)]] * 2, models(3.0, 3.0), allowed=costs)
    assert (above.value, *above.bounds(0.95)) == (0.0, 0.0, 0.0)
    # Capping both at 0 keeps their order.
    below = estimate([[rounds(2.0)]] * 2, models(2.0, 2.0), allowed=costs)
    assert below.less(above).bounds(0.95) == pytest.approx((-1.0, -1.0))
    # A difference may be positive although no value is.
    worse = estimate([[rounds(-3.0)]] * 2, models(-3.0, -3.0), allowed=costs)
    better = estimate([[rounds(-0.5)]] * 2, models(-0.5, -0.5), allowed=costs).less(worse)
    assert (better.value, *better.bounds(0.95)) == pytest.approx((2.5, 2.5, 2.5))


@pytest.mark.parametrize(("share", "reason"), [(0.99, ""), (1.01, WIDE)])
def test_gain_with_wide_interval_is_unsupported(share: float, reason: str) -> None:
    # The value of the logged controller is known: the draws of the gain span one to both sides (1.9 within 95 %), and
    # 4 below if steps outside the logs pay the worst rewards.
    allowed = (0.0, 5.9 / WIDEST / share)
    policy = estimate([[rounds(4.0)]] * 2, models(4.0, 4.0, below=4.0), allowed=allowed)
    known = estimate([[rounds(4.0)._replace(draws=jnp.full((201, 2), 4.0))]] * 2, models(4.0, 4.0), allowed=allowed)
    gain = policy.gain(known, 0.95)
    assert policy.supported
    assert gain.bounds(0.95) == pytest.approx((-4.95, 0.95), abs=0.01)
    assert gain.reason == reason


def test_gain_is_capped_by_logged_rewards() -> None:
    known = estimate([[rounds(-3.0)._replace(draws=jnp.full((201, 2), -3.0))]] * 2, models(-3.0, -3.0), allowed=(-9, 0))
    policy = estimate([[rounds(-0.5)]] * 2, models(-0.5, -0.5), allowed=(-9.0, 0.0))
    assert policy.gain(known, 0.95).bounds(0.95) == pytest.approx((2.5 - 0.95, 3.0), abs=0.01)


def test_first_reason_is_kept() -> None:
    policy = estimate([[rounds(4.0)]] * 2, models(4.0, 4.0, outside=0.5, below=9.0), allowed=(0.0, 5.0))
    assert "outside" in policy.gain(policy, 0.95).reason


def test_gain_with_equal_rewards_or_one_window() -> None:
    known = estimate([[rounds(4.0)._replace(draws=jnp.full((201, 2), 4.0))]] * 2, models(4.0, 4.0), allowed=(4.0, 4.0))
    # Rounding of the models is below a millionth.
    rounded = known._replace(pessimistic=known.pessimistic - 1e-6, optimistic=known.optimistic + 1e-6)
    assert rounded.gain(known, 0.95).supported
    one = estimate([[rounds(4.0)]] * 2, models(4.0, 4.0), windows=1)
    assert one.gain(one, 0.95).reason == "no finite estimate"


@pytest.mark.parametrize(
    ("networks", "regressions", "found", "reason"),
    [
        ([rounds(0.0)], [rounds(0.1)], models(), ""),
        ([rounds(0.0)], [rounds(0.1)], models(outside=MOST_OUTSIDE + 0.01), "outside"),
        ([rounds(0.0)], [rounds(5.0)], models(), ""),
        ([rounds(0.0)], [rounds(5.0)], models(outside=MOST_OUTSIDE - 0.01), ""),
        ([rounds(0.0)], [RUNS_AWAY], models(), "too many guesses"),
        ([rounds(0.0)] * 3, [RUNS_AWAY] * 3, models(), "too many guesses"),
        ([rounds(0.0), RUNS_AWAY], [rounds(0.0), RUNS_AWAY], models(), ""),
        ([rounds(0.0), RUNS_AWAY, RUNS_AWAY], [rounds(0.0), RUNS_AWAY, RUNS_AWAY], models(), "too many guesses"),
        ([rounds(0.0)], [rounds(0.0)], models(np.nan), "no finite"),
        ([rounds(0.0)], [rounds(0.0)], models(outside=np.nan), "no finite"),
    ],
)
def test_support_needs_agreeing_estimators(
    networks: list[Evaluation], regressions: list[Evaluation], found: ModelValue, reason: str
) -> None:
    said = estimate([networks, regressions], found)
    assert reason in said.reason
    assert said.supported == (reason == "")
