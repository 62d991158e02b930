"""The mapping file: how a plant's historian names, measures and archives what the plant's model calls otherwise."""

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
        raise ValueError(f"expected a low bound below the high one, got {low:g} and {high:g}: correct them")
    return given


Bounds = Annotated[tuple[float | None, float | None], Field(strict=False), AfterValidator(_in_order)]
"""[low, high], where null leaves a side open."""
Ends = Annotated[dict[str, Annotated[float, Field(allow_inf_nan=False)]], Field(min_length=1, max_length=1)]
"""An observation that tells when an episode is over, and what it reads then and only then."""
Role = Literal["observation", "set_point", "action", "mode", "input", "episode"]


def converted(given: Bounds | None, scale: float, offset: float) -> tuple[float, float]:
    """Bounds in another unit, where a value v becomes `scale * v + offset`; an open side is infinite.

    A negative scale turns the sides round: what was below the low bound is above the high one then.
    """
    low, high = (None, None) if given is None else given
    edges = (
        scale * (-math.inf if low is None else low) + offset,
        scale * (math.inf if high is None else high) + offset,
    )
    return min(edges), max(edges)


class Columns(Strict):
    """The names of the table's columns; a wide table has one column per tag besides its timestamps."""

    tag: str = "tag"
    timestamp: str = "timestamp"
    value: str = "value"
    status: str | None = "status"
    """Null where the export has no statuses: then every value counts as Good."""
    status_suffix: str | None = None
    """What a column's name ends in, in a wide table, where it holds the status of a tag."""


class Clock(Strict):
    """What the timestamps mean."""

    zone: str = "UTC"
    """IANA zone of timestamps that name none, such as Europe/Berlin."""
    ambiguous: Literal["quarantine", "earlier", "later", "order"] = "quarantine"
    """What becomes of the hour that comes twice when summer ends: refuse it, take either, or tell by the rows' order,
    which must be that of time. A time that a zone skips is always refused."""
    epoch: Literal["s", "ms", "us", "ns"] | None = None
    """Unit of timestamps that are numbers since 1970."""
    format: str | None = None
    """How timestamps are written, by the directives of strptime such as %d.%m.%Y %H:%M; ISO 8601 needs none."""
    start: datetime | None = Field(default=None, strict=False)
    """The time of the first row, of a table that has no timestamps; in `zone` where it names none."""
    period_seconds: Annotated[float, Field(gt=0.0)] | None = None
    """Time between the rows of such a table; the mapping's period when not given."""
    late_seconds: Seconds = 300.0
    """How far a row may come after younger ones and still be put in its place; later ones go to the quarantine."""
    same_time: Literal["reject", "first", "last"] = "reject"
    """Which of several rows of a tag with one timestamp and different values counts."""

    def moment(self, time: datetime) -> int:
        """A time of the mapping as ns since 1970, UTC; one that names no zone is in the clock's, not the machine's."""
        zoned = time if time.tzinfo is not None else time.replace(tzinfo=ZoneInfo(self.zone))
        return (zoned - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1) * 1000

    @model_validator(mode="after")
    def _known(self) -> Clock:
        try:
            ZoneInfo(self.zone)
        except Exception as error:  # zoneinfo raises OSError, ValueError and its own, by how a name is wrong
            raise ValueError(f"expected an IANA zone such as Europe/Berlin, got '{self.zone}'") from error
        given = [name for name in ("epoch", "format", "start") if getattr(self, name) is not None]
        if len(given) > 1:
            raise ValueError(f"expected one of epoch, format and start, got {' and '.join(given)}: keep what is true")
        if self.period_seconds is not None and self.start is None:
            raise ValueError("expected 'period_seconds' of a clock beside its 'start', got it alone: add the start")
        if self.format is not None:
            chrono_format(self.format)
        return self


class Bounded(Strict):
    """The bounds of a measured quantity, in the unit in which the log has it."""

    range: Bounds | None = None
    """[low, high] of the instrument: a value beyond is rejected. null leaves a side open."""
    limits: Bounds | None = None
    """[low, high] within which the process must stay: a constraint of a plant that no simulator describes. Steps beyond
    it are kept, and cost."""


class Signal(Bounded):
    """What tags and derived quantities have in common."""

    alarms: Bounds | None = None
    """[low, high] within which the process should stay: soft limits, whose crossings are counted
    and cost nothing."""


