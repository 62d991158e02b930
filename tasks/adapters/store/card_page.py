"""A dataset's card for readers: Markdown made of its JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def card_markdown(card: Mapping[str, Any]) -> str:
    """The card for readers."""
    lines = [f"# Dataset {card['dataset'][:12]} of plant {card['plant']}", ""]
    episodes, gaps, coverage = card["episodes"], card["gaps"], card["coverage"]
    lines += [
        f"{card['rows']:,} rows in {episodes['count']:,} episodes of {episodes['shortest']} to {episodes['longest']} "
        f"steps (median {episodes['median']:g}); {episodes['terminated']:,} terminated. Returns "
        f"{episodes['return_least']:.4g} to {episodes['return_greatest']:.4g}, mean {episodes['return_mean']:.4g}.",
        "",
        "## What cannot be learned from it",
        "",
        *([f"- {sentence}" for sentence in card["cannot_learn"]] or ["Nothing that this card looks for."]),
        "",
        "## Source",
        "",
    ]
    for source in card["source"]:
        mapping = source["mapping"]
        lines.append(f"- format {source['format']}" + _mapping_line(mapping))
        for file in source["files"]:
            lines.append(
                f"  - {str(file['sha256'])[:12]}: {file['rows_seen']:,} rows seen, {file['rows_quarantined']:,} in "
                f"quarantine{_counts(file['reasons'])}"
            )
            if file["steps"]:
                lines.append(f"  - control steps: {_counts(file['steps']).removeprefix(': ')}")
            if file["raw"]:
                raw = file["raw"]
                lines.append(
                    f"  - {raw['rows']:,} raw rows, {raw['rejected']:,} rejected{_counts(raw['reasons'])}; "
                    f"{raw['put_in_place']:,} came late and were put in their place"
                )
    lines += ["", "## Limits", ""]
    lines += _table(
        ("limit", "from", "to", "violated rows", "share", "worst excess"),
        [
            (n, _edge(x["low"], x["unit"]), _edge(x["high"], x["unit"]), f"{x['violated_rows']:,}",
             f"{x['violated_share']:.3%}", f"{x['worst_excess']:.4g} {x['unit']}")
            for n, x in card["limits"].items()
        ],
    )  # fmt: skip
    lines += ["", "## Signals", ""]
    lines += _table(
        ("signal", "unit", "least", "mean", "greatest", "deviation", "range covered"),
        [
            (n, x["unit"], *(f"{x[key]:.5g}" for key in ("least", "mean", "greatest", "deviation")),
             f"{x['covered']:.0%}")
            for n, x in card["signals"].items()
        ],
    )  # fmt: skip
    lines += [
        "",
        f"States and actions visit {coverage['cells']:,} cells of a grid with {coverage['bins']} bins per signal, "
        f"{coverage['rows_per_cell']:.1f} rows each ({coverage['rows_looked_at']:,} rows looked at).",
        "",
        "## Actions and behaviour",
        "",
    ]
    lines += _table(
        ("action", "deviation / range", "entropy, bits", "explained by the observation, R^2"),
        [
            (n, f"{x['deviation_share']:.1%}", f"{x['entropy_bits']:.2f} of {x['most_bits']:.2f}",
             "constant" if x["explained"] is None else f"{x['explained']:.4f}")
            for n, x in card["actions"].items()
        ],
    )  # fmt: skip
    lines += ["", "## Gaps", ""]
    if gaps["known"]:
        lines.append(
            f"{gaps['count']:,} gaps between episodes, the longest of {gaps['longest_s']:,.0f} s, "
            f"{gaps['total_s']:,.0f} s in all."
        )
    else:
        lines.append("Unknown, for there are no timestamps.")
    return "\n".join(lines) + "\n"


def _mapping_line(mapping: Mapping[str, Any] | None) -> str:
    if mapping is None:
        return ""
    how = "causal" if mapping["causal"] else "interpolated"
    return f", mapping {mapping['sha256'][:12]}: {mapping['tags']} tags every {mapping['period_s']:g} s, {how}"


def _counts(counts: Mapping[str, int]) -> str:
    told = ", ".join(f"{key.replace('_', ' ')} ({n:,})" for key, n in counts.items() if n)
    return f": {told}" if told else ""


def _edge(bound: float | None, unit: str) -> str:
    return "" if bound is None else f"{bound:g} {unit}"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [" | ".join(head), " | ".join("---" for _ in head), *(" | ".join(row) for row in rows)]
    return [f"| {line.replace('||', '| |')} |" for line in lines]
