"""Linear quadratic regulation, and saturated linear state feedback."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from scipy.linalg import solve_discrete_are

from neorl_core.types import Controller

Matrix = Float[np.ndarray, "_ _"]


class LinearParams(NamedTuple):
    """u = clip(gain · observation + offset, low, high); nested tuples (hashable) or arrays."""

    gain: Any
    """(A, O), gain [action unit per observation unit]."""
    offset: Any
    """(A,), action at the origin."""
    low: Any
    """(A,), lower bounds of the actions."""
    high: Any
    """(A,), upper bounds of the actions."""


def riccati_gain(a: Matrix, b: Matrix, q: Matrix, r: Matrix) -> tuple[Matrix, Matrix]:
    """Return gain K and cost matrix P of the linear quadratic regulator u = −Kx, which minimises Σ x'Qx + u'Ru.

    x⁺ = Ax + Bu is the state after a step. P = Q + A'P(A − BK),  K = (R + B'PB)⁻¹ B'PA
    (Bertsekas: Dynamic Programming and Optimal Control, volume I, section 3.1.)

    Args:
        a: (n, n), state matrix A.
        b: (n, m), input matrix B.
        q: (n, n), cost of the state, positive semidefinite.
        r: (m, m), cost of the input, positive definite.

    Returns:
        K (m, n) and P (n, n).

    Raises:
        numpy.linalg.LinAlgError: if (A, B) cannot be stabilised.
    """
    p = np.asarray(solve_discrete_are(a, b, q, r))
    return np.linalg.solve(r + b.T @ p @ b, b.T @ p @ a), p


def setpoint_feedforward(a: Matrix, b: Matrix, c: Matrix, k: Matrix) -> Matrix:
    """Return the feedforward gain F (m, m) of u = −Kx + F·target, so that the output Cx settles at the target.

    F = (C (I − A + BK)⁻¹ B)⁻¹, the inverse of the closed loop's static gain. Valid without saturation.

    Args:
        a: (n, n), state matrix A.
        b: (n, m), input matrix B.
        c: (m, n), output matrix C.
        k: (m, n), feedback gain K.
    """
    return np.asarray(np.linalg.inv(c @ np.linalg.solve(np.eye(len(a)) - a + b @ k, b)))


def _act(
    params: LinearParams, state: tuple[()], observation: Float[Array, " O"], applied: Float[Array, " A"]
) -> tuple[tuple[()], Float[Array, " A"]]:
    gain, offset, low, high = (jnp.asarray(x, observation.dtype) for x in params)
    return state, jnp.clip(gain @ observation + offset, low, high)


saturated_linear = Controller(lambda params, observation: (), _act)
"""u = clip(gain · observation + offset): static state feedback; the observation contains the set points."""
