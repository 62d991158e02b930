"""Learners and estimators do not depend on units: a power of two changes no bit."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from neorl_core.control.fallbacks import fit_linear_law
from neorl_core.ope import model_based
from neorl_core.plants import PLANTS
from neorl_core.training.preparation import prepare
from neorl_core.types import Transition, varies

SPEC = PLANTS["double_mass"].spec
ROWS = 64


def logged(unit: float = 1.0) -> Transition:
    """Random steps with observations and rewards in other units; the first observation is constant."""
    rng = np.random.default_rng(5)
    observation, following = rng.normal(3.0, 2.0, (2, ROWS, SPEC.observation.size)).astype(np.float32)
    observation[:, 0] = following[:, 0] = 300.1
    action = rng.uniform(-1.0, 1.0, (ROWS, SPEC.action.size)).astype(np.float32)
    reward = rng.normal(1.0, 0.5, ROWS).astype(np.float32)
    zero = np.zeros(ROWS, np.float32)
    return Transition(observation * np.float32(unit), action, reward * np.float32(unit), zero, following * unit, zero)


@pytest.mark.parametrize("unit", [2.0**-30, 2.0**40])
def test_learners_do_not_depend_on_units(unit: float) -> None:
    normaliser, seen = prepare(logged(), SPEC)
    other, same = prepare(logged(unit), SPEC)
    for name in ("observation", "action", "reward", "next_observation"):
        np.testing.assert_array_equal(getattr(same, name), getattr(seen, name), err_msg=name)
    np.testing.assert_array_equal(other.scale[1:], normaliser.scale[1:] * unit)
    assert float(normaliser.scale[0]) == float(other.scale[0]) == 1.0
    assert float(seen.reward.std()) == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize("unit", [2.0**-30, 2.0**40])
def test_models_do_not_depend_on_reward_units(unit: float) -> None:
    (_, seen, (mean, scale)), (_, same, of_other) = (
        model_based.init(jax.random.key(0), logged(each), 10) for each in (1.0, unit)
    )
    np.testing.assert_array_equal(same.reward, seen.reward)
    assert [float(x) for x in of_other] == [float(mean) * unit, float(scale) * unit]
    assert float(seen.reward.std()) == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize("unit", [2.0**-60, 2.0**40])
def test_linear_laws_do_not_depend_on_units(unit: float) -> None:
    bounds = np.asarray(SPEC.action.low), np.asarray(SPEC.action.high)
    first, second = (fit_linear_law(x.observation, x.action, *bounds) for x in (logged(), logged(unit)))
    # Constant observations get no weight, because their bits would be rounding only.
    np.testing.assert_allclose(second.weights[1:] * unit, first.weights[1:], rtol=1e-4)
    assert float(np.abs(first.weights[1:]).max()) > 1e-3


def test_rounding_does_not_count_as_movement() -> None:
    tenth = np.float32(300.1)
    flickers = np.array([tenth, np.nextafter(tenth, np.float32(0))], np.float64)
    told = np.array([tenth, tenth + 0.01])
    for values, expected in ((flickers, False), (told, True), (told * 1e-20, True), (0 * told, False)):
        assert bool(varies(values.mean(), values.std())) is expected
    assert not varies(1.0, np.nan)
