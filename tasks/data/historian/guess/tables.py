"""Read the first rows of an unknown log, and find the column of times."""

from __future__ import annotations

import codecs
import re
import tempfile
from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars as pl

from configs.dialect import Dialect
from configs.errors import BadInput
from configs.mapping import Clock, Columns, Episodes, Formula, HistorianMapping, Process, Tag
from tasks.data.historian.dialects import WORKBOOKS, PlainTables, is_parquet, reading
from tasks.data.historian.guess.dialects import TextGuess, guess_text
from tasks.data.historian.guess.times import TIME_NAME, TimeGuess, guess_times
from tasks.data.historian.raw_rows import DAY, UNKNOWN_TIME, Times
from tasks.data.historian.timestamps import TimestampReader
from tasks.data.historian.workbooks import sheet_to_csv

HEAD_BYTES = 2**22
HEAD_LINES = 200
MOST_ROWS, MOST_CELLS = 200_000, 4_000_000
MOST_COLUMNS = 2_000
BOMS = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))
TAG_NAME = re.compile(
    r"^(tag|tag_?name|tag_?id|point|point_?name|variable|sensor|signal|name|item|node_?id)$", re.IGNORECASE
)
VALUE_NAME = re.compile(r"^(value|val|data|reading|measurement)$", re.IGNORECASE)
STATUS_NAME = re.compile(r"^(status|quality|qual|q|state|good)$", re.IGNORECASE)
TIME_OF_DAY = r"^\d{1,2}:\d{2}(:\d{2}([.,]\d+)?)?( ?[AaPp][Mm])?$"


class Look(NamedTuple):
    text: TextGuess | None
    frame: pl.DataFrame
    """First rows; for a table with a row per tag, as a long table with tag, timestamp and value."""
    whole: bool


