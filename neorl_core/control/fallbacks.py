"""Fallback controllers of log-only plants: PID loops, a law or a policy fitted to the logs, or a move to a safe action.

The type of the parameters selects the controller. All parameters are arrays, so that digests cover gains and set
points.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jaxtyping import Array, Bool, Float, Int

from neorl_core.control.pid import PIDParams, PIDState, pid
from neorl_core.networks import Policy, policy_act
from neorl_core.types import Controller, varies


class PIDLoops(NamedTuple):
    """One PID loop per action."""

    measured: Int[Array, " A"]
    """Index of the controlled variable in the observation."""
    set_point: Int[Array, " A"]
    """Index of the set point in the observation, or O + i for the set point `constant[i]`."""
    constant: Float[Array, " A"]
    """Constant set points, in the measurement's unit."""
    kp: Float[Array, " A"]
    ki: Float[Array, " A"]
    kd: Float[Array, " A"]
    bias: Float[Array, " A"]
    """Output at zero error of a loop without integral action, in the action's unit."""
    positional: Bool[Array, " A"]
    """True if the loop adds its output to the bias, false if it computes a change of the applied action."""
    low: Float[Array, " A"]
    high: Float[Array, " A"]
    dt: Float[Array, " A"]
    """Control period, in the unit of time of `ki` and `kd`."""


class LinearLaw(NamedTuple):
    """Linear law fitted to logged actions: `clip(x W + b, low, high)` for an observation x."""

    weights: Float[Array, "O A"]
    bias: Float[Array, " A"]
    low: Float[Array, " A"]
    high: Float[Array, " A"]


class Hold(NamedTuple):
    """Move from the applied action towards a safe target: `applied + clip(target - applied, -rate, rate)`."""

    target: Float[Array, " A"]
    rate: Float[Array, " A"]
    """Largest change in a step, in the action's unit; 0 keeps the applied action."""


Fallback = PIDLoops | LinearLaw | Policy | Hold


def _init(params: Fallback, observation: Float[Array, " O"]) -> Any:
    if not isinstance(params, PIDLoops):
        return ()
    extended = jnp.concatenate([observation, params.constant])
    y = extended[params.measured]
    return PIDState(extended[params.set_point] - y, y, y)


def _act(
    params: Fallback, state: Any, observation: Float[Array, " O"], applied: Float[Array, " A"]
) -> tuple[Any, Float[Array, " A"]]:
    match params:
        case PIDLoops():
            extended = jnp.concatenate([observation, params.constant])
            return jax.vmap(_loop, (0, 0, None, 0))(params, state, extended, applied)
        case LinearLaw():
            return state, jnp.clip(observation @ params.weights + params.bias, params.low, params.high)
        case Policy():
            return state, policy_act(params, observation)
        case Hold():
            return state, applied + jnp.clip(params.target - applied, -params.rate, params.rate)
    raise TypeError(f"a fallback must be PIDLoops, LinearLaw, Policy or Hold, got {type(params).__name__}: choose one")


def _loop(
    loop: PIDLoops, state: PIDState, extended: Float[Array, " X"], applied: Float[Array, ""]
) -> tuple[PIDState, Float[Array, ""]]:
    """Return the next state and output of one loop: `pid`, or `bias + kp e - kd dy/dt` if the loop is positional."""
    controller = pid(loop.measured, loop.set_point, loop.dt)
    gains = PIDParams(loop.kp, loop.ki, loop.kd, loop.low, loop.high)
    following, moved = controller.act(gains, state, extended, applied[None])
    rate = (following.measured - state.measured) / loop.dt
    position = jnp.clip(loop.bias + loop.kp * following.error - loop.kd * rate, loop.low, loop.high)
    return following, jnp.where(loop.positional, position, moved[0])


FALLBACK = Controller(_init, _act)
"""The controller of all fallbacks, with parameters of type `Fallback`."""


def fit_linear_law(
    observation: npt.ArrayLike, action: npt.ArrayLike, low: npt.ArrayLike, high: npt.ArrayLike, ridge: float = 1e-6
) -> LinearLaw:
    """Fit a linear law to logged actions by least squares on standardised observations.

    Args:
        observation: (N, O), in physical units.
        action: (N, A), logged actions in physical units.
        low: (A,), lower bounds of the law's output.
        high: (A,), upper bounds of the law's output.
        ridge: penalty on the standardised weights, relative to the number of rows.
    """
    x, u = np.asarray(observation, np.float64), np.asarray(action, np.float64)
    mean, deviation = x.mean(axis=0), x.std(axis=0)
    scale = np.where(varies(mean, deviation), deviation, 1.0)
    z = (x - mean) / scale
    inner = z.T @ z / len(z) + ridge * np.eye(z.shape[1])
    weights = np.linalg.solve(inner, z.T @ (u - u.mean(axis=0)) / len(z)) / scale[:, None]
    bias = u.mean(axis=0) - mean @ weights
    return LinearLaw(*(jnp.asarray(part, dtype=float) for part in (weights, bias, low, high)))


def explained_variance(actions: npt.ArrayLike, predicted: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Return the explained share R² of the variance of each action: `R² = 1 − Σ (u − û)² / Σ (u − mean u)²`.

    For a constant action, R² is 1 if the prediction is exact, else 0.

    Args:
        actions: (N, A), logged actions u.
        predicted: (N, A), predicted actions û.
    """
    u, v = np.asarray(actions, np.float64), np.asarray(predicted, np.float64)
    missed, spread = np.sum((u - v) ** 2, axis=0), np.sum((u - u.mean(axis=0)) ** 2, axis=0)
    moved = spread > 1e-12 * len(u) * np.maximum(np.mean(u**2, axis=0), 1e-30)
    still = np.where(missed <= 1e-6 * len(u) * np.maximum(np.mean(u**2, axis=0), 1e-30), 1.0, 0.0)
    return np.where(moved, 1.0 - missed / np.where(moved, spread, 1.0), still)
