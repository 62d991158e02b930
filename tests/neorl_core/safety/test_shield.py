"""Limits, shield and composite on a small tank, by hand."""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jaxtyping import Array

from neorl_core.control.pid import PIDParams, pid
from neorl_core.networks import Normaliser, Policy
from neorl_core.plants.base import two_sided_margin
from neorl_core.safety.composite import (
    PolicyState,
    bare_controller,
    composite_controller,
    make_composite,
    unshielded_controller,
)
from neorl_core.safety.shield import ShieldParams, default_shield, envelope_of, limit_action, predicted_margins
from neorl_core.types import Constraint, Controller, Plant, PlantSpec, SetPoints, Space

LIMIT = Constraint("level", "m", -1.0, 3.0)


class Gain(NamedTuple):
    """The tank's constant."""

    gain: float = 1.0


SPEC = PlantSpec(
    name="tank",
    observation=Space(("level", "valve"), ("m", "1"), (-10.0, -1.0), (10.0, 1.0)),
    action=Space(("valve",), ("1",), (-1.0,), (1.0,)),
    constraints=(LIMIT,),
    dt=1.0,
    time_unit="s",
    horizon=10,
    score_range=(0.0, 1.0),
)


def predict(observation: Array, action: Array, params: Gain) -> tuple[Array, Array]:
    level = observation[0] + params.gain * action[0]
    return jnp.stack([level, action[0]]), two_sided_margin(level, LIMIT.low, LIMIT.high)[None]


def refuse(*_: Any) -> Any:
    raise AssertionError("these tests do not simulate the tank")


CLOSE = Controller(lambda params, observation: (), lambda params, state, observation, applied: (state, params))
"""A fallback that always returns the action given as its parameter."""

TANK = Plant(
    spec=SPEC,
    params=Gain(),
    domain=Gain(),
    sample_params=refuse,
    reset=refuse,
    step=refuse,
    predict=predict,
    applied=lambda observation: observation[1:2],
    fallback=CLOSE,
    fallback_params=(-1.0,),
)


def tank(fallback: Controller = CLOSE, params: Any = (-1.0,)) -> Plant:
    return TANK._replace(fallback=fallback, fallback_params=params)


def constant(policy: Array, observation: Array) -> Array:
    return policy


def shield(**changes: Any) -> ShieldParams:
    settings = {"look_ahead": 3, "buffer": 0.5, "return_buffer": 0.25, "hold": 2} | changes
    return default_shield(SPEC, **settings)


def array_fallback(params: Any, state: Any, observation: Array, applied: Array) -> Any:
    return state, jnp.stack(params)


CONSTANT_FALLBACK = Controller(lambda params, observation: (), array_fallback)
PLANT = tank(CONSTANT_FALLBACK)
CONTROL = composite_controller(PLANT, constant)
ACT = jax.jit(CONTROL.act)


def drive(policy: float, levels: list[float], **changes: Any) -> list[tuple[bool, float]]:
    """(handed over, action) at each measured level, with the commanded valve applied."""
    composite = make_composite(PLANT, jnp.array([policy]), shield(**changes))
    applied = jnp.zeros(1)
    state = CONTROL.init(composite, jnp.array([levels[0], 0.0]))
    trace = []
    for level in levels:
        state, applied = ACT(composite, state, jnp.array([level, applied[0]]), applied)
        trace.append((bool(state.handed_over), float(applied[0])))
    return trace


def test_limits_on_an_action_by_hand() -> None:
    s = shield(rate_limit=0.3)
    for action, applied, expected in [(0.9, 0.0, 0.3), (-0.9, 0.0, -0.3), (0.2, 0.0, 0.2), (1.5, 0.9, 1.0)]:
        np.testing.assert_allclose(limit_action(s, jnp.array([action]), jnp.array([applied])), [expected])
    # Bounds win if the applied action is outside.
    np.testing.assert_allclose(limit_action(s, jnp.array([2.0]), jnp.array([2.0])), [1.0])


