"""A plant's spec as JSON, and back."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from neorl_core.types import Constraint, PlantSpec, Space


def spec_record(spec: PlantSpec) -> dict[str, Any]:
    """A plant's names, units, bounds and limits as JSON; an infinite bound becomes the string 'inf' or '-inf'."""

    def plain(value: Any) -> Any:
        if hasattr(value, "_asdict"):
            return {name: plain(item) for name, item in value._asdict().items()}
        if isinstance(value, tuple):
            return [plain(item) for item in value]
        if isinstance(value, float) and math.isinf(value):
            return str(value)
        return value

    record: dict[str, Any] = plain(spec)
    return record


def spec_of_record(record: Mapping[str, Any]) -> PlantSpec:
    """The spec that `spec_record` wrote."""

    def bounds(space: Mapping[str, Any]) -> Space:
        low, high = (tuple(float(x) for x in space[side]) for side in ("low", "high"))
        return Space(tuple(space["names"]), tuple(space["units"]), low, high)

    limits = ({**c, "low": float(c["low"]), "high": float(c["high"])} for c in record["constraints"])
    own = {
        "observation": bounds(record["observation"]),
        "action": bounds(record["action"]),
        "constraints": tuple(Constraint(**limit) for limit in limits),
        "score_range": tuple(record["score_range"]),
    }
    return PlantSpec(**{**record, **own})
