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
        raise ValueError(f"the low bound must be below the high bound, got {low:g} and {high:g}: correct them")
    return given


Bounds = Annotated[tuple[float | None, float | None], Field(strict=False), AfterValidator(_in_order)]
"""[low, high]; null leaves a side open."""
Ends = Annotated[dict[str, Annotated[float, Field(allow_inf_nan=False)]], Field(min_length=1, max_length=1)]
"""An observation that marks the end of an episode, and the value that occurs only there."""
Role = Literal["observation", "set_point", "action", "mode", "input", "episode"]


def converted(given: Bounds | None, scale: float, offset: float) -> tuple[float, float]:
    """Return bounds in another unit, in which v is `scale * v + offset`; an open side is infinite.

    A negative scale exchanges the sides.
    """
    low, high = (None, None) if given is None else given
    edges = (
        scale * (-math.inf if low is None else low) + offset,
        scale * (math.inf if high is None else high) + offset,
    )
    return min(edges), max(edges)


class Columns(Strict):
    """Names of a table's columns; a wide table has a timestamp column and one column per tag."""

    tag: str = "tag"
    timestamp: str = "timestamp"
    value: str = "value"
    status: str | None = "status"
    """Null if the export has no statuses; every value then counts as Good."""
    status_suffix: str | None = None
    """Suffix of the columns of a wide table that hold the status of a tag."""


class Clock(Strict):
    """Meaning of the timestamps."""

    zone: str = "UTC"
    """IANA zone of timestamps without a zone, such as Europe/Berlin."""
    ambiguous: Literal["quarantine", "earlier", "later", "order"] = "quarantine"
    """Treatment of the hour that occurs twice when summer time ends: quarantine it, take the earlier or the later hour,
    or decide by the rows' order, which must then be chronological. A time that the zone skips is always rejected."""
    epoch: Literal["s", "ms", "us", "ns"] | None = None
    """Unit of numeric timestamps since 1970."""
    format: str | None = None
    """Format of the timestamps in strptime's directives, such as %d.%m.%Y %H:%M; ISO 8601 needs no format."""
    start: datetime | None = Field(default=None, strict=False)
    """Time of the first row of a table without timestamps; in `zone` if it names no zone."""
    period_seconds: Annotated[float, Field(gt=0.0)] | None = None
    """Time between the rows of a table without timestamps. Default: the mapping's period."""
    late_seconds: Seconds = 300.0
    """Rows that arrive out of order by at most this time are sorted; later rows are quarantined."""
    same_time: Literal["reject", "first", "last"] = "reject"
    """Which of several different values of a tag with the same timestamp to use."""

    def moment(self, time: datetime) -> int:
        """Return a time as ns since 1970 UTC; a time without a zone is in the clock's zone, not the machine's."""
        zoned = time if time.tzinfo is not None else time.replace(tzinfo=ZoneInfo(self.zone))
        return (zoned - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1) * 1000

    @model_validator(mode="after")
    def _known(self) -> Clock:
        try:
            ZoneInfo(self.zone)
        except Exception as error:  # zoneinfo raises OSError, ValueError and errors of its own
            raise ValueError(f"zone must be an IANA zone such as Europe/Berlin, got '{self.zone}'") from error
        given = [name for name in ("epoch", "format", "start") if getattr(self, name) is not None]
        if len(given) > 1:
            raise ValueError(f"{' and '.join(given)} exclude each other: keep one of epoch, format and start")
        if self.period_seconds is not None and self.start is None:
            raise ValueError(f"clock has period_seconds {self.period_seconds:g} without 'start': add the start")
        if self.format is not None:
            chrono_format(self.format)
        return self


class Bounded(Strict):
    """Bounds of a measured quantity, in the unit of the log."""

    range: Bounds | None = None
    """[low, high] of the instrument; values outside are rejected."""
    limits: Bounds | None = None
    """[low, high] within which the plant must stay: a constraint of a log-only plant. Steps outside are kept and have a
    cost."""


class Signal(Bounded):
    """Keys that tags and derived quantities share."""

    alarms: Bounds | None = None
    """[low, high] within which the plant should stay: soft limits. Crossings are counted and have no cost."""


