"""What estimators say together: hand-made draws that agree, contradict each other, or are none."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from neorl_core.ope.agreement import MOST_OUTSIDE, WIDEST, interval, together
from neorl_core.ope.fqe import Evaluation
from neorl_core.ope.model import ModelValue, Windows, allowed, logged_value, spread

LINE = np.linspace(-1, 1, 201)


def models(
    networks: float = 0.0,
    regressions: float = 0.0,
    outside: float = 0.0,
    below: float = 0.0,
    above: float = 0.0,
    rewards: tuple[float, float] = (-1e3, 1e3),
) -> ModelValue:
    unknown = (jnp.asarray(x) for x in (outside, below, above, 0.1))
    return ModelValue(jnp.asarray([networks, regressions]), *unknown, jnp.asarray(rewards))


def rounds(value: float, supported: bool = True) -> Evaluation:
    """Draws that reach one to both sides of the value."""
    draws = jnp.stack([value + LINE, 0.1 + 0 * LINE], axis=1)
    return Evaluation(jnp.asarray([value, 0.1]), draws, jnp.asarray(0.9), jnp.asarray(10.0), jnp.asarray(supported))


RUNS_AWAY = rounds(99.0, supported=False)


def test_an_interval_reaches_from_the_lowest_of_the_guesses_to_the_highest() -> None:
    found = together([[rounds(5.0), rounds(4.0)], [rounds(6.0), RUNS_AWAY]], models(4.5, 6.5), 1000, 0.95)
    assert found.supported
    # Worked by hand: means of the families are 4.5 and 6. Of evenly spread draws a fortieth lies beyond .95 on each
    # side, and of a thousand windows next to nothing is to be widened. A guess on which the rounds do not converge says
    # nothing.
    assert found.value == pytest.approx(5.25)
    # The models lie 2 apart, and so reach from 2.5 to 8.5, and as far beyond as other windows would have moved them.
    assert found.bounds(0.95) == pytest.approx((2.5 - 0.95, 8.5 + 0.95), abs=0.01)
    alone = together([[rounds(5.0), rounds(4.0)], [rounds(6.0), RUNS_AWAY]], models(5.0, 5.0), 1000, 0.95)
    assert alone.bounds(0.95) == pytest.approx((4.0 - 0.95, 6.0 + 0.95), abs=0.01)
    assert found.cost == pytest.approx(0.1)


def test_a_value_that_has_no_support_orders_policies_by_the_models_alone() -> None:
    found = together([[rounds(5.0)], [RUNS_AWAY]], models(3.0, 5.0), 1000, 0.95)
    assert not found.supported
    assert found.value == pytest.approx(4.0)


def test_what_steps_outside_the_logs_pay_is_unknown_of_both_policies_of_a_difference() -> None:
    one = together([[rounds(3.0)]] * 2, models(3.0, 3.0, below=2.0, above=0.5), 1000, 0.95)
    other = together([[rounds(1.0)]] * 2, models(1.0, 1.0, below=4.0, above=0.25), 1000, 0.95)
    assert one.bounds(0.95) == pytest.approx((3.0 - 2.0 - 0.95, 3.0 + 0.5 + 0.95), abs=0.01)
    # The draws are of the same resamples, so that their difference is 2 in each; worked by hand: at worst the one loses
    # 2 and the other gains .25, at best the one gains .5 and the other loses 4.
    difference = one.less(other)
    assert difference.value == pytest.approx(2.0)
    assert difference.bounds(0.95) == pytest.approx((2.0 - 2.25, 2.0 + 4.5), abs=1e-6)


def test_a_difference_is_of_the_guesses_on_which_both_converge() -> None:
    every = together([[rounds(5.0), rounds(9.0)], [rounds(6.0), rounds(6.0)]], models(5.0, 5.0), 1000, 0.95)
    some = together([[rounds(4.0), RUNS_AWAY], [rounds(4.0), rounds(5.0)]], models(3.5, 3.5), 1000, 0.95)
    # Worked by hand: 5 - 4 of the networks; of the regressions the mean of 6 - 4 and 6 - 5.
    difference = every.less(some)
    assert difference.value == pytest.approx((1.0 + 1.5) / 2)
    lower, upper = difference.bounds(0.95)
    assert (lower, upper) == pytest.approx((1.0, 2.0))
    # Of the networks none is left on which both do: the models' own difference stands, within what they reach.
    others = together([[RUNS_AWAY, rounds(9.0)], [rounds(4.0), rounds(5.0)]], models(1.0, 2.0), 1000, 0.95)
    beside = some.less(others)
    assert beside.value == pytest.approx(3.5 - 1.5)
    lower, upper = beside.bounds(0.95)
    assert lower <= beside.value <= upper


def test_a_cost_is_of_the_guesses_that_converge() -> None:
    nothing = RUNS_AWAY._replace(value=jnp.full(2, jnp.nan), draws=jnp.full((201, 2), jnp.nan))
    found = together([[rounds(5.0), nothing], [rounds(5.0), RUNS_AWAY]], models(), 1000, 0.95)
    assert found.cost == pytest.approx(0.1)
    assert interval(found.cost_draws, 0.95) == pytest.approx((0.1, 0.1))


def test_an_interval_of_nothing_is_none() -> None:
    assert np.isnan(interval(np.full((2, 3), np.nan), 0.95)).all()
    assert interval(np.array([[np.nan, 0.0], [1.0, 3.0]]), 0.5) == (1.5, 2.5)


def test_few_windows_widen_the_draws_about_their_value() -> None:
    few = together([[rounds(5.0)]] * 2, models(5.0, 5.0), 3, 0.95)
    assert few.best.max() == pytest.approx(5.0 + spread(3), rel=1e-6)


def test_what_logged_rewards_allow_is_the_worst_and_the_best_of_them_at_every_step() -> None:
    # Worked by hand: 1 + .5 + .25 = 1.75 discounted steps of rewards from -4 to -2, the -9 beyond a window's end aside.
    reward = jnp.float32([[-2.0, -3.0, -4.0], [-3.0, -3.0, -9.0]])
    logged, goes_on = jnp.asarray([[True] * 3, [True, True, False]]), jnp.zeros((2, 3), jnp.float32)
    rows = Windows(*[jnp.zeros((2, 3, 1))] * 2, reward, jnp.zeros((2, 3, 1)), goes_on, logged, logged)
    np.testing.assert_allclose(allowed(rows, 0.5), (-7.0, -3.5))
    # Who ends at once pays once.
    ends = rows._replace(terminated=goes_on.at[1, 1].set(1.0))
    np.testing.assert_allclose(allowed(ends, 0.5), (-7.0, -2.0))
    np.testing.assert_allclose(allowed(ends._replace(reward=-reward), 0.5), (2.0, 7.0))
    np.testing.assert_allclose(logged_value(rows, 0.5).allowed, (-7.0, -3.5))


def test_nothing_is_worth_more_than_rewards_allow() -> None:
    # All rewards are costs: worked by hand, of draws from -1 to 1 about -.5 those above 0 are 0, and steps outside the
    # logs, which may pay 2 more, cannot lift them beyond.
    found = together([[rounds(-0.5)]] * 2, models(-0.5, -0.5, above=2.0, rewards=(-9.0, 0.0)), 1000, 0.95)
    assert found.bounds(0.95) == pytest.approx((-0.5 - 0.95, 0.0), abs=0.01)
    assert found.allowed == 9.0
    above = together([[rounds(3.0)]] * 2, models(-0.5, -0.5, rewards=(-9.0, 0.0)), 1000, 0.95)
    assert above.value == 0.0
    # Draws are cut before they are subtracted: of 0 and of what is worth -1.45 at least.
    assert above.less(found).bounds(0.95)[1] == pytest.approx(1.45, abs=0.01)


@pytest.mark.parametrize(("share", "said"), [(0.99, ""), (1.01, "wider than half of what logged rewards allow")])
def test_a_gain_whose_interval_holds_almost_anything_has_no_support(share: float, said: str) -> None:
    # The logged controller's value is known: the gain's draws reach one to both sides, 1.9 of it within 95 %, and 4
    # below it where steps outside the logs pay as the worst do.
    rewards = (0.0, 5.9 / WIDEST / share)
    policy = together([[rounds(4.0)]] * 2, models(4.0, 4.0, below=4.0, rewards=rewards), 1000, 0.95)
    known = together([[rounds(4.0)._replace(draws=jnp.full((201, 2), 4.0))]] * 2, models(4.0, 4.0), 1000, 0.95)
    gain = policy.gain(known, 0.95)
    assert policy.supported
    assert gain.bounds(0.95) == pytest.approx((-4.95, 0.95), abs=0.01)
    assert gain.reason.endswith(said)
    assert gain.supported == (not said)


def test_the_first_reason_why_a_gain_is_not_supported_stands() -> None:
    policy = together([[rounds(4.0)]] * 2, models(4.0, 4.0, outside=0.5, below=9.0, rewards=(0.0, 5.0)), 1000, 0.95)
    assert "outside" in policy.gain(policy, 0.95).reason


@pytest.mark.parametrize(
    ("networks", "regressions", "found", "reason"),
    [
        ([rounds(0.0)], [rounds(0.1)], models(), ""),
        ([rounds(0.0)], [rounds(0.1)], models(outside=MOST_OUTSIDE + 0.01), "outside"),
        ([rounds(0.0)], [rounds(5.0)], models(), ""),
        ([rounds(0.0)], [rounds(5.0)], models(outside=MOST_OUTSIDE - 0.01), ""),
        ([rounds(0.0)], [RUNS_AWAY], models(), "too few"),
        ([rounds(0.0)] * 3, [RUNS_AWAY] * 3, models(), "too few"),
        ([rounds(0.0), RUNS_AWAY], [rounds(0.0), RUNS_AWAY], models(), ""),
        ([rounds(0.0), RUNS_AWAY, RUNS_AWAY], [rounds(0.0), RUNS_AWAY, RUNS_AWAY], models(), "too few"),
        ([rounds(0.0)], [rounds(0.0)], models(np.nan), "no finite"),
        ([rounds(0.0)], [rounds(0.0)], models(outside=np.nan), "no finite"),
    ],
)
def test_an_estimate_has_support_where_estimators_agree(
    networks: list[Evaluation], regressions: list[Evaluation], found: ModelValue, reason: str
) -> None:
    said = together([networks, regressions], found, 1000, 0.95)
    assert reason in said.reason
    assert said.supported == (reason == "")
