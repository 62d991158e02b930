"""docs/studies/ope.md from the cells that are kept."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.ope_study import table as kept
from benchmarks.ope_study.table import BEHAVIOURS, DEVELOPMENT, OTHERS, by_plant, ordering, summary, supported

MOST_PLANTS = len(DEVELOPMENT + OTHERS) - 1
"""A bar is met that all plants but one meet."""


def cells(results: Sequence[Mapping[str, Any]]) -> str:
    """All cells as Markdown."""
    columns = ("supported", "clone", "coverage", "above", "width", "own width", "rank", "regret")
    lines = [
        "| plant | behaviour | policies | supported | the clone? | coverage | lower bound above truth | median width / "
        "spread | / spread of the supported | rank correlation | regret@1 / spread | core seconds |",
        "|---" * 12 + "|",
    ]
    for result in results:
        found = summary(result)
        cells = " | ".join(_cell(name, found.get(name)) for name in columns)
        seconds = f"{result['cpu_seconds']:.0f}"
        lines.append(f"| {result['plant']} | {result['behaviour']} | {found['policies']} | {cells} | {seconds} |")
    return "\n".join(lines)


def _cell(name: str, value: float | None) -> str:
    if value is None:
        return "–"
    return ("yes" if value else "no") if name == "clone" else f"{value:.2f}"


def bars(results: Sequence[Mapping[str, Any]]) -> str:
    """What was asked for beside what was found, as Markdown."""
    found = by_plant(results)

    def plants(name: str, met: Callable[[float], bool]) -> int:
        return sum(met(one[name]) for one in found.values())

    above = sum(one["above"] for one in found.values()) / max(sum(one["estimates"] for one in found.values()), 1)
    covering, enough = plants("coverage", lambda x: x >= 0.9), plants("supported", lambda x: x >= 0.4)
    clones, narrow = plants("clone", lambda x: x == 1), plants("width", lambda x: x <= 0.5)
    widths = np.concatenate([supported(result).width for result in results])
    overall = f", {np.median(widths):.2f} over all estimates" if len(widths) else ""
    every, many = len(DEVELOPMENT + OTHERS), f"of {len(found)} plants"
    lines = [
        ("intervals of 95 % cover at least 90 % on eight plants", covering >= MOST_PLANTS, f"{covering} {many}"),
        ("at most 5 % of lower bounds above the truth", above <= 0.05, f"{above:.1%}"),
        ("at least 40 % of policies supported on eight plants", enough >= MOST_PLANTS, f"{enough} {many}"),
        ("the clone of the behaviour always supported", clones == every, f"in all cells of {clones} {many}"),
        ("median width at most half the spread of true values", narrow == every, f"{narrow} {many}{overall}"),
    ]
    whole = len(results) == every * len(BEHAVIOURS)
    rows = "\n".join(
        f"| {asked} | {('yes' if met else 'no') if whole else 'open'} | {got} |" for asked, met, got in lines
    )
    each = "\n".join(
        f"| {plant} | {one['cells']:.0f} | {one['supported']:.2f} | {_cell('clone', one['clone'])} | "
        f"{one['coverage']:.2f} | {one['above']:.0f} of {one['estimates']:.0f} | {one['width']:.3f} |"
        for plant, one in found.items()
    )
    return (
        f"| asked | met? | found |\n|---|---|---|\n{rows}\n\n| plant | cells | supported | the clone? | coverage | "
        f"lower bounds above truth | median width / spread |\n{'|---' * 7}|\n{each}"
    )


def beside_peers(results: Sequence[Mapping[str, Any]]) -> str:
    """Our ordering and d3rlpy's of the same policies from the same held-out steps, as Markdown."""
    lines = [
        "| plant | behaviour | policies | rank correlation, ours | d3rlpy | regret@1 / spread, ours | d3rlpy |",
        "|---" * 7 + "|",
    ]
    for result in results:
        path = kept.RESULTS / "peers" / f"{result['plant']}-{result['behaviour']}.json"
        if not path.exists():
            continue
        rows, theirs = result["policies"], json.loads(path.read_text())["values"]
        for which in ("supported", "all"):
            at = [i for i, row in enumerate(rows) if row["value"] is not None and (which == "all" or row["supported"])]
            known = [rows[i] for i in at]
            ours, peer = (
                ordering([row["value"] for row in known], known, rows),
                ordering([theirs[i] for i in at], known, rows),
            )
            numbers = " | ".join(f"{one[name]:.2f}" for name in ("rank", "regret") for one in (ours, peer))
            lines.append(f"| {result['plant']} | {result['behaviour']} | {which} {len(at)} | {numbers} |")
    return "\n".join(lines) if len(lines) > 2 else "No cell was evaluated by d3rlpy."


def page() -> str:
    """docs/studies/ope.md from all cells that are kept."""
    results = [json.loads(path.read_text()) for path in sorted(kept.RESULTS.glob("*.json"))]
    missing = len(DEVELOPMENT + OTHERS) * len(BEHAVIOURS) - len(results)
    commits = {result["commit"][:12] for result in results if result["plant"] in OTHERS}
    frozen = f", at commit {', '.join(sorted(commits))}" if commits else ""
    return "\n".join(
        [
            "# Off-policy evaluation held against the truth",
            "",
            "Made by `make ope-study`. A cell is a plant and a behaviour: 50,000 generated rows, a fifth of them held "
            "out, policies of widely different worth (cloned, TD3+BC, IQL and `bptt` at the end of training and "
            "halfway, clones with noise on their weights), and their discounted returns by 256 rollouts each, which "
            f"nothing is estimated or chosen by. Developed on {', '.join(DEVELOPMENT)}. The estimator was changed "
            "after cells of the other plants had been seen; what stands here of them was run with seeds that "
            f"nothing was tried with{frozen}. {kept.SINCE}".rstrip(),
            "",
            bars(results) if results else "No cell is finished.",
            "",
            "## Cells",
            "",
            "Of the columns all but the first two are over the policies that the logs support; widths and regret are "
            "shares of the spread of the true values, which one bad policy may stretch: the column beside it has the "
            "spread of the supported policies alone. The interval is nominally of 95 %; a true value counts as "
            "covered within two of its standard errors. Policies and their true values are kept, so that a study of "
            "other estimators trains none: core seconds are of what was still to do.",
            "",
            cells(results) if results else "No cell is finished.",
            "",
            f"{missing} of {missing + len(results)} cells are not run yet." if missing else "All cells are run.",
            "",
            "## Beside d3rlpy",
            "",
            "d3rlpy's FQE on the same held-out steps, by benchmarks/peers/fqe_d3rlpy.py. It says of no policy that it "
            "cannot tell; both orders are of the supported policies, and of all that have numbers.",
            "",
            beside_peers(results),
            "",
        ]
    )
