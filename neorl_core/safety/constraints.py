"""Hard limits as signed margins, and what their loss costs."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from neorl_core.plants.base import two_sided_margin
from neorl_core.types import Constraint


def margins(quantities: Float[Array, "*n K"], constraints: tuple[Constraint, ...]) -> Float[Array, "*n K"]:
    """Signed distance of each quantity to the nearer of its limits, min(q - low, high - q).

    Args:
        quantities: (..., K) in the constraints' units and order.
        constraints: the K limits.

    Returns:
        (..., K), positive while a limit holds, zero on it.
    """
    if quantities.shape[-1] != len(constraints):
        raise ValueError(
            f"expected {len(constraints)} quantities on the last axis, got {quantities.shape[-1]}; "
            "give one per constraint, in the order of the plant's spec"
        )
    if not constraints:
        return quantities
    columns = [two_sided_margin(quantities[..., k], c.low, c.high) for k, c in enumerate(constraints)]
    return jnp.stack(columns, axis=-1)


def constraint_costs(margins: Float[Array, "*n K"]) -> Float[Array, "*n K"]:
    """Amount by which each limit is violated, max(0, -margin), in the limit's unit; NaN stays NaN."""
    return jnp.maximum(-margins, jnp.zeros_like(margins))


def violated(margins: Float[Array, "*n K"]) -> Bool[Array, "*n"]:
    """Whether any limit is lost. NaN is a loss: `not (margin >= 0)` is true of it."""
    return ~jnp.all(margins >= 0, axis=-1)
