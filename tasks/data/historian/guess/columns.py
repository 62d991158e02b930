"""From columns of values to tags: roles, units, what is stepped or constant, each with its reason."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import NamedTuple

import polars as pl

from configs.units import parse
from tasks.data.historian.plain_tables import with_points

MOST_STATES = 12
"""Different texts of a column up to which each may stand for a number."""
FEW_LEVELS = 10
HELD = 0.2
"""Share of rows in which a stepped signal changes at most."""
ALIKE = 0.005
"""Difference of such shares within which signals change as often as each other."""
LABEL = re.compile(
    r"(anomal|change_?point|att_?flag|^attack|^label|^fault|^class$|^target$|normal/attack)", re.IGNORECASE
)
EPISODE = re.compile(
    r"^(batch|episode|run|simulation_?run|trial|campaign|experiment)(_?(id|no|nr|number|index))?$", re.IGNORECASE
)
SET_POINT = re.compile(r"(^|[^a-z])(sp|set_?point|setpt|sollwert)([^a-z]|$)", re.IGNORECASE)
DEVIATION = re.compile(r"(diff|error|deviation|delta)", re.IGNORECASE)
ACTION = re.compile(
    r"(^|[^a-z])(op|mv|xmv|cmd|command|co|controller_?output|manipulated|actuator|control|input|action|u)([^a-z]|$)",
    re.IGNORECASE,
)
DEVICE = re.compile(
    r"(^|[^a-z])(pu|pump|valve|heater|fan|damper|status|switch|s|v|mode|speed|lights?)([^a-z]|$)", re.IGNORECASE
)
MOVED = re.compile(r"(pitch|torque|opening|position|valve|pump|heat|cool|fan|damper|voltage|lights?|feed|steam)")
BRACKETS = re.compile(r"\s*[\[(]\s*([^\])]{1,20}?)\s*[\])]\s*$")
SPELLINGS = {
    **{"c": "degC", "deg c": "degC", "deg. c": "degC", "celsius": "degC", "f": "degF", "℃": "degC", "°f": "degF"},
    **{
        "deg": "degree",
        "°": "degree",
        "volt": "V",
        "amp": "A",
        "ampere": "A",
        "-": "1",
        "–": "1",
        "%rh": "%",
        "kw": "kW",
    },
}
"""Units as headers write them, where pint takes them for others or does not know them."""


class Column(NamedTuple):
    """What is known of a column."""

    name: str
    filled: int
    """Cells with something in them."""
    numbers: int
    levels: int
    """Different values."""
    changes: float
    """Share of filled cells that differ from the one before."""
    once: bool
    """Whether a value that was left does not come again."""
    texts: tuple[str, ...]
    """Different texts that are no numbers, in the order of the alphabet; at most one more than may be states."""
    one: str
    """A value."""
    span: tuple[float, float] | None = None
    """The least and the greatest number."""


class TagGuess(NamedTuple):
    """What a column seems to be."""

    name: str
    role: str
    """A tag's role, or 'ignore'."""
    reason: str
    signal: str = ""
    unit: str = "1"
    stepped: bool = False
    states: tuple[str, ...] = ()
    span: tuple[float, float] | None = None
    """Of an action: the range in which it was logged, rounded outwards."""
    stale: float | None = None
    """Seconds that a value of a sloped tag may be sloped over, where it comes more seldom than every period."""


def look_at(name: str, values: pl.Series, decimal: str = ".") -> Column:
    """What is known of a column.

    Args:
        name: its name.
        values: its cells, texts or numbers.
        decimal: the sign in texts that are numbers.
    """
    texts = values.cast(pl.String).str.strip_chars()
    texts = texts.filter((texts != "").fill_null(False))
    plain = texts.to_frame("x").select(with_points("x"))["x"] if decimal == "," else texts
    numbers = plain.cast(pl.Float64, strict=False)
    odd = texts.filter(numbers.is_null()).unique().sort().head(MOST_STATES + 1)
    known = numbers.filter(numbers.is_finite()).to_numpy()
    runs = texts.rle().struct.field("value") if len(texts) else texts
    return Column(
        name,
        filled=len(texts),
        numbers=len(texts) - numbers.null_count(),
        levels=texts.n_unique(),
        changes=(len(runs) - 1) / max(len(texts) - 1, 1),
        once=runs.n_unique() == len(runs),
        texts=tuple(odd),
        one=str(texts[0]) if len(texts) else "",
        span=(float(known.min()), float(known.max())) if len(known) else None,
    )


def guess_tags(columns: Sequence[Column], wide: bool, whole: bool = True) -> list[TagGuess]:
    """What columns seem to be, in their order; at least one is an action where two can be used.

    Args:
        columns: all but the one of times.
        wide: whether a row is a moment, so that a column may tell the episode.
        whole: whether all rows were looked at, so that actions are known to have kept their range.
    """
    varying = sum(_usable(column) and column.levels > 1 for column in columns)
    taken: set[str] = set()
    found = [_guess(column, taken, wide, varying >= 2) for column in columns]
    followed = {stem(tag.signal) for tag in found if tag.role == "set_point"}
    usable = [i for i, tag in enumerate(found) if tag.role == "observation" and stem(tag.signal) not in followed]
    others = sum(tag.role in ("observation", "set_point") for tag in found) > 1
    if usable and others and not any(tag.role == "action" for tag in found):
        # What many signals do together is an instrument's rhythm: an analyser archives its results one like the other.
        alike = [sum(abs(column.changes - other.changes) < ALIKE for other in columns) > 2 for column in columns]
        at, why = _likeliest(found, usable, alike)
        found[at] = found[at]._replace(
            role="action",
            stepped=True,
            reason=f"no name tells for sure what the controller moves: {why}, correct the roles; {found[at].reason}",
        )
    return [_with_range(tag, column) if whole else tag for tag, column in zip(found, columns, strict=True)]