class Tag(Signal):
    """One tag of the historian."""

    role: Role
    signal: str | None = None
    """The component of the plant's observation (set points are among them) or action; a mode or an episode has none.
    An input is known by it in formulas only."""
    unit: str | None = None
    """The unit in which the historian archives the tag."""
    to_unit: str | None = None
    """The unit in which a plant that the mapping describes has the signal; the archive's when not given."""
    interpolation: Literal["sloped", "stepped"]
    stale_seconds: Annotated[float, Field(gt=0.0)] | None = None
    """How long a value may hold or be sloped over. When not given: of a sloped tag `episodes.max_gap_seconds`; a
    stepped one holds until the next."""
    states: dict[str, float] = Field(default={}, strict=False)
    """Numbers for texts that the tag archives, such as {Open: 1, Closed: 0}; other texts go to the quarantine."""
    running: tuple[float, ...] = Field(default=(), strict=False)
    """Values of a mode while the plant runs as it should."""

    @model_validator(mode="after")
    def _complete(self) -> Tag:
        for what in ("alarms", "limits"):
            if getattr(self, what) is not None and self.role in ("action", "mode", "episode"):
                cure = "delete them" if self.role != "action" else "delete them, for its 'range' bounds it"
                raise ValueError(f"expected '{what}' of a measured signal, got them on role {self.role}: {cure}")
        if self.role == "mode":
            if not self.running or self.signal is not None:
                raise ValueError("expected a mode to have 'running', its values while the plant runs, and no 'signal'")
            if self.interpolation != "stepped":
                raise ValueError("expected a mode to be stepped, got sloped: there is nothing between two modes")
        elif self.role == "episode":
            if self.signal is not None or self.unit is not None or self.running or self.interpolation != "stepped":
                raise ValueError("expected an episode to be stepped, without 'signal', 'unit' and 'running'")
        else:
            if self.signal is None:
                raise ValueError(f"expected 'signal', the plant's name for this {self.role}, got none: add it")
            if self.unit is None:
                raise ValueError("expected a unit, got none: add 'unit', as the historian archives it")
            if self.running:
                raise ValueError(f"expected 'running' only where the role is mode, got it on a {self.role}")
        return self


class Formula(Strict):
    """A formula over signals, and the unit of what it gives."""

    expression: str
    unit: str


class Derived(Signal, Formula):
    """A quantity computed from tags at the same moment; it stands for a tag whose signal is its name."""

    role: Literal["observation", "input"] = "observation"


class Process(Strict):
    """A plant that has no simulator here: its signals, bounds and limits are those of the tags."""

    name: Name
    horizon: Count
    """Longest episode, in control periods."""
    ends: Ends | None = None
    """Of a batch: the observation that tells when it is over, and what it reads then."""


class Episodes(Strict):
    """How a continuous record is cut into episodes; each cut is a timeout, and only a trip may be a termination."""

    max_gap_seconds: float = Field(gt=0)
    """A signal that was not seen for longer is unknown, and the episode ends before."""
    max_steps: int | None = Field(default=None, gt=0)
    """Longest episode; the plant's horizon when not given."""
    end_at_trip: bool | None = None
    """Whether a crossed limit terminates the episode, as where it trips the plant, and what begins beyond it is left
    out until the plant is back. When not given: yes of a simulated plant, whose episodes end so, no of a process."""


