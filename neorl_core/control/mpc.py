"""Nonlinear model predictive control by single shooting, with projected Gauss–Newton steps or projected Adam steps.

Rawlings, Mayne, Diehl: Model Predictive Control, 2nd edition, 2017, sections 1.4 (offset-free) and 8.5 (shooting);
Bertsekas: Projected Newton methods, SIAM J. Control and Optimization 20 (1982), for the bounds; Adam: arXiv 1412.6980.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float

from neorl_core.types import Controller, Params

Predict = Callable[[Float[Array, " O"], Float[Array, " A"], Params], tuple[Float[Array, " O"], Float[Array, " K"]]]
"""A plant's noise-free model, `Plant.predict`."""
Residuals = Callable[
    [Float[Array, " O"], Float[Array, " K"], Float[Array, " A"], Float[Array, " A"]], Float[Array, " R"]
]
"""(observation after the step, margins, action, previous action) -> residuals r; the cost is their sum of squares."""

DAMPINGS = (1e-6, 1e-3, 1e-1, 1e1)
"""Levenberg–Marquardt dampings relative to the mean curvature; each iteration tries all and keeps the best step."""


class MPCParams(NamedTuple):
    """Model and bounds of the controller; nested tuples (hashable) or arrays."""

    model: Params
    """Plant constants for predictions."""
    low: Any
    """(A,), lower bounds of the actions."""
    high: Any
    """(A,), upper bounds of the actions."""
    correction: Any
    """(O,), share of each signal's one-step prediction error that is added to the bias; 0 for no correction."""


class MPCState(NamedTuple):
    """State of the controller: last plan, and correction of the model."""

    plan: Float[Array, "M A"]
    """Last planned moves, shifted to the present step."""
    bias: Float[Array, " O"]
    """Correction b that is added to the model's prediction in every step."""
    observation: Float[Array, " O"]
    """Previous observation."""
    started: Bool[Array, ""]


def gauss_newton_step(
    residuals: Callable[[Float[Array, " n"]], Float[Array, " m"]], z: Float[Array, " n"]
) -> Float[Array, " n"]:
    """Take one projected Gauss–Newton step for min Σ r(z)² subject to 0 <= z <= 1; the sum never increases.

    A component at a bound is fixed if its descent direction points outwards. The others move by −(J'J + λ I)⁻¹ J'r and
    are clipped, with the Jacobian J of r and the damping λ.

    Args:
        residuals: z (n,) -> r (m,), differentiable.
        z: (n,), within 0..1.

    Returns:
        z after the best step of all `DAMPINGS`, or `z` itself if no step reduces the sum.
    """
    r, jacobian = residuals(z), jax.jacfwd(residuals)(z)
    gradient, curvature = jacobian.T @ r, jacobian.T @ jacobian
    free = ~(((z <= 0.0) & (gradient > 0)) | ((z >= 1.0) & (gradient < 0)))
    hessian = jnp.where(free[:, None] & free[None, :], curvature, 0.0)
    held = jnp.diag(jnp.where(free, 0.0, 1.0))
    # A cost that no move changes has no curvature; then only damping keeps the system regular.
    scale = jnp.maximum(jnp.trace(curvature) / z.size, 1e-30)

    def proposal(damping: Float[Array, ""]) -> Float[Array, " n"]:
        system = hessian + held + damping * scale * jnp.eye(z.size, dtype=z.dtype)
        move = jax.scipy.linalg.solve(system, -jnp.where(free, gradient, 0.0), assume_a="pos")
        return jnp.clip(z + move, 0.0, 1.0)

    proposals = jax.vmap(proposal)(jnp.asarray(DAMPINGS, z.dtype))
    candidates = jnp.concatenate([z[None], proposals])
    costs = jnp.sum(jnp.square(jax.vmap(residuals)(candidates)), axis=-1)
    # An unsolvable system gives NaN, which must not be chosen.
    return candidates[jnp.argmin(jnp.where(jnp.isnan(costs), jnp.inf, costs))]


