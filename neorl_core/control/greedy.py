"""The best next step by a differentiable model: a few projected-gradient steps from another controller's action."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from neorl_core.types import Controller, Params


class GreedyParams(NamedTuple):
    """What the controller starts from and may do."""

    base: Params
    """Parameters of the controller that proposes the first action."""
    rate: Any
    """(A,) step per gradient, in the action's units squared per unit of the objective; 0 leaves an action as it is."""
    low: Any
    """(A,), lower bounds of the actions."""
    high: Any
    """(A,), upper bounds of the actions."""


def greedy(
    base: Controller, objective: Callable[[Float[Array, " O"], Float[Array, " A"]], Float[Array, ""]], steps: int
) -> Controller:
    """a ← clip(a − rate ∘ ∇ objective(observation, a)), from the base controller's action, some times.

    (Bertsekas: Nonlinear Programming, 2nd edition, section 2.3.)

    Args:
        base: proposes where to begin.
        objective: what a step costs, by the model's lights, differentiable in the action.
        steps: how many gradient steps.

    Returns:
        A controller with `GreedyParams` for parameters and the base's state for its own.
    """
    slope = jax.grad(objective, argnums=1)

    def init(params: GreedyParams, observation: Float[Array, " O"]) -> Params:
        return base.init(params.base, observation)

    def act(
        params: GreedyParams, state: Params, observation: Float[Array, " O"], applied: Float[Array, " A"]
    ) -> tuple[Params, Float[Array, " A"]]:
        state, first = base.act(params.base, state, observation, applied)
        rate, low, high = (jnp.asarray(x, observation.dtype) for x in params[1:])

        def descend(action: Float[Array, " A"], _: None) -> tuple[Float[Array, " A"], None]:
            return jnp.clip(action - rate * slope(observation, action), low, high), None

        return state, jax.lax.scan(descend, jnp.clip(first, low, high), None, length=steps)[0]

    return Controller(init, act)
