"""The NMPC against the Riccati solution, a bounded least-squares solver, and a plant that differs from the model."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import lsq_linear

from neorl_core.control.lqr import riccati_gain
from neorl_core.control.mpc import MPCParams, MPCState, gauss_newton_step, single_shooting

A = np.array([[1.0, 0.2], [-0.3, 0.9]])
B = np.array([[0.02], [0.2]])
Q, R = np.diag([1.0, 0.5]), np.array([[0.1]])


def predict(observation: jax.Array, action: jax.Array, model: Any) -> tuple[jax.Array, jax.Array]:
    return jnp.asarray(A) @ observation + model * (jnp.asarray(B) @ action), jnp.zeros(0)


def residuals(observation: jax.Array, margins: jax.Array, action: jax.Array, before: jax.Array) -> jax.Array:
    return jnp.concatenate([jnp.sqrt(jnp.diag(Q)) * observation, jnp.sqrt(0.1) * action])


def at_rest(observation: jax.Array) -> jax.Array:
    return jnp.zeros(1, observation.dtype)


def solve(bound: float, moves: int, x: np.ndarray) -> tuple[MPCState, jax.Array]:
    controller = single_shooting(predict, at_rest, residuals, holds=(1,) * moves, iterations=4)
    params = MPCParams(1.0, (-bound,), (bound,), (0.0, 0.0))
    observation = jnp.asarray(x)
    state = controller.init(params, observation)
    return jax.jit(controller.act)(params, state, observation, jnp.zeros(1))


def test_long_unbounded_horizon_gives_riccati_solution() -> None:
    # The cost counts the states after each move, so its stage is x'Qx + u'Ru as in Riccati's.
    gain, _ = riccati_gain(A, B, Q, R)
    with jax.enable_x64(True):
        x = np.array([1.0, -0.5])
        found = solve(100.0, 60, x)[1]
    np.testing.assert_allclose(found, -gain @ x, rtol=1e-4)


@pytest.mark.parametrize("side", [1.0, -1.0])
def test_bounded_plan_equals_bounded_least_squares(side: float) -> None:
    moves, bound, x = 12, 0.6, side * np.array([2.0, -1.0])
    # The plan of a linear model is min |M u + c|², assembled a second time here.
    rows, constant = [], []
    powers = [np.linalg.matrix_power(A, k) for k in range(moves + 1)]
    for k in range(1, moves + 1):
        effect = np.hstack([powers[k - 1 - j] @ B if j < k else np.zeros((2, 1)) for j in range(moves)])
        rows += [np.sqrt(Q) @ effect, np.sqrt(0.1) * np.eye(moves)[k - 1 : k]]
        constant += [np.sqrt(Q) @ powers[k] @ x, np.zeros(1)]
    exact = lsq_linear(np.vstack(rows), -np.concatenate(constant), (-bound, bound), tol=1e-14).x
    assert 0 < np.sum(np.abs(exact) > bound - 1e-9) < moves
    with jax.enable_x64(True):
        state, action = solve(bound, moves, x)
    np.testing.assert_allclose(action, exact[:1], atol=1e-4)
    # The stored plan is shifted by one step.
    np.testing.assert_allclose(state.plan[:-1, 0], exact[1:], atol=2e-4)


def test_step_never_increases_cost() -> None:
    # Rosenbrock's valley, inside the unit square's image, from many starts; its minimum 0 is reached from all.
    def valley(z: jax.Array) -> jax.Array:
        x = 4 * z - 2
        return jnp.stack([10 * (x[1] - x[0] ** 2), 1 - x[0]])

    with jax.enable_x64(True):
        step = jax.jit(jax.vmap(lambda z: gauss_newton_step(valley, z)))
        cost = jax.jit(jax.vmap(lambda z: jnp.sum(valley(z) ** 2)))
        z = jnp.asarray(np.random.default_rng(0).uniform(size=(50, 2)))
        before = cost(z)
        for _ in range(120):
            z = step(z)
            after = cost(z)
            assert (after <= before * (1 + 1e-12) + 1e-15).all()
            before = after
        assert before.max() < 1e-9


def test_held_moves_shift_correctly() -> None:
    controller = single_shooting(predict, at_rest, residuals, holds=(1, 2, 4), iterations=0)
    params = MPCParams(1.0, (-1.0,), (1.0,), (0.0, 0.0))
    state = controller.init(params, jnp.zeros(2))._replace(plan=jnp.array([[0.1], [0.2], [0.3]]))
    state, action = controller.act(params, state, jnp.zeros(2), jnp.zeros(1))
    np.testing.assert_allclose(action, [0.1], atol=1e-6)
    # Of 1 22 3333, 2 23 333 is left one step later: the moves now begin with 2, 2 and 3.
    np.testing.assert_allclose(state.plan[:, 0], [0.2, 0.2, 0.3], atol=1e-6)


@pytest.mark.parametrize(("correction", "settles"), [(0.5, True), (0.0, False)])
def test_bias_removes_offset_of_wrong_model(correction: float, settles: bool) -> None:
    # A first-order plant with a gain 30 % higher than modelled and a constant load; the target is 1.
    def model(observation: jax.Array, action: jax.Array, params: Any) -> tuple[jax.Array, jax.Array]:
        return 0.8 * observation + 0.2 * action, jnp.zeros(0)

    def towards(observation: jax.Array, margins: jax.Array, action: jax.Array, before: jax.Array) -> jax.Array:
        return jnp.concatenate([observation - 1.0, 0.05 * (action - before)])

    controller = single_shooting(model, at_rest, towards, holds=(1,) * 10, iterations=3)
    params = MPCParams((), (-5.0,), (5.0,), (correction,))
    start = jnp.zeros(1)

    def step(carry: Any, _: None) -> tuple[Any, jax.Array]:
        state, x, applied = carry
        state, action = controller.act(params, state, x, applied)
        x = 0.8 * x + 0.26 * action - 0.1
        return (state, x, action), x[0]

    path = jax.jit(lambda: jax.lax.scan(step, (controller.init(params, start), start, start), None, 60)[1])()
    assert (abs(float(path[-1]) - 1.0) < 1e-3) == settles
