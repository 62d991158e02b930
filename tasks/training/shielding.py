"""The shield that a run's YAML describes, for a plant whose names and units it uses."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy.typing as npt

from configs.errors import BadInput, nearest
from configs.run import Shield
from neorl_core.safety.shield import ShieldParams, default_shield
from neorl_core.types import PlantSpec


def shield_of(
    spec: PlantSpec, settings: Shield, envelope: tuple[npt.ArrayLike, npt.ArrayLike] | None = None
) -> ShieldParams:
    """The shield as arrays: defaults where the run says nothing, its numbers by name where it does.

    Args:
        spec: the plant's names, units and limits.
        settings: the run's `shield`.
        envelope: lowest and highest trusted observation, (O,) each; the spec's bounds unless given.

    Raises:
        BadInput: for a name that the plant does not have, a limit on one side without a buffer, a dwell time of
            continuous actions, or a rate limit of discrete ones.

    Example:
        >>> from neorl_core.plants import PLANTS
        >>> shield_of(PLANTS["chemical_reactor"].spec, Shield(buffers={"reactor temperature": 1.5})).margin_buffer[0]
        Array([1.5], dtype=float32)
    """
    limits = [limit.name for limit in spec.constraints]
    if settings.dwell > 1 and spec.choices is None:
        raise BadInput(
            f"expected no shield.dwell for {spec.name}, whose actions are continuous, got {settings.dwell}: limit "
            "their rates by shield.rate_limits."
        )
    if settings.rate_limits and spec.choices is not None:
        raise BadInput(
            f"expected no shield.rate_limits for {spec.name}, whose actions are choices and not sizes, got some: limit "
            "how often they change by shield.dwell."
        )
    for limit in spec.constraints:
        if not math.isfinite(limit.high - limit.low) and limit.name not in settings.buffers:
            raise BadInput(
                f"expected shield.buffers to name '{limit.name}', which is limited on one side and so has no width to "
                f"take a share of, got no buffer: say in {limit.unit} how far from it the plant's own controller takes "
                "over."
            )
    usual = default_shield(spec)
    buffers = _by_name("buffers", limits, settings.buffers, usual.margin_buffer[0])
    return default_shield(
        spec,
        look_ahead=settings.look_ahead,
        hold=settings.hold,
        dwell=settings.dwell,
        buffer=buffers,
        return_buffer=_by_name("return_buffers", limits, settings.return_buffers, [b / 2 for b in buffers]),
        rate_limit=_by_name("rate_limits", spec.action.names, settings.rate_limits, usual.rate_limit),
        envelope=envelope,
    )


def _by_name(
    key: str, names: Sequence[str], given: Mapping[str, float], usual: Sequence[float] | npt.ArrayLike
) -> list[float]:
    """One number for each name: the given one, or the usual."""
    for name in given:
        if name not in names:
            raise BadInput(
                f"expected shield.{key} to name some of {', '.join(repr(n) for n in names)}, got '{name}': "
                f"{nearest(name, names)}"
            )
    return [given.get(name, float(value)) for name, value in zip(names, usual, strict=True)]  # type: ignore[arg-type]
