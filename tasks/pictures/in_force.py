"""Timeline of champions as one SVG without fonts or scripts, a lane per plant."""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import Literal, NamedTuple

from tasks.pictures.style import BLUE, GREY, INK, VERMILION

WIDTH, LEFT, RIGHT = 960.0, 168.0, 14.0
BAR, SHADOW, LANE, TOP = 24.0, 10.0, 58.0, 34.0
TINTS = (BLUE, "#3E8FC4")
"""Alternating colours of successive champions."""
OWN = "#7A8290"
LETTER = 6.6
DAY = timedelta(days=1)
HOURS = tuple(timedelta(hours=hours) for hours in (1, 2, 3, 6, 12))
STEPS = (*HOURS, DAY, 2 * DAY, 7 * DAY, 14 * DAY, 30 * DAY, 61 * DAY, 91 * DAY, 182 * DAY, 365 * DAY)
MOST_TICKS = 12


class Bar(NamedTuple):
    """A period of a champion or shadow, within the picture."""

    begin: datetime
    end: datetime
    label: str
    said: str
    kind: Literal["champion", "own", "shadow"]


class Mark(NamedTuple):
    """An event at one time, which the picture shows as a symbol."""

    at: datetime
    kind: Literal["withdrawal", "rejection", "refusal", "alarm"]
    said: str


class Lane(NamedTuple):
    """A plant with its periods and events."""

    name: str
    bars: tuple[Bar, ...]
    marks: tuple[Mark, ...]


SHAPES: dict[str, tuple[str, str]] = {
    "withdrawal": ("champion withdrawn", "M0 -6 L6 5 L-6 5 Z"),
    "rejection": ("candidate rejected", "M-5 -5 L5 5 M5 -5 L-5 5"),
    "refusal": ("run refused", "M-4 0 A4 4 0 1 0 4 0 A4 4 0 1 0 -4 0"),
    "alarm": ("drift alarm", "M0 -6 L6 0 L0 6 L-6 0 Z"),
}


def draw_in_force(lanes: Sequence[Lane], begin: datetime, end: datetime) -> str:
    """Draw the timeline of champions and shadows.

    Args:
        begin: left end of the time axis.
        end: right end, later than `begin`.

    Returns:
        An `svg` element without fonts, scripts or addresses.
    """
    height = TOP + LANE * len(lanes) + 34
    parts = list(_axis(begin, end, height - 30))
    for place, lane in enumerate(lanes):
        parts += _lane(lane, TOP + LANE * place, begin, end)
    parts += _legend(lanes, height - 8)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="Champions in force over time" '
        f'viewBox="0 0 {WIDTH:.0f} {height:.0f}" font-family="DejaVu Sans, Verdana, sans-serif">'
        f'<rect width="{WIDTH:.0f}" height="{height:.0f}" fill="#FFFFFF"/>{"".join(parts)}</svg>'
    )


def _x(moment: datetime, begin: datetime, end: datetime) -> float:
    share = (moment - begin) / (end - begin)
    return LEFT + (WIDTH - LEFT - RIGHT) * min(max(share, 0.0), 1.0)


def _axis(begin: datetime, end: datetime, bottom: float) -> Iterator[str]:
    """Yield lines for every few hours, days or months, with the time above."""
    step = next((each for each in STEPS if (end - begin) / each <= MOST_TICKS), STEPS[-1])
    form = "%d %b" if end - begin < timedelta(days=300) else "%b %Y"
    at = begin
    while at < end:
        x = _x(at, begin, end)
        yield f'<line x1="{x:.1f}" y1="{TOP - 10:.1f}" x2="{x:.1f}" y2="{bottom:.1f}" stroke="#E1E5EA"/>'
        if x < WIDTH - 8 * LETTER:
            said = at.strftime("%H:%M" if at.hour else form)
            yield _text(x + 2, TOP - 16, said, size=11, colour="#5B6570")
        at += step


def _lane(lane: Lane, top: float, begin: datetime, end: datetime) -> Iterator[str]:
    middle = top + 6 + BAR / 2
    yield _text(0, middle + 4, _short(lane.name.replace("_", " "), LEFT - 12), size=13)
    # Without a bar there is no champion.
    yield (
        f'<line x1="{LEFT}" y1="{middle:.1f}" x2="{WIDTH - RIGHT}" y2="{middle:.1f}" stroke="{GREY}" '
        'stroke-dasharray="2 4"/>'
    )
    champions = 0
    for bar in lane.bars:
        x = _x(bar.begin, begin, end)
        width = max(_x(bar.end, begin, end) - x, 1.5)
        if bar.kind == "shadow":
            style = f'fill="#FFFFFF" stroke="{BLUE}" stroke-dasharray="4 2"'
            y, tall, colour = top + 6 + BAR + 4, SHADOW, INK
        else:
            style = f'fill="{OWN if bar.kind == "own" else TINTS[champions % 2]}" stroke="#FFFFFF"'
            y, tall, colour = top + 6, BAR, "#FFFFFF"
            champions += 1
        yield (
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{tall:.1f}" rx="2" {style}>'
            f"<title>{html.escape(bar.said)}</title></rect>"
        )
        if label := _short(bar.label, width - 8):
            yield _text(x + 5, y + tall / 2 + 4, label, size=9 if bar.kind == "shadow" else 12, colour=colour)
    for mark in lane.marks:
        x = _x(mark.at, begin, end)
        yield (
            f'<path transform="translate({x:.1f} {top:.1f})" d="{SHAPES[mark.kind][1]}" fill="#FFFFFF" '
            f'stroke="{VERMILION}" stroke-width="1.8"><title>{html.escape(mark.said)}</title></path>'
        )


def _legend(lanes: Sequence[Lane], y: float) -> Iterator[str]:
    """Yield the legend for elements of the picture."""
    kinds = {bar.kind for lane in lanes for bar in lane.bars}
    x = LEFT
    for kind, words, style in (
        ("champion", "champion", f'fill="{BLUE}"'),
        ("own", "tuned controller as champion", f'fill="{OWN}"'),
        ("shadow", "in shadow", f'fill="#FFFFFF" stroke="{BLUE}" stroke-dasharray="4 2"'),
    ):
        if kind in kinds:
            yield f'<rect x="{x:.1f}" y="{y - 9:.1f}" width="18" height="10" {style}/>'
            yield _text(x + 23, y, words, size=11)
            x += 23 + LETTER * len(words) + 14
    marked = {mark.kind for lane in lanes for mark in lane.marks}
    for kind, (words, shape) in SHAPES.items():
        if kind in marked:
            yield (
                f'<path transform="translate({x + 6:.1f} {y - 4:.1f})" d="{shape}" fill="#FFFFFF" '
                f'stroke="{VERMILION}" stroke-width="1.8"/>'
            )
            yield _text(x + 16, y, words, size=11)
            x += 16 + LETTER * len(words) + 14
    yield _text(0, y, "dotted: no champion", size=11, colour="#5B6570")


def _short(words: str, width: float) -> str:
    """Cut a text to a width; empty if hardly anything fits."""
    room = int(width / LETTER)
    return words if len(words) <= room else f"{words[: room - 1]}…" if room >= 4 else ""


def _text(x: float, y: float, words: str, size: int, colour: str = INK) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" fill="{colour}">{html.escape(words)}</text>'
