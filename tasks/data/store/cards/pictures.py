"""Draw the SVG pictures of a dataset card: lost rows over time, responses to actions, and histograms."""

from __future__ import annotations

import html
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from tasks.data.store.records import Card, ResponseCard, SignalCard, TimelineCard

BLUE, INK, FAINT, NOTHING = "#0072B2", "#22262B", "#DDE3EA", "#E3E7EB"
LOST = ("#A1121B", "#D55E00", "#E69F00", "#CC79A7", "#56B4E9", "#8A8F98")
"""Colours of the reasons for lost rows, most frequent first; the last colour is for all other reasons."""
AFTER = ("#56B4E9", BLUE)
WIDTH = 860
MOST_HISTOGRAMS = 32


class Picture(NamedTuple):
    title: str
    file: str
    svg: str


def pictures_of(card: Card) -> list[Picture]:
    """Draw the pictures of a card; empty pictures are omitted."""
    drawn = (
        ("Used and lost rows over time", "timeline", _timeline(card.timeline)),
        ("Responses of signals to actions", "response", _responses(card.responses)),
        ("Histograms of signals", "histograms", _histograms(card)),
    )
    return [Picture(title, f"{card.dataset}-{name}.svg", svg) for title, name, svg in drawn if svg]


def _text(x: float, y: float, words: str, anchor: str = "start", size: int = 11, colour: str = INK) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" fill="{colour}">'
        f"{html.escape(words)}</text>"
    )


def _bar(x: float, y: float, width: float, height: float, colour: str, tooltip: str) -> str:
    return (
        f'<rect x="{x:.2f}" y="{y:.2f}" width="{width:.2f}" height="{height:.2f}" fill="{colour}">'
        f"<title>{html.escape(tooltip)}</title></rect>"
    )


def _line(x1: float, y1: float, x2: float, y2: float, colour: str = FAINT, width: float = 1.0) -> str:
    return f'<line x1="{x1:.2f}" y1="{y1:.2f}" x2="{x2:.2f}" y2="{y2:.2f}" stroke="{colour}" stroke-width="{width:g}"/>'


def _svg(height: float, parts: Sequence[str]) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" width="{WIDTH}" '
        f'height="{height:.0f}" font-family="DejaVu Sans, Verdana, sans-serif">'
        f'<rect width="{WIDTH}" height="{height:.0f}" fill="#FFFFFF"/>{"".join(parts)}</svg>\n'
    )


def _named(name: str, unit: str) -> str:
    return f"{name.replace('_', ' ')} [{unit}]" if unit not in ("", "1") else name.replace("_", " ")


LEFT, RIGHT, STRIP = 52.0, 12.0, 96.0


def _timeline(found: TimelineCard) -> str:
    across = WIDTH - LEFT - RIGHT
    wide = across / len(found.used) if found.used else 0.0
    if not wide or found.steps_per_period <= 0:
        return ""
    noun = "control steps" if found.by == "time" else "rows"
    parts, top = [_text(LEFT, 16, f"Share of {noun}", size=12)], 24.0
    parts.append(_bar(LEFT, top, across, STRIP, NOTHING, "no rows: a gap, or the plant was not running"))
    for period, share in enumerate(found.used):
        layers = [(share, BLUE, "used")]
        layers += [
            (counts[period] / found.steps_per_period, _colour(i, reason), f"lost, {reason}: {counts[period]:,}")
            for i, (reason, counts) in enumerate(found.lost.items())
        ]
        below = 0.0
        for part, colour, label in layers:
            shown = min(part, 1.0 - below)
            if shown > 0:
                where = top + STRIP * (1 - below - shown)
                # Keep a single lost row visible among thousands.
                tall = max(STRIP * shown, 1.5 if colour != BLUE else 0.0)
                words = f"{_when(found, period)}: {label if colour != BLUE else f'used {share:.1%}'}"
                parts.append(_bar(LEFT + wide * period, where, wide, tall, colour, words))
                below += shown
    parts += [_text(LEFT - 6, top + 9, "100 %", "end"), _text(LEFT - 6, top + STRIP, "0", "end")]
    bottom = top + STRIP
    if found.raw_lost:
        top = bottom + 44
        parts += [_text(LEFT, top - 8, "Raw rows lost in each period", size=12), *_raw(found, top, wide)]
        bottom = top + STRIP
    parts += _axis(found, bottom)
    return _svg(*_legend(found, bottom + 34, parts))


