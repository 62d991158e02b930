"""The shield's numbers and its look-ahead: what an action may be, and whether the fallback could still save it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy.typing as npt
from jaxtyping import Array, Bool, Float, Int

from neorl_core.types import Params, Plant, PlantSpec

ROUNDING = 2.0**-20
"""Share of a value by which it may differ from itself: eight times the precision of single numbers."""


class Limits(Protocol):
    """What any shield limits an action by."""

    @property
    def action_low(self) -> Float[Array, " A"]: ...

    @property
    def action_high(self) -> Float[Array, " A"]: ...

    @property
    def rate_limit(self) -> Float[Array, " A"]: ...

    @property
    def dwell(self) -> Int[Array, ""] | None: ...


class ShieldParams(NamedTuple):
    """Everything that limits a policy, as arrays, so that a digest covers it."""

    action_low: Float[Array, " A"]
    action_high: Float[Array, " A"]
    rate_limit: Float[Array, " A"]
    """Largest change of the applied action in one step, in the action's units."""
    margin_buffer: Float[Array, "L K"]
    """What must be left of each margin at each predicted step, in the limit's unit. Its length L is the look-ahead."""
    return_buffer: Float[Array, " K"]
    """What must be left beyond `margin_buffer` before the policy gets control back."""
    hold: Int[Array, ""]
    """Least number of steps for which the fallback keeps control."""
    observation_low: Float[Array, " O"]
    """The envelope in which the policy is trusted."""
    observation_high: Float[Array, " O"]
    dwell: Int[Array, ""] | None = None
    """Least number of steps between two changes of a discrete action, a minimum run or dwell time, which binds policy
    and fallback; None of continuous actions."""


def default_shield(
    spec: PlantSpec,
    *,
    look_ahead: int = 12,
    buffer: float | Sequence[float] | None = None,
    return_buffer: float | Sequence[float] | None = None,
    rate_limit: float | Sequence[float] | None = None,
    hold: int = 5,
    dwell: int = 1,
    envelope: tuple[npt.ArrayLike, npt.ArrayLike] | None = None,
) -> ShieldParams:
    """A shield for a plant.

    Args:
        spec: the plant.
        look_ahead: predicted steps L; long enough for the fallback to turn the plant around.
        buffer: least predicted margin, per constraint, in its unit; an eighth of the width between its limits
            unless given. A limit on one side has no width: 0, so that only a predicted violation hands over.
        return_buffer: additional margin before the policy returns; half of `buffer` unless given.
        rate_limit: largest change of an action in a step; its whole range unless given.
        hold: least number of steps in the fallback.
        dwell: least number of steps between two changes of a discrete action; 1 lets it change at every step.
        envelope: lowest and highest trusted observation; the spec's bounds unless given (see `envelope_of`).

    Returns:
        The shield's arrays, float32 unless 64-bit mode is on.

    Raises:
        ValueError: for a look-ahead below one step.
    """
    if look_ahead < 1:
        raise ValueError(f"the look-ahead must be at least 1 step, got {look_ahead}; a shield has to predict something")
    widths = [c.high - c.low for c in spec.constraints]
    # An eighth of an infinite width would be a buffer that no margin leaves: the policy would never act.
    limits = jnp.asarray([width if math.isfinite(width) else 0.0 for width in widths], dtype=float)
    low, high = jnp.asarray(spec.action.low, dtype=float), jnp.asarray(spec.action.high, dtype=float)
    margin = limits / 8.0 if buffer is None else jnp.broadcast_to(jnp.asarray(buffer, dtype=float), limits.shape)
    further = margin / 2.0 if return_buffer is None else jnp.asarray(return_buffer, dtype=float)
    rate = high - low if rate_limit is None else jnp.asarray(rate_limit, dtype=float)
    trusted = (spec.observation.low, spec.observation.high) if envelope is None else envelope
    return ShieldParams(
        action_low=low,
        action_high=high,
        rate_limit=jnp.broadcast_to(rate, low.shape),
        margin_buffer=jnp.tile(margin, (look_ahead, 1)),
        return_buffer=jnp.broadcast_to(further, limits.shape),
        hold=jnp.asarray(hold, dtype=jnp.int32),
        observation_low=jnp.asarray(trusted[0], dtype=float),
        observation_high=jnp.asarray(trusted[1], dtype=float),
        dwell=None if spec.choices is None else jnp.asarray(dwell, dtype=jnp.int32),
    )


