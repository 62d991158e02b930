"""Fallbacks of log-only plants: by hand, against the single-loop PID, and against NumPy's least squares."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from neorl_core.control.fallbacks import FALLBACK, Hold, LinearLaw, PIDLoops, explained_variance, fit_linear_law
from neorl_core.control.pid import PIDParams, loops, pid


def two_loops() -> PIDLoops:
    """The first loop with integral action and a set point signal, the second positional with a constant set point."""
    columns = {
        "measured": [0, 1],
        "set_point": [2, 4],
        "constant": [0.0, 7.0],
        "kp": [2.0, -1.5],
        "ki": [0.5, 0.0],
        "kd": [0.1, 0.2],
        "bias": [0.0, 4.0],
        "positional": [False, True],
        "low": [-5.0, 0.0],
        "high": [5.0, 20.0],
        "dt": [0.5, 0.5],
    }
    return PIDLoops(**{name: jnp.asarray(values) for name, values in columns.items()})


def test_integral_loop_equals_single_loop_pid() -> None:
    alone = loops((pid(0, 2, 0.5),))
    gains = (PIDParams(2.0, 0.5, 0.1, -5.0, 5.0),)
    rows = jnp.asarray([[1.0, 7.0, 2.0], [1.5, 7.0, 2.0], [1.2, 6.0, 2.5]])
    mine, theirs = FALLBACK.init(two_loops(), rows[0]), alone.init(gains, rows[0])
    applied = jnp.asarray([0.3, 4.0])
    for row in rows:
        mine, action = FALLBACK.act(two_loops(), mine, row, applied)
        theirs, wanted = alone.act(gains, theirs, row, applied[:1])
        np.testing.assert_allclose(action[:1], wanted, rtol=1e-6)


def test_positional_loop_by_hand() -> None:
    # e = 7 - 6 = 1 and dy/dt = (6 - 7) / 0.5 = -2: u = 4 - 1.5 * 1 - 0.2 * -2 = 2.9, for any applied action.
    first, second = jnp.asarray([1.0, 7.0, 1.0]), jnp.asarray([1.0, 6.0, 1.0])
    state = FALLBACK.init(two_loops(), first)
    for applied in (0.0, 19.0):
        _, action = FALLBACK.act(two_loops(), state, second, jnp.asarray([0.0, applied]))
        assert np.isclose(action[1], 2.9)


def test_saturation_causes_no_windup() -> None:
    """After 100 steps at the bound, the output leaves it in the first step with an error of the other sign."""
    state, applied = FALLBACK.init(two_loops(), jnp.asarray([0.0, 7.0, 9.0])), jnp.asarray([5.0, 4.0])
    for _ in range(100):
        state, applied = FALLBACK.act(two_loops(), state, jnp.asarray([0.0, 7.0, 9.0]), applied)
    assert applied[0] == 5.0
    _, action = FALLBACK.act(two_loops(), state, jnp.asarray([10.0, 7.0, 9.0]), applied)
    assert action[0] < 5.0


def test_takeover_is_bumpless() -> None:
    """At zero error a loop with integral action returns the operator's applied action."""
    at_rest = jnp.asarray([2.0, 7.0, 2.0])
    state = FALLBACK.init(two_loops(), at_rest)
    _, action = FALLBACK.act(two_loops(), state, at_rest, jnp.asarray([1.234, 4.0]))
    assert np.isclose(action[0], 1.234)


def test_hold_moves_to_target_at_its_rate() -> None:
    hold = Hold(jnp.asarray([1.0, 0.0]), jnp.asarray([0.25, 0.0]))
    action = jnp.asarray([0.0, 3.0])
    for wanted in (0.25, 0.5, 0.75, 1.0, 1.0):
        _, action = FALLBACK.act(hold, (), jnp.zeros(1), action)
        np.testing.assert_allclose(action, [wanted, 3.0])


def test_linear_law_is_least_squares() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal([10.0, -300.0, 0.0], [1.0, 50.0, 1e-3], (500, 3))
    u = x @ rng.normal(size=(3, 2)) + [1.0, 2.0] + 0.1 * rng.normal(size=(500, 2))
    law = fit_linear_law(x, u, [-1e6, -1e6], [1e6, 1e6], ridge=0.0)
    theirs, *_ = np.linalg.lstsq(np.column_stack([x, np.ones(500)]), u, rcond=None)
    fitted = np.column_stack([x, np.ones(500)]) @ theirs
    ours = x @ np.asarray(law.weights, np.float64) + np.asarray(law.bias, np.float64)
    np.testing.assert_allclose(ours, fitted, atol=2e-3)
    np.testing.assert_allclose(
        explained_variance(u, fitted), [np.corrcoef(u[:, i], fitted[:, i])[0, 1] ** 2 for i in range(2)], rtol=1e-6
    )


def test_linear_law_bounds_and_explained_variance() -> None:
    law = LinearLaw(jnp.ones((1, 1)), jnp.zeros(1), jnp.asarray([-1.0]), jnp.asarray([1.0]))
    assert FALLBACK.act(law, (), jnp.asarray([9.0]), jnp.zeros(1))[1] == 1.0
    still = np.full((4, 2), 3.0)
    np.testing.assert_array_equal(explained_variance(still, np.tile([3.0, 3.5], (4, 1))), [1.0, 0.0])
