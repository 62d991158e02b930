"""Controllers with set points that can be offset from the outside."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from neorl_core.types import Controller, Params


class Offset(NamedTuple):
    """Parameters of a controller, and an offset of its set points."""

    params: Params
    offset: tuple[Any, ...]
    """One number for each set point, in the unit of the set point."""


def with_offset(controller: Controller, signals: tuple[int, ...]) -> Controller:
    """Return a controller that adds an offset to the set points in the observation; its parameters are an `Offset`.

    Args:
        signals: (K,), indices of the set points in the observation.

    Example:
        >>> from neorl_core.control.pid import PIDParams, pid
        >>> from neorl_core.types import SetPoints
        >>> fallback = with_offset(pid(0, 2, 5.0), (2,))
        >>> fallback_params = Offset(PIDParams(kp=1.5, ki=0.02, kd=0.0, low=0.0, high=1.0), (0.0,))
        >>> set_points = SetPoints(("level",), ("m",), (0.2,), shift_offset)
    """

    def init(params: Offset, observation: Float[Array, " O"]) -> Params:
        return controller.init(params.params, _moved(params, observation))

    def act(params: Offset, state: Params, observation: Float[Array, " O"], applied: Float[Array, " A"]) -> Any:
        return controller.act(params.params, state, _moved(params, observation), applied)

    def _moved(params: Offset, observation: Float[Array, " O"]) -> Float[Array, " O"]:
        if len(params.offset) != len(signals) or not all(0 <= i < len(observation) for i in signals):
            raise ValueError(
                f"got {len(params.offset)} offsets for the signals {signals} of {len(observation)}: give one offset "
                "for each index of a signal"
            )
        return observation.at[jnp.asarray(signals)].add(jnp.asarray(params.offset, observation.dtype))

    return Controller(init, act)


def shift_offset(params: Offset, shift: Float[Array, " K"]) -> Offset:
    """Return the parameters with the shift added to the offset, as `SetPoints.shifted`."""
    return params._replace(offset=tuple(offset + shift[i] for i, offset in enumerate(params.offset)))