def _raw(found: TimelineCard, top: float, wide: float) -> list[str]:
    most = max(map(sum, zip(*found.raw_lost.values(), strict=True)))
    parts = [_line(LEFT, top + STRIP, WIDTH - RIGHT, top + STRIP)]
    for period in range(len(found.used)):
        below = 0.0
        for i, (reason, counts) in enumerate(found.raw_lost.items()):
            tall = STRIP * counts[period] / max(most, 1)
            if tall:
                tooltip = f"{_when(found, period)}: {reason}, {counts[period]:,} raw rows"
                where = top + STRIP - below - tall
                parts.append(_bar(LEFT + wide * period, where, wide, tall, _colour(i, reason), tooltip))
                below += tall
    return [*parts, _text(LEFT - 6, top + 9, f"{most:,}", "end"), _text(LEFT - 6, top + STRIP, "0", "end")]


def _colour(i: int, reason: str) -> str:
    return LOST[-1] if reason == "other reasons" else LOST[i % (len(LOST) - 1)]


def _when(found: TimelineCard, period: float, short: bool = False) -> str:
    at = found.first + (found.last - found.first) * period / max(len(found.used), 1)
    if found.by == "row":
        return f"{at:,.0f}" if short else f"from row {at:,.0f}"
    stamp = datetime.fromtimestamp(at / 1e9, UTC)
    return f"{stamp:%Y-%m-%d}" if short and found.last - found.first > 4 * 86_400e9 else f"{stamp:%Y-%m-%d %H:%M}"


def _axis(found: TimelineCard, bottom: float) -> list[str]:
    parts, across = [], WIDTH - LEFT - RIGHT
    for tick in range(5):
        x, anchor = LEFT + across * tick / 4, ("start", "middle", "middle", "middle", "end")[tick]
        parts.append(_line(x, bottom, x, bottom + 4, INK))
        parts.append(_text(x, bottom + 16, _when(found, len(found.used) * tick / 4, short=True), anchor))
    unit = "time, UTC" if found.by == "time" else "row number in the source"
    return [*parts, _text(WIDTH - RIGHT, bottom + 30, unit, "end")]


def _legend(found: TimelineCard, top: float, parts: list[str]) -> tuple[float, list[str]]:
    steps = "control steps" if found.by == "time" else "rows"
    rows = [(BLUE, "used")]
    if found.by == "time":
        rows.append((NOTHING, "no rows: a gap, or the plant was not running"))
    for kind, losses in ((steps, found.lost), ("raw rows", found.raw_lost)):
        rows += [
            (_colour(i, reason), f"{sum(counts):,} {kind} lost: {reason}")
            for i, (reason, counts) in enumerate(losses.items())
        ]
    if found.astray:
        rows.append(("none", f"{found.astray:,} lost rows have no time, or a time outside this picture"))
    for colour, words in rows:
        top += 17
        parts += [_bar(LEFT, top - 9, 12, 10, colour, words), _text(LEFT + 18, top, words)]
    return top + 12, parts


def _responses(found: Sequence[ResponseCard]) -> str:
    signals, actions = (list(dict.fromkeys(getattr(x, key) for x in found)) for key in ("signal", "action"))
    if not found:
        return ""
    wide, tall, head = (WIDTH - 8) / max(len(actions), 2), 136.0, 62.0
    steps = [change.steps for change in found[0].after]
    parts = [_text(10, 18, "Mean change of each signal by size of the action (ten groups of equal size)", size=12)]
    for i, count in enumerate(steps):
        x = 10.0 + 190 * i
        parts += [
            _line(x, 36, x + 18, 36, AFTER[i], 2.5),
            _text(x + 24, 40, f"after {count} control step{'s'[: count > 1]}"),
        ]
    parts.append(_text(10 + 190 * len(steps), 40, "bars: two standard errors", colour="#596673"))
    for response in found:
        x, y = 8 + wide * actions.index(response.action), head + tall * signals.index(response.signal)
        parts += _response(response, x, y, wide, tall)
    note = "Only the clearest responses are shown. They include the reactions of the logged controller."
    return _svg(
        head + tall * len(signals) + 22, [*parts, _text(10, head + tall * len(signals) + 12, note, colour="#596673")]
    )


