"""Prediction errors on logs and of drawn plants, on a plant small enough to compute by hand."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array

from neorl_core.control.behaviour import Behaviour, play
from neorl_core.plants import PLANTS
from neorl_core.plants.replay import LoggedEpisodes, ReplayErrors, replay_errors
from neorl_core.types import Constraint, Controller, Plant, PlantSpec, Space, Timestep


class Constants(NamedTuple):
    """x' = gain x + u + w, measured as y = x + e, with standard deviations of w and e."""

    gain: Any = 0.5
    push: Any = 0.0
    noise: Any = 0.0


class Spread(NamedTuple):
    """Half range of the gain, and standard deviations of the noise."""

    gain: float = 0.0
    push: float = 0.0
    noise: float = 0.0


def step(key: Array, state: Array, action: Array, params: Constants) -> tuple[Array, Timestep]:
    push, noise = jax.random.normal(key, (2, 1))
    following = params.gain * state + action + params.push * push
    seen, never = following + params.noise * noise, jnp.asarray(False)
    return following, Timestep(seen, jnp.zeros(()), jnp.ones(1), never, never)


def resume(key: Array, state: Array, observation: Array, params: Constants) -> tuple[Array, Constants]:
    return observation - params.noise * jax.random.normal(key, (1,)), params


SPEC = PlantSpec(
    name="lag",
    observation=Space(("level",), ("m",), (-9.0,), (9.0,)),
    action=Space(("feed",), ("m",), (-1.0,), (1.0,)),
    constraints=(Constraint("level", "m", -9.0, 9.0),),
    dt=1.0,
    time_unit="s",
    horizon=40,
    score_range=(0.0, 1.0),
)
LAG = Plant(
    spec=SPEC,
    params=Constants(),
    domain=Spread(push=0.3, noise=0.4),
    sample_params=lambda key, domain: Constants(
        0.5 + domain.gain * jax.random.uniform(key, minval=-1.0), domain.push, domain.noise
    ),
    reset=lambda key, params: (jnp.zeros(1), jnp.zeros(1)),
    step=step,
    predict=lambda observation, action, params: (params.gain * observation + action, jnp.ones(1)),
    applied=lambda observation: observation,
    fallback=Controller(lambda params, observation: (), lambda params, state, observation, applied: ((), -observation)),
    fallback_params=(),
    resume=resume,
)


def logs_of(episodes: int, steps: int, gain: float = 0.5, push: float = 0.3, noise: float = 0.4) -> LoggedEpisodes:
    """Episodes of a second implementation in NumPy, under random actions."""
    rng = np.random.default_rng(5)
    x = np.zeros((episodes, 1))
    seen, acted = [x + noise * rng.normal(size=x.shape)], list[np.ndarray]()
    for _ in range(steps):
        acted.append(rng.uniform(-1, 1, x.shape))
        x = gain * x + acted[-1] + push * rng.normal(size=x.shape)
        seen.append(x + noise * rng.normal(size=x.shape))
    rows = [jnp.asarray(np.stack(part, axis=1), jnp.float32) for part in (seen[:-1], acted, seen[1:])]
    return LoggedEpisodes(*rows, jnp.ones((episodes, steps), bool))


KEYS = jax.random.split(jax.random.key(0), 16)


def errors(
    logs: LoggedEpisodes, *horizons: int, plant: Plant = LAG, domain: Spread | None = None, keys: Array = KEYS
) -> ReplayErrors:
    """Errors of the lag plant, by default over the lag's own domain."""
    return replay_errors(plant, plant.params, logs, jnp.asarray(horizons), keys, domain or plant.domain)


def test_errors_match_noise_of_logs_and_plants() -> None:
    """e = gain^k e0 + Σ gain^i w − e1 for measurement noise e0 at the start and e1 at the end, and disturbances w."""
    found = errors(logs_of(400, 40), 1, 4)
    variances = [0.4**2 * (0.25**k + 1) + 0.3**2 * sum(0.25**i for i in range(k)) for k in (1, 4)]
    expected = np.sqrt(variances)[:, None]
    np.testing.assert_allclose(found.logged, expected, rtol=0.03)
    np.testing.assert_allclose(found.simulated, np.broadcast_to(expected, (16, 2, 1)), rtol=0.05)
    assert found.held.tolist() == [False]