def look(log: Path) -> Look:
    """Guess a log's dialect and read its first rows; raise BadInput if the file cannot be a log."""
    if not log.is_file():
        kind = "is a folder" if log.is_dir() else "does not exist"
        raise BadInput(f"{log} {kind}: give the path of one table of the export.")
    text = None if is_parquet(log) else _text_guess(log)
    clock = Clock(start=np.datetime64(0, "ns").astype("datetime64[us]").item()) if text and not text.timed else Clock()
    transposed = text is not None and text.transposed
    columns = Columns(timestamp=text.first[0]) if text and text.timed else Columns()
    mapping = HistorianMapping(
        process=Process(name="look", horizon=1),
        period_seconds=1.0,
        layout="transposed" if transposed else "wide",
        dialect=text.dialect if text else Dialect(),
        clock=clock if transposed else Clock(),
        columns=columns,
        tags={"": Tag(role="mode", interpolation="stepped", running=(1.0,))},
        reward=Formula(expression="0", unit="1"),
        episodes=Episodes(max_gap_seconds=1.0),
    )
    with reading(log):
        table = PlainTables(mapping)
        scanned = table.scan(log)
        names = scanned.collect_schema().names()
        if len(names) > MOST_COLUMNS:
            raise BadInput(f"{log.name} has {len(names)} columns, the limit is {MOST_COLUMNS}: export fewer.")
        rows = max(min(MOST_ROWS, MOST_CELLS // len(names)), 100)
        frame = scanned.head(MOST_CELLS if transposed else rows).collect(engine="streaming")
    _check_names(text.first if text and text.dialect.header else names, log)
    if not transposed:
        # Lines may end with a delimiter, and blank rows have no meaning.
        frame = frame.filter(~pl.all_horizontal(pl.all().is_null()))
    if not len(frame):
        raise BadInput(f"{log.name} has only a header: export a longer period.")
    return Look(text, frame, len(frame) < rows)


def time_column(frame: pl.DataFrame, log: Path) -> tuple[str, TimeGuess] | None:
    """Return the name of the column of times, and its format; None if there is no such column.

    Raise BadInput if the order of day and month varies, or if the times of day are in a separate column.
    """
    told = _dated(frame, log)
    beside = next((name for name in frame.columns if _of_day(frame[name])), None)
    if told is None or beside is None:
        return told
    name, guess = told
    times = read_times(frame[name], guess)
    # Daily rows may have a time of day among the values.
    if not (times % DAY).any() and (np.diff(times) == 0).any():
        raise BadInput(
            f"{log.name} has date and time in two columns, '{name}' and '{beside}': join them into one column."
        )
    return told


def _of_day(column: pl.Series) -> bool:
    if column.dtype != pl.String:
        return column.dtype == pl.Time
    first = _texts(column.drop_nulls().head(10))
    return bool(len(first)) and all(bool(some.str.contains(TIME_OF_DAY).all()) for some in (first, _texts(column)))


def _texts(column: pl.Series) -> pl.Series:
    texts = column.drop_nulls().cast(pl.String).str.strip_chars()
    return texts.filter(texts != "")


def _dated(frame: pl.DataFrame, log: Path) -> tuple[str, TimeGuess] | None:
    # Exclude times of day, because they look like day, month and two-digit year.
    names = [name for name in frame.columns if not _of_day(frame[name])]
    for name in sorted(names, key=lambda name: not TIME_NAME.search(name)):
        column = frame[name]
        if isinstance(column.dtype, pl.Datetime | pl.Date):
            return name, TimeGuess("its type is time", zoned=getattr(column.dtype, "time_zone", None) is not None)
        if not (column.dtype == pl.String or column.dtype.is_integer() or TIME_NAME.search(name)):
            continue
        texts = _texts(column)
        numeric = bool(len(texts)) and texts.head(100).cast(pl.Float64, strict=False).null_count() == 0
        if (numeric and not TIME_NAME.search(name)) or guess_times(texts.head(10).to_list()) is None:
            continue
        try:
            guess = guess_times(texts.to_list())
        except BadInput as error:
            raise BadInput(f"column '{name}' of {log.name}: {error}") from error
        if guess is not None:
            return name, guess
    return None


def read_times(column: pl.Series, guess: TimeGuess) -> Times:
    """Return times in ns since 1970; if several formats fit, use the format with the most regular steps."""
    found = list[tuple[float, Times]]()
    for form in guess.choices or (guess.format,):
        clock = Clock.model_validate({"format": form, "epoch": guess.epoch})
        times, _ = TimestampReader(clock).read(column, "the table")
        known = times[times != UNKNOWN_TIME]
        steps = np.diff(known)
        found.append((float((steps == np.median(steps)).mean()) if len(steps) else 0.0, known))
    return max(found, key=lambda item: item[0])[1]


def _text_guess(log: Path) -> TextGuess:
    if log.suffix.lower() in WORKBOOKS:
        with tempfile.TemporaryDirectory(prefix="neorl-look-") as folder:
            plain = Path(folder) / "sheet.csv"
            sheet_to_csv(log, None, plain)
            guess = _guess_lines(plain, "utf-8", log.name)
        if guess.dialect.delimiter != ",":
            raise BadInput(f"the first sheet of {log.name} is not a table: save the table as CSV.")
        return guess
    with log.open("rb") as stream:
        start = stream.read(16)
    if not start:
        raise BadInput(f"{log.name} is empty: export a longer period.")
    return _guess_lines(log, _encoding(log, start), log.name)


def _guess_lines(path: Path, encoding: str, name: str) -> TextGuess:
    with path.open(encoding="utf-8-sig" if encoding == "utf-8" else encoding, newline=None) as stream:
        head = stream.read(HEAD_BYTES)
        whole = not stream.read(1)
    lines = head.split("\n")
    if not whole and len(lines) < 3:
        raise BadInput(f"{name} has lines of more than {HEAD_BYTES >> 20} MB, unlike a log: export a row per time.")
    lines = lines if whole else lines[:-1]
    return guess_text(lines[:HEAD_LINES], whole and len(lines) <= HEAD_LINES, encoding, name)


def _encoding(log: Path, start: bytes) -> str:
    """Return the encoding of the byte order mark, or the first common encoding that can decode the whole file."""
    for mark, name in BOMS:
        if start.startswith(mark):
            if name == "utf-16":
                return name
            break
    fits = {name: codecs.getincrementaldecoder(name)() for name in ("utf-8", "cp1252", "iso-8859-1")}
    with log.open("rb") as stream:
        longest = 0
        while piece := stream.read(HEAD_BYTES):
            if b"\0" in piece:
                raise BadInput(f"{log.name} is a binary file, but not Parquet or xlsx: export it as CSV.")
            longest = 0 if b"\n" in piece or b"\r" in piece else longest + len(piece)
            if longest > 2**26:
                raise BadInput(f"{log.name} has lines of more than {2**6} MB and is not a table: export it as CSV.")
            for name in list(fits):
                try:
                    fits[name].decode(piece)
                except UnicodeDecodeError:
                    del fits[name]
    return next(iter(fits))


def _check_names(names: tuple[str, ...] | list[str], log: Path) -> None:
    if doubled := next((name for name in names if name and list(names).count(name) > 1), None):
        raise BadInput(f"{log.name} has two columns '{doubled[:60]}': rename one of them.")
    if len(names) < 2:
        raise BadInput(f"{log.name} has only one column, '{names[0][:60]}': export times and at least two tags.")
