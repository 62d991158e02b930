"""The quadruple tank against Johansson's table and pc-gym's NMPC (truth 1.2)."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import solve_ivp
from scipy.linalg import eigvals

from neorl_core.control.behaviour import idle
from neorl_core.control.mpc import MPCParams, single_shooting
from neorl_core.control.pid import PIDParams
from neorl_core.plants import water_treatment as tanks
from neorl_core.plants.base import rollout, rollouts
from tasks.models.plants.contract import read_plant
from tests.conftest import Truth

POINTS = [
    # Truth 1.2: time constants [s], zeros [1/s], relative gain.
    (tanks.P_MINUS, (62, 91, 23, 30), (-0.060, -0.0175), 1.40),
    (tanks.P_PLUS, (63, 92, 39, 57), (-0.056, 0.013), -0.64),
]
SI = tanks.Params(
    area=(1.0,) * 4, outlet=(0.0035, 0.003, 0.002, 0.0025), gravity=9.81, pump=(0.00085, 0.00095), valve=(0.2, 0.2)
)
"""pc-gym's four tanks, in metres."""


@pytest.mark.parametrize(("params", "times", "zeros", "gain"), POINTS, ids=["P-", "P+"])
def test_linearisation(
    params: tanks.Params, times: tuple[int, ...], zeros: tuple[float, ...], gain: float, truth: Truth
) -> None:
    with jax.enable_x64(True):
        a, b, c = tanks.linear_model(params.rest, params)
    # The upper tanks fill the lower ones and nothing else couples: the eigenvalues are the diagonal.
    np.testing.assert_allclose(np.tril(a, -1) + np.triu(a, 1) - np.diag(np.diag(a, 2), 2), 0, atol=1e-12)
    source, point = "Johansson 2000", "P-" if gain > 0 else "P+"
    for i, (theirs, ours) in enumerate(zip(times, -1 / np.diag(a), strict=True), 1):
        truth(f"{point}: time constant of tank {i} [s]", theirs, ours, 0.7, source)
    pencil = np.block([[a, b], [c, np.zeros((2, 2))]])
    found = eigvals(pencil, np.diag([1.0, 1, 1, 1, 0, 0]))
    found = np.sort(found[np.isfinite(found) & (np.abs(found) < 1)].real)
    # The table gives two digits (three for −.0175).
    for theirs, ours in zip(zeros, found, strict=True):
        truth(f"{point}: transmission zero [1/s]", theirs, ours, 6e-4, source)
    still = -c @ np.linalg.solve(a, b)
    relative = still[0, 0] * np.linalg.inv(still)[0, 0]
    truth(f"{point}: relative gain", gain, relative, 6e-3, source)
    assert tanks.relative_gain(params) == pytest.approx(relative, abs=1e-6)


def test_steady_levels_with_leaks() -> None:
    params = tanks.P_MINUS._replace(leak=(0.002, 0.001, 0.004, 0.003))
    with jax.enable_x64(True):
        voltages = jnp.array([3.2, 2.7])
        levels = tanks.steady_levels(voltages, params)
        assert np.abs(tanks.derivative(levels, voltages, params)).max() < 1e-12
        assert (levels < tanks.steady_levels(voltages, tanks.P_MINUS)).all()


def test_substeps_and_water_balance() -> None:
    # Two substeps in 5 s against SciPy, from an almost empty tank; the inflow stays, flows out or leaks.
    params = tanks.P_PLUS._replace(leak=(0.004, 0.002, 0.001, 0.003))
    start, voltages = np.array([12.0, 3.0, 0.3, 5.0]), np.array([4.0, 1.0])
    outlet, leak, area = (np.array(x) for x in (params.outlet, params.leak, params.area))

    def equations(_: float, y: np.ndarray) -> np.ndarray:
        speed = np.sqrt(2 * 981 * y[:4])
        rise = (np.array(params.pump) * voltages)[[0, 1, 1, 0]] * [0.43, 0.34, 0.66, 0.57] - (outlet + leak) * speed
        rise[:2] += (outlet * speed)[2:]
        return np.append(rise / area, (leak * speed).sum() + (outlet * speed)[:2].sum())

    exact = solve_ivp(equations, (0, 100), np.append(start, 0.0), "DOP853", rtol=1e-11, atol=1e-11).y[:, -1]
    with jax.enable_x64(True):
        levels = jnp.asarray(start)
        advance = jax.jit(tanks.advance)
        for _ in range(20):
            levels, _ = advance(levels, jnp.asarray(voltages), params)
    assert np.abs(np.asarray(levels) - exact[:4]).max() < 2e-4
    came = 100 * float(np.array(params.pump) @ voltages)
    assert float(area @ (np.asarray(levels) - start)) == pytest.approx(came - exact[4], abs=0.02)