def single_shooting(
    predict: Predict,
    applied_in: Callable[[Float[Array, " O"]], Float[Array, " A"]],
    residuals: Residuals,
    *,
    holds: tuple[int, ...],
    iterations: int = 5,
) -> Controller:
    """Build a nonlinear model predictive controller that plans M actions and applies the first action.

    min Σ_k |r(o_k, margins_k, u_k, u_{k−1})|²  over k = 1 .. Σ holds,
    subject to o_k = f(o_{k−1}, u_k) + b and low <= u_k <= high

    Here f is the model, r the residuals, o the observation and u the action. The bias b integrates the one-step
    prediction error, so that a wrong model causes no steady-state offset.

    Args:
        predict: the model f, as `Plant.predict`; smooth in observation and action.
        applied_in: the action in force at an observation, as `Plant.applied`; the first plan repeats it.
        holds: (M,), number of steps that each planned action lasts; growing numbers give a long horizon.
        iterations: Gauss–Newton steps per control step; they start from the last plan, shifted by a step.

    Returns:
        A controller with parameters `MPCParams`.
    """

    # Unsigned, because JAX wraps negative indices with constants that may have another integer width.
    held = np.repeat(np.arange(len(holds), dtype=np.uint32), holds)
    starts = np.cumsum((0, *holds[:-1]))
    moves = len(holds)

    def init(params: MPCParams, observation: Float[Array, " O"]) -> MPCState:
        resting = jnp.tile(applied_in(observation), (moves, 1))
        return MPCState(resting, jnp.zeros_like(observation), observation, jnp.asarray(False))

    def act(
        params: MPCParams, state: MPCState, observation: Float[Array, " O"], applied: Float[Array, " A"]
    ) -> tuple[MPCState, Float[Array, " A"]]:
        low, high, correction = (jnp.asarray(x, observation.dtype) for x in params[1:])
        expected = predict(state.observation, applied, params.model)[0] + state.bias
        error = jnp.where(state.started, observation - expected, 0.0)
        bias = state.bias + correction * error

        def planned(z: Float[Array, " n"]) -> Float[Array, "M A"]:
            return low + (high - low) * z.reshape(moves, low.size)

        def along(z: Float[Array, " n"]) -> Float[Array, " m"]:
            def step(carry: tuple[Array, Array], action: Float[Array, " A"]) -> tuple[tuple[Array, Array], Array]:
                seen, before = carry
                following, margins = predict(seen, action, params.model)
                following = following + bias
                return (following, action), residuals(following, margins, action, before)

            return jax.lax.scan(step, (observation, applied), planned(z)[held])[1].ravel()

        z = jnp.clip((state.plan - low) / (high - low), 0.0, 1.0).ravel()
        z = jax.lax.fori_loop(0, iterations, lambda _, z: gauss_newton_step(along, z), z)
        plan = planned(z)
        shifted = plan[held[np.minimum(starts + 1, held.size - 1)]]
        return MPCState(shifted, bias, observation, jnp.asarray(True)), plan[0]

    return Controller(init, act)


class RecedingParams(NamedTuple):
    """Step size of Adam, and bounds of the planned actions."""

    rate: float | Float[Array, ""]
    """Step size, as a share of each action's range."""
    low: Any
    """(A,), lower bounds of the actions."""
    high: Any
    """(A,), upper bounds of the actions."""


Observation = Float[Array, " O"]
Action = Float[Array, " A"]


def receding(
    predict: Callable[[Observation, Action], tuple[Observation, Float[Array, " K"]]],
    cost: Callable[[Observation, Action, Observation, Float[Array, " K"]], Float[Array, ""]],
    horizon: int,
    steps: int,
) -> Controller:
    """Build a controller that improves its last plan by projected steps of Adam, and applies the first action.

    min over a of Σ_k cost(o_k, a_k, o_{k+1}, margins_k),  o_{k+1} = predict(o_k, a_k),  low ≤ a ≤ high

    Args:
        predict: (observation, action) -> (next observation, margins), differentiable.
        cost: (observation, action, next observation, margins) -> cost of the step.
        horizon: number H of planned actions.

    Returns:
        A controller with parameters `RecedingParams`; the state is the last plan (H, A), scaled to 0..1.
    """

    def init(params: RecedingParams, observation: Observation) -> Float[Array, "H A"]:
        width = jnp.asarray(params.low).shape[0]
        return jnp.full((horizon, width), 0.1, observation.dtype)

    def act(
        params: RecedingParams, last: Float[Array, "H A"], observation: Observation, applied: Action
    ) -> tuple[Float[Array, "H A"], Action]:
        low, high = (jnp.asarray(x, observation.dtype) for x in (params.low, params.high))

        def total(plan: Float[Array, "H A"]) -> Float[Array, ""]:
            def step(seen: Observation, part: Action) -> tuple[Observation, Float[Array, ""]]:
                action = low + (high - low) * part
                next_seen, margins = predict(seen, action)
                return next_seen, cost(seen, action, next_seen, margins)

            return jnp.sum(jax.lax.scan(step, observation, plan)[1])

        adam = optax.adam(params.rate)

        def improve(carry: Any, _: None) -> tuple[Any, None]:
            plan, memory = carry
            move, memory = adam.update(jax.grad(total)(plan), memory)
            return (jnp.clip(plan + move, 0.0, 1.0), memory), None

        (plan, _), _ = jax.lax.scan(improve, (last, adam.init(last)), None, length=steps)
        return jnp.concatenate([plan[1:], plan[-1:]]), low + (high - low) * plan[0]

    return Controller(init, act)