def envelope_of(
    lowest: Float[Array, " O"], highest: Float[Array, " O"], scale: Float[Array, " O"], sigmas: float
) -> tuple[Float[Array, " O"], Float[Array, " O"]]:
    """The range of the training data, widened by `sigmas` of its standard deviations on both sides.

    Of a signal that never moved it is that value, but for rounding: of what its move would do the data say nothing.

    Args:
        lowest, highest: (O,) range of the training observations.
        scale: (O,) their standard deviations (`Normaliser.scale`).
        sigmas: how far beyond its data a policy is trusted.
    """
    # A deviation is at most half of the range (Popoviciu), which the scale of one that never moved, 1, is not.
    deviation = jnp.minimum(scale, (highest - lowest) / 2)
    rounding = ROUNDING * jnp.maximum(jnp.abs(lowest), jnp.abs(highest))
    widening = jnp.maximum(sigmas * deviation, rounding)
    return lowest - widening, highest + widening


def inside_envelope(shield: ShieldParams, observation: Float[Array, " O"]) -> Bool[Array, ""]:
    """Whether the policy is trusted at this observation; false for NaN."""
    return jnp.all((observation >= shield.observation_low) & (observation <= shield.observation_high))


def limit_action(
    shield: Limits, action: Float[Array, " A"], applied: Float[Array, " A"], since: Params = ()
) -> Float[Array, " A"]:
    """The nearest action within the rate limit of what is applied now, then within the bounds (which win).

    Of a discrete action it is a whole number, and what is applied now as long as that has not been for `dwell` steps.

    Args:
        shield: rate limits, bounds and dwell time.
        action: (A,), what the policy asks for, physical units.
        applied: (A,), action in force.
        since: steps for which a discrete action has been in force.
    """
    if shield.dwell is not None:
        action = jnp.where(since >= shield.dwell, jnp.round(action), applied)
    action = jnp.clip(action, applied - shield.rate_limit, applied + shield.rate_limit)
    return jnp.clip(action, shield.action_low, shield.action_high)


def counted(shield: Limits, since: Params, applied: Float[Array, " A"], action: Float[Array, " A"]) -> Params:
    """Steps for which a discrete action will have been in force after the coming step; nothing of continuous ones.

    Args:
        shield: whether actions are discrete.
        since: steps for which `applied` has been in force.
        applied: (A,), action in force.
        action: (A,), for the coming step.
    """
    if shield.dwell is None:
        return ()
    # Beyond the dwell time nothing depends on the count, which so never overflows.
    return jnp.minimum(jnp.where(jnp.all(action == applied), since, 0) + 1, jnp.maximum(shield.dwell, 1))


def predicted_margins(
    plant: Plant,
    shield: ShieldParams,
    fallback_params: Params,
    fallback_state: Params,
    model: Params,
    observation: Float[Array, " O"],
    action: Float[Array, " A"],
    since: Params = (),
) -> Float[Array, "L K"]:
    """Margins predicted for this action in the coming step and the fallback in the L - 1 steps after it.

    The question is not whether the policy is safe but whether the fallback can still save what the policy does now:
    as long as it can, the policy may go on, and when it no longer could, the fallback takes over one step earlier
    (the backup-policy argument: Wabersich and Zeilinger, Automatica 129 (2021), with a controller for a terminal set).

    Args:
        plant: gives `predict` and `fallback`.
        shield: gives the look-ahead and the limits, which bind the predicted fallback as they bind the real one.
        fallback_params, fallback_state: the fallback's, after it saw `observation`.
        model: the constants that the shield predicts with.
        observation: (O,) now.
        action: (A,) for the coming step.
        since: steps for which a discrete action will have been in force after it (`counted`).

    Returns:
        (L, K) least margins during each predicted step.
    """

    def step(carry: tuple[Params, Array, Array, Params], _: None) -> tuple[Any, Float[Array, " K"]]:
        memory, seen, action, since = carry
        following, margins = plant.predict(seen, action, model)
        memory, command = plant.fallback.act(fallback_params, memory, following, action)
        then = limit_action(shield, command, action, since)
        return (memory, following, then, counted(shield, since, action, then)), margins

    steps = shield.margin_buffer.shape[0]
    return jax.lax.scan(step, (fallback_state, observation, action, since), None, length=steps)[1]


def enough(margins: Float[Array, "L K"], buffer: Float[Array, "L K"]) -> Bool[Array, ""]:
    """Whether every predicted margin leaves its buffer; false for NaN."""
    return jnp.all(margins >= buffer)