@pytest.mark.slow
def test_nmpc_on_pc_gym_task(truth: Truth) -> None:
    # Truth 1.2. Its oracle reads the set point one step late, and the last one at first (oracle.py, `t_now/dt - 1`),
    # which is part of the number. Without it the cost is 1.440.
    def predict(observation: jax.Array, action: jax.Array, params: Any) -> tuple[jax.Array, jax.Array]:
        levels, _ = tanks.advance(observation[:4], action, params, 1000 / 60, 4)
        return jnp.concatenate([levels, observation[4:]]), jnp.zeros(0)

    def errors(observation: jax.Array, margins: jax.Array, action: jax.Array, before: jax.Array) -> jax.Array:
        return (observation[2:4] - observation[4:]) / 0.6

    controller = single_shooting(predict, lambda o: jnp.full(2, 5.0, o.dtype), errors, holds=(1,) * 8, iterations=4)
    params = MPCParams(SI, (0.1, 0.1), (10.0, 10.0), (0.0,) * 6)
    wanted = np.repeat([[0.5, 0.2], [0.1, 0.3]], 30, axis=0)

    def step(carry: Any, now: tuple[jax.Array, jax.Array]) -> tuple[Any, tuple[jax.Array, jax.Array]]:
        state, observation, applied = carry
        setpoint, believed = now
        state, action = controller.act(params, state, observation.at[4:].set(believed), applied)
        observation, _ = predict(observation, action, SI)
        return (state, observation, action), (jnp.sum(jnp.square((observation[2:4] - setpoint) / 0.6)), action)

    with jax.enable_x64(True):
        start = jnp.array([0.141, 0.112, 0.072, 0.42, 0.1, 0.3])
        carry = (controller.init(params, start), start, jnp.full(2, 5.0))
        run = jax.jit(lambda now: jax.lax.scan(step, carry, now)[1])
        costs, actions = run((jnp.asarray(wanted), jnp.asarray(np.roll(wanted, 1, axis=0))))
    source = "pc-gym 0.1.8"
    truth("cost of NMPC on pc-gym's four tanks", 2.2267, np.asarray(costs).sum(), 1e-4, source)
    for step, voltages in ((29, (7.2828, 8.2423)), (59, (8.9195, 3.6861))):
        for pump, theirs in enumerate(voltages):
            truth(f"voltage of pump {pump + 1} after {step + 1} steps [V]", theirs, actions[step, pump], 1e-4, source)


@pytest.mark.parametrize(("params", "gain"), [point[::3] for point in POINTS], ids=["P-", "P+"])
def test_loops_are_paired_by_the_relative_gain(params: tanks.Params, gain: float) -> None:
    # Johansson 2000, section V: pump 1 controls level 1 if λ11 is positive, and level 2 if it is negative.
    controller, gains = tanks.own_control(params)
    observation = jnp.array([12.0, 13.0, 2.0, 2.0, 3.0, 3.0, 13.0, 13.0])
    _, moved = controller.act(gains, controller.init(gains, observation), observation, observation[4:6])
    loops = np.asarray(moved) > 3.0
    assert loops.tolist() == ([True, False] if gain > 0 else [False, True])
    assert (tanks.PLANT_PLUS if gain < 0 else tanks.PLANT).fallback is controller