class Tag(Signal):
    """One tag of the historian."""

    role: Role
    signal: str | None = None
    """Component of the plant's observation (which includes set points) or action; the name of an input in formulas. A
    mode or an episode has no signal."""
    unit: str | None = None
    """Unit of the archived values."""
    to_unit: str | None = None
    """Unit of the signal of a log-only plant. Default: the archive's unit."""
    interpolation: Literal["sloped", "stepped"]
    stale_seconds: Annotated[float, Field(gt=0.0)] | None = None
    """Longest time over which a value is held or interpolated. Default: `episodes.max_gap_seconds` for a sloped tag, no
    limit for a stepped tag."""
    states: dict[str, float] = Field(default={}, strict=False)
    """Numbers for archived texts, such as {Open: 1, Closed: 0}; other texts are quarantined."""
    running: tuple[float, ...] = Field(default=(), strict=False)
    """Values of a mode in normal operation."""

    @model_validator(mode="after")
    def _complete(self) -> Tag:
        for key in ("alarms", "limits"):
            if getattr(self, key) is not None and self.role in ("action", "mode", "episode"):
                cure = "delete them" if self.role != "action" else "delete them, 'range' bounds an action"
                raise ValueError(f"'{key}' is for measured signals, got it on role {self.role}: {cure}")
        if self.role == "mode":
            if not self.running or self.signal is not None:
                raise ValueError(
                    f"a mode needs 'running' and no 'signal', got running {list(self.running)} and signal {self.signal}"
                )
            if self.interpolation != "stepped":
                raise ValueError(f"a mode must be stepped, got {self.interpolation}: set interpolation to stepped")
        elif self.role == "episode":
            if self.signal is not None or self.unit is not None or self.running or self.interpolation != "stepped":
                raise ValueError(
                    f"an episode must be stepped without 'signal', 'unit' and 'running', got {self.interpolation}, "
                    f"{self.signal}, {self.unit}, {list(self.running)}: delete the others"
                )
        else:
            if self.signal is None:
                raise ValueError(f"an {self.role} needs 'signal', the plant's name for it: add it")
            if self.unit is None:
                raise ValueError(f"{self.signal} needs 'unit', the unit of the archived values: add it")
            if self.running:
                raise ValueError(f"'running' is for role mode, got it on role {self.role}: delete it")
        return self


class Formula(Strict):
    """A formula over signals, and the unit of the result."""

    expression: str
    unit: str


class Derived(Signal, Formula):
    """A quantity computed from tags at the same time; its name is its signal."""

    role: Literal["observation", "input"] = "observation"


class Process(Strict):
    """A log-only plant: the tags give signals, bounds and limits."""

    name: Name
    horizon: Count
    """Longest episode, in control periods."""
    ends: Ends | None = None
    """For batches: the observation that marks the end of a batch, and its value there."""


class Episodes(Strict):
    """How a continuous record is cut into episodes. A cut is a truncation; only a trip may be a termination."""

    max_gap_seconds: float = Field(gt=0)
    """If a signal has no value for longer than this time, the episode ends before the gap."""
    max_steps: int | None = Field(default=None, gt=0)
    """Longest episode. Default: the plant's horizon."""
    end_at_trip: bool | None = None
    """Whether crossing a limit terminates the episode, as a trip does; rows until the plant is back inside are left
    out. Default: yes for a simulated plant, no for a log-only plant."""


