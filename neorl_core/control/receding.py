"""Planning by gradients through a plant's own model, over a horizon that recedes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

from neorl_core.types import Controller

Observation = Float[Array, " O"]
Action = Float[Array, " A"]
Predict = Callable[[Observation, Action], tuple[Observation, Float[Array, " K"]]]
Cost = Callable[[Observation, Action, Observation, Float[Array, " K"]], Float[Array, ""]]


class RecedingParams(NamedTuple):
    """Step length and bounds of the plan."""

    rate: float | Float[Array, ""]
    """Step length of Adam, as a part of each action's range."""
    low: Any
    """(A,), lower bounds of the actions."""
    high: Any
    """(A,), upper bounds of the actions."""


class Plan(NamedTuple):
    """The last plan, from which the next one starts."""

    actions: Float[Array, "H A"]
    """Planned actions from the next step on, in parts of the range, 0 to 1."""


def receding(predict: Predict, cost: Cost, horizon: int, steps: int) -> Controller:
    """The first action of the plan that costs least, after some projected steps of Adam from the last plan.

    min over a of Σ_k cost(o_k, a_k, o_{k+1}, margins_k),  o_{k+1} = predict(o_k, a_k),  low ≤ a ≤ high
    (Rawlings, Mayne, Diehl: Model Predictive Control, 2nd edition, 2017, chapter 1; Adam: arXiv 1412.6980.)

    Args:
        predict: (observation, action) -> (next observation, margins), differentiable.
        cost: (observation, action, next observation, margins) -> what the step costs.
        horizon: steps H of a plan.
        steps: gradient steps for every step of the plant.

    Returns:
        A controller with `RecedingParams` for parameters.
    """

    def init(params: RecedingParams, observation: Observation) -> Plan:
        width = jnp.asarray(params.low).shape[0]
        return Plan(jnp.full((horizon, width), 0.1, observation.dtype))

    def act(params: RecedingParams, state: Plan, observation: Observation, applied: Action) -> tuple[Plan, Action]:
        low, high = (jnp.asarray(x, observation.dtype) for x in (params.low, params.high))

        def total(plan: Float[Array, "H A"]) -> Float[Array, ""]:
            def step(seen: Observation, part: Action) -> tuple[Observation, Float[Array, ""]]:
                action = low + (high - low) * part
                following, margins = predict(seen, action)
                return following, cost(seen, action, following, margins)

            return jnp.sum(jax.lax.scan(step, observation, plan)[1])

        adam = optax.adam(params.rate)

        def improve(carry: Any, _: None) -> tuple[Any, None]:
            plan, memory = carry
            move, memory = adam.update(jax.grad(total)(plan), memory)
            return (jnp.clip(plan + move, 0.0, 1.0), memory), None

        (plan, _), _ = jax.lax.scan(improve, (state.actions, adam.init(state.actions)), None, length=steps)
        return Plan(jnp.concatenate([plan[1:], plan[-1:]])), low + (high - low) * plan[0]

    return Controller(init, act)
