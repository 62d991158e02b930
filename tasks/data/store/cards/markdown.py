"""Write a dataset card as a Markdown page."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tasks.data.store.cards.pictures import pictures_of
from tasks.data.store.records import Card, FileCard, GapsCard, MappingCard

LEVELS = " ▁▂▃▄▅▆▇█"


def bars(values: Sequence[float], top: float | None = None) -> str:
    """Draw numbers as a line of bars. The greatest number, or `top`, has a full bar; zero is shown as '·'."""
    most = max(values, default=0) if top is None else top
    heights = [math.ceil(value / most * (len(LEVELS) - 1)) if most else 0 for value in values]
    return "".join(LEVELS[min(height, len(LEVELS) - 1)] if height else "·" for height in heights)


def card_markdown(card: Card) -> str:
    episodes, coverage = card.episodes, card.coverage
    lines = [
        f"# Dataset {card.dataset[:12]} of plant {card.plant}",
        "",
        f"{card.rows:,} rows in {episodes.count:,} episodes of {episodes.shortest} to {episodes.longest} "
        f"steps (median {episodes.median:g}); {episodes.terminated:,} terminated. Returns "
        f"{episodes.return_least:.4g} to {episodes.return_greatest:.4g}, mean {episodes.return_mean:.4g}.",
        "",
        "## What cannot be learned",
        "",
        *([f"- {sentence}" for sentence in card.cannot_learn] or ["The card found no limitation."]),
        "",
        "## Source",
        "",
    ]
    for source in card.source:
        lines.append(f"- format {source.format}" + _mapping_line(source.mapping))
        lines += [line for file in source.files for line in _file_lines(file)]
    lines += _quality([file for source in card.source for file in source.files])
    for picture in pictures_of(card):
        lines += ["", f"## {picture.title}", "", f"![{picture.title}]({picture.file})"]
    lines += ["", "## Limits", "", *_limits(card)]
    lines += ["", "## Signals", "", *_signals(card)]
    lines += [
        "",
        f"States and actions visit {coverage.cells:,} cells of a grid with {coverage.bins} bins per signal, "
        f"{coverage.rows_per_cell:.1f} rows each (counted over {coverage.rows_looked_at:,} rows).",
        "",
        "## Actions and logged controller",
        "",
        *_actions(card),
        "",
        "## Gaps",
        "",
        _gaps(card.gaps),
    ]
    return "\n".join(lines) + "\n"


def _mapping_line(mapping: MappingCard | None) -> str:
    if mapping is None:
        return ""
    how = "causal" if mapping.causal else "interpolated"
    return f", mapping {mapping.sha256[:12]}: {mapping.tags} tags every {mapping.period_s:g} s, {how}"


def _file_lines(file: FileCard) -> list[str]:
    late = file.raw.put_in_place if file.raw else 0
    placed = f"  - {late:,} late raw rows sorted into place"
    return [f"  - {file.sha256[:12]}", *(f"  - {line}" for line in file.account), *([placed] if late else [])]


def _quality(files: Sequence[FileCard]) -> list[str]:
    rows = [
        (f"{tag} ({file.sha256[:8]})" if len(files) > 1 else tag, *(f"{share:.2%}" for share in counts.shares()))
        for file in files
        for tag, counts in file.samples.items()
    ]
    return ["", "## Quality of the tags", "", *_table(("tag", "Good", "Uncertain", "Bad"), rows)] if rows else []


def _limits(card: Card) -> list[str]:
    return _table(
        ("limit", "from", "to", "violated rows", "share", "worst excess"),
        [
            (n, _edge(x.low, x.unit), _edge(x.high, x.unit), f"{x.violated_rows:,}",
             f"{x.violated_share:.3%}", f"{x.worst_excess:.4g} {x.unit}")
            for n, x in card.limits.items()
        ],
    )  # fmt: skip


def _signals(card: Card) -> list[str]:
    return _table(
        ("signal", "unit", "least", "mean", "greatest", "deviation", "range covered by the middle 90 %", "histogram"),
        [
            (n, x.unit, *(f"{value:.5g}" for value in (x.least, x.mean, x.greatest, x.deviation)),
             "no range given" if x.covered is None else f"{x.covered:.0%}", bars(x.histogram))
            for n in card.order
            for x in [card.signals[n]]
        ],
    )  # fmt: skip


def _actions(card: Card) -> list[str]:
    if card.choices:
        names = (name.removeprefix("action ") for name in card.order if name.startswith("action "))
        return _table(("choice", "share of rows"), [(name, f"{card.choices[name]:.2%}") for name in names])
    return _table(
        ("action", "deviation / range", "entropy, bits", "explained by the observation, R^2"),
        [
            (n, f"{x.deviation_share:.1%}", f"{x.entropy_bits:.2f} of {x.most_bits:.2f}",
             "constant" if x.explained is None else f"{x.explained:.4f}")
            for n in (name.removeprefix("action ") for name in card.order if name.startswith("action "))
            for x in [card.actions[n]]
        ],
    )  # fmt: skip


def _gaps(gaps: GapsCard) -> str:
    if not gaps.known:
        return "Unknown, because there are no timestamps."
    drawn = f"\n\nRows from first to last, in {len(gaps.present)} equal periods: {bars(gaps.present, 1.0)}"
    return f"{gaps.count:,} gaps between episodes, longest {gaps.longest_s:,.0f} s, total {gaps.total_s:,.0f} s." + (
        drawn if gaps.present else ""
    )


def _edge(bound: float | None, unit: str) -> str:
    return "" if bound is None else f"{bound:g} {unit}"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [" | ".join(head), " | ".join("---" for _ in head), *(" | ".join(row) for row in rows)]
    return [f"| {line.replace('||', '| |')} |" for line in lines]