class HistorianMapping(Strict):
    """How to read a historian export."""

    plant: str | None = None
    process: Process | None = None
    """Instead of `plant`: description of a log-only plant."""
    period_seconds: float = Field(gt=0)
    """Period to which all tags are resampled: the plant's control period."""
    origin: datetime | None = Field(default=None, strict=False)
    """A time at which a control step began, in the clock's zone if it names no zone. Default: the first row of the
    first action's tag."""
    layout: Literal["long", "wide", "transposed"] = "long"
    """Rows of (tag, timestamp, value, status), one column per tag, or one row per tag."""
    dialect: Dialect = Dialect()
    columns: Columns = Columns()
    clock: Clock = Clock()
    causal: bool = True
    """Whether observations use only values archived before their time. Otherwise OPC UA Part 13 interpolates towards
    the next sample, which the action may already have caused."""
    skew_seconds: Seconds = 0.0
    """A sample up to this long after an observation's time still counts for it: tolerance for scan jitter."""
    status_codes: Literal["opc_ua", "opc_da"] | None = None
    """Meaning of numeric statuses: OPC UA (0 is Good) or OPC DA qualities (192 is Good, 0 is Bad). By default they are
    OPC UA statuses, and values that only OPC DA uses (1 to 255) are rejected."""
    statuses: dict[str, Literal["good", "uncertain", "bad"]] = Field(default={})
    """Meaning of the historian's own status words."""
    tags: dict[str, Tag] = Field(min_length=1)
    derived: dict[Name, Derived] = Field(default={})
    reward: Formula | None = None
    """Reward of a step, over signals, `next.<signal>` one period later, and actions. Default: the plant's reward."""
    ignore: Annotated[tuple[str, ...], AfterValidator(lambda given: tuple(dict.fromkeys(given)))] = Field(
        default=(), strict=False
    )
    """Tags to leave out: names, or patterns with * for any text and ? for any character."""
    treat_uncertain_as_bad: bool = False
    episodes: Episodes

    @model_validator(mode="after")
    def _one_plant(self) -> HistorianMapping:
        if (self.plant is None) == (self.process is None):
            given = "both" if self.process is not None else "neither"
            raise ValueError(f"a mapping has either 'plant' (simulated) or 'process' (log-only), got {given}")
        if self.process is not None and self.reward is None:
            raise ValueError(f"process '{self.process.name}' needs 'reward', the objective of control: add a formula")
        sources: dict[str, Signal] = {**self.tags, **self.derived}
        limited = [name for name, source in sources.items() if source.limits is not None]
        if self.plant is not None and limited:
            raise ValueError(
                f"'limits' on '{limited[0]}': a simulated plant has its own limits, delete them or use 'alarms'"
            )
        extra = [tag.signal for tag in self.tags.values() if tag.role == "input"] + list(self.derived)
        names = [tag.signal for tag in self.tags.values() if tag.role in ("observation", "set_point")] + extra
        checked = extra if self.process is None else names
        if doubled := next((name for name in checked if names.count(name) > 1), None):
            raise ValueError(f"signal '{doubled}' occurs twice: keep one tag")
        if both := next((tag for tag in self.tags if tag in self.ignore), None):
            raise ValueError(f"tag '{both}' is under 'tags' and under 'ignore': keep one")
        return self

    @model_validator(mode="after")
    def _one_layout(self) -> HistorianMapping:
        if self.layout == "long" and self.clock.start is not None:
            raise ValueError(
                f"clock.start {self.clock.start} needs layout wide or transposed, got long: delete the start"
            )
        if self.layout != "wide" and (self.columns.status_suffix is not None or self.episode is not None):
            raise ValueError(
                f"a status suffix or a tag of role episode needs layout wide, got {self.layout}: use a mode instead"
            )
        episodes = [name for name, tag in self.tags.items() if tag.role == "episode"]
        if len(episodes) > 1:
            raise ValueError(f"{', '.join(episodes)} all have role episode, at most one may: ignore the others")
        return self

    @property
    def subject(self) -> str:
        """Name of the plant."""
        return self.process.name if self.process is not None else str(self.plant)

    @property
    def end_at_trip(self) -> bool:
        """Whether crossing a limit terminates the episode."""
        given = self.episodes.end_at_trip
        return self.process is None if given is None else given

    def conversions(self, spec: PlantSpec) -> dict[str, tuple[float, float]]:
        """Return the conversion of each tag's values into the plant's units.

        Args:
            spec: the plant; exactly one tag or derived quantity must give each signal.

        Returns:
            (a, b) by tag: plant value = a * archived value + b; a mode keeps its value.

        Raises:
            ValueError: if a signal is unknown, missing or duplicate, or a unit does not fit.
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
        """Return the soft limits [low, high] by signal, in the plant's units."""
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
        """Return the tag or derived quantity of each signal, in the plant's order."""
        given = [(tag.signal, name) for name, tag in self.tags.items() if tag.role in roles]
        given += [(name, name) for name, derived in self.derived.items() if derived.role in roles]
        for signal, name in given:
            if signal not in space.names:
                raise ValueError(f"tag {name}: unknown signal '{signal}', choose from {', '.join(space.names)}")
        for signal in space.names:
            sources = [name for other, name in given if other == signal]
            if len(sources) != 1:
                count = f"{len(sources)} ({', '.join(sources)})" if sources else "0"
                raise ValueError(f"signal '{signal}' needs one tag of role {' or '.join(roles)}, got {count}")
        return {signal: next(name for other, name in given if other == signal) for signal in space.names}

    def ignores(self, tag: str) -> bool:
        """Whether the mapping leaves a tag out."""
        return tag in self.ignore or any(_pattern(given).fullmatch(tag) for given in self.ignore)

    @property
    def modes(self) -> tuple[str, ...]:
        """Tags with role mode."""
        return tuple(name for name, tag in self.tags.items() if tag.role == "mode")

    @property
    def episode(self) -> str | None:
        """Column whose value changes at the start of an episode."""
        return next((name for name, tag in self.tags.items() if tag.role == "episode"), None)

    def formulas(self, spec: PlantSpec) -> tuple[dict[str, Expression], Expression | None]:
        """Return the derived quantities and the reward, with units checked.

        Args:
            spec: the plant; formulas read tags in its units.

        Raises:
            ValueError: names the formula.
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
            # A name of both means the action: the observation of a command is older.
            now = {name: unit for name, unit in now.items() if name not in both}
        try:
            return derived, compile_expression(self.reward.expression, now | later | actions, self.reward.unit)
        except ValueError as error:
            raise ValueError(f"reward: {error}") from error


@cache
def _pattern(given: str) -> re.Pattern[str]:
    """Compile a pattern in which only * and ? are special: tag names contain brackets."""
    return re.compile(re.escape(given).replace(r"\*", ".*").replace(r"\?", "."), re.DOTALL)
