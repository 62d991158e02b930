"""The spec of a plant that has no simulator here, as a mapping describes it."""

from __future__ import annotations

from configs.mapping import Derived, HistorianMapping, Tag, converted
from configs.units import conversion
from neorl_core.types import Constraint, PlantSpec, Space


def described_spec(mapping: HistorianMapping) -> PlantSpec:
    """Signals, bounds and limits from the mapping's tags and derived quantities.

    Args:
        mapping: with a `process`.

    Returns:
        The spec; observations are tags in the mapping's order, then derived quantities; a score is the return itself,
        for nothing is known to set the scale.

    Raises:
        ValueError: when there is no action or observation, or a unit does not fit.
    """
    if mapping.process is None:
        raise ValueError("expected a mapping with 'process', got one of a simulated plant")
    observed: dict[str, tuple[str, tuple[float, float]]] = {}
    acting: dict[str, tuple[str, tuple[float, float]]] = {}
    limits: list[Constraint] = []
    sources: list[tuple[str, Tag | Derived, str, str]] = [
        (str(tag.signal), tag, str(tag.unit), tag.to_unit or str(tag.unit))
        for tag in mapping.tags.values()
        if tag.role not in ("mode", "episode")
    ]
    sources += [(name, derived, derived.unit, derived.unit) for name, derived in mapping.derived.items()]
    for signal, source, unit, target in sources:
        try:
            scale, offset = conversion(unit, target)
        except ValueError as error:
            raise ValueError(f"signal {signal}: {error}") from error
        if source.role in ("observation", "set_point"):
            observed[signal] = (target, converted(source.range, scale, offset))
        elif source.role == "action":
            acting[signal] = (target, converted(source.range, scale, offset))
        if source.limits is not None:
            if source.role == "action":
                raise ValueError(f"expected limits of a measured signal, got them on action {signal}: give its 'range'")
            limits.append(Constraint(signal, target, *converted(source.limits, scale, offset)))
    if not observed or not acting:
        raise ValueError("expected at least one observation and one action, got a process without: give tags a role")
    return PlantSpec(
        name=mapping.process.name,
        observation=_space(observed),
        action=_space(acting),
        constraints=tuple(limits),
        dt=mapping.period_seconds,
        time_unit="s",
        horizon=mapping.process.horizon,
        score_range=(0.0, 100.0),
    )


def _space(signals: dict[str, tuple[str, tuple[float, float]]]) -> Space:
    units, bounds = zip(*signals.values(), strict=True)
    low, high = zip(*bounds, strict=True)
    return Space(tuple(signals), tuple(units), tuple(low), tuple(high))