def _response(found: ResponseCard, x: float, y: float, wide: float, tall: float) -> list[str]:
    left, right, top, bottom = x + 52, x + wide - 14, y + 28, y + tall - 30
    levels = [level for change in found.after for level in change.level]
    ends = [c + sign * e for a in found.after for c, e in zip(a.change, a.error, strict=True) for sign in (-1, 1)]
    least, most = min([*ends, 0.0]), max([*ends, 0.0])
    low, high = min(levels), max(levels)

    def at(level: float, change: float) -> tuple[float, float]:
        across, up = (level - low) / ((high - low) or 1.0), (change - least) / ((most - least) or 1.0)
        return left + across * (right - left), bottom - up * (bottom - top)

    parts = [_text(x + 6, y + 13, f"change of {_named(found.signal, found.unit)}")]
    parts += [_line(left, at(low, 0)[1], right, at(low, 0)[1], "#8A8F98"), _line(left, top, left, bottom)]
    for colour, change in zip(AFTER, found.after, strict=False):
        points = [at(level, value) for level, value in zip(change.level, change.change, strict=True)]
        for level, value, error in zip(change.level, change.change, change.error, strict=True):
            parts.append(_line(*at(level, value - error), *at(level, value + error), colour, 1.2))
        path = " ".join(f"{a:.1f},{b:.1f}" for a, b in points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
    parts += [_text(left - 5, at(low, value)[1] + 4, f"{value:.3g}", "end", 10) for value in {least, most, 0.0}]
    parts += [_text(left, bottom + 12, f"{low:.4g}", "start", 10), _text(right, bottom + 12, f"{high:.4g}", "end", 10)]
    return [
        *parts,
        _text((left + right) / 2, bottom + 24, f"action {_named(found.action, found.action_unit)}", "middle"),
    ]


def _histograms(card: Card) -> str:
    names = card.order[:MOST_HISTOGRAMS]
    wide, tall, columns = (WIDTH - 16) / 4, 104.0, 4
    parts = [
        _text(
            10, 18, "Rows in equal bins over each signal's range, or over the values seen if no range is given", size=12
        )
    ]
    for i, name in enumerate(names):
        parts += _histogram(name, card.signals[name], 8 + wide * (i % columns), 26 + tall * (i // columns), wide, tall)
    return _svg(34 + tall * -(-len(names) // columns), parts)


def _histogram(name: str, signal: SignalCard, x: float, y: float, wide: float, tall: float) -> list[str]:
    left, right, top, bottom = x + 6, x + wide - 14, y + 20, y + tall - 22
    most, each = max(signal.histogram, default=0), (right - left) / max(len(signal.histogram), 1)
    shown = _named(name.removeprefix("observation "), signal.unit)
    parts = [
        _text(left, y + 14, shown if len(shown) < 32 else f"{shown[:30]}…"),
        _line(left, bottom, right, bottom, INK),
    ]
    size = (signal.high - signal.low) / max(len(signal.histogram), 1)
    for i, count in enumerate(signal.histogram):
        height = (bottom - top) * count / max(most, 1)
        if count:
            tooltip = f"{signal.low + size * i:.4g} to {signal.low + size * (i + 1):.4g} {signal.unit}: {count:,} rows"
            parts.append(_bar(left + each * i, bottom - max(height, 1), each - 0.8, max(height, 1), BLUE, tooltip))
    ends = (
        _text(left, bottom + 13, f"{signal.low:.4g}", size=10),
        _text(right, bottom + 13, f"{signal.high:.4g}", "end", 10),
    )
    return [*parts, *ends]
