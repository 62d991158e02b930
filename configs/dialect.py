"""How a table is written: its delimiter, its numbers, its encoding, and its times; plain tables need none of it."""

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
"""What a time's format may hold, as Python's strptime writes it, besides the fraction of a second: chrono's word."""
DAYS = ("%j", "%m%d", "%b%d", "%B%d")
FRACTION = re.compile(r"(?<=%S)([.,])%f")

Encoding = Literal[
    "utf-8", "utf-16", "cp1250", "cp1251", "cp1252", "iso-8859-1", "iso-8859-15", "cp932", "gb18030", "euc-kr"
]


class Dialect(Strict):
    """How the text of a table is written, where it is not UTF-8 with commas, points, and names in its first row."""

    delimiter: str = ","
    """One character, or `whitespace`: any run of blanks and tabs."""
    decimal: Literal[".", ","] = "."
    encoding: Encoding = "utf-8"
    skip_rows: Annotated[int, Field(ge=0)] = 0
    """Lines before the names, or before the first values where there are no names."""
    header: bool = True
    """Whether the columns have names (the rows, of a transposed table). Otherwise they are `column_1`, `column_2`, …
    (or `row_1`, …)."""
    sheet: str | Count | None = None
    """Name or number of a workbook's sheet; its first one when not given."""

    @field_validator("delimiter")
    @classmethod
    def _one_sign(cls, given: str) -> str:
        sign = len(given) == 1 and given.isascii() and (given == "\t" or given.isprintable())
        if given == WHITESPACE or (sign and given not in "\"'.+-" and not given.isalnum()):
            return given
        raise ValueError(f"expected one sign such as ';' or \"\\t\", or 'whitespace', got {given!r}")


def chrono_format(text: str) -> tuple[str, str]:
    """A time's format as polars' parser wants it, and what is appended to every text so that it is complete.

    The parser wants minutes wherever there are hours, and hours wherever there are days.

    Args:
        text: such as `%d.%m.%y %H:%M:%S,%f`, by the directives of Python's strptime.

    Returns:
        (format, ending) of `text + ending`; a fraction is behind a point.

    Raises:
        ValueError: when a directive is unknown, comes twice, or a day, month or year is missing.

    Example:
        >>> chrono_format("%d/%m/%y %H")
        ('%d/%m/%y %H\\x1f%M', '\\x1f00')
    """
    body = FRACTION.sub("", text)
    found = re.findall(r"%(.?)", body)
    if strange := next((sign for sign in found if sign not in DIRECTIVES), None):
        raise ValueError(f"expected %{', %'.join(DIRECTIVES)} or, behind %S, .%f, got '%{strange}' in '{text}'")
    if body[-1:] == "%" or "" in found or len(set(found)) != len(found):
        raise ValueError(f"expected every directive once and whole, got '{text}'")
    given = {f"%{sign}" for sign in found}
    if not given & {"%Y", "%y"} or not any(set(re.findall("%.", day)) <= given for day in DAYS):
        raise ValueError(f"expected a year, a month and a day, such as %d.%m.%Y, got '{text}'")
    hours = given & {"%H", "%I"}
    if len(hours) == 2 or ("%I" in given) != ("%p" in given) or (given & {"%M", "%S"} and not hours):
        raise ValueError(f"expected %H, or %I with %p, before minutes and seconds, got '{text}'")
    if "%S" in given and "%M" not in given:
        raise ValueError(f"expected minutes where there are seconds, got '{text}'")
    # A separator that no text holds, lest the ending run into the digits before it.
    ending = ("", "")
    if not hours:
        ending = ("\x1f%H:%M", "\x1f00:00")
    elif "%M" not in given:
        ending = ("\x1f%M", "\x1f00")
    return FRACTION.sub("%.f", text) + ending[0], ending[1]
