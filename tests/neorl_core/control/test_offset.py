"""Offsets of set points, by hand."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from neorl_core.control.offset import Offset, shift_offset, with_offset
from neorl_core.control.pid import PIDParams, pid


def test_a_pid_controller_follows_the_moved_set_point() -> None:
    controller = with_offset(pid(0, 2, 2.0), (2,))
    params = Offset(PIDParams(kp=0.5, ki=0.1, kd=0.0, low=-1.0, high=1.0), (0.0,))
    first, later = jnp.array([1.0, 0.2, 1.5]), jnp.array([1.2, 0.2, 1.5])
    state = controller.init(params, first)
    # The error falls from 0.5 to 0.3 + 0.4: u = 0.2 + 0.5 (0.7 − 0.5) + 0.1 · 2 · 0.7.
    shifted = shift_offset(params, jnp.array([0.4]))
    state, action = controller.act(shifted, state, later, jnp.array([0.2]))
    np.testing.assert_allclose(action, [0.2 + 0.1 + 0.14], rtol=1e-5)
    # The error falls from 0.7 to 0.3: u = 0.44 + 0.5 (0.3 − 0.7) + 0.1 · 2 · 0.3.
    _, action = controller.act(params, state, later, action)
    np.testing.assert_allclose(action, [0.44 - 0.2 + 0.06], rtol=1e-5)


def test_shifts_add_up() -> None:
    params = Offset((), (0.5, -1.0))
    assert shift_offset(params, jnp.array([0.25, 2.0])) == Offset((), (0.75, 1.0))


@pytest.mark.parametrize(("signals", "offsets"), [((9,), (0.2,)), ((-1,), (0.2,)), ((0, 2), (0.2,))])
def test_wrong_signals_are_refused(signals: tuple[int, ...], offsets: tuple[float, ...]) -> None:
    controller = with_offset(pid(0, 2, 2.0), signals)
    params = Offset(PIDParams(kp=0.5, ki=0.1, kd=0.0, low=-1.0, high=1.0), offsets)
    with pytest.raises(ValueError, match=r"of 3: give one offset for each index"):
        controller.init(params, jnp.zeros(3))
