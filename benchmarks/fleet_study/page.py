"""Write docs/studies/fleet.md from the kept cells."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks import pages
from benchmarks.fleet_study.cell import FEDERATED, METHODS
from benchmarks.pages import ROOT, STUDIES, listed, wrap, yes

RESULTS = ROOT / "benchmarks" / "results" / "fleet"
PAGE = STUDIES / "fleet.md"
EPISODES = (2, 20, 200)
NEAR = 0.95
"""Share of the pooled score that the best federated method must reach."""

Cells = Mapping[tuple[str, int], Mapping[str, Any]]


def path_of(method: str, episodes: int) -> Any:
    """Return the file of a cell."""
    return RESULTS / f"{method}-{episodes}.json"


def kept() -> Cells:
    """Return all cells with a result."""
    cells = [json.loads(path.read_text()) for path in sorted(RESULTS.glob("*.json"))]
    return {(cell["way"], cell["episodes"]): cell for cell in cells}


def missing(methods: Sequence[str], episodes: Sequence[int]) -> Iterator[tuple[str, int]]:
    """Yield the cells without a result, those with twenty episodes first."""
    for number in sorted(episodes, key=lambda n: (n != 20, -n)):
        yield from ((method, number) for method in methods if not path_of(method, number).exists())


def mean(cell: Mapping[str, Any], fleet: str) -> float:
    """Return the mean score over the sites of a fleet."""
    return float(np.mean(cell[fleet]["sites"]))


def table(cells: Cells) -> str:
    """Return one row for each cell."""
    rows = []
    for episodes in EPISODES:
        for method in METHODS:
            if (method, episodes) in cells:
                cell = cells[method, episodes]
                scores = (
                    f"{number:.1f}"
                    for fleet in ("learning", "unseen")
                    for number in (mean(cell, fleet), min(cell[fleet]["sites"]))
                )
                rows.append((method, episodes, *scores, f"{cell['cpu_seconds']:.0f}"))
    head = ("method", "episodes per site", "training sites", "lowest", "new sites", "lowest", "CPU s")
    return pages.table(head, rows)


def criteria(cells: Cells) -> str:
    """Return the criteria that the study was planned with, and whether each is met."""
    rows = []
    for episodes in EPISODES:
        found = {method: mean(cells[method, episodes], "learning") for method in METHODS if (method, episodes) in cells}
        pooled = found.get("pooled")
        if episodes in EPISODES[1:]:
            best = max((found[name] for name in FEDERATED if name in found), default=None)
            criterion = f"best federated at least 95 % of pooled, {episodes} episodes"
            rows.append(_criterion(criterion, best, pooled, NEAR, all(method in found for method in FEDERATED)))
        criterion = f"fine-tuned at least pooled, {episodes} episodes"
        rows.append(_criterion(criterion, found.get("fine-tuned"), pooled, 1.0, True))
    return pages.table(("criterion", "met", "result"), rows)


def _criterion(text: str, got: float | None, pooled: float | None, share: float, whole: bool) -> tuple[str, str, str]:
    if got is None or pooled is None:
        return text, "open", ""
    met = got >= share * pooled
    return text, yes(met) if met or whole else "open", f"{got:.1f} and {pooled:.1f}"


def answer(cells: Cells) -> str:
    """Return the answer in two sentences."""

    def score(method: str, episodes: int) -> str:
        return f"{mean(cells[method, episodes], 'learning'):.1f}" if (method, episodes) in cells else "–"

    def best(episodes: int) -> str:
        known = [method for method in FEDERATED if (method, episodes) in cells]
        scores = [(mean(cells[method, episodes], "learning"), method) for method in known]
        return "{:.1f} ({})".format(*max(scores)) if scores else "–"

    return (
        f"With 20 logged episodes per site, the score is {score('local', 20)} if each site trains alone, {best(20)} "
        f"with the best federated method, {score('pooled', 20)} with one policy for all rows, and "
        f"{score('fine-tuned', 20)} if each site trains that policy further. With 2 episodes, training alone fails "
        f"({score('local', 2)}) and the best federated method scores {best(2)}."
    )


def page(cells: Cells) -> str:
    """Return the page."""
    seeds, commits = ({cell[name] for cell in cells.values()} for name in ("seed", "commit"))
    runs = "one run" if len(seeds) == 1 else f"{len(seeds)} runs"
    return pages.study(
        "Learning over similar sites",
        QUESTION,
        answer(cells),
        "`make fleet-study` takes an hour; started again, the command runs only the missing rows.",
        SETTING,
        METHODS_AND_COLUMNS,
        "Criteria for the scores on the training sites, set before the study:",
        criteria(cells),
        "All results:",
        table(cells),
        f"Every number is from {runs}, so differences of one or two points may be chance.",
        f"Commits: {listed(sorted(commit[:7] for commit in commits))}.",
    )


QUESTION = "How much do twenty similar plants gain if they train together, with and without sharing their rows?"
SETTING = wrap(
    """Twenty simulated reactors have a reaction rate k0 and a heat transfer UA within 3 % of the nominal values. Each
    site has 2, 20 or 200 logged episodes. TD3+BC makes 4,000 gradient steps. Methods and columns:"""
)
METHODS_AND_COLUMNS = """- *local*: every site trains alone; a new site uses the policy of a training site
- *pooled*: one policy trains on the rows of all sites in one place
- *fine-tuned*: each site trains the pooled policy further, for at most 30 passes over its rows and 1,000 steps
- *fedavg*, *fedprox*, *scaffold*, *fedora*: federated methods, in which sites share parameters instead of rows
- *training sites*, *new sites*: mean score on the twenty training sites and on twenty other sites
- *lowest*: score of the worst of these sites
- *CPU s*: CPU seconds for making the logs, training and scoring"""
