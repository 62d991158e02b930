"""Build the shield of a run, with the plant's names and units."""

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
    """Return the shield as arrays: the run's values by name, defaults elsewhere.

    Args:
        envelope: lowest and highest trusted observation, (O,) each. Default: the bounds of the spec.

    Raises:
        BadInput: if a name is unknown or a one-sided limit has no buffer. Also if continuous actions have a dwell time,
            or discrete actions a rate limit.

    Example:
        >>> from neorl_core.plants import PLANTS
        >>> shield_of(PLANTS["chemical_reactor"].spec, Shield(buffers={"reactor temperature": 1.5})).margin_buffer[0]
        Array([1.5], dtype=float32)
    """
    limits = [limit.name for limit in spec.constraints]
    if settings.dwell > 1 and spec.choices is None:
        raise BadInput(
            f"shield.dwell is {settings.dwell}, but {spec.name} has continuous actions: use shield.rate_limits"
        )
    if settings.rate_limits and spec.choices is not None:
        raise BadInput(
            f"shield.rate_limits names {', '.join(settings.rate_limits)}, but {spec.name} has a discrete action: "
            "use shield.dwell"
        )
    for limit in spec.constraints:
        if not math.isfinite(limit.high - limit.low) and limit.name not in settings.buffers:
            raise BadInput(
                f"'{limit.name}' is a one-sided limit, which has no default buffer: add it to shield.buffers, in "
                f"{limit.unit}"
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
    """Return one number per name: the given one, or the default."""
    for name in given:
        if name not in names:
            raise BadInput(
                f"shield.{key} has the unknown name '{name}', choose from {', '.join(repr(n) for n in names)}: "
                f"{nearest(name, names)}"
            )
    return [given.get(name, float(value)) for name, value in zip(names, usual, strict=True)]  # type: ignore[arg-type]
