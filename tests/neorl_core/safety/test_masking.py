"""The shield of a discrete action on a small tank, by hand: masks, next best choices, dwell times."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from neorl_core.control.behaviour import Behaviour, BehaviourParams, blended
from neorl_core.networks import Normaliser, Policy
from neorl_core.plants.base import two_sided_margin
from neorl_core.safety.composite import composite_controller, make_composite, unshielded_controller
from neorl_core.safety.shield import default_shield
from neorl_core.types import Constraint, Controller, Plant, PlantSpec, Space

LIMIT = Constraint("level", "m", 0.0, 10.0)
SPEC = PlantSpec(
    name="switched_tank",
    observation=Space(("level", "pumps"), ("m", "1"), (-20.0, 0.0), (20.0, 2.0)),
    action=Space(("pumps",), ("1",), (0.0,), (2.0,)),
    constraints=(LIMIT,),
    dt=1.0,
    time_unit="s",
    horizon=10,
    score_range=(0.0, 1.0),
    choices=("none", "one", "two"),
)


class Draw(NamedTuple):
    """The tank's constant: demand of the town per step."""

    draw: float = 1.0


def predict(observation: Array, action: Array, params: Draw) -> tuple[Array, Array]:
    """A step of level' = level + 2 pumps − draw: −1, +1 or +3."""
    level = observation[0] + 2.0 * action[0] - params.draw
    return jnp.stack([level, action[0]]), two_sided_margin(level, LIMIT.low, LIMIT.high)[None]


def refuse(*_: Any) -> Any:
    raise AssertionError("these tests do not simulate the tank")


ALWAYS = Controller(lambda params, o: (), lambda params, state, o, applied: (state, jnp.asarray(params)))
"""A fallback that always returns the action given as its parameter."""
TANK = Plant(
    spec=SPEC,
    params=Draw(),
    domain=Draw(),
    sample_params=refuse,
    reset=refuse,
    step=refuse,
    predict=predict,
    applied=lambda observation: observation[1:],
    fallback=ALWAYS,
    fallback_params=(0.0,),
    idle=(0.0,),
)
CONTROLLER = composite_controller(TANK)


def liking(*outputs: float) -> Policy:
    """A policy with the same preferences everywhere."""
    layer = {"kernel": jnp.zeros((2, 3)), "bias": jnp.asarray(outputs)}
    one = jnp.ones(1)
    return Policy({"Dense_0": layer}, Normaliser(jnp.zeros(2), jnp.ones(2), one, one, jnp.arange(3.0)))


def played(policy: Policy | None, levels: list[float], begun: float = 0.0, fallback: float = 0.0, **shield: Any) -> Any:
    """(actions, hand-overs) along measured levels, with each action applied; some pumps run at the start."""
    composite = make_composite(
        TANK, policy, default_shield(SPEC, **{"look_ahead": 3, "buffer": 1.0, "hold": 0, **shield})
    )
    composite = composite._replace(fallback=(jnp.asarray(fallback),))
    memory = CONTROLLER.init(composite, jnp.asarray([levels[0], begun]))
    applied, found = jnp.asarray([begun]), []
    for level in levels:
        memory, applied = CONTROLLER.act(composite, memory, jnp.asarray([level, float(applied[0])]), applied)
        found.append((float(applied[0]), bool(memory.handed_over)))
    return found


def test_unsafe_choice_is_replaced_by_next_best() -> None:
    # The fallback then switches off: from 5 two pumps lead to 8, 7, 6; from 7 to 10, which violates the buffer of 1.
    assert played(liking(0.0, 1.0, 2.0), [5.0]) == [(2.0, False)]
    assert played(liking(0.0, 1.0, 2.0), [7.0]) == [(1.0, False)]
    assert played(liking(1.0, 0.0, 2.0), [7.0]) == [(0.0, False)]
    # From 8.5 one pump still leads to 9.5: only none is left, at any preferences.
    assert played(liking(0.0, 1.0, 2.0), [8.5]) == [(0.0, False)]
    # From 3.5 with none the level falls to .5 in three steps, which no pump after the first step prevents.
    assert played(liking(2.0, 1.0, 0.0), [3.5]) == [(1.0, False)]


