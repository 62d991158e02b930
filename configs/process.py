"""The spec of a plant that has no simulator here, as a mapping or a file beside transitions describes it."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Annotated

from pydantic import Field, model_validator

from configs.expression import Expression, compile_expression
from configs.mapping import Bounded, Bounds, Derived, Ends, Formula, HistorianMapping, Tag, converted
from configs.strict import Count, Name, Strict
from configs.units import conversion
from neorl_core.types import Clock, Constraint, PlantSpec, Space


class Observed(Bounded):
    """An observation of a file of transitions."""

    unit: str = ""
    """Unknown when not given."""

    @model_validator(mode="after")
    def _sound(self) -> Observed:
        _check(self.unit)
        return self


class Acting(Strict):
    """An action of a file of transitions."""

    unit: str = ""
    """Unknown when not given."""
    range: Bounds | None = None
    """[low, high] of the actuator: a value beyond is rejected."""
    choices: tuple[str, ...] | None = Field(default=None, strict=False, min_length=1)
    """Names of what a discrete action chooses among, in the order of their numbers."""

    @model_validator(mode="after")
    def _sound(self) -> Acting:
        _check(self.unit)
        if self.choices is not None and (self.unit or self.range is not None):
            raise ValueError("expected 'choices' without a unit and a range, got them beside each other: keep one")
        if self.choices is not None and len(set(self.choices)) < len(self.choices):
            raise ValueError("expected every choice once, got one twice: give each a name of its own")
        return self


def _check(unit: str) -> None:
    if unit:
        conversion(unit, unit)


class FileSpec(Strict):
    """What a file of transitions does not tell of its plant; signals in the order of the file's columns."""

    name: Name | None = None
    """Of the plant; made of the file's name when not given."""
    period_seconds: Annotated[float, Field(gt=0.0)] | None = None
    """The control period; a step when not given."""
    horizon: Count | None = None
    """Longest episode, in control periods; the longest of the file when not given."""
    ends: Ends | None = None
    """Of a task that ends with the episode: the observation that tells when, and what it reads then."""
    observations: dict[str, Observed] = Field(min_length=1)
    actions: dict[str, Acting] = Field(min_length=1)
    costs: dict[Name, Formula] = Field(default={})
    """Formulas over observations, actions and `next.<observation>`, of what must not exceed 0: a step costs by how much
    it does."""

    @model_validator(mode="after")
    def _one_meaning(self) -> FileSpec:
        if len(self.actions) > 1 and any(action.choices is not None for action in self.actions.values()):
            raise ValueError("expected one discrete action, got further ones: number the combinations of their choices")
        limited = [name for name, signal in self.observations.items() if signal.limits is not None]
        if both := sorted(set(limited) & set(self.costs)):
            raise ValueError(f"expected every limit once, got '{both[0]}' as an observation's and a cost: rename one")
        return self


def declared_spec(file: FileSpec, found: PlantSpec, choices: int | None) -> PlantSpec:
    """The spec that a file of its own declares for transitions.

    Args:
        file: the declaration.
        found: what the transitions tell by themselves: widths, values seen, the longest episode.
        choices: how many a discrete action has, 0 where the transitions do not tell; None of continuous actions.

    Raises:
        ValueError: when the two do not fit each other.
    """
    for what, given, space in (
        ("observation(s)", tuple(file.observations), found.observation),
        ("action(s)", tuple(file.actions), found.action),
    ):
        if len(given) != space.size:
            raise ValueError(f"expected {space.size} {what}, as the log has, got {len(given)}: {', '.join(given)}")
    named = next(iter(file.actions.values())).choices
    if named is not None and choices is None:
        raise ValueError("expected no choices, for the log's actions are continuous, got some: give a range instead")
    if named is not None and choices not in (0, len(named)):
        raise ValueError(f"expected {choices} choices, as the log says, got {len(named)}: {', '.join(named)}")
    if choices is not None and named is None and any(a.unit or a.range for a in file.actions.values()):
        raise ValueError(
            "expected 'choices', for the log's action is discrete, got a unit or a range: name the choices"
        )
    limits = tuple(
        Constraint(name, signal.unit, *converted(signal.limits, 1.0, 0.0))
        for name, signal in file.observations.items()
        if signal.limits is not None
    )
    limits += tuple(Constraint(name, cost.unit, -math.inf, 0.0) for name, cost in file.costs.items())
    action = _over(found.action, file.actions)
    names = named or found.choices
    if names is not None:
        action = Space(action.names, found.action.units, (0.0,), (len(names) - 1.0,))
    return found._replace(
        name=file.name or found.name,
        observation=_over(found.observation, file.observations),
        action=action,
        constraints=limits or found.constraints,
        dt=file.period_seconds or found.dt,
        time_unit="s" if file.period_seconds else found.time_unit,
        horizon=file.horizon or found.horizon,
        choices=names,
        clock=_clock(file.ends, file.observations),
    )


def _clock(ends: Ends | None, observed: Collection[str]) -> Clock | None:
    if ends is None:
        return None
    ((name, end),) = ends.items()
    if name not in observed:
        raise ValueError(
            f"expected an observation that tells when an episode is over, got '{name}': name one in 'ends'"
        )
    return Clock(name, end)


def _over(found: Space, given: Mapping[str, Observed | Acting]) -> Space:
    """A space with other names and units, and with the ranges that are given in place of what was seen."""
    ranges = [
        (low, high) if signal.range is None else converted(signal.range, 1.0, 0.0)
        for signal, low, high in zip(given.values(), found.low, found.high, strict=True)
    ]
    low, high = zip(*ranges, strict=True)
    return Space(tuple(given), tuple(signal.unit for signal in given.values()), tuple(low), tuple(high))


def cost_formulas(file: FileSpec, spec: PlantSpec) -> dict[str, Expression]:
    """The costs that a file declares, checked against the units of what they read.

    Raises:
        ValueError: naming the cost.
    """
    units = {name: unit or "1" for name, unit in zip(spec.observation.names, spec.observation.units, strict=True)}
    units |= {f"next.{name}": unit for name, unit in units.items()}
    # A name that is both means the action, as in a mapping's reward.
    units |= {name: unit or "1" for name, unit in zip(spec.action.names, spec.action.units, strict=True)}
    found: dict[str, Expression] = {}
    for name, cost in file.costs.items():
        try:
            found[name] = compile_expression(cost.expression, units, cost.unit)
        except ValueError as error:
            raise ValueError(f"cost {name}: {error}") from error
    return found


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
        clock=_clock(mapping.process.ends, observed),
    )


def _space(signals: dict[str, tuple[str, tuple[float, float]]]) -> Space:
    units, bounds = zip(*signals.values(), strict=True)
    low, high = zip(*bounds, strict=True)
    return Space(tuple(signals), tuple(units), tuple(low), tuple(high))
