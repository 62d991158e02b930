"""Specs of log-only plants, made from a mapping or from a file that describes transitions."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Annotated

from pydantic import AfterValidator, Field, model_validator

from configs.expression import Expression, compile_expression
from configs.mapping import Bounded, Bounds, Derived, Ends, Formula, HistorianMapping, Tag, converted
from configs.strict import Count, Name, Strict
from configs.units import conversion
from neorl_core.types import Clock, Constraint, PlantSpec, Space


def _known_unit(text: str) -> str:
    if text:
        conversion(text, text)
    return text


Unit = Annotated[str, AfterValidator(_known_unit)]


class Observed(Bounded):
    """An observation of a file of transitions."""

    unit: Unit = ""
    """Empty if unknown."""


class Acting(Strict):
    """Description of one action column in a file of transitions."""

    unit: Unit = ""
    """Empty if unknown."""
    range: Bounds | None = None
    """[low, high] of the actuator; values outside are rejected."""
    choices: tuple[str, ...] | None = Field(default=None, strict=False, min_length=1)
    """Names of a discrete action's choices, in the order of their numbers."""

    @model_validator(mode="after")
    def _sound(self) -> Acting:
        if self.choices is not None and (self.unit or self.range is not None):
            raise ValueError(
                f"a signal with choices {list(self.choices)} cannot also have a unit or a range: remove these, or the "
                "choices"
            )
        if self.choices is not None and len(set(self.choices)) < len(self.choices):
            raise ValueError(f"choices {list(self.choices)} have a duplicate: give each its own name")
        return self


class FileSpec(Strict):
    """Facts about a plant that a file of transitions lacks. Signals have the order of the file's columns."""

    name: Name | None = None
    """Name of the plant. Default: made from the file's name."""
    period_seconds: Annotated[float, Field(gt=0.0)] | None = None
    """Control period. Default: time is counted in steps."""
    horizon: Count | None = None
    """Longest episode, in control periods. Default: the longest episode of the file."""
    ends: Ends | None = None
    """For batches: the observation that marks the end of a batch, and its value at the end."""
    observations: dict[str, Observed] = Field(min_length=1)
    actions: dict[str, Acting] = Field(min_length=1)
    costs: dict[Name, Formula] = Field(default={})
    """Formulas over observations, actions and `next.<observation>`. A result above 0 is a violation and the step's
    cost."""

    @model_validator(mode="after")
    def _one_meaning(self) -> FileSpec:
        if len(self.actions) > 1 and any(action.choices is not None for action in self.actions.values()):
            raise ValueError(
                f"a discrete action must be the only action, got {', '.join(self.actions)}: number the combinations"
            )
        limited = [name for name, signal in self.observations.items() if signal.limits is not None]
        if both := sorted(set(limited) & set(self.costs)):
            raise ValueError(f"'{both[0]}' is the name of a limit and of a cost: rename one")
        return self


def declared_spec(file: FileSpec, found: PlantSpec, choices: int | None) -> PlantSpec:
    """Return the spec of the plant in a file of transitions, with the declared facts.

    Args:
        file: the declaration.
        found: spec inferred from the transitions, with numbers of signals, ranges of values, and longest episode.
        choices: number of choices of a discrete action, 0 if unknown; None for continuous actions.

    Raises:
        ValueError: if declaration and transitions do not match.
    """
    for kind, given, space in (
        ("observation(s)", tuple(file.observations), found.observation),
        ("action(s)", tuple(file.actions), found.action),
    ):
        if len(given) != space.size:
            raise ValueError(f"the log has {space.size} {kind}, but {len(given)} are declared: {', '.join(given)}")
    named = next(iter(file.actions.values())).choices
    if named is not None and choices is None:
        raise ValueError(f"choices {', '.join(named)} are declared but the log's actions are continuous: give a range")
    if named is not None and choices not in (0, len(named)):
        raise ValueError(f"the log has {choices} choices, but {len(named)} are declared: {', '.join(named)}")
    if choices is not None and named is None and any(a.unit or a.range for a in file.actions.values()):
        raise ValueError(
            f"unit or range on {', '.join(file.actions)}, but the log's action is discrete: name the choices instead"
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
        raise ValueError(f"'ends' names '{name}', which is no observation: choose from {', '.join(observed)}")
    return Clock(name, end)


def _over(found: Space, given: Mapping[str, Observed | Acting]) -> Space:
    """Return a space with the declared names, units and ranges. Ranges that are not declared stay as found."""
    ranges = [
        (low, high) if signal.range is None else converted(signal.range, 1.0, 0.0)
        for signal, low, high in zip(given.values(), found.low, found.high, strict=True)
    ]
    low, high = zip(*ranges, strict=True)
    return Space(tuple(given), tuple(signal.unit for signal in given.values()), tuple(low), tuple(high))


def cost_formulas(file: FileSpec, spec: PlantSpec) -> dict[str, Expression]:
    """Compile the formulas of declared costs, and check their units.

    Raises:
        ValueError: if a formula is wrong; the message names the cost.
    """
    units = {name: unit or "1" for name, unit in zip(spec.observation.names, spec.observation.units, strict=True)}
    units |= {f"next.{name}": unit for name, unit in units.items()}
    # A name of an observation and an action means the action, as in a mapping's reward.
    units |= {name: unit or "1" for name, unit in zip(spec.action.names, spec.action.units, strict=True)}
    found: dict[str, Expression] = {}
    for name, cost in file.costs.items():
        try:
            found[name] = compile_expression(cost.expression, units, cost.unit)
        except ValueError as error:
            raise ValueError(f"cost {name}: {error}") from error
    return found


def described_spec(mapping: HistorianMapping) -> PlantSpec:
    """Return the spec of a log-only plant, from a mapping's tags and derived quantities.

    Args:
        mapping: a mapping with the key `process`.

    Returns:
        The spec. Observations are tags in the mapping's order, then derived quantities. A score equals a return,
        because no scale is known.

    Raises:
        ValueError: if there is no action or observation, or a unit does not fit.
    """
    if mapping.process is None:
        raise ValueError(f"the mapping is for the simulated plant {mapping.plant}: use a mapping with 'process'")
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
        raise ValueError(
            f"process {mapping.process.name} has {len(observed)} observations and {len(acting)} actions, but needs at "
            "least one of each: give tags the role observation or action"
        )
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
