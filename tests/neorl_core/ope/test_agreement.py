"""What estimators say together: hand-made draws that agree, contradict each other, or are none."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from neorl_core.ope.agreement import MOST_OUTSIDE, MOST_OUTSIDE_APART, interval, together
from neorl_core.ope.fqe import Evaluation
from neorl_core.ope.model import MEMBERS, ModelValue, spread

LINE = np.linspace(-1, 1, 201)


def models(
    networks: float, regressions: float, outside: float = 0.0, below: float = 0.0, above: float = 0.0
) -> ModelValue:
    """Families whose draws reach one to both sides of their values."""
    value = jnp.asarray([networks, regressions])
    unknown = (jnp.asarray(x) for x in (outside, below, above))
    return ModelValue(value, value[:, None] + LINE, *unknown, jnp.asarray(0.1))


def rounds(value: float, supported: bool = True) -> Evaluation:
    draws = jnp.stack([value + LINE, 0.1 + 0 * LINE], axis=1)
    return Evaluation(jnp.asarray([value, 0.1]), draws, jnp.asarray(0.9), jnp.asarray(10.0), jnp.asarray(supported))


def test_an_interval_reaches_from_the_lowest_of_the_estimators_to_the_highest() -> None:
    found = together([rounds(5.0), rounds(4.0), rounds(99.0, supported=False)], models(5.0, 6.0), 1000, 0.95)
    assert found.supported
    # The value is the mean of 5, 6 and of what converges, 4.5. Of evenly spread draws a fortieth lies beyond .95 on
    # each side; those of the models reach as far as five members need, and as far again from each other as they lie
    # apart, which is 1. A guess on which the rounds do not converge says nothing.
    assert found.value == pytest.approx((5.0 + 6.0 + 4.5) / 3)
    lower, upper = found.bounds(0.95)
    assert lower == pytest.approx(min(4.0 - 0.95, 4.0 - 0.95 * spread(MEMBERS)), abs=0.01)
    assert upper == pytest.approx(7.0 + 0.95 * spread(MEMBERS), abs=0.01)
    assert found.cost == pytest.approx(0.1)


def test_an_interval_reaches_over_estimators_that_contradict_each_other() -> None:
    found = together([rounds(9.0)], models(0.0, 0.1), 1000, 0.95)
    lower, upper = found.bounds(0.95)
    assert lower == pytest.approx(-0.1 - 0.95 * spread(MEMBERS), abs=0.01)
    assert upper == pytest.approx(9.95, abs=0.01)


def test_what_steps_outside_the_logs_pay_is_unknown_of_both_policies_of_a_difference() -> None:
    one = together([rounds(3.0)], models(3.0, 3.0, below=2.0, above=0.5), 1000, 0.95)
    other = together([rounds(1.0)], models(1.0, 1.0, below=4.0, above=0.25), 1000, 0.95)
    reach = 0.95 * spread(MEMBERS)
    assert one.bounds(0.95) == pytest.approx((3.0 - 2.0 - reach, 3.0 + 0.5 + reach), abs=0.01)
    # The draws are of the same resamples, so that their difference is 2 in each; worked by hand: at worst the one loses
    # 2 and the other gains .25, at best the one gains .5 and the other loses 4.
    difference = one.less(other)
    assert difference.value == pytest.approx(2.0)
    assert difference.bounds(0.95) == pytest.approx((2.0 - 2.25, 2.0 + 4.5), abs=1e-6)


def test_an_interval_of_nothing_is_none() -> None:
    assert np.isnan(interval(np.full((2, 3), np.nan), 0.95)).all()
    assert interval(np.array([[np.nan, 0.0], [1.0, 3.0]]), 0.5) == (1.5, 2.5)


def test_few_windows_widen_the_draws_about_each_familys_value() -> None:
    few = together([rounds(5.0)], models(5.0, 5.0), 3, 0.95)
    assert few.draws[:2].max() == pytest.approx(5.0 + spread(3), rel=1e-6)


@pytest.mark.parametrize(
    ("fitted", "found", "reason"),
    [
        ([rounds(0.0)], models(0.0, 0.1), ""),
        ([rounds(0.0)], models(0.0, 0.1, outside=MOST_OUTSIDE + 0.01), "outside"),
        ([rounds(0.0)], models(0.0, 5.0), ""),
        ([rounds(0.0)], models(0.0, 5.0, outside=MOST_OUTSIDE_APART + 0.01), "the models contradict"),
        ([rounds(9.0)], models(0.0, 0.1), ""),
        ([rounds(9.0), rounds(0.5)], models(0.0, 0.1), ""),
        ([rounds(0.0, supported=False)], models(0.0, 0.1), "too few guesses"),
        ([rounds(0.0), *[rounds(0.0, supported=False)] * 2], models(0.0, 0.1), "too few guesses"),
        ([rounds(0.0), rounds(0.5), rounds(0.0, supported=False)], models(0.0, 0.1), ""),
        ([rounds(0.0)], models(0.0, 0.1, outside=MOST_OUTSIDE_APART + 0.01), ""),
        ([rounds(0.0)], models(np.nan, 0.1), "no finite"),
        ([rounds(0.0)], models(0.0, 0.1, outside=np.nan), "no finite"),
    ],
)
def test_an_estimate_has_support_where_estimators_agree(
    fitted: list[Evaluation], found: ModelValue, reason: str
) -> None:
    said = together(fitted, found, 1000, 0.95)
    assert reason in said.reason
    assert said.supported == (reason == "")