def test_errors_ignore_missing_steps() -> None:
    rows = jnp.asarray([[[1.0], [2.0], [9.0]]])
    present = jnp.asarray([[True, True, False]])
    logs = LoggedEpisodes(rows, jnp.zeros_like(rows), jnp.asarray([[[2.0], [3.5], [jnp.nan]]]), present)
    # Predicted 0.5 and 1.0 one step ahead, 0.25 two steps ahead.
    logged = errors(logs, 1, 2).logged
    np.testing.assert_allclose(logged, [[np.sqrt((1.5**2 + 2.5**2) / 2)], [3.25]], rtol=1e-6)


def test_wrong_constant_shows_several_steps_ahead() -> None:
    """Without noise, a gain 5 % too high misses the logs by more than any plant of a narrower domain."""
    logs = logs_of(50, 40, gain=0.525, push=0.0, noise=0.0)
    found = errors(logs, 4, domain=Spread(gain=0.005))
    assert found.logged[0, 0] > 2 * found.simulated.max()


def test_plant_without_resume_starts_from_reset() -> None:
    found = errors(logs_of(400, 40), 1, plant=LAG._replace(resume=None), keys=KEYS[:4])
    np.testing.assert_allclose(found.simulated, np.full((4, 1, 1), np.sqrt(0.4**2 * 1.25 + 0.3**2)), rtol=0.05)


def test_unchanged_signal_counts_as_held() -> None:
    still = LAG._replace(predict=lambda observation, action, params: (observation, jnp.ones(1)))
    assert errors(logs_of(2, 9), 1, 4, plant=still, keys=KEYS[:2]).held.tolist() == [True]


EXACT = {
    # Signals that observation and action determine completely without disturbances.
    "chemical_reactor": slice(0, 4),
    "double_mass": slice(0, 4),
    "hvac_control": slice(0, 13),
    "industrial_benchmark": slice(0, 4),
    "power_grid": slice(0, 21),
    "pumping_station": slice(0, 2),
    "robot_assembly": slice(9, 12),
    "steel_annealing": slice(4, 8),
    "water_treatment": slice(0, 8),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", EXACT)
def test_resumed_plant_follows_prediction(name: str) -> None:
    """An undisturbed plant, resumed in the middle of an episode, follows the noise-free prediction."""
    plant = PLANTS[name]
    shares = Behaviour(jnp.zeros(1), jnp.zeros(1), jnp.zeros(1))
    keys = jax.random.split(jax.random.key(3), 1)
    logged = play(plant, plant.fallback, plant.fallback_params, shares, keys, trace=True).trajectory
    assert logged is not None
    observation, action = logged.observations[0, 12], logged.actions[0, 12]
    assert plant.resume is not None
    constants = jax.tree.map(jnp.asarray, plant.params)
    elsewhere = plant.reset(jax.random.key(9), constants)[0]
    state, constants = plant.resume(jax.random.key(8), elsewhere, observation, constants)
    found = plant.step(jax.random.key(7), state, action, constants)[1].observation
    predicted = plant.predict(observation, action, constants)[0]
    np.testing.assert_allclose(found[EXACT[name]], predicted[EXACT[name]], rtol=2e-4, atol=2e-4)


@pytest.mark.slow
def test_supply_chain_resumes_from_log() -> None:
    plant = PLANTS["supply_chain"]
    assert plant.resume is not None
    constants = jax.tree.map(jnp.asarray, plant.params)
    state = plant.reset(jax.random.key(0), constants)[0]
    following, now = plant.step(jax.random.key(1), state, jnp.asarray([30.0, 20.0, 10.0]), constants)
    found, _ = plant.resume(jax.random.key(2), state, now.observation, constants)
    jax.tree.map(np.testing.assert_array_equal, found, following)