class HistorianMapping(Strict):
    """A historian export's meaning."""

    plant: str | None = None
    process: Process | None = None
    """Instead of `plant`: describes one that has no simulator here."""
    period_seconds: float = Field(gt=0)
    """The period to which all tags are resampled: the plant's control period."""
    origin: datetime | None = Field(default=None, strict=False)
    """A moment at which a control step began, in the clock's zone where it names none; when not given, the first row of
    the first action's tag."""
    layout: Literal["long", "wide", "transposed"] = "long"
    """Rows of (tag, timestamp, value, status), one column per tag, or one row per tag."""
    dialect: Dialect = Dialect()
    columns: Columns = Columns()
    clock: Clock = Clock()
    causal: bool = True
    """Whether an observation is what had been archived at its moment. Otherwise Part 13's interpolation, whose values
    between two samples know the later one, which the action may have caused."""
    skew_seconds: Seconds = 0.0
    """How much later than its moment a sample may be stamped and still count as seen then: scans have jitter."""
    status_codes: Literal["opc_ua", "opc_da"] | None = None
    """What statuses that are numbers mean: OPC UA's (0 is Good), or the qualities of OPC DA (192 is Good, 0 is Bad).
    When not given they are OPC UA's, and those that only OPC DA has (1 to 255) are refused."""
    statuses: dict[str, Literal["good", "uncertain", "bad"]] = Field(default={})
    """What the historian's own words for a status mean."""
    tags: dict[str, Tag] = Field(min_length=1)
    derived: dict[Name, Derived] = Field(default={})
    reward: Formula | None = None
    """Reward of a step: over signals, `next.<signal>` a period later, and actions; the plant's own when not given."""
    ignore: Annotated[tuple[str, ...], AfterValidator(lambda given: tuple(dict.fromkeys(given)))] = Field(
        default=(), strict=False
    )
    """Tags of the export that are left out on purpose: names, or patterns in which * stands for any text and ? for any
    sign."""
    treat_uncertain_as_bad: bool = False
    episodes: Episodes

    @model_validator(mode="after")
    def _one_plant(self) -> HistorianMapping:
        if (self.plant is None) == (self.process is None):
            raise ValueError("expected 'plant', a simulated one, or 'process', which describes one, got both or none")
        if self.process is not None and self.reward is None:
            raise ValueError("expected a 'reward' beside 'process', got none: nobody else knows what is wanted")
        sources: dict[str, Signal] = {**self.tags, **self.derived}
        limited = [name for name, source in sources.items() if source.limits is not None]
        if self.plant is not None and limited:
            raise ValueError(
                f"expected no 'limits' beside 'plant', whose own hold, got them on '{limited[0]}': delete them, or "
                "give 'alarms', whose crossings are counted"
            )
        extra = [tag.signal for tag in self.tags.values() if tag.role == "input"] + list(self.derived)
        names = [tag.signal for tag in self.tags.values() if tag.role in ("observation", "set_point")] + extra
        checked = extra if self.process is None else names
        if doubled := next((name for name in checked if names.count(name) > 1), None):
            raise ValueError(f"expected every signal once, got '{doubled}' twice: keep one tag of it")
        if both := next((tag for tag in self.tags if tag in self.ignore), None):
            raise ValueError(f"expected every tag once, got '{both}' under 'tags' and 'ignore': keep one")
        return self

    @model_validator(mode="after")
    def _one_layout(self) -> HistorianMapping:
        if self.layout == "long" and self.clock.start is not None:
            raise ValueError("expected 'clock.start' only where a row has all tags, got it beside layout long")
        if self.layout != "wide" and (self.columns.status_suffix is not None or self.episode is not None):
            raise ValueError(
                f"expected a status suffix or a tag of role episode only beside layout wide, got {self.layout}: "
                "there a mode tells where the plant runs"
            )
        if sum(tag.role == "episode" for tag in self.tags.values()) > 1:
            raise ValueError("expected at most one tag of role episode, got more: ignore the others")
        return self

    @property
    def subject(self) -> str:
        """The name of the plant."""
        return self.process.name if self.process is not None else str(self.plant)

    @property
    def end_at_trip(self) -> bool:
        """Whether a crossed limit terminates the episode."""
        given = self.episodes.end_at_trip
        return self.process is None if given is None else given

    def conversions(self, spec: PlantSpec) -> dict[str, tuple[float, float]]:
        """How each tag's values become the plant's units.

        Args:
            spec: the plant; each of its signals must come from exactly one tag or derived quantity.

        Returns:
            tag -> (a, b) of plant value = a archived value + b; a mode is left as it is.

        Raises:
            ValueError: when a signal is unknown, missing or given twice, or a unit does not fit.
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
        """signal -> [low, high] of its soft limits, in the plant's units."""
        conversions, units = (
            self.conversions(spec),
            dict(zip(spec.observation.names, spec.observation.units, strict=True)),
        )
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
        """signal -> tag or name of a derived quantity, in the order of the plant's signals."""
        given = [(tag.signal, name) for name, tag in self.tags.items() if tag.role in roles]
        given += [(name, name) for name, derived in self.derived.items() if derived.role in roles]
        for signal, name in given:
            if signal not in space.names:
                raise ValueError(f"tag {name}: expected a signal among {', '.join(space.names)}, got '{signal}'")
        for signal in space.names:
            sources = [name for other, name in given if other == signal]
            if len(sources) != 1:
                got = ", ".join(sources) or "none"
                raise ValueError(f"expected one tag of role {' or '.join(roles)} for signal '{signal}', got {got}")
        return {signal: next(name for other, name in given if other == signal) for signal in space.names}

    def ignores(self, tag: str) -> bool:
        """Whether a tag is left out on purpose."""
        return tag in self.ignore or any(_pattern(given).fullmatch(tag) for given in self.ignore)

    @property
    def modes(self) -> tuple[str, ...]:
        """The tags that tell the plant's mode."""
        return tuple(name for name, tag in self.tags.items() if tag.role == "mode")

    @property
    def episode(self) -> str | None:
        """The column whose value changes where an episode begins."""
        return next((name for name, tag in self.tags.items() if tag.role == "episode"), None)

    def formulas(self, spec: PlantSpec) -> tuple[dict[str, Expression], Expression | None]:
        """The derived quantities and the reward, checked against the units of what they read.

        Args:
            spec: the plant, in whose units tags are when formulas read them.

        Raises:
            ValueError: naming the formula.
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
            # A name that is both means the action, as the observation of a command is the older one.
            now = {name: unit for name, unit in now.items() if name not in both}
        try:
            return derived, compile_expression(self.reward.expression, now | later | actions, self.reward.unit)
        except ValueError as error:
            raise ValueError(f"reward: {error}") from error


@cache
def _pattern(given: str) -> re.Pattern[str]:
    """Of these alone the signs * and ? mean something: names of tags are full of brackets."""
    return re.compile(re.escape(given).replace(r"\*", ".*").replace(r"\?", "."), re.DOTALL)
