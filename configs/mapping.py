"""Model of a mapping file: how the tags of a historian become the signals of a plant."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Annotated, Literal
from zoneinfo import ZoneInfo

from pydantic import AfterValidator, Field, model_validator

from configs.dialect import Dialect, chrono_format
from configs.expression import Expression, compile_expression
from configs.strict import Count, Name, Strict
from configs.units import conversion
from neorl_core.types import PlantSpec, Space

Seconds = Annotated[float, Field(ge=0.0)]


def _in_order(given: tuple[float | None, float | None]) -> tuple[float | None, float | None]:
    low, high = given
    if low is not None and high is not None and not low < high:
        raise ValueError(f"the first bound must be below the second, got [{low:g}, {high:g}]: correct them")
    return given


Bounds = Annotated[tuple[float | None, float | None], Field(strict=False), AfterValidator(_in_order)]
"""[low, high]; null means that a side has no bound."""
Ends = Annotated[dict[str, Annotated[float, Field(allow_inf_nan=False)]], Field(min_length=1, max_length=1)]
"""Name of the observation that marks the end of an episode, and its value, which occurs only at the end."""
Role = Literal["observation", "set_point", "action", "mode", "input", "episode"]


def converted(given: Bounds | None, scale: float, offset: float) -> tuple[float, float]:
    """Convert bounds to another unit: scale * bound + offset. A side without a bound becomes infinite.

    A negative scale exchanges low and high.
    """
    low, high = (None, None) if given is None else given
    edges = (
        scale * (-math.inf if low is None else low) + offset,
        scale * (math.inf if high is None else high) + offset,
    )
    return min(edges), max(edges)


class Columns(Strict):
    """Names of a table's columns. A wide table has a timestamp column and one column per tag."""

    tag: str = "tag"
    timestamp: str = "timestamp"
    value: str = "value"
    status: str | None = "status"
    """Column of the status of a value; null if the export has no statuses, so that every value is Good."""
    status_suffix: str | None = None
    """For a wide table: suffix of status columns. With `_st`, the column `TI-1_st` is the status of the tag `TI-1`."""


class Clock(Strict):
    """Meaning of the timestamps."""

    zone: str = "UTC"
    """Time zone of timestamps that name no zone: an IANA name such as Europe/Berlin."""
    ambiguous: Literal["quarantine", "earlier", "later", "order"] = "quarantine"
    """Treatment of times in the hour that occurs twice when summer time ends: quarantine them, take the earlier or the
    later hour, or decide by the order of rows, which must be chronological. Nonexistent local times are rejected."""
    epoch: Literal["s", "ms", "us", "ns"] | None = None
    """For timestamps that are numbers: unit of the time since 1970."""
    format: str | None = None
    """For timestamps that are not ISO 8601: their format in strptime's directives, such as %d.%m.%Y %H:%M."""
    start: datetime | None = Field(default=None, strict=False)
    """For a table without timestamps: time of the first row. A time that names no zone is in `zone`."""
    period_seconds: Annotated[float, Field(gt=0.0)] | None = None
    """For a table without timestamps: time between two rows. Default: the mapping's `period_seconds`."""
    late_seconds: Seconds = 300.0
    """Rows that are out of order by at most this time are sorted. Other late rows are quarantined."""
    same_time: Literal["reject", "first", "last"] = "reject"
    """Treatment of different values with the same tag and timestamp: reject all, or use the first or the last."""

    def moment(self, time: datetime) -> int:
        """Return a time as ns since 1970 UTC. A time without a zone is in the clock's zone, not the machine's."""
        zoned = time if time.tzinfo is not None else time.replace(tzinfo=ZoneInfo(self.zone))
        return (zoned - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1) * 1000

    @model_validator(mode="after")
    def _known(self) -> Clock:
        try:
            ZoneInfo(self.zone)
        except Exception as error:  # zoneinfo raises OSError, ValueError and errors of its own
            raise ValueError(f"zone '{self.zone}' is unknown: use an IANA name such as Europe/Berlin") from error
        given = [name for name in ("epoch", "format", "start") if getattr(self, name) is not None]
        if len(given) > 1:
            raise ValueError(f"the clock has {' and '.join(given)}: keep only one of epoch, format and start")
        if self.period_seconds is not None and self.start is None:
            raise ValueError(f"the clock has period_seconds {self.period_seconds:g} but no 'start': add 'start'")
        if self.format is not None:
            chrono_format(self.format)
        return self


