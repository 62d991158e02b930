"""Hidden plants against laws and arrays by hand."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from neorl_core.plants import PLANTS
from neorl_core.plants.base import rollouts
from neorl_core.plants.hidden import Difference, Domain, Recentred, hide, lagged, moved, recentre

NAMES = ("chemical_reactor", "double_mass", "hvac_control", "water_treatment")
LAGGING = {"chemical_reactor": ("temperature",), "double_mass": ("position_1",)}


def _difference(factors: dict[str, float], lag: float = 0.0, dead_band: float = 0.0, delay: float = 0.0) -> Difference:
    found: Difference = jax.tree.map(jnp.float32, Difference(factors, lag, dead_band, delay))
    return found


def test_the_lag_follows_the_step_response_of_a_first_order_system() -> None:
    shown = jnp.zeros(2)
    for t in range(1, 13):
        shown = lagged(shown, jnp.array([1.0, -3.0]), 2.5)
        np.testing.assert_allclose(shown, (1 - math.exp(-t / 2.5)) * np.array([1.0, -3.0]), rtol=1e-5)


def test_a_sensor_without_lag_shows_the_true_value() -> None:
    np.testing.assert_array_equal(lagged(jnp.array([5.0]), jnp.array([7.0]), 0.0), [7.0])


def test_the_dead_band_ignores_small_changes() -> None:
    position, band, found = jnp.array([1.0, 1.0]), jnp.array([0.5, 0.0]), []
    for command in ([1.4, 1.4], [1.6, 1.4], [1.2, 1.3], [1.0, 1.3]):
        position = moved(position, jnp.array(command), band)
        found.append(np.asarray(position))
    # The first actuator moves only when the command is more than 0.5 away from its position.
    np.testing.assert_allclose(found, [[1.0, 1.4], [1.6, 1.4], [1.6, 1.3], [1.0, 1.3]], rtol=1e-6)


def _run(difference: Difference, actions: list[list[float]]) -> tuple[np.ndarray, np.ndarray]:
    """Return observations of the double mass and rewards under given forces, from the same start."""
    plant = PLANTS["double_mass"]
    hidden = hide(plant, LAGGING["double_mass"])
    key = jax.random.key(3)
    constants = hidden.sample_params(key, Domain(plant.domain, difference))
    state, first = hidden.reset(key, constants)
    seen, rewards = [first], []
    for t, action in enumerate(actions):
        state, now = hidden.step(jax.random.fold_in(key, t), state, jnp.array(action), constants)
        seen.append(now.observation)
        rewards.append(now.reward)
    return np.asarray(seen), np.asarray(rewards)


def test_a_delayed_action_acts_one_step_later() -> None:
    forces = [[1.0, 0.0], [-1.0, 0.5], [0.3, 0.3]]
    delayed, delayed_rewards = _run(_difference({}, delay=1.0), forces)
    # The action in force at the start is no force.
    expected, rewards = _run(_difference({}), [[0.0, 0.0], *forces[:2]])
    np.testing.assert_allclose(delayed, expected, rtol=1e-6)
    np.testing.assert_allclose(delayed_rewards, rewards, rtol=1e-6)


def test_the_dead_band_is_a_share_of_the_range() -> None:
    # The forces range from -1 to 1, so 10 % is 0.2.
    got, _ = _run(_difference({}, dead_band=0.1), [[0.15, 0.5], [0.25, 0.4], [0.3, -0.4]])
    expected, _ = _run(_difference({}), [[0.0, 0.5], [0.25, 0.5], [0.25, -0.4]])
    np.testing.assert_allclose(got, expected, rtol=1e-6)


def test_only_named_sensors_lag_and_the_reward_is_that_of_the_process() -> None:
    forces = [[1.0, -1.0]] * 5
    got, rewards = _run(_difference({}, lag=2.0), forces)
    true, true_rewards = _run(_difference({}), forces)
    np.testing.assert_allclose(got[:, 1:], true[:, 1:], rtol=1e-6)
    np.testing.assert_allclose(rewards, true_rewards, rtol=1e-6)
    shown = true[0, 0]
    for before, value in zip(got[1:, 0], true[1:, 0], strict=True):
        shown += (1 - math.exp(-0.5)) * (value - shown)
        assert before == pytest.approx(shown, rel=1e-4)


def test_an_unknown_signal_is_refused() -> None:
    with pytest.raises(ValueError, match="double_mass has no signal positionn_1"):
        hide(PLANTS["double_mass"], ("positionn_1",))


def test_factors_replace_constants() -> None:
    plant = PLANTS["chemical_reactor"]
    hidden = hide(plant, LAGGING["chemical_reactor"])
    difference = _difference({"reaction_rate": 1.11, "cooling_rate": math.nan})
    keys = jax.random.split(jax.random.key(0), 16)
    draw = jax.vmap(hidden.sample_params, (0, None))
    found = draw(keys, Domain(plant.domain, difference)).known
    np.testing.assert_allclose(found.reaction_rate, 1.11 * 7.2e10, rtol=1e-6)
    usual = jax.vmap(plant.sample_params, (0, None))(keys, plant.domain)
    np.testing.assert_allclose(found.cooling_rate, usual.cooling_rate, rtol=1e-6)
    assert float(jnp.std(found.cooling_rate)) > 0


@pytest.mark.parametrize("name", NAMES)
def test_without_a_difference_the_hidden_plant_is_the_simulator(name: str) -> None:
    plant = PLANTS[name]
    keys = jax.random.split(jax.random.key(1), 3)
    hidden = hide(recentre(plant), plant.spec.observation.names[:2])
    constant = plant.params._fields[0]
    domain = Recentred(plant.domain, {constant: jnp.ones(())}, {constant: jnp.zeros(())})
    same = Domain(domain, _difference({constant: math.nan}))
    found = rollouts(hidden, plant.fallback, plant.fallback_params, keys, same, trace=True)
    expected = rollouts(plant, plant.fallback, plant.fallback_params, keys, plant.domain, trace=True)
    near: Any = jax.tree.map(lambda a, b: np.allclose(a, b, rtol=1e-4, atol=1e-4), found, expected)
    assert all(jax.tree.leaves(near)), near


def test_recentred_constants_are_log_normal_around_the_estimate() -> None:
    plant = PLANTS["double_mass"]
    domain = Recentred(plant.domain, {"mass": jnp.float32(1.2)}, {"mass": jnp.float32(0.05)})
    keys = jax.random.split(jax.random.key(2), 20_000)
    mass = jax.vmap(recentre(plant).sample_params, (0, None))(keys, domain).mass
    logs = np.log(np.asarray(mass) / 20.0)
    # Standard errors over 20,000 draws: 0.05/141 and 0.05/200.
    assert logs.mean() == pytest.approx(math.log(1.2), abs=4 * 0.05 / 141)
    assert logs.std() == pytest.approx(0.05, abs=4 * 0.05 / 200)
