"""Guess the format of timestamps. If day and month cannot be distinguished, return all formats that fit."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

import polars as pl

from configs.errors import BadInput
from configs.mapping import Clock
from tasks.data.historian.timestamps import OFFSET, TimestampReader

SHAPE = re.compile(
    r"(?P<a>\d{1,4})(?P<sep>[-/. :])(?P<b>\d{1,2}|[A-Za-z]{3,9})(?P=sep)(?P<c>\d{4}|\d{2})"
    r"(?:(?P<gap>[T, :]+)(?P<hour>\d{1,2})(?P<minute>:\d{1,2})?(?P<second>:\d{1,2})?(?P<part>[.,]\d+)?"
    r"(?P<half> ?[AaPp][Mm])?)?"
    r"(?P<offset> ?(?:Z|[+-]\d{2}:?\d{2}))?"
)
TIME_NAME = re.compile(r"(time|date|stamp|datum|zeit|^ts$|^t$|utc)", re.IGNORECASE)
DIGITS = {14: "%Y%m%d%H%M%S", 12: "%Y%m%d%H%M", 8: "%Y%m%d"}
EPOCHS = (("s", 1e9), ("ms", 1e12), ("us", 1e15), ("ns", 1e18))
ORDERS = {"dmY": "day first", "mdY": "month first", "dmy": "day first", "mdy": "month first", "ymd": "year first"}


class TimeGuess(NamedTuple):
    reason: str
    format: str | None = None
    epoch: str | None = None
    choices: tuple[str, ...] = ()
    """Formats to choose from, if several fit equally well."""
    zoned: bool = False


def guess_times(texts: Sequence[str]) -> TimeGuess | None:
    """Guess the format of times; return None if the texts are not times.

    Raise BadInput if some dates fit only with the day first, and others only with the month first.

    Example:
        >>> guess_times(["06/01/14 00", "13/01/14 01", "14/01/14 02"]).format
        '%d/%m/%y %H'
    """
    if not texts:
        return None
    if all(re.fullmatch(r"\d+(\.\d*)?", text) for text in texts):
        return _numbers(texts)
    try:
        _, reasons = TimestampReader(Clock()).read(pl.Series(list(texts)), "the table")
        if reasons is None or (reasons != 0).mean() < 0.1:
            zoned = bool(pl.Series(list(texts)).str.strip_chars().str.contains(OFFSET).all())
            return TimeGuess("the year is first, which is unambiguous", zoned=zoned)
    except BadInput:
        pass
    shapes = [found for text in texts if (found := SHAPE.fullmatch(text))]
    if len(shapes) < 0.9 * len(texts):
        return None
    return _dates(shapes)


def _numbers(texts: Sequence[str]) -> TimeGuess | None:
    if texts[0][:2] in ("19", "20") and len(texts[0]) in DIGITS and len({len(text) for text in texts}) == 1:
        form = DIGITS[len(texts[0])]
        found = Clock(format=form)
        _, reasons = TimestampReader(found).read(pl.Series(list(texts)), "the table")
        if reasons is None:
            return TimeGuess(f"digits such as {texts[0]}, all of which are dates", format=form)
    for unit, least in EPOCHS:
        # From 2001 to 2096.
        if all(least <= float(text) < 4 * least for text in texts):
            return TimeGuess(f"numbers such as {texts[0]} are {unit} since 1970", epoch=unit)
    return None


def _dates(shapes: Sequence[re.Match[str]]) -> TimeGuess | None:
    one = max(shapes, key=lambda shape: sum(part is not None for part in shape.groups()))
    a, b, c = ([shape[key] for shape in shapes] for key in "abc")
    sep, clock = one["sep"], _clock(one)
    if b[0].isalpha():
        month = "%b" if all(len(text) == 3 for text in b) else "%B"
        year = "%Y" if len(c[0]) == 4 else "%y"
        return TimeGuess("the month is a word", format=f"%d{sep}{month}{sep}{year}{clock}")
    first, second, third = (set(map(int, part)) for part in (a, b, c))
    orders = ["dmY", "mdY"] if len(c[0]) == 4 else ["dmy", "mdy"]
    fits = {
        order: all(1 <= n <= 12 for n in (second if order[0] == "d" else first))
        and all(1 <= n <= 31 for n in (first if order[0] == "d" else second))
        for order in orders
    }
    possible = [order for order in orders if fits[order]]
    if (
        len(c[0]) == 2
        and min(len(text) for text in a) == 2
        and max(second) <= 12
        and 1 <= min(third) <= max(third) <= 31
    ):
        # Years change less often than days.
        if len(third) > len(first):
            possible = ["ymd"]
        elif len(third) == len(first):
            possible = [*possible, "ymd"]
    formats = tuple(sep.join(f"%{sign}" for sign in order) + clock for order in possible)
    if len(possible) == 1:
        known = {"d": f"the first number reaches {max(first)}", "m": f"the second number reaches {max(second)}"}
        why = known.get(possible[0][0], "the last number changes most often, as days do")
        return TimeGuess(f"{ORDERS[possible[0]]}: {why}", format=formats[0])
    if not possible:
        raise BadInput(
            f"dates such as '{one.string}' have no common order, because the first number reaches {max(first)} and the "
            f"second number reaches {max(second)}: write all dates in one order."
        )
    return TimeGuess(f"dates such as '{one.string}' fit several orders", choices=formats)


def _clock(shape: re.Match[str]) -> str:
    if shape["hour"] is None:
        return ""
    text = shape["gap"] + ("%I" if shape["half"] else "%H")
    text += (":%M" if shape["minute"] else "") + (":%S" if shape["second"] else "")
    if shape["part"]:
        text += shape["part"][0] + "%f"
    if shape["half"]:
        text += shape["half"].replace(shape["half"].strip(), "%p")
    return text + (" %z" if (shape["offset"] or "").startswith(" ") else "%z" if shape["offset"] else "")