def test_prediction_by_hand() -> None:
    # Level 1.5, one step of +1, then the fallback's -1 twice: 2.5, 1.5, .5, limits -1 and 3.
    found = predicted_margins(PLANT, shield(), (jnp.array(-1.0),), (), Gain(), jnp.array([1.5, 0.0]), jnp.array([1.0]))
    np.testing.assert_allclose(found, [[0.5], [1.5], [1.5]])
    # The rate limit binds the predicted fallback: +1, +.5, 0 from 0 gives 1, 1.5, 1.5.
    found = predicted_margins(
        PLANT, shield(rate_limit=0.5), (jnp.array(-1.0),), (), Gain(), jnp.array([0.0, 0.0]), jnp.array([1.0])
    )
    np.testing.assert_allclose(found, [[2.0], [1.5], [1.5]])


def test_hand_over_before_buffer_is_lost() -> None:
    # The policy opens by 1 per step; with limit 3 and buffer .5 it may continue to 2.5.
    assert drive(1.0, [1.4]) == [(False, 1.0)]
    assert drive(1.0, [1.6]) == [(True, -1.0)]
    # Towards the lower limit the fallback's future counts: from 0, -1 leaves it at -3 after three steps.
    assert drive(-1.0, [0.0]) == [(True, -1.0)]


def test_safe_policy_is_not_changed() -> None:
    assert drive(0.125, [1.6] * 3) == [(False, 0.125)] * 3


def test_return_needs_hold_and_margin() -> None:
    # 1.6: hand over. 1.4 would be enough to stay, but not to return (2.4 leaves .6 < .75). At 1.2 it returns.
    trace = drive(1.0, [1.6, 1.4, 1.4, 1.2, 1.2])
    assert [handed for handed, _ in trace] == [True, True, True, False, False]
    # Enough margin at once, but the fallback keeps control for at least two steps.
    assert [handed for handed, _ in drive(1.0, [1.6, 1.2, 1.2, 1.2])] == [True, True, False, False]


def test_no_chattering_at_the_buffer() -> None:
    edge = [1.45 + 0.1 * (i % 2) for i in range(40)]
    handed = [h for h, _ in drive(1.0, edge)]
    assert sum(a != b for a, b in itertools.pairwise(handed)) == 1


def test_hand_over_outside_envelope() -> None:
    low, high = envelope_of(jnp.array([1.0, -1.0]), jnp.array([1.5, 1.0]), jnp.array([0.1, 1.0]), 2.0)
    np.testing.assert_allclose(low, [0.8, -3.0])
    envelope = (low, high)
    assert drive(0.0, [1.6], envelope=envelope, buffer=-5.0) == [(False, 0.0)]
    assert drive(0.0, [1.8], envelope=envelope, buffer=-5.0) == [(True, -1.0)]


def test_envelope_of_constant_signal_has_no_width() -> None:
    # One standard deviation for a moving signal; signals that never moved have the scale 1 in any unit.
    lowest, highest = jnp.array([-1.0, 0.0, 0.25, 1000.0]), jnp.array([1.0, 0.0, 0.25, 1000.0])
    low, high = envelope_of(lowest, highest, jnp.array([0.5, 1.0, 1.0, 1.0]), 1.0)
    np.testing.assert_allclose(high, [1.5, 0.0, 0.25, 1000.0], rtol=2e-6)
    np.testing.assert_allclose(low, [-1.5, 0.0, 0.25, 1000.0], rtol=2e-6)
    # Rounding does not count as movement.
    around = np.asarray([1000.0, np.nextafter(np.float32(1000), np.float32(2000))], np.float32)
    assert (around <= float(high[3])).all()
    assert (around >= float(low[3])).all()


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_non_finite_policy_hands_over(bad: float) -> None:
    assert drive(bad, [1.6], buffer=-5.0) == [(True, -1.0)]


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_non_finite_observation_holds_applied_action(bad: float) -> None:
    trace = drive(0.25, [1.6, bad, bad, 1.6])
    assert trace == [(False, 0.25)] * 4
    composite = make_composite(PLANT, jnp.array([0.25]), shield())
    state = CONTROL.init(composite, jnp.array([1.6, 0.0]))
    state, _ = ACT(composite, state, jnp.array([1.6, 0.0]), jnp.zeros(1))
    # The applied action is unreadable as well: the last returned action is the best guess.
    state, action = ACT(composite, state, jnp.array([bad, bad]), jnp.array([bad]))
    assert float(action[0]) == 0.25