def test_plant_plus_draws_from_p_plus() -> None:
    plant = tanks.PLANT_PLUS
    read_plant(tanks, "PLANT_PLUS", "water_treatment.py")
    drawn = jax.vmap(plant.sample_params, (0, None))(jax.random.split(jax.random.key(0), 100), plant.domain)
    np.testing.assert_allclose(drawn.valve, np.tile(tanks.P_PLUS.valve, (100, 1)), rtol=1e-6)
    assert np.abs(np.asarray(drawn.pump) / tanks.P_PLUS.pump - 1).max() <= 0.0200001
    assert float(tanks.relative_gain(plant.params)) == pytest.approx(-0.6357, abs=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("plant", [tanks.PLANT, tanks.PLANT_PLUS], ids=["P-", "P+"])
def test_relative_gain_pairing_keeps_limits(plant: Any) -> None:
    domain = plant.domain
    keys = jax.random.split(jax.random.key(0), 200)
    held = rollouts(plant, plant.fallback, plant.fallback_params, keys, domain)
    still = (PIDParams(0.0, 0.0, 0.0, 0.0, 10.0),) * 2
    resting = rollouts(plant, plant.fallback, still, keys, domain)
    assert not held.violated.any()
    assert (held.length == tanks.HORIZON).all()
    assert held.ret.mean() > 0.2 * resting.ret.mean()
    if plant is tanks.PLANT:
        # The best constant voltages, which score 0, beat the initial voltages.
        constant = rollouts(plant, idle(plant), (), keys, plant.domain)
        assert float(constant.ret.mean()) == pytest.approx(plant.spec.score_range[0], rel=0.15)
        assert constant.ret.mean() > resting.ret.mean()
        # Johansson's gains cost nearly three times as much.
        found = rollouts(plant, plant.fallback, plant.found_params, keys, plant.domain)
        assert held.ret.mean() > 0.6 * found.ret.mean()
    if plant is tanks.PLANT_PLUS:
        assert 0.5 < float(resting.ret.mean()) / plant.spec.score_range[0] < 1.6
        # The other pairing has a steady gain of the wrong sign and drives P+ out of the limits.
        assert rollouts(plant, tanks.straight, tanks.STRAIGHT, keys, domain).violated.mean() > 0.9


@pytest.mark.slow
def test_nmpc_beats_tuned_loops() -> None:
    # On P+, where prediction is worth most, with P+ as the model.
    plant = tanks.PLANT
    params = tanks.P_PLUS._replace(noise_sd=0.05)
    levels = tanks.steady_levels(jnp.array(params.rest), params)
    state = tanks.State(levels, jnp.array(params.rest), jnp.array([[14.0, 14.5], [11.5, 12.5]]), jnp.asarray(0))
    begun = plant._replace(reset=lambda key, params: (state, tanks._observe(state, jnp.zeros(4))))

    def run(controller: Any, known: Any) -> Any:
        return jax.jit(lambda key: rollout(begun, controller, known, key, params))(jax.random.key(4))

    best, own = run(plant.reference, tanks.planned_with(tanks.P_PLUS)), run(tanks.crossed, tanks.CROSSED)
    assert (best.margins > 0).all()
    assert best.rewards.sum() > 0.5 * own.rewards.sum()


def test_full_tank_trips_the_pumps() -> None:
    state = tanks.State(jnp.array([12.0, 12.0, 2.0, 19.9]), jnp.zeros(2), jnp.full((2, 2), 12.0), jnp.asarray(0))
    _, now = jax.jit(tanks.step)(jax.random.key(0), state, jnp.array([10.0, 0.0]), tanks.P_PLUS)
    assert bool(now.terminated)
    assert now.margins[3] < 0
    # No path within the limits costs more than the trip, so a trip never pays.
    reset = jax.jit(jax.vmap(lambda key: tanks.reset(key, tanks.P_PLUS)[0].setpoints))
    reached = reset(jax.random.split(jax.random.key(1), 500))
    furthest = max(float(reached.max()) - tanks.LOW_LEVELS[0], tanks.HIGH_LEVEL - float(reached.min()))
    assert furthest < 17.0
    assert now.reward < -tanks.HORIZON * 2 * (furthest / tanks.ERROR_SCALE) ** 2
