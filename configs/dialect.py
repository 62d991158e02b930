"""Text dialect of a table: delimiter, decimal sign, encoding, header and time format."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import Field, field_validator

from configs.strict import Count, Strict

WHITESPACE = "whitespace"
DIRECTIVES = {
    **{"Y": "%Y", "y": "%y", "m": "%m", "d": "%d", "j": "%j", "b": "%b", "B": "%B"},
    **{"H": "%H", "I": "%I", "p": "%p", "M": "%M", "S": "%S", "z": "%z"},
}
"""Directives of Python's strptime, with the same directives of chrono, the parser in polars; `FRACTION` is separate."""
DAYS = ("%j", "%m%d", "%b%d", "%B%d")
FRACTION = re.compile(r"(?<=%S)([.,])%f")

Encoding = Literal[
    "utf-8", "utf-16", "cp1250", "cp1251", "cp1252", "iso-8859-1", "iso-8859-15", "cp932", "gb18030", "euc-kr"
]


class Dialect(Strict):
    """Differences from a UTF-8 table with commas, decimal points, and names in the first row."""

    delimiter: str = ","
    """One character, or `whitespace` for any number of blanks and tabs."""
    decimal: Literal[".", ","] = "."
    encoding: Encoding = "utf-8"
    skip_rows: Annotated[int, Field(ge=0)] = 0
    """Lines before the names, or before the first values if there are no names."""
    header: bool = True
    """Whether the columns (rows of a transposed table) have names; otherwise they are `column_1`, … (`row_1`, …)."""
    sheet: str | Count | None = None
    """Name or number of a workbook's sheet. Default: the first sheet."""

    @field_validator("delimiter")
    @classmethod
    def _one_sign(cls, given: str) -> str:
        sign = len(given) == 1 and given.isascii() and (given == "\t" or given.isprintable())
        if given == WHITESPACE or (sign and given not in "\"'.+-" and not given.isalnum()):
            return given
        raise ValueError(f"delimiter must be one character such as ';' or \"\\t\", or 'whitespace', got {given!r}")


def chrono_format(text: str) -> tuple[str, str]:
    """Translate a time format for polars' parser.

    The parser rejects a date without an hour and an hour without a minute. `ending` supplies the missing parts.

    Args:
        text: format in strptime's directives, such as `%d.%m.%y %H:%M:%S,%f`.

    Returns:
        (format, ending), for parsing `text + ending`. The text must have a decimal point before fractions of a second.

    Raises:
        ValueError: if a directive is unknown or duplicate, or day, month or year is missing.

    Example:
        >>> chrono_format("%d/%m/%y %H")
        ('%d/%m/%y %H\\x1f%M', '\\x1f00')
    """
    body = FRACTION.sub("", text)
    found = re.findall(r"%(.?)", body)
    if strange := next((sign for sign in found if sign not in DIRECTIVES), None):
        raise ValueError(f"unknown directive '%{strange}' in '{text}': use %{', %'.join(DIRECTIVES)} or, after %S, .%f")
    if body[-1:] == "%" or "" in found or len(set(found)) != len(found):
        raise ValueError(f"'{text}' has a duplicate or incomplete directive: correct it")
    given = {f"%{sign}" for sign in found}
    if not given & {"%Y", "%y"} or not any(set(re.findall("%.", day)) <= given for day in DAYS):
        raise ValueError(f"'{text}' needs year, month and day, such as %d.%m.%Y")
    hours = given & {"%H", "%I"}
    if len(hours) == 2 or ("%I" in given) != ("%p" in given) or (given & {"%M", "%S"} and not hours):
        raise ValueError(f"'{text}' needs %H, or %I with %p, before minutes and seconds")
    if "%S" in given and "%M" not in given:
        raise ValueError(f"'{text}' has seconds without minutes: add %M")
    # The separator \x1f occurs in no text, so the digits of the ending cannot join digits of the text.
    ending = ("", "")
    if not hours:
        ending = ("\x1f%H:%M", "\x1f00:00")
    elif "%M" not in given:
        ending = ("\x1f%M", "\x1f00")
    return FRACTION.sub("%.f", text) + ending[0], ending[1]
