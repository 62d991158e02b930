"""PID against hand-worked numbers, LQR against optimality conditions and against NeoRL-2's reference score."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from neorl_core.control.behaviour import idle
from neorl_core.control.lqr import LinearParams, riccati_gain, saturated_linear, setpoint_feedforward
from neorl_core.control.pid import PIDParams, pid
from neorl_core.plants import PLANTS
from neorl_core.plants import double_mass as masses
from neorl_core.plants.base import rollouts
from neorl_core.safety.bounds import clopper_pearson_upper

LOOP = pid(measurement=0, setpoint=1, dt=0.5)


def run(params: PIDParams, observations: list[list[float]], applied: list[float]) -> list[float]:
    state = LOOP.init(params, jnp.array(observations[0]))
    actions = []
    for observation, before in zip(observations, applied, strict=True):
        state, action = LOOP.act(params, state, jnp.array(observation), jnp.array([before]))
        actions.append(float(action[0]))
    return actions


def test_pid_by_hand() -> None:
    # e = 1.0, 0.6, 0.6 with dt = .5: moves .5 ki e = 1.0; kp (-.4) + .6 - kd (.4 / .5) = -1.2 + .6 - .08;
    # then 0 + .6 - kd (1.4 - 2 * 1.4 + 1.0) / .5 = .6 + .08
    params = PIDParams(kp=3.0, ki=2.0, kd=0.1, low=-10.0, high=10.0)
    observations = [[1.0, 2.0], [1.4, 2.0], [1.4, 2.0]]
    assert run(params, observations, [5.0, 6.0, 5.32]) == pytest.approx([6.0, 5.32, 6.0])


def test_set_point_step_causes_no_derivative_kick() -> None:
    params = PIDParams(kp=0.0, ki=0.0, kd=1.0, low=-10.0, high=10.0)
    assert run(params, [[1.0, 2.0], [1.0, 3.0]], [4.0, 4.0]) == [4.0, 4.0]


def test_pid_takes_over_bumplessly_without_windup() -> None:
    params = PIDParams(kp=3.0, ki=2.0, kd=0.0, low=-1.0, high=1.0)
    at_rest = [[2.0, 2.0]] * 3
    # The actuator was moved to 0.7 from outside: the controller continues from there.
    assert run(params, at_rest, [0.0, 0.7, 0.7]) == pytest.approx([0.0, 0.7, 0.7])
    # A thousand steps at the limit cause no wind-up: the first contrary error moves the actuator.
    held = run(params, [[0.0, 1.0]] * 1000 + [[1.1, 1.0]], [0.0] + [1.0] * 1000)
    assert held[999] == 1.0
    assert held[1000] == pytest.approx(-1.0)


def test_pid_equals_positional_form_inside_limits() -> None:
    # A second implementation: u_t = u_0 + kp (e_t - e_0) + ki Σ dt e.
    rng = np.random.default_rng(0)
    errors = rng.normal(size=40)
    params = PIDParams(kp=0.3, ki=0.2, kd=0.0, low=-100.0, high=100.0)

    def step(carry: tuple[object, jax.Array], e: jax.Array) -> tuple[tuple[object, jax.Array], jax.Array]:
        state, applied = LOOP.act(params, carry[0], jnp.stack([-e, jnp.zeros_like(e)]), carry[1])
        return (state, applied), applied[0]

    first = LOOP.init(params, jnp.array([-errors[0], 0.0]))
    got = jax.jit(lambda e: jax.lax.scan(step, (first, jnp.zeros(1)), e)[1])(jnp.asarray(errors, jnp.float32))
    expected = 0.3 * (errors - errors[0]) + 0.2 * 0.5 * np.cumsum(errors)
    np.testing.assert_allclose(got, expected, atol=1e-5)


def test_riccati_gain_is_optimal() -> None:
    a, b = masses.linear_model()
    q, r = np.diag([1.0, 2.0, 0.1, 0.3]), np.diag([0.01, 0.02])
    k, p = riccati_gain(a, b, q, r)
    # The equation itself; P ≥ 0; and x'Px is the cost of the closed loop, summed until it has settled.
    np.testing.assert_allclose(q + a.T @ p @ (a - b @ k), p, atol=1e-10)
    assert np.linalg.eigvalsh(p).min() > 0
    assert np.abs(np.linalg.eigvals(a - b @ k)).max() < 1
    x0 = np.array([0.5, -1.0, 0.2, 0.3])

    def cost(gain: np.ndarray) -> float:
        x, total = x0, 0.0
        for _ in range(2000):
            u = -gain @ x
            total, x = total + x @ q @ x + u @ r @ u, a @ x + b @ u
        return total

    assert cost(k) == pytest.approx(x0 @ p @ x0, rel=1e-9)
    # KKT: the gradient of the cost in the gain vanishes.
    for i in np.ndindex(k.shape):
        shift = np.zeros_like(k)
        shift[i] = 1e-4
        assert abs(cost(k + shift) - cost(k - shift)) / 2e-4 < 1e-6


def test_feedforward_settles_on_the_target() -> None:
    a, b = masses.linear_model()
    k, _ = riccati_gain(a, b, np.eye(4), np.eye(2))
    f = setpoint_feedforward(a, b, np.eye(2, 4), k)
    x, target = np.zeros(4), np.array([0.4, -0.3])
    for _ in range(3000):
        x = a @ x + b @ (f @ target - k @ x)
    np.testing.assert_allclose(x, [0.4, -0.3, 0.0, 0.0], atol=1e-9)


def test_linear_law_saturates() -> None:
    params = LinearParams(gain=((1.0, 2.0),), offset=(0.5,), low=(-1.0,), high=(1.0,))
    for observation, action in (([0.1, -0.2], 0.2), ([1.0, 1.0], 1.0), ([-3.0, 0.0], -1.0)):
        assert float(saturated_linear.act(params, (), jnp.array(observation), jnp.zeros(1))[1][0]) == pytest.approx(
            action
        )


def test_double_mass_lqr_reaches_reference_score() -> None:
    # Truth 1.4: saturated LQR with the true model returns 831.2 ± 1.8, score 97.8.
    plant = PLANTS["double_mass"]
    keys = jax.random.split(jax.random.key(0), 2000)
    result = rollouts(plant, plant.fallback, plant.fallback_params, keys, plant.domain)
    low, high = plant.spec.score_range
    mean = float(result.ret.mean())
    error = float(result.ret.std()) / 2000**0.5
    assert abs(mean - 831.2) < 1.8 + 2 * error
    assert 100 * (mean - low) / (high - low) == pytest.approx(97.8, abs=0.4)
    assert not result.violated.any()
    # Truth 1.4: zero action scores 9.8.
    resting = LinearParams(((0.0,) * 6,) * 2, (0.0, 0.0), (-1.0, -1.0), (1.0, 1.0))
    still = rollouts(plant, saturated_linear, resting, keys, plant.domain).ret
    assert 100 * (float(still.mean()) - low) / (high - low) == pytest.approx(9.8, abs=0.6)


@pytest.mark.slow
def test_reactor_pi_controller_keeps_limits() -> None:
    # Truth 1.1: a PI controller can keep p0 = 1e-3 there; truth 2: 0 of 2995 is the fewest that shows it at 95 %.
    plant = PLANTS["chemical_reactor"]
    keys = jax.random.split(jax.random.key(0), 2995)
    result = rollouts(plant, plant.fallback, plant.fallback_params, keys, plant.domain)
    assert clopper_pearson_upper(int(result.violated.sum()), 2995, 0.05) <= 1e-3
    assert (result.length == plant.spec.horizon).all()
    # Better than the best constant coolant temperature, which scores 0 by definition.
    resting = rollouts(plant, idle(plant), (), keys, plant.domain).ret
    assert float(resting.mean()) == pytest.approx(plant.spec.score_range[0], abs=0.003)
    # Truth 5: PI (−20, −15) scores 74.7, (−60, −50) 90.6 and (−100, −100) 93.8 of a scale from −0.143 to −0.0057 in
    # 1,000 episodes.
    old = (-0.143, -0.0057)
    for kp, ki, theirs in ((-20.0, -15.0, 74.7), (-60.0, -50.0, 90.6), (-100.0, -100.0, 93.8)):
        loop = plant.fallback_params._replace(kp=kp, ki=ki, kd=0.0)
        ours = rollouts(plant, plant.fallback, loop, keys, plant.domain)
        assert 100 * (float(ours.ret.mean()) - old[0]) / (old[1] - old[0]) == pytest.approx(theirs, abs=1.5)
        assert not ours.violated.any()
        assert result.ret.mean() > ours.ret.mean()