class Bounded(Strict):
    """Bounds of a measured quantity, in the unit of the log."""

    range: Bounds | None = None
    """[low, high] that the instrument can measure. Values outside are quarantined."""
    limits: Bounds | None = None
    """For a log-only plant: [low, high] in which the quantity must stay. Steps outside stay in the dataset and have a
    cost."""


class Signal(Bounded):
    """Keys that tags and derived quantities share."""

    alarms: Bounds | None = None
    """Soft limits: [low, high] in which the quantity should stay. Crossings are counted but have no cost."""


class Tag(Signal):
    """One tag of the historian."""

    role: Role
    signal: str | None = None
    """Name of the observation, set point or action that the tag supplies, or an input's name in formulas. Tags of role
    mode or episode have no signal."""
    unit: str | None = None
    """Unit of the tag's values in the historian."""
    to_unit: str | None = None
    """For a log-only plant: unit of the signal. Default: `unit`."""
    interpolation: Literal["sloped", "stepped"]
    """Values between two samples. sloped: on a straight line. stepped: equal to the earlier sample."""
    stale_seconds: Annotated[float, Field(gt=0.0)] | None = None
    """Longest time between samples that is interpolated. Default: `episodes.max_gap_seconds` for a sloped tag, no limit
    for a stepped tag."""
    states: dict[str, float] = Field(default={}, strict=False)
    """Numbers for texts in the historian, such as {Open: 1, Closed: 0}. Other texts are quarantined."""
    running: tuple[float, ...] = Field(default=(), strict=False)
    """For role mode: values of the tag in normal operation."""

    @model_validator(mode="after")
    def _complete(self) -> Tag:
        for key in ("alarms", "limits"):
            if getattr(self, key) is not None and self.role in ("action", "mode", "episode"):
                cure = f"delete '{key}'" + (", or use 'range'" if self.role == "action" else "")
                raise ValueError(f"role {self.role} cannot have '{key}', only a measured signal can: {cure}")
        if self.role == "mode":
            if not self.running or self.signal is not None:
                raise ValueError(
                    f"role mode needs 'running' and no 'signal', got {list(self.running)} and {self.signal}: correct it"
                )
            if self.interpolation != "stepped":
                raise ValueError(f"role mode must be stepped, got {self.interpolation}: set interpolation to stepped")
        elif self.role == "episode":
            if self.signal is not None or self.unit is not None or self.running or self.interpolation != "stepped":
                raise ValueError(
                    f"role episode must be stepped without 'signal', 'unit' and 'running', got {self.interpolation}, "
                    f"{self.signal}, {self.unit} and {list(self.running)}: correct it"
                )
        else:
            if self.signal is None:
                raise ValueError(f"role {self.role} needs 'signal', the plant's name of the signal: add it")
            if self.unit is None:
                raise ValueError(f"signal {self.signal} has no 'unit': add the unit of the tag's values")
            if self.running:
                raise ValueError(f"role {self.role} cannot have 'running', only role mode can: delete it")
        return self


class Formula(Strict):
    """A formula over signals, and the unit of the result."""

    expression: str
    unit: str


class Derived(Signal, Formula):
    """A quantity computed from values of tags at the same time. The key is the name of the signal."""

    role: Literal["observation", "input"] = "observation"


class Process(Strict):
    """A log-only plant. The tags define its signals, bounds and limits."""

    name: Name
    horizon: Count
    """Longest episode, in control periods."""
    ends: Ends | None = None
    """For batches: the observation that marks the end of a batch, and its value at the end."""


class Episodes(Strict):
    """Rules for cutting a continuous record into episodes. A cut is a truncation; only a trip can be a termination."""

    max_gap_seconds: float = Field(gt=0)
    """If a signal has no value for longer than this time, the episode ends before the gap."""
    max_steps: int | None = Field(default=None, gt=0)
    """Longest episode. Default: the plant's horizon."""
    end_at_trip: bool | None = None
    """Whether crossing a limit terminates the episode, as a trip does. The rows outside the limits are then left out.
    Default: yes for a simulated plant, no for a log-only plant."""