def corrected(level: float, kernel: list[float], bonus: float, fallback: float) -> list[float]:
    """Return the actions, with shield and without, of a network that multiplies the fallback's choice by the kernel."""
    layer = {"kernel": jnp.zeros((3, 3)).at[2].set(jnp.asarray(kernel)), "bias": jnp.array([0.0, 1.0, 2.0])}
    normaliser = Normaliser(jnp.zeros(3), jnp.ones(3), jnp.ones(1), jnp.ones(1), jnp.arange(3.0))
    shield = default_shield(SPEC, look_ahead=3, buffer=1.0, hold=0)
    composite = make_composite(TANK, Policy({"Dense_0": layer}, normaliser), shield, correction=jnp.array([bonus]))
    composite = composite._replace(fallback=(jnp.asarray(fallback),))
    found, observation = [], jnp.asarray([level, 0.0])
    for controller in (CONTROLLER, unshielded_controller(TANK)):
        memory = controller.init(composite, observation)
        found.append(float(controller.act(composite, memory, observation, jnp.zeros(1))[1][0]))
    return found


def test_a_bonus_prefers_the_choice_of_the_fallback() -> None:
    none = [0.0, 0.0, 0.0]
    # Preferences 0, 1, 2 of none, one, two; the bonus makes them 1.5, 1, 2 and 2.5, 1, 2.
    assert corrected(5.0, none, 1.5, 0.0) == [2.0, 2.0]
    assert corrected(5.0, none, 2.5, 0.0) == [0.0, 0.0]
    # At 7 the shield allows at most one pump; without the bonus it would be one.
    assert corrected(7.0, none, 1.5, 0.0) == [0.0, 2.0]
    assert corrected(7.0, none, 0.5, 0.0) == [1.0, 2.0]
    # The network observes the fallback's choice: 3, 1 + 1.5, 2 if it is one, and 1.5, 1, 2 if it is none.
    assert corrected(5.0, [3.0, 0.0, 0.0], 1.5, 1.0) == [0.0, 0.0]
    assert corrected(5.0, [3.0, 0.0, 0.0], 1.5, 0.0) == [2.0, 2.0]
    # The choice of the fallback is rounded. At 3 the shield allows two pumps although the fallback then runs one.
    assert corrected(3.0, none, 2.5, 0.9) == [1.0, 1.0]


def test_fallback_acts_without_safe_choice() -> None:
    # The fallback always runs both pumps, so after any first step the level exceeds 9 in the third.
    assert played(liking(0.0, 1.0, 2.0), [7.0], fallback=2.0) == [(2.0, True)]
    # Preferences that are not finite count as no policy.
    assert played(liking(0.0, np.nan, 2.0), [5.0]) == [(0.0, True)]
    assert played(liking(0.0, 1.0, 2.0), [np.nan, 5.0], begun=1.0) == [(1.0, False), (2.0, False)]


def test_control_returns_only_with_return_buffer() -> None:
    seen = played(liking(-9.0, -9.0, 2.0), [8.5, 7.4, 5.0], fallback=0.0, return_buffer=1.0)
    assert [handed for _, handed in seen] == [False, False, False], "none is always allowed"
    # A fallback of two pumps adds 6 m after the first step: from 4.9 none leads to 9.9, which is enough to keep control
    # but not to regain it.
    levels, shield = [7.0, 4.9, 2.4], {"fallback": 2.0, "buffer": 0.0}
    seen = played(liking(0.0, 1.0, 2.0), levels, return_buffer=0.5, **shield)
    assert seen == [(2.0, True), (2.0, True), (1.0, False)]
    assert played(liking(0.0, 1.0, 2.0), levels, return_buffer=0.0, **shield)[1] == (0.0, False)
    assert played(liking(0.0, 1.0, 2.0), levels, return_buffer=0.5, **shield | {"hold": 5})[2] == (2.0, True)


