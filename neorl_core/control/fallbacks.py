"""Fallbacks of a process without a simulator: PID loops, a law cloned from its logs, or holding still.

Which of them a composite has is told by the type of its parameters, all of them arrays, so that a digest covers the
gains and set points as it covers a policy's weights.
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
from neorl_core.types import Controller, moves


class PIDLoops(NamedTuple):
    """One loop for each action."""

    measured: Int[Array, " A"]
    """Index of the controlled variable in the observation."""
    set_point: Int[Array, " A"]
    """Index of the set point in the observation; O + i stands for `constant[i]`."""
    constant: Float[Array, " A"]
    """Set points that no signal tells, in the measurement's unit."""
    kp: Float[Array, " A"]
    ki: Float[Array, " A"]
    kd: Float[Array, " A"]
    bias: Float[Array, " A"]
    """Output at no error of a loop without integral action, in the action's unit."""
    positional: Bool[Array, " A"]
    """Whether a loop computes its output from the bias, instead of a move from what is applied."""
    low: Float[Array, " A"]
    high: Float[Array, " A"]
    dt: Float[Array, " A"]
    """Control period, in the unit of time of `ki` and `kd`."""


class LinearLaw(NamedTuple):
    """`clip(x W + b)`: a law that was fitted to logged actions."""

    weights: Float[Array, "O A"]
    bias: Float[Array, " A"]
    low: Float[Array, " A"]
    high: Float[Array, " A"]


class Hold(NamedTuple):
    """`applied + clip(target - applied)`: toward a safe value no faster than a rate; a rate of zero holds."""

    target: Float[Array, " A"]
    rate: Float[Array, " A"]
    """Largest change in a step, in the action's unit."""


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
    raise TypeError(f"expected parameters of a fallback, got {type(params).__name__}: use one of this module's")


def _loop(
    loop: PIDLoops, state: PIDState, extended: Float[Array, " X"], applied: Float[Array, ""]
) -> tuple[PIDState, Float[Array, ""]]:
    """One loop: velocity form with integral action, else `bias + kp e - kd dy/dt`."""
    controller = pid(loop.measured, loop.set_point, loop.dt)
    gains = PIDParams(loop.kp, loop.ki, loop.kd, loop.low, loop.high)
    following, moved = controller.act(gains, state, extended, applied[None])
    rate = (following.measured - state.measured) / loop.dt
    position = jnp.clip(loop.bias + loop.kp * following.error - loop.kd * rate, loop.low, loop.high)
    return following, jnp.where(loop.positional, position, moved[0])


FALLBACK = Controller(_init, _act)
"""The controller of every fallback; its parameters are a `Fallback`."""


def fit_linear_law(
    observation: npt.ArrayLike, action: npt.ArrayLike, low: npt.ArrayLike, high: npt.ArrayLike, ridge: float = 1e-6
) -> LinearLaw:
    """The linear law that explains logged actions best: least squares on standardised observations.

    Args:
        observation: (N, O), physical units.
        action: (N, A), what was logged there.
        low, high: (A,) bounds of the law's output.
        ridge: penalty of the standardised weights, as a share of the number of rows.
    """
    x, u = np.asarray(observation, np.float64), np.asarray(action, np.float64)
    mean, deviation = x.mean(axis=0), x.std(axis=0)
    scale = np.where(moves(mean, deviation), deviation, 1.0)
    z = (x - mean) / scale
    inner = z.T @ z / len(z) + ridge * np.eye(z.shape[1])
    weights = np.linalg.solve(inner, z.T @ (u - u.mean(axis=0)) / len(z)) / scale[:, None]
    bias = u.mean(axis=0) - mean @ weights
    return LinearLaw(*(jnp.asarray(part, dtype=float) for part in (weights, bias, low, high)))


def explained_variance(actions: npt.ArrayLike, predicted: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """`R^2 = 1 - sum (u - û)^2 / sum (u - mean u)^2` of each action; of one that never moved, 1 if it was hit, else 0.

    Args:
        actions: (N, A) as logged.
        predicted: (N, A) as a law answers.
    """
    u, v = np.asarray(actions, np.float64), np.asarray(predicted, np.float64)
    missed, spread = np.sum((u - v) ** 2, axis=0), np.sum((u - u.mean(axis=0)) ** 2, axis=0)
    moved = spread > 1e-12 * len(u) * np.maximum(np.mean(u**2, axis=0), 1e-30)
    still = np.where(missed <= 1e-6 * len(u) * np.maximum(np.mean(u**2, axis=0), 1e-30), 1.0, 0.0)
    return np.where(moved, 1.0 - missed / np.where(moved, spread, 1.0), still)