class HistorianMapping(Strict):
    """Rules for reading a historian's export."""

    plant: str | None = None
    process: Process | None = None
    """Instead of `plant`: description of a log-only plant."""
    period_seconds: float = Field(gt=0)
    """The plant's control period. NeoRL resamples all tags to this period."""
    origin: datetime | None = Field(default=None, strict=False)
    """A time at which a control step began. A time without a zone is in `clock.zone`. Default: the first row of the
    first action's tag."""
    layout: Literal["long", "wide", "transposed"] = "long"
    """long: rows of (tag, timestamp, value, status). wide: one column per tag. transposed: one row per tag."""
    dialect: Dialect = Dialect()
    columns: Columns = Columns()
    clock: Clock = Clock()
    causal: bool = True
    """Whether an observation uses only values from before its time. If false, values are interpolated as in OPC UA Part
    13, so that the next sample, and with it the effect of the action, leaks into the observation."""
    skew_seconds: Seconds = 0.0
    """Tolerance for scan jitter: an observation also uses samples that are later by at most this time."""
    status_codes: Literal["opc_ua", "opc_da"] | None = None
    """Meaning of numeric statuses: OPC UA (0 is Good) or OPC DA qualities (192 is Good, 0 is Bad). Default: OPC
    UA, but the values 1 to 255, which only OPC DA uses, are rejected."""
    statuses: dict[str, Literal["good", "uncertain", "bad"]] = Field(default={})
    """Meaning of status words that the historian uses."""
    tags: dict[str, Tag] = Field(min_length=1)
    derived: dict[Name, Derived] = Field(default={})
    reward: Formula | None = None
    """Reward of a step, from signals, actions, and `next.<signal>` one period later. Default: the plant's reward."""
    ignore: Annotated[tuple[str, ...], AfterValidator(lambda given: tuple(dict.fromkeys(given)))] = Field(
        default=(), strict=False
    )
    """Tags not to read: names, or patterns with * for any text and ? for one character."""
    treat_uncertain_as_bad: bool = False
    episodes: Episodes

    @model_validator(mode="after")
    def _one_plant(self) -> HistorianMapping:
        if (self.plant is None) == (self.process is None):
            given = "both 'plant' and 'process'" if self.process is not None else "neither 'plant' nor 'process'"
            raise ValueError(f"the mapping has {given}: use 'plant' if a simulator exists, otherwise 'process'")
        if self.process is not None and self.reward is None:
            raise ValueError(f"process '{self.process.name}' has no 'reward': add a formula for the reward of a step")
        sources: dict[str, Signal] = {**self.tags, **self.derived}
        limited = [name for name, source in sources.items() if source.limits is not None]
        if self.plant is not None and limited:
            raise ValueError(
                f"'{limited[0]}' has 'limits', but a simulated plant has limits already: delete them or use 'alarms'"
            )
        extra = [tag.signal for tag in self.tags.values() if tag.role == "input"] + list(self.derived)
        names = [tag.signal for tag in self.tags.values() if tag.role in ("observation", "set_point")] + extra
        checked = extra if self.process is None else names
        if doubled := next((name for name in checked if names.count(name) > 1), None):
            raise ValueError(f"signal '{doubled}' occurs twice: keep one tag")
        if both := next((tag for tag in self.tags if tag in self.ignore), None):
            raise ValueError(f"tag '{both}' is under 'tags' and under 'ignore': delete one of the two")
        return self

    @model_validator(mode="after")
    def _one_layout(self) -> HistorianMapping:
        if self.layout == "long" and self.clock.start is not None:
            raise ValueError(
                f"clock.start is {self.clock.start}, but layout is long: delete clock.start, or change the layout"
            )
        if self.layout != "wide" and (self.columns.status_suffix is not None or self.episode is not None):
            raise ValueError(
                f"a status suffix or a tag of role episode needs layout wide, got {self.layout}: use role mode"
            )
        episodes = [name for name, tag in self.tags.items() if tag.role == "episode"]
        if len(episodes) > 1:
            raise ValueError(f"{', '.join(episodes)} all have role episode, at most one is allowed: ignore the others")
        return self

    @property
    def subject(self) -> str:
        """Name of the plant."""
        return self.process.name if self.process is not None else str(self.plant)

    @property
    def end_at_trip(self) -> bool:
        """Whether the violation of a limit terminates the episode."""
        given = self.episodes.end_at_trip
        return self.process is None if given is None else given

    def conversions(self, spec: PlantSpec) -> dict[str, tuple[float, float]]:
        """Return the conversion of each tag's values into the plant's units.

        Args:
            spec: the plant. Each signal needs exactly one tag or derived quantity.

        Returns:
            (a, b) by tag: plant value = a * archived value + b; a mode keeps its value.

        Raises:
            ValueError: if a signal is unknown, a signal does not have exactly one source, or a unit does not fit.
        """
        found: dict[str, tuple[float, float]] = {}
        for space, roles in ((spec.observation, ("observation", "set_point")), (spec.action, ("action",))):
            tags = self.by_signal(space, roles)
            for signal, unit in zip(space.names, space.units, strict=True):
                tag = tags[signal]
                if tag in self.tags:
                    found[tag] = self._conversion(tag, unit)
        for name, own in self.tags.items():
            if own.role == "input":
                found[name] = self._conversion(name, own.to_unit or str(own.unit))
        return found | dict.fromkeys((*self.modes, *([self.episode] if self.episode else [])), (1.0, 0.0))

    def _conversion(self, tag: str, unit: str) -> tuple[float, float]:
        try:
            return conversion(str(self.tags[tag].unit), unit)
        except ValueError as error:
            raise ValueError(f"tag {tag}: {error}") from error

    def alarms(self, spec: PlantSpec) -> dict[str, tuple[float, float]]:
        """Return the key `alarms`, (low, high), by signal, in the plant's units."""
        conversions = self.conversions(spec)
        units = dict(zip(spec.observation.names, spec.observation.units, strict=True))
        sources: list[tuple[str, Signal, tuple[float, float]]] = [
            (str(tag.signal), tag, conversions[name]) for name, tag in self.tags.items() if tag.alarms is not None
        ]
        sources += [
            (name, formula, conversion(formula.unit, units.get(name, formula.unit)))
            for name, formula in self.derived.items()
            if formula.alarms is not None
        ]
        return {signal: converted(source.alarms, *scale) for signal, source, scale in sources}

    def by_signal(self, space: Space, roles: tuple[str, ...]) -> dict[str, str]:
        """Return the name of the tag or derived quantity for each signal of `space`."""
        given = [(tag.signal, name) for name, tag in self.tags.items() if tag.role in roles]
        given += [(name, name) for name, derived in self.derived.items() if derived.role in roles]
        for signal, name in given:
            if signal not in space.names:
                raise ValueError(f"tag {name} has the unknown signal '{signal}': choose from {', '.join(space.names)}")
        for signal in space.names:
            sources = [name for other, name in given if other == signal]
            if len(sources) != 1:
                count = f"{len(sources)} ({', '.join(sources)})" if sources else "0"
                raise ValueError(f"signal '{signal}' has {count} tags of role {' or '.join(roles)}: give exactly one")
        return {signal: next(name for other, name in given if other == signal) for signal in space.names}

    def ignores(self, tag: str) -> bool:
        """Whether a tag matches the key `ignore`."""
        return tag in self.ignore or any(_pattern(given).fullmatch(tag) for given in self.ignore)

    @property
    def modes(self) -> tuple[str, ...]:
        """Tags with role mode."""
        return tuple(name for name, tag in self.tags.items() if tag.role == "mode")

    @property
    def episode(self) -> str | None:
        """Name of the tag with role episode. Its value changes when a new episode starts."""
        return next((name for name, tag in self.tags.items() if tag.role == "episode"), None)

    def formulas(self, spec: PlantSpec) -> tuple[dict[str, Expression], Expression | None]:
        """Compile the formulas of derived quantities and reward, and check their units.

        Args:
            spec: the plant. Formulas compute with values in the plant's units.

        Raises:
            ValueError: if a formula is wrong; the message names the formula.
        """
        units = {str(tag.signal): tag.to_unit or str(tag.unit) for tag in self.tags.values() if tag.role == "input"}
        units |= dict(zip(spec.observation.names, spec.observation.units, strict=True))
        tagged = {str(tag.signal) for tag in self.tags.values() if tag.role in ("observation", "set_point", "input")}
        known = {name: unit for name, unit in units.items() if name in tagged}
        derived: dict[str, Expression] = {}
        for name, formula in self.derived.items():
            unit = units.get(name, formula.unit)
            try:
                conversion(formula.unit, unit)
                derived[name] = compile_expression(formula.expression, known, unit)
            except ValueError as error:
                raise ValueError(f"derived {name}: {error}") from error
            known[name] = unit
        if self.reward is None:
            return derived, None
        now = dict(known)
        later = {f"next.{name}": unit for name, unit in known.items()}
        actions = dict(zip(spec.action.names, spec.action.units, strict=True))
        if both := sorted(set(known) & set(actions)):
            # A name of an observation and an action means the action, because the observed command is older.
            now = {name: unit for name, unit in now.items() if name not in both}
        try:
            return derived, compile_expression(self.reward.expression, now | later | actions, self.reward.unit)
        except ValueError as error:
            raise ValueError(f"reward: {error}") from error


@cache
def _pattern(given: str) -> re.Pattern[str]:
    """Compile a pattern in which only * and ? are special, because tag names may contain brackets."""
    return re.compile(re.escape(given).replace(r"\*", ".*").replace(r"\?", "."), re.DOTALL)