def test_non_finite_first_observation() -> None:
    composite = make_composite(PLANT, jnp.array([0.25]), shield())
    blind = jnp.array([jnp.nan, jnp.nan])
    state, action = ACT(composite, CONTROL.init(composite, blind), blind, PLANT.applied(blind))
    assert float(action[0]) == 0.0  # mid-range
    _, action = ACT(composite, state, jnp.array([1.6, 0.0]), action)
    assert float(action[0]) == 0.25


LOOP = pid(measurement=0, setpoint=1, dt=1.0)
"""A PI loop with the valve's position as set point: only its algebra matters here."""
PI = tank(LOOP, PIDParams(kp=0.1, ki=0.05, kd=0.0, low=-1.0, high=1.0))


def test_fallback_takes_over_bumplessly() -> None:
    control = composite_controller(PI, constant)
    composite = make_composite(PI, jnp.array([jnp.nan]), shield(buffer=-99.0))
    state = control.init(composite, jnp.array([0.5, 0.7]))
    # It has seen a constant error of .2, so only the integral part moves: .4 + .05 * .2.
    _, action = control.act(composite, state, jnp.array([0.5, 0.7]), jnp.array([0.4]))
    np.testing.assert_allclose(action, [0.41], rtol=1e-6)


def test_fallback_restarts_after_non_finite_start() -> None:
    control = composite_controller(PI, constant)
    composite = make_composite(PI, shield=shield(buffer=-99.0))
    state = control.init(composite, jnp.array([jnp.nan, 0.7]))
    state, action = control.act(composite, state, jnp.array([jnp.nan, 0.7]), jnp.array([0.4]))
    np.testing.assert_allclose(action, [0.4])
    _, action = control.act(composite, state, jnp.array([0.5, 0.7]), jnp.array([0.4]))
    np.testing.assert_allclose(action, [0.41], rtol=1e-6)


def test_fallback_alone_never_hands_over() -> None:
    control = composite_controller(PLANT)
    composite = make_composite(PLANT)
    assert composite.policy is None
    state, action = control.act(
        composite, control.init(composite, jnp.array([2.9, 0.0])), jnp.array([2.9, 0.0]), jnp.zeros(1)
    )
    assert not bool(state.handed_over)
    assert float(action[0]) == -1.0


def test_failing_fallback_holds_applied_action() -> None:
    composite = make_composite(PLANT, shield=shield())._replace(fallback=(jnp.array(jnp.nan),))
    state = CONTROL.init(composite, jnp.array([1.0, 0.3]))
    _, action = ACT(composite, state, jnp.array([1.0, 0.3]), jnp.array([0.3]))
    np.testing.assert_allclose(action, [0.3])


anything = st.floats(width=32, allow_nan=True, allow_infinity=True)


@settings(max_examples=150)
@given(levels=st.lists(anything, min_size=1, max_size=3), policy=anything, applied=anything)
def test_action_is_always_finite_and_limited(levels: list[float], policy: float, applied: float) -> None:
    composite = make_composite(PLANT, jnp.array([policy]), shield(rate_limit=0.25))
    state = CONTROL.init(composite, jnp.array([levels[0], applied]))
    now = jnp.array([applied])
    for level in levels:
        before = float(now[0]) if np.isfinite(now[0]) else float(state.action[0])
        state, now = ACT(composite, state, jnp.array([level, 0.0]), now)
        assert -1.0 <= float(now[0]) <= 1.0
        assert abs(float(now[0]) - np.clip(before, -1.0, 1.0)) <= 0.25 + 1e-6


