"""The shield: limit actions, and predict whether the fallback could still take over."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy.typing as npt
from jaxtyping import Array, Bool, Float, Int

from neorl_core.safety.support import SupportShield
from neorl_core.types import Params, Plant, PlantSpec

ROUNDING = 2.0**-20
"""Relative rounding error, eight times the precision of float32."""


class ShieldParams(NamedTuple):
    """Limits of a policy, as arrays, so that a digest covers them."""

    action_low: Float[Array, " A"]
    action_high: Float[Array, " A"]
    rate_limit: Float[Array, " A"]
    """Largest change of the applied action in one step, in the action's units."""
    margin_buffer: Float[Array, "L K"]
    """Smallest accepted margin at each predicted step, in the limit's unit; L is the number of predicted steps."""
    return_buffer: Float[Array, " K"]
    """Additional margin before the policy regains control."""
    hold: Int[Array, ""]
    """Smallest number of steps of a hand-over."""
    observation_low: Float[Array, " O"]
    """Lower ends of the envelope, the range of observations in which the policy is trusted."""
    observation_high: Float[Array, " O"]
    dwell: Int[Array, ""] | None = None
    """Smallest number of steps between changes of a discrete action, for policy and fallback; None for continuous
    actions."""


Shield = ShieldParams | SupportShield


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
    """Build a shield for a plant.

    Args:
        look_ahead: number L of predicted steps, enough for the fallback to bring the plant back from a limit.
        buffer: minimum predicted margin, per constraint, in the constraint's unit; by default an eighth of the width
            between the limits, or 0 for a one-sided limit.
        return_buffer: additional margin before the policy regains control; half of `buffer` by default.
        rate_limit: largest change of an action per step; the whole range by default.
        hold: minimum number of steps of a hand-over.
        dwell: minimum number of steps between changes of a discrete action; 1 allows a change in every step.
        envelope: lowest and highest trusted observation; the spec's bounds by default (see `envelope_of`).

    Returns:
        The shield's arrays, float32 unless 64-bit mode is on.

    Raises:
        ValueError: if `look_ahead` is less than one step.
    """
    if look_ahead < 1:
        raise ValueError(f"look_ahead must be at least 1 step, got {look_ahead}: the shield needs a prediction")
    widths = [c.high - c.low for c in spec.constraints]
    # An eighth of an infinite width would be an infinite buffer, and the policy would never act.
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
    """Return the range of the training data, widened at both ends by `sigmas` standard deviations.

    The range of a constant signal is widened only by rounding.

    Args:
        lowest: (O,), minimum training observations.
        highest: (O,), greatest training observations.
        scale: (O,), standard deviations of the training observations (`Normaliser.scale`).
    """
    # A standard deviation is at most half the range (Popoviciu); the scale 1 of a constant signal is not.
    deviation = jnp.minimum(scale, (highest - lowest) / 2)
    rounding = ROUNDING * jnp.maximum(jnp.abs(lowest), jnp.abs(highest))
    widening = jnp.maximum(sigmas * deviation, rounding)
    return lowest - widening, highest + widening


def inside_envelope(shield: ShieldParams, observation: Float[Array, " O"]) -> Bool[Array, ""]:
    """Return whether the policy is trusted at this observation; false for NaN."""
    return jnp.all((observation >= shield.observation_low) & (observation <= shield.observation_high))


def limit_action(
    shield: Shield, action: Float[Array, " A"], applied: Float[Array, " A"], since: Params = ()
) -> Float[Array, " A"]:
    """Return the nearest action within the rate limit and the bounds; if they contradict each other, the bounds decide.

    A discrete action is rounded, and stays as applied until it has been in force for `dwell` steps.

    Args:
        action: (A,), requested action in physical units.
        applied: (A,), action in force.
        since: number of steps for which a discrete action has been in force.
    """
    if shield.dwell is not None:
        action = jnp.where(since >= shield.dwell, jnp.round(action), applied)
    action = jnp.clip(action, applied - shield.rate_limit, applied + shield.rate_limit)
    return jnp.clip(action, shield.action_low, shield.action_high)


def dwell_count(shield: Shield, since: Params, applied: Float[Array, " A"], action: Float[Array, " A"]) -> Params:
    """Return for how many steps a discrete action will have been in force after the coming step; () if continuous."""
    if shield.dwell is None:
        return ()
    # Clip the count at the dwell time, beyond which it has no effect, so that it never overflows.
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
    """Predict the margins if `action` is applied in the coming step and the fallback acts in the next L - 1 steps.

    The policy may act as long as the prediction shows that the fallback can still take over after the action. Otherwise
    the fallback takes over now (backup-policy argument: Wabersich and Zeilinger, Automatica 129, 2021, with a
    controller in place of a terminal set).

    Args:
        plant: supplies `predict` and `fallback`.
        shield: supplies the look-ahead, and the limits that also apply to the predicted fallback.
        model: plant constants for the prediction.
        since: steps for which a discrete action has been in force after the coming step (`dwell_count`).

    Returns:
        (L, K), minimum margins during each predicted step.
    """

    def step(carry: tuple[Params, Array, Array, Params], _: None) -> tuple[Any, Float[Array, " K"]]:
        memory, seen, action, since = carry
        following, margins = plant.predict(seen, action, model)
        memory, command = plant.fallback.act(fallback_params, memory, following, action)
        then = limit_action(shield, command, action, since)
        return (memory, following, then, dwell_count(shield, since, action, then)), margins

    steps = shield.margin_buffer.shape[0]
    return jax.lax.scan(step, (fallback_state, observation, action, since), None, length=steps)[1]


def margins_suffice(margins: Float[Array, "L K"], buffer: Float[Array, "L K"]) -> Bool[Array, ""]:
    """Return whether every predicted margin is at least the buffer; false for NaN."""
    return jnp.all(margins >= buffer)
