"""The shield of a discrete action on a tank small enough to work by hand: masks, next best choices, dwell times."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from neorl_core.control.behaviour import Behaviour, BehaviourParams, blended
from neorl_core.networks import Normaliser, Policy
from neorl_core.plants.base import two_sided_margin
from neorl_core.safety.composite import composite_controller, make_composite
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
    """The tank's one constant: what the town draws in a step."""

    draw: float = 1.0


def predict(observation: Array, action: Array, params: Draw) -> tuple[Array, Array]:
    """A step of level' = level + 2 pumps − draw: −1, +1 or +3."""
    level = observation[0] + 2.0 * action[0] - params.draw
    return jnp.stack([level, action[0]]), two_sided_margin(level, LIMIT.low, LIMIT.high)[None]


def refuse(*_: Any) -> Any:
    raise AssertionError("these tests do not simulate the tank")


ALWAYS = Controller(lambda params, o: (), lambda params, state, o, applied: (state, jnp.asarray(params)))
"""A fallback that always gives the action that is its parameter."""
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
    """A policy of the same preferences everywhere."""
    layer = {"kernel": jnp.zeros((2, 3)), "bias": jnp.asarray(outputs)}
    one = jnp.ones(1)
    return Policy({"Dense_0": layer}, Normaliser(jnp.zeros(2), jnp.ones(2), one, one, jnp.arange(3.0)))


def played(policy: Policy | None, levels: list[float], begun: float = 0.0, fallback: float = 0.0, **shield: Any) -> Any:
    """(actions, hand-overs) along levels that were measured, each action applied; the tank begins with some pumps."""
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


def test_a_choice_that_will_cross_a_limit_gives_way_to_the_next_best() -> None:
    # With the fallback off after it: from 5 two pumps lead to 8, 7, 6; from 7 to 10, which leaves no buffer of 1.
    assert played(liking(0.0, 1.0, 2.0), [5.0]) == [(2.0, False)]
    assert played(liking(0.0, 1.0, 2.0), [7.0]) == [(1.0, False)]
    assert played(liking(1.0, 0.0, 2.0), [7.0]) == [(0.0, False)]
    # From 8.5 one pump still leads to 9.5: only none is left, whatever the policy likes.
    assert played(liking(0.0, 1.0, 2.0), [8.5]) == [(0.0, False)]
    # From 3.5 with none the level falls to .5 in three steps, which no pump after the first step prevents.
    assert played(liking(2.0, 1.0, 0.0), [3.5]) == [(1.0, False)]


def test_where_no_choice_is_left_the_fallback_acts() -> None:
    # The fallback runs both pumps for ever, so that after any first step the level is beyond 9 in the third.
    assert played(liking(0.0, 1.0, 2.0), [7.0], fallback=2.0) == [(2.0, True)]
    # Without any preference there is no policy either.
    assert played(liking(0.0, np.nan, 2.0), [5.0]) == [(0.0, True)]
    assert played(liking(0.0, 1.0, 2.0), [np.nan, 5.0], begun=1.0) == [(1.0, False), (2.0, False)]


def test_control_comes_back_only_with_more_room() -> None:
    seen = played(liking(-9.0, -9.0, 2.0), [8.5, 7.4, 5.0], fallback=0.0, return_buffer=1.0)
    assert [handed for _, handed in seen] == [False, False, False], "none is always allowed"
    # A fallback of two pumps adds 6 m after the first step: from 4.9 none leads to 9.9, which is enough to keep control
    # and too little to get it back.
    levels, shield = [7.0, 4.9, 2.4], {"fallback": 2.0, "buffer": 0.0}
    seen = played(liking(0.0, 1.0, 2.0), levels, return_buffer=0.5, **shield)
    assert seen == [(2.0, True), (2.0, True), (1.0, False)]
    assert played(liking(0.0, 1.0, 2.0), levels, return_buffer=0.0, **shield)[1] == (0.0, False)
    assert played(liking(0.0, 1.0, 2.0), levels, return_buffer=0.5, **shield | {"hold": 5})[2] == (2.0, True)


def test_a_switch_moves_only_after_its_dwell_time() -> None:
    # At 7 the second pump is not allowed, at 5 it is: one step after a switch it stays, with a dwell time of three.
    levels = [5.0, 7.0, 5.0, 7.0, 5.0, 7.0]
    free = [action for action, _ in played(liking(0.0, 1.0, 2.0), levels)]
    assert free == [2.0, 1.0, 2.0, 1.0, 2.0, 1.0]
    seen = played(liking(0.0, 1.0, 2.0), [5.0, 5.5, 5.0, 7.0, 5.0, 5.0, 5.0], dwell=3, look_ahead=1)
    assert [action for action, _ in seen] == [2.0, 2.0, 2.0, 1.0, 1.0, 1.0, 2.0]
    # The fallback dwells too: asked for none, it has to keep the two pumps that have just been started.
    seen = played(liking(-9.0, -9.0, 2.0), [5.0, 9.0, 9.0, 9.0], dwell=3, look_ahead=1, hold=9)
    assert seen == [(2.0, False), (2.0, True), (2.0, True), (0.0, True)]


def test_the_prediction_knows_that_the_fallback_has_to_dwell() -> None:
    # From 5.5 two pumps for one step lead to 8.5, for two to 11.5.
    assert played(liking(0.0, 1.0, 2.0), [5.5]) == [(2.0, False)]
    assert played(liking(0.0, 1.0, 2.0), [5.5], dwell=2) == [(1.0, False)]


def test_somebody_elses_switch_begins_the_dwell_time_anew() -> None:
    composite = make_composite(TANK, liking(0.0, 1.0, 2.0), default_shield(SPEC, look_ahead=1, buffer=0.0, dwell=3))
    memory = CONTROLLER.init(composite, jnp.asarray([5.0, 2.0]))
    found = []
    for applied in (2.0, 0.0, 0.0, 0.0):
        memory, action = CONTROLLER.act(composite, memory, jnp.asarray([5.0, applied]), jnp.asarray([applied]))
        found.append(float(action[0]))
    # An operator switched both off after the first step: for three steps that is how it stays.
    assert found == [2.0, 0.0, 0.0, 2.0]


def test_stages_may_be_limited_in_their_rate() -> None:
    assert played(liking(0.0, 1.0, 2.0), [5.0, 5.0], rate_limit=1.0) == [(1.0, False), (2.0, False)]


def test_a_fallback_that_gives_fractions_is_rounded_to_a_choice() -> None:
    assert played(None, [5.0], fallback=1.4) == [(1.0, False)]
    assert played(None, [5.0], fallback=1.6) == [(2.0, False)]


def test_behaviours_choose_at_random_or_idle_instead_of_blending() -> None:
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
    # A quarter idles, which is none; of a tenth each choice gets a third.
    np.testing.assert_allclose(shares(detuned=0.25), [0.25, 0, 0.75], atol=0.02)
    np.testing.assert_allclose(shares(noise=0.1, detuned=0.25), [0.0333 + 0.225, 0.0333, 0.0333 + 0.675], atol=0.02)