def test_compiled_programs_are_reused() -> None:
    assert composite_controller(PLANT, constant) is CONTROL
    assert bare_controller(PLANT, constant) is bare_controller(PLANT, constant)
    act = jax.jit(lambda *args: CONTROL.act(*args))
    composite = make_composite(PLANT, jnp.array([0.1]), shield())
    observation = jnp.array([1.0, 0.0])
    state = CONTROL.init(composite, observation)
    kinds: list[PolicyState] = [state]
    for _ in range(3):
        state, _ = act(composite, state, observation, jnp.zeros(1))
        kinds.append(state)
    assert act._cache_size() == 1
    assert len({jax.tree.structure(k) for k in kinds}) == 1


def summing(params: Any, total: Array, observation: Array, applied: Array) -> Any:
    """Return the sum of the levels, and the action −0.8 plus a tenth of it."""
    return total + observation[0], jnp.stack([-0.8 + 0.1 * (total + observation[0])])


def correcting() -> tuple[Plant, Any]:
    """A fallback with a state, and a network that returns tanh of the normalised state of the fallback."""
    plant = tank(Controller(lambda params, observation: jnp.zeros(()), summing))
    # Inputs: level, valve, sum, action of the fallback.
    kernel = jnp.array([[0.0], [0.0], [1.0], [0.0]])
    normaliser = Normaliser(jnp.array([0.0, 0.0, 1.0, 0.0]), jnp.array([1.0, 1.0, 2.0, 1.0]), jnp.zeros(1), jnp.ones(1))
    policy = Policy({"Dense_0": {"kernel": kernel, "bias": jnp.zeros(1)}}, normaliser)
    return plant, make_composite(plant, policy, shield(look_ahead=1), correction=jnp.array([0.5]))


def test_a_policy_moves_the_action_of_the_fallback_by_hand() -> None:
    plant, composite = correcting()
    for controller in (composite_controller(plant), unshielded_controller(plant)):
        state, applied = controller.init(composite, jnp.array([1.0, -0.6])), jnp.array([-0.6])
        # The second action is −0.55 + 0.5 tanh(0.75) = −0.2324.
        for level, total in ((1.0, 1.0), (1.5, 2.5)):
            state, applied = controller.act(composite, state, jnp.array([level, applied[0]]), applied)
            expected = -0.8 + 0.1 * total + 0.5 * np.tanh((total - 1.0) / 2.0)
            np.testing.assert_allclose(applied, [expected], rtol=1e-5)


def test_a_correction_stays_within_the_action_bounds() -> None:
    plant, composite = correcting()
    controller = unshielded_controller(plant)
    state = controller.init(composite, jnp.array([15.0, 0.0]))
    _, action = controller.act(composite, state, jnp.array([15.0, 0.0]), jnp.zeros(1))
    # −0.8 + 1.5 + 0.5 is beyond the bound.
    assert float(action[0]) == 1.0


def test_a_correction_that_is_not_finite_hands_over() -> None:
    plant, composite = correcting()
    composite = composite._replace(correction=jnp.array([jnp.nan]))
    controller = composite_controller(plant)
    state = controller.init(composite, jnp.array([1.0, -0.6]))
    state, action = controller.act(composite, state, jnp.array([1.0, -0.6]), jnp.array([-0.6]))
    assert bool(state.handed_over)
    np.testing.assert_allclose(action, [-0.7], rtol=1e-6)


def integrating(params: Any, total: Array, observation: Array, applied: Array) -> Any:
    """Return the sum of the errors of the level from the set point, and a tenth of the sum as the action."""
    total = total + params[0] - observation[0]
    return total, jnp.stack([0.1 * total])


