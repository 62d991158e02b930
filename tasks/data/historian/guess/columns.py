"""Guess the role, unit and interpolation of a tag from its values and name, with a reason for each guess."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import NamedTuple

import polars as pl

from configs.units import parse
from tasks.data.historian.dialects import with_points

ASSUMED = "assumed to be the action"
MOST_STATES = 12
"""Largest number of different texts in a column that are treated as states."""
FEW_LEVELS = 10
HELD = 0.2
"""Largest share of rows in which the value of a stepped signal changes."""
ALIKE = 0.005
"""Two signals change equally often if the shares of rows with a change differ by less than this number."""
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
"""Spellings of units in headers that the library pint misreads or does not know."""


class Column(NamedTuple):
    name: str
    filled: int
    numbers: int
    levels: int
    changes: float
    """Share of filled cells with a different value than the cell before."""
    once: bool
    """Whether equal values are always in consecutive rows."""
    texts: tuple[str, ...]
    """Different texts that are not numbers, sorted; at most `MOST_STATES` + 1 texts."""
    one: str
    span: tuple[float, float] | None = None


class TagGuess(NamedTuple):
    """Guess for a column: the tag's entry in the mapping, with a reason."""

    name: str
    role: str
    reason: str
    signal: str = ""
    unit: str = "1"
    stepped: bool = False
    states: tuple[str, ...] = ()
    span: tuple[float, float] | None = None
    """Range of an action in the log, rounded outwards."""
    stale: float | None = None
    """`stale_seconds` of a sloped tag that is not archived in every period."""


def look_at(name: str, values: pl.Series, decimal: str = ".") -> Column:
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
    """Guess a tag for each column of values, in order. If two columns are usable, at least one becomes an action.

    Args:
        wide: whether each row has all values of one time; only then may a column name the episode.
        whole: whether all rows were read; only then are ranges of actions known.
    """
    varying = sum(_usable(column) and column.levels > 1 for column in columns)
    taken: set[str] = set()
    found = [_guess(column, taken, wide, varying >= 2) for column in columns]
    followed = {stem(tag.signal) for tag in found if tag.role == "set_point"}
    usable = [i for i, tag in enumerate(found) if tag.role == "observation" and stem(tag.signal) not in followed]
    others = sum(tag.role in ("observation", "set_point") for tag in found) > 1
    if usable and others and not any(tag.role == "action" for tag in found):
        # Signals that change equally often may come from one instrument, such as an analyser with several results.
        alike = [sum(abs(column.changes - other.changes) < ALIKE for other in columns) > 2 for column in columns]
        at, why = _likeliest(found, usable, alike)
        found[at] = found[at]._replace(
            role="action",
            stepped=True,
            reason=f"{ASSUMED}: {why}, correct the roles; {found[at].reason}",
        )
    return [_with_range(tag, column) if whole else tag for tag, column in zip(found, columns, strict=True)]


def _with_range(tag: TagGuess, column: Column) -> TagGuess:
    if tag.role != "action" or column.span is None or column.span[0] == column.span[1]:
        return tag
    why = "range as logged, write the actuator's range"
    return tag._replace(span=_outwards(column.span), reason=f"{tag.reason}; {why}")


def _outwards(span: tuple[float, float]) -> tuple[float, float]:
    """Round a range outwards to two digits of its width.

    Example:
        >>> _outwards((0.4137, 99.2))
        (0.0, 100.0)
    """
    low, high = span
    scale = 10.0 ** (1 - math.floor(math.log10(high - low)))
    # Rounding must not make the range narrower.
    return min(math.floor(low * scale) / scale, low), max(math.ceil(high * scale) / scale, high)


def _likeliest(tags: Sequence[TagGuess], among: Sequence[int], alike: Sequence[bool]) -> tuple[int, str]:
    if moved := [i for i in among if MOVED.search(tags[i].signal)]:
        return moved[-1], "it is named like an actuator"
    own = [i for i in among if not (tags[i].stepped and alike[i])] or among
    if held := [i for i in own if tags[i].stepped and not tags[i].states]:
        return held[-1], "it is held for long, as actuators are"
    return own[-1], "manipulated variables mostly come last"


def stem(signal: str) -> str:
    """Return a signal's name without words for 'measured' or 'set point', so that the two names become equal."""
    plain = re.sub(r"(^|_)(pv|me|meas|measured|value|actual)(?=_|$)", "", SET_POINT.sub("_", signal))
    return re.sub(r"_+", "_", plain).strip("_")


def _usable(column: Column) -> bool:
    return column.filled > 0 and (column.numbers > 0.5 * column.filled or len(column.texts) <= MOST_STATES)


def _guess(column: Column, taken: set[str], wide: bool, enough: bool) -> TagGuess:
    name = column.name
    bare, unit, note = _unit(name)
    # Separate the words of names such as 'TankLevel' and 'P101'.
    words = re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Za-z])(?=\d)", "_", bare).replace(" ", "_")
    if not column.filled:
        return TagGuess(name, "ignore", "it is empty")
    if wide and EPISODE.match(words) and column.once and 1 < column.levels <= column.filled / 2:
        return TagGuess(name, "episode", f"its name, and its {column.levels} values are consecutive", stepped=True)
    if LABEL.search(words):
        return TagGuess(name, "ignore", "its name is that of a label for rows, not of a measurement")
    if not _usable(column):
        return TagGuess(name, "ignore", f"it has texts such as '{column.one[:30]}'")
    if column.levels == 1 and enough:
        return TagGuess(name, "ignore", f"it is always {column.one[:30]}")
    states = column.texts if column.numbers <= 0.5 * column.filled else ()
    stepped = bool(states) or column.changes <= HELD or column.levels <= 2
    how = f"it changes in {column.changes:.0%} of the rows"
    if SET_POINT.search(words) and not DEVIATION.search(words):
        role, why, stepped = "set_point", "named like a set point", True
    elif ACTION.search(words) and not states:
        role, why, stepped = "action", "named like a command, which holds until the next", True
    elif DEVICE.search(words) and stepped and not states and column.levels <= FEW_LEVELS:
        role, why = "action", f"named like a device, with {column.levels} values"
    else:
        role, why = "observation", "measured, as far as the name shows"
    signal = _signal(bare, taken)
    return TagGuess(name, role, f"{why}; {how}; {note}", signal, unit, stepped, states)


def _unit(name: str) -> tuple[str, str, str]:
    """Return a column's name without the unit, the unit ('1' if unknown), and a note for the user."""
    found = BRACKETS.search(name)
    if found is None:
        return name, "1", "no unit in the name"
    text = SPELLINGS.get(found[1].lower(), found[1])
    try:
        parse(text)
    except ValueError:
        return name[: found.start()], "1", f"unknown unit '{found[1]}'"
    return name[: found.start()], text, "unit in the name"


def _signal(name: str, taken: set[str]) -> str:
    """Return a name for formulas that is not in `taken`, and add it to `taken`."""
    plain = re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_") or "signal"
    plain = plain if plain[0].isalpha() else f"x_{plain}"
    plain = plain.replace("_lag_", "_delay_")
    number, found = 2, plain
    while found in taken:
        found, number = f"{plain}_{number}", number + 1
    taken.add(found)
    return found