def test_choice_changes_only_after_dwell_time() -> None:
    # At 7 the second pump is not allowed, at 5 it is: one step after a switch it stays, with a dwell time of three.
    levels = [5.0, 7.0, 5.0, 7.0, 5.0, 7.0]
    free = [action for action, _ in played(liking(0.0, 1.0, 2.0), levels)]
    assert free == [2.0, 1.0, 2.0, 1.0, 2.0, 1.0]
    seen = played(liking(0.0, 1.0, 2.0), [5.0, 5.5, 5.0, 7.0, 5.0, 5.0, 5.0], dwell=3, look_ahead=1)
    assert [action for action, _ in seen] == [2.0, 2.0, 2.0, 1.0, 1.0, 1.0, 2.0]
    # The dwell time also binds the fallback: it cannot stop two pumps that have just started.
    seen = played(liking(-9.0, -9.0, 2.0), [5.0, 9.0, 9.0, 9.0], dwell=3, look_ahead=1, hold=9)
    assert seen == [(2.0, False), (2.0, True), (2.0, True), (0.0, True)]


def test_prediction_includes_fallback_dwell_time() -> None:
    # From 5.5 two pumps for one step lead to 8.5, for two to 11.5.
    assert played(liking(0.0, 1.0, 2.0), [5.5]) == [(2.0, False)]
    assert played(liking(0.0, 1.0, 2.0), [5.5], dwell=2) == [(1.0, False)]


def test_external_switch_restarts_dwell_time() -> None:
    composite = make_composite(TANK, liking(0.0, 1.0, 2.0), default_shield(SPEC, look_ahead=1, buffer=0.0, dwell=3))
    memory = CONTROLLER.init(composite, jnp.asarray([5.0, 2.0]))
    found = []
    for applied in (2.0, 0.0, 0.0, 0.0):
        memory, action = CONTROLLER.act(composite, memory, jnp.asarray([5.0, applied]), jnp.asarray([applied]))
        found.append(float(action[0]))
    # An operator switched both off after the first step: they stay off for three steps.
    assert found == [2.0, 0.0, 0.0, 2.0]


def test_choices_can_be_rate_limited() -> None:
    assert played(liking(0.0, 1.0, 2.0), [5.0, 5.0], rate_limit=1.0) == [(1.0, False), (2.0, False)]


def test_fractional_fallback_is_rounded_to_a_choice() -> None:
    assert played(None, [5.0], fallback=1.4) == [(1.0, False)]
    assert played(None, [5.0], fallback=1.6) == [(2.0, False)]


def test_discrete_behaviours_choose_randomly_or_idle() -> None:
    controller = blended(ALWAYS, TANK)

    def shares(**given: float) -> np.ndarray:
        quality = Behaviour(*(jnp.asarray(given.get(name, 0.0)) for name in Behaviour._fields))
        params = BehaviourParams((jnp.asarray(2.0),), quality, jax.random.key(0))
        first = jnp.asarray([5.0, 1.0])

        def step(memory: Any, _: None) -> tuple[Any, Array]:
            return controller.act(params, memory, first, jnp.zeros(1))

        actions = jax.lax.scan(step, controller.init(params, first), None, length=6_000)[1]
        return np.bincount(np.asarray(actions, int)[:, 0], minlength=3) / 6_000

    np.testing.assert_array_equal(shares(), [0, 0, 1])
    np.testing.assert_allclose(shares(random=1.0), np.full(3, 1 / 3), atol=0.02)
    # A quarter idles, which is none; each choice gets a third of a tenth.
    np.testing.assert_allclose(shares(detuned=0.25), [0.25, 0, 0.75], atol=0.02)
    np.testing.assert_allclose(shares(noise=0.1, detuned=0.25), [0.0333 + 0.225, 0.0333, 0.0333 + 0.675], atol=0.02)