def moving_set_points() -> tuple[Plant, Any]:
    """An integral controller of the level, and a network that returns tanh of the level."""
    points = SetPoints(("level",), ("m",), (0.5,), lambda params, shift: (params[0] + shift[0],))
    plant = tank(Controller(lambda params, observation: jnp.zeros(()), integrating), (1.0,))
    plant = plant._replace(set_points=points)
    kernel = jnp.array([[1.0], [0.0], [0.0], [0.0]])
    normaliser = Normaliser(jnp.zeros(4), jnp.ones(4), jnp.zeros(1), jnp.full(1, 0.5))
    policy = Policy({"Dense_0": {"kernel": kernel, "bias": jnp.zeros(1)}}, normaliser)
    return plant, make_composite(plant, policy, shield(look_ahead=1), shift=jnp.array([0.5]))


def test_a_policy_moves_the_set_point_of_the_fallback_by_hand() -> None:
    plant, composite = moving_set_points()
    for controller in (composite_controller(plant), unshielded_controller(plant)):
        state, applied, total = controller.init(composite, jnp.array([1.0, 0.0])), jnp.zeros(1), 0.0
        for level in (1.0, 1.5, 0.2):
            state, applied = controller.act(composite, state, jnp.array([level, applied[0]]), applied)
            # The integral follows the error from the shifted set point.
            total += 1.0 + 0.5 * np.tanh(level) - level
            np.testing.assert_allclose(applied, [0.1 * total], rtol=1e-5)


def test_the_fallback_takes_over_with_its_own_set_point() -> None:
    plant, composite = moving_set_points()
    controller = composite_controller(plant)
    state, applied = controller.init(composite, jnp.array([1.0, 0.0])), jnp.zeros(1)
    state, applied = controller.act(composite, state, jnp.array([1.0, 0.0]), applied)
    assert not bool(state.handed_over)
    shifted = 0.5 * np.tanh(1.0)
    # At 4 m the level is above the limit of 3 m, so the controller acts without a shift.
    state, applied = controller.act(composite, state, jnp.array([4.0, applied[0]]), applied)
    assert bool(state.handed_over)
    np.testing.assert_allclose(state.fallback, shifted + 1.0 - 4.0, rtol=1e-5)
    np.testing.assert_allclose(applied, [0.1 * (shifted - 3.0)], rtol=1e-5)


def test_a_shift_that_is_not_finite_hands_over() -> None:
    plant, composite = moving_set_points()
    composite = composite._replace(shift=jnp.array([jnp.nan]))
    controller = composite_controller(plant)
    state = controller.init(composite, jnp.array([0.5, 0.0]))
    state, action = controller.act(composite, state, jnp.array([0.5, 0.0]), jnp.zeros(1))
    assert bool(state.handed_over)
    np.testing.assert_allclose(action, [0.05], rtol=1e-6)
    np.testing.assert_allclose(state.fallback, 0.5, rtol=1e-6)


def test_composite_contains_only_arrays() -> None:
    normaliser = Normaliser(jnp.zeros(2), jnp.ones(2), jnp.zeros(1), jnp.ones(1))
    policy = Policy({"Dense_0": {"kernel": jnp.zeros((2, 1)), "bias": jnp.zeros(1)}}, normaliser)
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(make_composite(PLANT, policy, shield())))
    composite = make_composite(PLANT, policy, shield())
    control = composite_controller(PLANT)
    state = control.init(composite, jnp.array([1.6, 0.0]))
    # A network of zeros gives the middle of the range.
    _, action = control.act(composite, state, jnp.array([1.6, 0.0]), jnp.array([0.2]))
    assert float(action[0]) == 0.0


def test_default_shield_follows_the_spec() -> None:
    s = default_shield(SPEC)
    np.testing.assert_allclose(s.margin_buffer, np.full((12, 1), 0.5))  # an eighth of 3 - -1
    np.testing.assert_allclose(s.rate_limit, [2.0])
    with pytest.raises(ValueError, match="at least 1 step"):
        default_shield(SPEC, look_ahead=0)