def _with_range(tag: TagGuess, column: Column) -> TagGuess:
    """An action with the range in which it was logged; nothing is known where it stood still."""
    if tag.role != "action" or column.span is None or column.span[0] == column.span[1]:
        return tag
    why = "range as logged, write what the actuator can do"
    return tag._replace(span=_outwards(column.span), reason=f"{tag.reason}; {why}")


def _outwards(span: tuple[float, float]) -> tuple[float, float]:
    """A range rounded to two digits of its width, and never narrower.

    Example:
        >>> _outwards((0.4137, 99.2))
        (0.0, 100.0)
    """
    low, high = span
    scale = 10.0 ** (1 - math.floor(math.log10(high - low)))
    # A product may be rounded beyond the number that it was made of.
    return min(math.floor(low * scale) / scale, low), max(math.ceil(high * scale) / scale, high)


def _likeliest(tags: Sequence[TagGuess], among: Sequence[int], alike: Sequence[bool]) -> tuple[int, str]:
    """Which of some observations may be what the controller moves, and why; `alike` are held as often as others."""
    if moved := [i for i in among if MOVED.search(tags[i].signal)]:
        return moved[-1], "its name is that of an actuator"
    own = [i for i in among if not (tags[i].stepped and alike[i])] or among
    if held := [i for i in own if tags[i].stepped and not tags[i].states]:
        return held[-1], "it is held for long, as actuators are"
    return own[-1], "manipulated variables mostly come last"


def stem(signal: str) -> str:
    """What a measured signal and its set point have in common in their names."""
    plain = re.sub(r"(^|_)(pv|me|meas|measured|value|actual)(?=_|$)", "", SET_POINT.sub("_", signal))
    return re.sub(r"_+", "_", plain).strip("_")


def _usable(column: Column) -> bool:
    return column.filled > 0 and (column.numbers > 0.5 * column.filled or len(column.texts) <= MOST_STATES)


def _guess(column: Column, taken: set[str], wide: bool, enough: bool) -> TagGuess:
    name = column.name
    bare, unit, said = _unit(name)
    # 'TankLevel' and 'P101' are words that follow each other, to the patterns.
    words = re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Za-z])(?=\d)", "_", bare).replace(" ", "_")
    if not column.filled:
        return TagGuess(name, "ignore", "it is empty")
    if wide and EPISODE.match(words) and column.once and 1 < column.levels <= column.filled / 2:
        return TagGuess(name, "episode", f"by its name, and its {column.levels} values follow each other", stepped=True)
    if LABEL.search(words):
        return TagGuess(name, "ignore", "by its name it labels rows, and measures nothing")
    if not _usable(column):
        return TagGuess(name, "ignore", f"it holds texts such as '{column.one[:30]}'")
    if column.levels == 1 and enough:
        return TagGuess(name, "ignore", f"it is {column.one[:30]} throughout")
    states = column.texts if column.numbers <= 0.5 * column.filled else ()
    stepped = bool(states) or column.changes <= HELD or column.levels <= 2
    how = f"it changes in {column.changes:.0%} of the rows"
    if SET_POINT.search(words) and not DEVIATION.search(words):
        role, why, stepped = "set_point", "by its name a set point", True
    elif ACTION.search(words) and not states:
        role, why, stepped = "action", "by its name a command, which holds until the next", True
    elif DEVICE.search(words) and stepped and not states and column.levels <= FEW_LEVELS:
        role, why = "action", f"by its name a device, and it has {column.levels} values"
    else:
        role, why = "observation", "measured, as far as the name tells"
    signal = _signal(bare, taken)
    return TagGuess(name, role, f"{why}; {how}; {said}", signal, unit, stepped, states)


def _unit(name: str) -> tuple[str, str, str]:
    """(the name without it, unit, why)."""
    found = BRACKETS.search(name)
    if found is None:
        return name, "1", "no unit in its name"
    text = SPELLINGS.get(found[1].lower(), found[1])
    try:
        parse(text)
    except ValueError:
        return name[: found.start()], "1", f"its unit '{found[1]}' is unknown here"
    return name[: found.start()], text, "unit in its name"


def _signal(name: str, taken: set[str]) -> str:
    """A name for formulas that no other tag has."""
    plain = re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_") or "signal"
    plain = plain if plain[0].isalpha() else f"x_{plain}"
    plain = plain.replace("_lag_", "_delay_")
    number, found = 2, plain
    while found in taken:
        found, number = f"{plain}_{number}", number + 1
    taken.add(found)
    return found
