"""What cells come to, where they are kept, and docs/federated-learning.md's table."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.fleet_study.cell import METHODS, WAYS

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "fleet"
PAGE = ROOT / "docs" / "federated-learning.md"
BEGIN, END = "<!-- fleet study: begin -->", "<!-- fleet study: end -->"
EPISODES = (2, 20, 200)
NEAR = 0.95
"""Share of the pooled score that the best federated method is to have."""

Cells = Mapping[tuple[str, int], Mapping[str, Any]]


def path_of(way: str, episodes: int) -> Path:
    """Where a cell is kept."""
    return RESULTS / f"{way}-{episodes}.json"


def kept() -> Cells:
    """All cells that have a result."""
    found = [json.loads(path.read_text()) for path in sorted(RESULTS.glob("*.json"))]
    return {(cell["way"], cell["episodes"]): cell for cell in found}


def missing(ways: Sequence[str], episodes: Sequence[int]) -> Iterator[tuple[str, int]]:
    """Cells that have no result yet, those of twenty episodes first."""
    for number in sorted(episodes, key=lambda n: (n != 20, -n)):
        yield from ((way, number) for way in ways if not path_of(way, number).exists())


def mean(cell: Mapping[str, Any], fleet: str) -> float:
    """Mean score over the sites of a fleet."""
    return float(np.mean(cell[fleet]["sites"]))


def table(cells: Cells) -> str:
    """All cells as Markdown: mean score over sites, that of the worst one, and the share of episodes beyond a limit."""
    lines = [
        "| way | episodes a site | score on its sites | worst site | beyond a limit | score on new sites | worst site "
        "| beyond a limit | core seconds |",
        "|---" * 9 + "|",
    ]
    for episodes in EPISODES:
        for way in WAYS:
            if (way, episodes) in cells:
                cell = cells[way, episodes]
                each = " | ".join(
                    f"{mean(cell, fleet):.1f} | {min(cell[fleet]['sites']):.1f} | {cell[fleet]['violated']:.1%}"
                    for fleet in ("learning", "unseen")
                )
                lines.append(f"| {way} | {episodes} | {each} | {cell['cpu_seconds']:.0f} |")
    return "\n".join(lines)


def bars(cells: Cells) -> str:
    """What was asked for beside what was found, as Markdown; each number is of one run, so none has an interval."""
    lines = ["| asked | met in this run | found |", "|---|---|---|"]
    for episodes in EPISODES:
        found = {way: mean(cells[way, episodes], "learning") for way in WAYS if (way, episodes) in cells}
        if episodes in EPISODES[1:]:
            best = max((found[name] for name in METHODS if name in found), default=None)
            asked = f"best federated at least 95 % of pooled, {episodes} episodes"
            lines.append(_bar(asked, best, found.get("pooled"), NEAR, all(way in found for way in METHODS)))
        asked = f"fine-tuned at least pooled, {episodes} episodes"
        lines.append(_bar(asked, found.get("fine-tuned"), found.get("pooled"), 1.0, True))
    return "\n".join(lines)


def _bar(asked: str, got: float | None, pooled: float | None, share: float, whole: bool) -> str:
    if got is None or pooled is None:
        return f"| {asked} | open | |"
    met = got >= share * pooled
    return f"| {asked} | {'yes' if met else 'no' if whole else 'open'} | {got:.1f} beside {pooled:.1f} |"


def made(cells: Cells) -> str:
    """How many runs the numbers are of, and where they were made; nothing where there is none."""
    if not cells:
        return ""
    seeds, commits = ({cell[name] for cell in cells.values()} for name in ("seed", "commit"))
    runs = "one run" if len(seeds) == 1 else f"{len(seeds)} runs"
    return (
        f"Every number is of {runs}: differences of a point or two may be chance. The best of the federated methods is "
        f"named by the scores that it is held to. Cells were run at {', '.join(sorted(each[:7] for each in commits))}."
    )


def written(text: str, cells: Cells) -> str:
    """The page with another table between its marks."""
    before, after = text.split(BEGIN)[0], text.split(END)[1]
    parts = [BEGIN, table(cells), bars(cells), made(cells), END]
    return before + "\n\n".join(part for part in parts if part) + after
