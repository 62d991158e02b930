"""Guess the dialect of a text file (delimiter, header, decimal sign) from its first lines."""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from configs.dialect import WHITESPACE, Dialect
from configs.errors import BadInput
from tasks.data.historian.guess.times import TIME_NAME, guess_times

DELIMITERS = (",", ";", "\t", "|", WHITESPACE)
NUMBER = re.compile(r"[+-]?(\d+([.,]\d*)?|[.,]\d+)([eE][+-]?\d+)?|[+-]?(nan|inf)", re.IGNORECASE)
COMMA = re.compile(r"[+-]?\d*,\d+([eE][+-]?\d+)?")
POINT = re.compile(r"[+-]?\d*\.\d+([eE][+-]?\d+)?")
THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2}(,\d{3})+")
CLOCK = r"[T :,]{1,2}\d{1,2}(:\d{1,2}){0,2}([.,]\d+)?( ?[AaPp][Mm])?( ?Z| ?[+-]\d{2}(:?\d{2})?)?"
TIME = re.compile(
    rf"((\d{{1,4}}([-/. ])(\d{{1,2}}|[A-Za-z]{{3,9}})\3\d{{1,4}}|\d{{4}}:\d{{1,2}}:\d{{1,2}})({CLOCK})?"
    r"|\d{8}[T ]\d{2,6}([.,]\d+)?(Z|[+-]\d{2,4})?)"
)
NAMES_PER_ROW = 2
"""Ratio of columns to rows above which a table of numbers without names is read as a row per tag."""


class TextGuess(NamedTuple):
    dialect: Dialect
    transposed: bool
    timed: bool
    """Whether the table has a row per tag, and times in the first row."""
    first: tuple[str, ...]
    """Cells of the first row; in a table with a row per tag, the names of the rows."""
    reasons: dict[str, str]
    """Reason for each guessed key of the dialect, and for `layout`."""
    unclear: dict[str, str]
    """Keys of the dialect that cannot be guessed, each with an explanation."""


def cells_of(line: str, delimiter: str) -> list[str]:
    if delimiter == WHITESPACE:
        return line.split()
    return [cell.strip() for cell in next(csv.reader([line.rstrip("\r\n")], delimiter=delimiter), [])]


def guess_text(lines: Sequence[str], whole: bool, encoding: str = "utf-8", name: str = "the file") -> TextGuess:
    """Guess the dialect of a text file from its first `lines`; if `whole` is True, these are all lines.

    Raise BadInput if the text is not a table with at least two columns and one row of values.

    Example:
        >>> guess_text(["t;x", "2026-01-31 10:00;1,5"], whole=True).dialect.delimiter
        ';'
    """
    filled = [line for line in lines if line.strip()]
    if not filled:
        raise BadInput(f"{name} is empty: export a longer period.")
    # Blanks also occur within cells, so prefer any other delimiter that fits equally well.
    scored = [
        (score[0], delimiter != WHITESPACE, score[1], -i, delimiter)
        for i, delimiter in enumerate(DELIMITERS)
        if (score := _score(filled, delimiter))
    ]
    if not scored:
        raise BadInput(
            f"{name} is not a table of at least two columns, the first line is '{filled[0].strip()[:60]}': export a "
            "column for each signal, and a column with times."
        )
    share, _, width, _, delimiter = max(scored)
    rows = [cells_of(line, delimiter) for line in lines]
    skip = next(i for i, cells in enumerate(rows) if len(cells) == width)
    body = [cells for cells in rows[skip:] if any(cells)]
    reasons = {"delimiter": f"it divides {share:.0%} of the lines into {width} cells with numbers or times"}
    if skip:
        reasons["skip_rows"] = f"the table begins in line {skip + 1}: earlier lines have other cells"
    named = not any(_is_value(cell) for cell in body[0])
    across, timed, why = _transposed(body, whole, width)
    if across:
        reasons["layout"] = why
        named = not _is_value(body[1][0]) if len(body) > 1 else not _is_value(body[0][0])
    elif len(body) < 2:
        raise BadInput(f"{name} has only a header: export a longer period.")
    if not named:
        reasons["header"] = "the first row has values" if not across else "the first column has values"
    values = [cell for cells in body[1 if named and not across else 0 :] for cell in cells]
    decimal, reason, doubtful = _decimal(values)
    if reason:
        reasons["decimal"] = reason
    dialect = Dialect.model_validate(
        {"delimiter": delimiter, "decimal": decimal, "skip_rows": skip, "header": named, "encoding": encoding}
    )
    first = [cells[0] if named else f"row_{i}" for i, cells in enumerate(body, 1)] if across else body[0]
    return TextGuess(dialect, across, timed, tuple(first), reasons, {"decimal": doubtful} if doubtful else {})


def _score(lines: Sequence[str], delimiter: str) -> tuple[float, int] | None:
    """Return how well a delimiter fits (0 to 1), and the usual number of cells per line; None if it does not fit."""
    try:
        rows = [cells_of(line, delimiter) for line in lines]
    except csv.Error:  # a cell is longer than the reader accepts, so the delimiter is wrong
        return None
    width, _ = Counter(len(cells) for cells in rows[len(rows) // 5 :]).most_common(1)[0]
    if width < 2:
        return None
    fitting = [cells for cells in rows if len(cells) == width]
    below = fitting[1:] or fitting
    values = sum(_is_value(cell) or not cell for cells in below for cell in cells) / (width * len(below))
    return round(values * len(fitting) / len(rows), 2), width


def _is_value(cell: str) -> bool:
    return NUMBER.fullmatch(cell) is not None or TIME.fullmatch(cell) is not None


def _transposed(body: Sequence[Sequence[str]], whole: bool, width: int) -> tuple[bool, bool, str]:
    """Return whether a table has a row per tag, whether its first row has times, and the reason."""
    values = [[_is_value(cell) or not cell for cell in cells] for cells in body]
    if all(map(all, values)) and whole and width > NAMES_PER_ROW * len(body):
        return (
            True,
            False,
            f"{len(body)} rows of {width} numbers without names are a row per tag, because logs are longer than wide",
        )
    names = [cells[0] for cells in body]
    texts = len(set(names)) == len(names) and not any(flags[0] for flags in values) and all(names)
    if texts and len(body) > 1 and all(all(flags[1:]) for flags in values) and width > 2:
        # Numbers are times only if the row is named accordingly.
        named = TIME_NAME.search(names[0]) is not None and guess_times(body[0][1:]) is not None
        timed = named or all(TIME.fullmatch(cell) for cell in body[0][1:])
        return True, timed, "every row begins with a different name before its values: a row per tag"
    return False, False, ""


def _decimal(cells: Iterable[str]) -> tuple[str, str, str]:
    """Return the decimal sign, the reason if it is a comma, and an explanation if it is unclear ('' otherwise)."""
    numbers = [cell for cell in cells if NUMBER.fullmatch(cell)]
    commas = [cell for cell in numbers if COMMA.fullmatch(cell)]
    points = [cell for cell in numbers if POINT.fullmatch(cell)]
    if not commas:
        return ".", "", ""
    if points:
        return ".", "", f"some numbers have a comma ('{commas[0]}'), others a point ('{points[0]}')"
    if all(THOUSANDS.fullmatch(cell) for cell in commas):
        return ",", "", f"'{commas[0]}' may have a decimal comma or a thousands separator, and no number decides"
    return ",", f"numbers such as '{commas[0]}'", ""
