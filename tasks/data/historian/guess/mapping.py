"""Guess a mapping from a log file, and list the lines that the user must fill in."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars as pl
from pydantic import BaseModel, ConfigDict

from configs.dialect import Dialect
from configs.errors import BadInput
from configs.mapping import HistorianMapping
from configs.process import described_spec
from configs.yaml_files import load_yaml
from neorl_core.plants import PLANTS
from tasks.data.historian.decoder import WORDS
from tasks.data.historian.guess.columns import Column, TagGuess, guess_tags, look_at
from tasks.data.historian.guess.draft import Draft, write
from tasks.data.historian.guess.tables import (
    STATUS_NAME,
    TAG_NAME,
    VALUE_NAME,
    Look,
    look,
    read_times,
    time_column,
)
from tasks.data.historian.guess.times import TIME_NAME, TimeGuess
from tasks.data.historian.raw_rows import SECOND, Times
from tasks.files.canonical import make_folder, write_atomic

NO_CLOCK = (("start", "2000-01-01T00:00:00Z", "the table has no clock, so the date is arbitrary"),)
REGULAR = 0.5
"""Smallest share of rows with the usual time step at which the rows count as regular."""
NEARLY = 0.99
"""Quantile of the times between a tag's rows that counts as the tag's usual silence."""
SELDOM = 1.5
"""Usual silence, in control periods, above which a tag gets its own `stale_seconds`."""
GAPS = 2.5
"""Longest silence of a signal in control periods: one missed row is bridged, a longer silence ends the episode."""
SHORTEST_EPISODE, LONGEST_EPISODE = 10, 1000
EPISODES = 50
"""Minimum number of episodes into which a log should be divided."""
DAY = 86_400
UNIT_OF_TIME = re.compile(r"[\[(,_ ]\s*(s|sec|seconds?|min|minutes?|h|hr|hours?|d|days?)\s*[\])]?$", re.IGNORECASE)
SECONDS = {"s": 1, "m": 60, "h": 3600, "d": DAY}


class StartedMapping(BaseModel):
    """Result of `neorl init --from`: the written mapping, and the lines to fill in or check."""

    model_config = ConfigDict(frozen=True)

    mapping: Path
    log: Path
    name: str
    signals: dict[str, tuple[str, ...]]
    fill_in: tuple[str, ...]
    check: tuple[str, ...]


class _Found(NamedTuple):
    layout: tuple[str, str]
    columns: tuple[tuple[str, str | None, str], ...]
    clock: tuple[tuple[str, str | float | None, str], ...]
    period: tuple[float | None, str]
    signals: tuple[Column, ...]
    apart: tuple[float, ...] = ()
    """Usual silence of each signal in seconds, 0 if unknown."""


def start_mapping(log: Path, out: Path, name: str | None = None) -> StartedMapping:
    """Guess a mapping for a log (text in any dialect, Parquet or xlsx) and write it into the folder `out`.

    By default, the plant gets the name of the file. A file that cannot be a log, or an existing mapping, raises
    BadInput.
    """
    process = plant_name(log, name)
    target = out / f"{process}.yaml"
    if target.exists():
        raise BadInput(f"{target} exists already: give another folder with --out, or another plant name.")
    seen = look(log)
    found = _found(seen, log)
    tags = guess_tags(found.signals, found.layout[0] == "wide", seen.whole)
    if sum(tag.role in ("observation", "set_point", "action") for tag in tags) < 2:
        names = ", ".join(c.name[:30] for c in found.signals[:5]) or "none"
        raise BadInput(f"{log.name} must have at least two usable signals, got {names}: export more tags.")
    period = found.period[0]
    if found.apart and period:
        tags = [_with_stale(tag, apart, period) for tag, apart in zip(tags, found.apart, strict=True)]
    text = seen.text
    draft = Draft(
        log=log.name,
        name=process,
        horizon=_horizon(period, max(column.filled for column in found.signals)),
        period=found.period,
        layout=found.layout,
        dialect=(text.dialect, text.reasons, text.unclear) if text else (Dialect(), {}, {}),
        columns=found.columns,
        clock=found.clock,
        tags=tuple(tags),
        gap=(
            GAPS * (period or 1.0),
            "two and a half periods: one missed row is bridged, a longer silence ends the episode",
        )
        if period
        else (float(DAY), "rows without a clock are consecutive"),
    )
    written = write(draft)
    make_folder(out)
    write_atomic(target, written.text.encode())
    if not written.fill_in:
        described_spec(load_yaml(target, HistorianMapping))
    roles = ("observation", "set_point", "action")
    signals = {role: tuple(tag.signal for tag in tags if tag.role == role) for role in roles}
    return StartedMapping(
        mapping=target, log=log, name=process, signals=signals, fill_in=written.fill_in, check=written.check
    )


def _with_stale(tag: TagGuess, apart: float, period: float) -> TagGuess:
    if tag.stepped or tag.role == "ignore" or apart <= SELDOM * period:
        return tag
    why = f"{NEARLY:.0%} of the values follow within {apart:g} s"
    return tag._replace(stale=float(math.ceil(GAPS * apart)), reason=f"{tag.reason}; {why}")


def _found(seen: Look, log: Path) -> _Found:
    text, frame = seen.text, seen.frame
    decimal = text.dialect.decimal if text else "."
    if text is not None and text.transposed:
        why = text.reasons["layout"]
        groups = {str(key[0]): group for key, group in frame.group_by("tag", maintain_order=True)}
        signals = tuple(look_at(name, group["value"]) for name, group in groups.items())
        if not text.timed:
            return _Found(("transposed", why), (), NO_CLOCK, _unknown_period("columns"), signals)
        told = time_column(next(iter(groups.values())).select("timestamp"), log)
        if told is None:
            raise BadInput(f"the first row of {log.name} has no readable times: export ISO 8601 times.")
        times = read_times(next(iter(groups.values()))["timestamp"], told[1])
        columns = (("timestamp", text.first[0], "the first row has times"),)
        return _Found(("transposed", why), columns, _clock(told[1]), _period(_steps(times)), signals)
    told = time_column(frame, log)
    if told is None:
        return _clockless(frame, decimal)
    name, guess = told
    times = read_times(frame[name], guess)
    if (long := _long(frame, name)) is not None:
        return _long_table(frame, long, name, guess, seen)
    signals = tuple(look_at(each, frame[each], decimal) for each in frame.columns if each != name)
    columns = (("timestamp", name, f"contains times: {guess.reason}"),)
    layout = ("wide", "one column per tag beside the times")
    apart = tuple(_apart(_filled(frame, each), name, guess) for each in signals)
    return _Found(layout, columns, _clock(guess), _period(_steps(times)), signals, apart)


def _clock(guess: TimeGuess) -> tuple[tuple[str, str | float | None, str], ...]:
    zone = ("zone", "UTC", "the times have no zone: write yours, such as Europe/Berlin, if they are local")
    if guess.choices:
        quoted = " or ".join(f"'{form}'" for form in guess.choices)
        return (("format", None, f"{quoted}: {guess.reason}"), zone)
    if guess.epoch:
        return (("epoch", guess.epoch, guess.reason),)
    if guess.format:
        return (("format", guess.format, guess.reason), *(() if "%z" in guess.format else (zone,)))
    return () if guess.zoned else (zone,)


def _unknown_period(items: str) -> tuple[None, str]:
    return None, f"seconds between {items}, such as 180: the table has no clock"


def _clockless(frame: pl.DataFrame, decimal: str) -> _Found:
    """Guess for a table without times; if a column of elapsed time grows evenly, it gives the period."""
    layout = ("wide", "one column per tag, and a row per step")
    signals = [look_at(each, frame[each], decimal) for each in frame.columns]
    for name in frame.columns:
        unit = UNIT_OF_TIME.search(name)
        if unit is None or not TIME_NAME.search(name):
            continue
        steps = np.diff(frame[name].cast(pl.Float64, strict=False).drop_nulls().to_numpy())
        if len(steps) and np.allclose(steps, steps[0]) and steps[0] > 0:
            seconds = round(float(np.median(steps)) * SECONDS[unit[1][0].lower()], 6)
            # Mark the column as constant, so that it is ignored.
            signals = [c._replace(levels=1, one="elapsed time") if c.name == name else c for c in signals]
            return _Found(layout, (), NO_CLOCK, (seconds, f"'{name}' grows by {steps[0]:g} per row"), tuple(signals))
    return _Found(layout, (), NO_CLOCK, _unknown_period("rows"), tuple(signals))


def _long(frame: pl.DataFrame, time: str) -> tuple[str, str, str | None] | None:
    """Return the names of the columns of tag, value and status (or None) of a long table; None if it is not long."""
    others = [name for name in frame.columns if name != time]
    tag = next((name for name in others if TAG_NAME.match(name)), None)
    value = next((name for name in others if VALUE_NAME.match(name)), None)
    if tag is None or value is None or len(others) > 4:
        return None
    return tag, value, next((name for name in others if STATUS_NAME.match(name)), None)


def _long_table(
    frame: pl.DataFrame, long: tuple[str, str, str | None], time: str, guess: TimeGuess, seen: Look
) -> _Found:
    tag, value, status = long
    decimal = seen.text.dialect.decimal if seen.text else "."
    groups = {str(key[0]): group for key, group in frame.group_by(tag, maintain_order=True) if key[0] is not None}
    signals = tuple(look_at(name, group[value], decimal) for name, group in groups.items())
    columns: list[tuple[str, str | None, str]] = [
        ("tag", tag, f"{len(groups)} names recur"),
        ("timestamp", time, "contains times"),
        ("value", value, "recognised by name"),
    ]
    kept, why = status, "recognised by name"
    if status is not None and (odd := _strange_status(frame[status])):
        kept, why = (
            None,
            f"column '{status}' has words such as '{odd}': name it here, and translate the words in 'statuses'",
        )
    columns.append(("status", kept, why if status is not None else "there is no column with quality"))
    steps = [_steps(read_times(group[time], guess)) for group in groups.values()]
    apart = tuple(_apart(group, time, guess) for group in groups.values())
    period = _period(np.concatenate(steps) if steps else np.zeros(0, np.int64))
    layout = ("long", "one row per tag and moment")
    return _Found(layout, tuple(columns), _clock(guess), period, signals, apart)


def _strange_status(column: pl.Series) -> str | None:
    if column.dtype.is_integer():
        return None
    for word in column.cast(pl.String).drop_nulls().unique():
        plain = str(word).strip().lower()
        if not any(plain.startswith(beginning) for beginning in WORDS) and not plain.isdigit():
            return str(word)[:30]
    return None


def _steps(times: Times) -> Times:
    """Return the differences between consecutive sorted times in ns, without zeros."""
    steps = np.diff(np.sort(times)).astype(np.int64)
    found: Times = steps[steps > 0]
    return found


def _filled(frame: pl.DataFrame, column: Column) -> pl.DataFrame:
    if column.filled > len(frame) / 2:
        return frame.clear()
    given = pl.col(column.name).cast(pl.String).str.strip_chars()
    return frame.filter((given != "").fill_null(False))


def _apart(rows: pl.DataFrame, time: str, guess: TimeGuess) -> float:
    """Return the usual silence between rows in s, the quantile `NEARLY`; 0 for fewer than two rows."""
    steps = _steps(read_times(rows[time], guess)) if len(rows) > 1 else ()
    return float(np.quantile(steps, NEARLY)) / SECOND if len(steps) else 0.0


def _period(steps: Times) -> tuple[float | None, str]:
    if not len(steps):
        return None, "seconds between rows: the times do not show it"
    usual = int(np.median(steps))
    exactly, nearly = (float((np.abs(steps - usual) <= slack).mean()) for slack in (0, usual / 10))
    if exactly >= REGULAR:
        return usual / SECOND, f"{exactly:.0%} of the rows are this far apart"
    if nearly >= REGULAR:
        return float(f"{usual / SECOND:.3g}"), f"{nearly:.0%} of the rows are about this far apart"
    return float(f"{usual / SECOND:.2g}"), "values come irregularly, half of them sooner: write the control period"


def _horizon(period: float | None, rows: int) -> tuple[int, str]:
    day = DAY / period if period else LONGEST_EPISODE
    steps = int(min(max(min(day, rows / EPISODES), SHORTEST_EPISODE), LONGEST_EPISODE))
    return steps, "longest episode in periods, and so how far a policy looks ahead; a smaller value gives more episodes"


def plant_name(log: Path, name: str | None = None) -> str:
    """Return the given plant name, or a name made from the file's name; raise BadInput if `name` is invalid."""
    plain = re.sub(r"[^a-z0-9]+", "_", (name or log.stem).lower()).strip("_") or "plant"
    if name is not None and plain != name:
        raise BadInput(f"a plant name may only have a to z, 0 to 9 and _, got '{name[:60]}': write '{plain}'.")
    plain = plain if plain[0].isalpha() else f"plant_{plain}"
    if plain in PLANTS:
        if name is not None:
            raise BadInput(f"{name} is the name of a simulated plant of NeoRL: choose another name.")
        plain = f"{plain}_log"
    return plain
